//! The stores among the media: buckets of S3, and registries.
//!
//! A command reads their settings ([`store_settings`]), because only it has the user's environment and may run the user's
//! programs; the settings reach the server with its configuration.

use super::{Connector, TREE_CACHE_BYTES, opening};
use pagefold_backing::ByteSource;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::media::{Location, Secret};
use pagefold_image::verity::{Digest, Salt};
use pagefold_remote::oci::{self, OciImage, OciReference, Platform};
use pagefold_remote::s3::{self, S3Location};
use pagefold_remote::stores::{Store, StoreSettings};
use pagefold_remote::{Options, RemoteError, RemoteSource};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The images of registries by their names.
pub(super) type Resolved = HashMap<String, Arc<OciImage>>;

/// Reads the settings and credentials that these locations need, as a text for [`RemoteConfig`]; `None` if none is in a
/// store. May run the user's programs.
///
/// [`RemoteConfig`]: pagefold_control::media::RemoteConfig
pub fn store_settings<'a>(
    locations: impl Iterator<Item = &'a Location>,
    platform: Option<&str>,
) -> Result<Option<Secret>> {
    let names = locations.filter_map(|location| match location {
        Location::Url(name) => Store::of(name).map(|_| name.as_str()),
        Location::File(_) => None,
    });
    let names: Vec<_> = names.collect();
    let platform = platform.map(str::parse::<Platform>).transpose();
    let platform = platform.map_err(|e| CliError::usage(format!("--platform: {e}")))?;
    if names.is_empty() {
        return Ok(None);
    }
    let env = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let settings = StoreSettings::read(names, platform, &env);
    let settings = settings.map_err(|e| CliError::new(Exit::Unavailable, e.to_string()))?;
    Ok(Some(Secret(settings.to_text())))
}

/// The settings in a configuration.
pub(super) fn parse(text: Option<&Secret>) -> Result<StoreSettings> {
    match text.map(|Secret(text)| StoreSettings::from_text(text)) {
        None => Ok(StoreSettings::default()),
        Some(Some(settings)) => Ok(settings),
        Some(None) => Err(CliError::failed("the settings of stores cannot be read")),
    }
}

/// Whether a location is in a registry.
pub(super) fn is_in_registry(location: &Location) -> bool {
    matches!(location, Location::Url(name) if Store::of(name) == Some(Store::Oci))
}

impl Connector {
    /// Opens an object of a bucket.
    pub(super) fn open_s3(
        &self,
        location: &Location,
        name: &str,
        options: &Options,
    ) -> Result<std::result::Result<RemoteSource, RemoteError>> {
        let object = S3Location::parse(name).map_err(|e| CliError::usage(format!("'{location}': {e}")))?;
        let settings = self.stores.s3.as_ref();
        let settings = settings.ok_or_else(|| CliError::failed("the settings of S3 were not read"))?;
        Ok(s3::open(&object, settings, options))
    }

    /// The image of a registry. Its manifest is read once.
    pub(super) fn resolved(&mut self, location: &Location) -> Result<Arc<OciImage>> {
        let Location::Url(name) = location else { return Err(CliError::failed("a file was not opened")) };
        if let Some(image) = self.registries.get(name) {
            return Ok(image.clone());
        }
        let reference =
            OciReference::parse(name).map_err(|e| CliError::usage(format!("'{location}': {e}")))?;
        let login = self.stores.logins.get(&reference.registry);
        let platform = self.stores.platform.clone().unwrap_or_else(Platform::of_this_machine);
        let timeout = Duration::from_millis(self.config.timeout_ms);
        let image = oci::resolve(&reference, login, &platform, timeout).map_err(|e| opening(location, &e))?;
        let image = Arc::new(image);
        self.registries.insert(name.clone(), image.clone());
        Ok(image)
    }

    /// The digest and salt that the manifest of an image in a registry names. Without them, notes that nothing is verified.
    pub(super) fn verity_of_registry(&mut self, location: &Location) -> Result<Option<(Digest, Salt)>> {
        if !is_in_registry(location) {
            return Ok(None);
        }
        let image = self.resolved(location)?;
        let Some(tree) = &image.layer().tree else {
            self.notes.push(format!(
                "the contents of '{location}' are not verified, because its manifest has no digest of fs-verity with a \
                 Merkle tree; --digest verifies them"
            ));
            return Ok(None);
        };
        let wrong =
            |what: &str| CliError::new(Exit::Damaged, format!("'{location}': its annotation has {what}"));
        let digest = tree.digest.parse().map_err(|_| wrong("no digest of fs-verity"))?;
        let salt = tree.salt.parse().map_err(|_| wrong("no salt"))?;
        Ok(Some((digest, salt)))
    }

    /// Opens the Merkle tree in the manifest of an image in a registry.
    pub(super) fn open_tree_of_registry(&mut self, location: &Location) -> Result<Arc<dyn ByteSource>> {
        let image = self.resolved(location)?;
        let options = Options {
            timeout: Duration::from_millis(self.config.timeout_ms),
            cache_bytes: TREE_CACHE_BYTES,
            ahead_threads: 0,
            authorization: None,
            is_verified: true,
        };
        match image.open_tree(&options) {
            Some(opened) => self.opened(location, opened),
            None => {
                let what =
                    format!("the manifest of '{location}' has no Merkle tree; name one with --merkle-tree");
                Err(CliError::new(Exit::NotFound, what))
            }
        }
    }
}
