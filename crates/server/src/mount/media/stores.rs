//! The stores among the media: buckets of S3, of Azure and of Google, and registries.
//!
//! A command reads their settings ([`store_settings`]), because only it has the user's environment and may run the user's
//! programs; the settings reach the server with its configuration ([`Stores`]).

use super::errors::opening;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::media::{Location, REGISTRY_TREE_SUFFIX, RemoteConfig, Secret};
use pagefold_image::verity::{Digest, Salt};
use pagefold_remote::environment::variable;
use pagefold_remote::oci::{self, OciImage, OciLayers, OciReference, Platform};
use pagefold_remote::stores::{self, ObjectName, Store, StoreSettings};
use pagefold_remote::{Options, RemoteError, RemoteSource};
use std::collections::HashMap;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

/// Reads the settings and credentials that these locations need, as a text for [`RemoteConfig`]; `None` if none is in a
/// store. May run the user's programs. `wants_archives`: of an index, an image whose layers are archives is chosen, unless the
/// platform names features. `note` gets sentences about logins that cannot be had.
pub fn store_settings<'a>(
    locations: impl Iterator<Item = &'a Location>,
    platform: Option<&str>,
    wants_archives: bool,
    note: impl FnMut(&str),
) -> Result<Option<Secret>> {
    let names = locations.filter_map(|location| match location {
        Location::Url(name) => Store::of(name).map(|_| name.as_str()),
        Location::File(_) => None,
    });
    let names: Vec<_> = names.collect();
    let mut settings = read_settings(&names, platform, note)?;
    if wants_archives {
        let platform = settings.platform.take().unwrap_or_else(Platform::of_this_machine);
        settings.platform = Some(platform.preferring_archives());
    }
    Ok((!names.is_empty()).then(|| Secret(settings.to_text())))
}

/// Reads the settings and credentials that these names in stores need. May run the user's programs.
pub(super) fn read_settings(
    names: &[&str],
    platform: Option<&str>,
    note: impl FnMut(&str),
) -> Result<StoreSettings> {
    let platform = platform.map(str::parse::<Platform>).transpose();
    let platform = platform.map_err(|e| CliError::usage(format!("--platform: {e}")))?;
    let mut notes = Vec::new();
    let settings = StoreSettings::read(names.iter().copied(), platform, &variable, &mut notes);
    notes.iter().map(String::as_str).for_each(note);
    settings.map_err(|e| CliError::new(Exit::Unavailable, e.to_string()))
}

/// Whether a location is that of an image in a registry.
pub fn is_in_registry(location: &Location) -> bool {
    matches!(location, Location::Url(name) if Store::of(name) == Some(Store::Oci))
}

/// The name of an object that was parsed, or a wrong use of the command line.
pub(super) fn named<N, E: Display>(location: &Location, parsed: std::result::Result<N, E>) -> Result<N> {
    parsed.map_err(|e| CliError::usage(format!("'{location}': {e}")))
}

/// Opens objects of stores.
pub(crate) struct Stores {
    settings: StoreSettings,
    timeout: Duration,
    /// Images in registries, by their names, whose manifests have been read.
    registries: HashMap<String, Arc<OciImage>>,
    /// Those that are read as their layers.
    layers: HashMap<String, Arc<OciLayers>>,
}

impl Stores {
    /// Reads the settings of stores in a configuration.
    pub(crate) fn new(config: &RemoteConfig) -> Result<Self> {
        let settings = match &config.stores {
            None => StoreSettings::default(),
            Some(Secret(text)) => StoreSettings::from_text(text)
                .ok_or_else(|| CliError::failed("the settings of stores cannot be read"))?,
        };
        let timeout = Duration::from_millis(config.timeout_ms);
        Ok(Stores { settings, timeout, registries: HashMap::new(), layers: HashMap::new() })
    }

    /// Opens an object of a bucket.
    pub(crate) fn open_object(
        &self,
        location: &Location,
        name: &str,
        options: &Options,
    ) -> Result<std::result::Result<RemoteSource, RemoteError>> {
        let object = named(location, ObjectName::parse(name))?;
        Ok(stores::open(&object, &self.settings, options))
    }

    /// Opens an image in a registry, or the Merkle tree in its manifest.
    pub(crate) fn open_oci(
        &mut self,
        location: &Location,
        name: &str,
        options: &Options,
    ) -> Result<std::result::Result<RemoteSource, RemoteError>> {
        let Some(image) = name.strip_suffix(REGISTRY_TREE_SUFFIX) else {
            return Ok(self.resolved(location, name)?.open(options));
        };
        let opened = self.resolved(location, image)?.open_tree(options);
        opened.ok_or_else(|| {
            let what = format!("the manifest of '{image}' has no Merkle tree; name one with --merkle-tree");
            CliError::new(Exit::Unavailable, what)
        })
    }

    /// The image of a registry. Its manifest is read once.
    fn resolved(&mut self, location: &Location, name: &str) -> Result<Arc<OciImage>> {
        if let Some(image) = self.registries.get(name) {
            return Ok(image.clone());
        }
        let reference = named(location, OciReference::parse(name))?;
        let login = self.settings.logins.get(&reference.repository());
        let image = oci::resolve(&reference, login, &self.platform(), self.timeout);
        let image = Arc::new(image.map_err(|e| opening(location, &e))?);
        self.registries.insert(name.to_string(), image.clone());
        Ok(image)
    }

    /// The layers of an image in a registry. Its manifest is read once.
    pub(crate) fn layers_of(&mut self, location: &Location, name: &str) -> Result<Arc<OciLayers>> {
        if let Some(image) = self.layers.get(name) {
            return Ok(image.clone());
        }
        let reference = named(location, OciReference::parse(name))?;
        let login = self.settings.logins.get(&reference.repository());
        let image = oci::resolve_layers(&reference, login, &self.platform(), self.timeout);
        let image = Arc::new(image.map_err(|e| opening(location, &e))?);
        self.layers.insert(name.to_string(), image.clone());
        Ok(image)
    }

    fn platform(&self) -> Platform {
        self.settings.platform.clone().unwrap_or_else(Platform::of_this_machine)
    }

    /// The digest and salt that the manifest of an image in a registry names; `None` for others. If it names none, adds a
    /// note that nothing is verified.
    pub(crate) fn verity_of(
        &mut self,
        location: &Location,
        notes: &mut Vec<String>,
    ) -> Result<Option<(Digest, Salt)>> {
        let name = match location {
            Location::Url(name) if Store::of(name) == Some(Store::Oci) => name,
            _ => return Ok(None),
        };
        let image = self.resolved(location, name)?;
        let Some(tree) = &image.layer().tree else {
            notes.push(match image.layer().lone_digest.is_some() {
                false => format!(
                    "the contents of '{location}' are not verified, because its manifest has no digest of fs-verity with \
                     a Merkle tree; --digest verifies them"
                ),
                true => format!(
                    "the contents of '{location}' are not verified, because its manifest has a digest of fs-verity and no \
                     Merkle tree: push the tree as a layer too, or pass both by --digest and --merkle-tree"
                ),
            });
            return Ok(None);
        };
        let wrong =
            |what: &str| CliError::new(Exit::Damaged, format!("'{location}': its annotation has {what}"));
        let digest = tree
            .digest
            .parse()
            .map_err(|_| wrong("no digest of fs-verity, which is sha256: and 64 hexadecimal digits"))?;
        let salt = tree.salt.parse().map_err(|_| wrong("no salt"))?;
        Ok(Some((digest, salt)))
    }
}
