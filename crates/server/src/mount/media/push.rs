//! Publishes images in registries.

use super::errors::pushing;
use super::stores::{is_in_registry, named, read_settings};
use pagefold_control::error::{CliError, Result};
use pagefold_control::media::Location;
use pagefold_remote::oci::{self, ImageUpload, Login, OciReference, Platform};
pub use pagefold_remote::oci::{Pushed, Upload};
use std::collections::BTreeMap;
use std::time::Duration;

/// Where an image is published.
pub struct Destination {
    target: Location,
    reference: OciReference,
    login: Option<Login>,
    platform: Platform,
}

/// An image to publish; see [`Destination::push`].
pub struct Publication {
    /// The image.
    pub image: Upload,
    /// Its digest of fs-verity and salt, as texts, and its Merkle tree.
    pub tree: Option<(String, String, Upload)>,
    /// A list of a start.
    pub list: Option<Upload>,
    /// Annotations of the manifest.
    pub annotations: BTreeMap<String, String>,
}

impl Destination {
    /// A tag, with the login that reading it uses, and the platform of the image; `None` for that of this machine. Asks no
    /// registry. May run the user's programs. `note` gets sentences about logins that cannot be had.
    pub fn of(target: &Location, platform: Option<&str>, note: impl FnMut(&str)) -> Result<Self> {
        let name = match target {
            Location::Url(name) if is_in_registry(target) => name,
            _ => {
                let what = format!(
                    "'{target}' is no name of an image in a registry, such as oci://registry/name:tag"
                );
                return Err(CliError::usage(what));
            }
        };
        let reference = named(target, OciReference::parse(name))?;
        oci::check_target(&reference).map_err(|e| pushing(target, &e))?;
        let mut settings = read_settings(&[name.as_str()], platform, note)?;
        let platform = settings.platform.take().unwrap_or_else(Platform::of_this_machine);
        let login = settings.logins.get(&reference.repository()).cloned();
        Ok(Destination { target: target.clone(), reference, login, platform })
    }

    /// Publishes an image. A request without contents takes up to `timeout`.
    pub fn push(self, publication: Publication, timeout: Duration) -> Result<Pushed> {
        let Destination { target, reference, login, platform } = self;
        let Publication { image, tree, list, annotations } = publication;
        let upload = ImageUpload { image, tree, list, platform, annotations };
        oci::push(&reference, login.as_ref(), upload, timeout).map_err(|e| pushing(&target, &e))
    }
}
