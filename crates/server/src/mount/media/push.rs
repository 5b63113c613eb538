//! Publishes images in registries.

use super::errors::pushing;
use super::stores::{is_in_registry, named, read_settings};
use pagefold_control::error::{CliError, Result};
use pagefold_control::media::Location;
use pagefold_remote::oci::{self, ImageUpload, OciReference, Platform};
pub use pagefold_remote::oci::{Pushed, Upload};
use std::collections::BTreeMap;
use std::time::Duration;

/// An image to publish; see [`push`].
pub struct Publication {
    /// The image.
    pub image: Upload,
    /// Its digest of fs-verity and salt, as texts, and its Merkle tree.
    pub tree: Option<(String, String, Upload)>,
    /// A list of a start.
    pub list: Option<Upload>,
    /// The platform; `None` for that of this machine.
    pub platform: Option<String>,
    /// Annotations of the manifest.
    pub annotations: BTreeMap<String, String>,
}

/// Publishes an image by a tag, with the login that reading it uses. May run the user's programs. A request without contents
/// takes up to `timeout`. `note` gets sentences about logins that cannot be had.
pub fn push(
    target: &Location,
    publication: Publication,
    timeout: Duration,
    note: impl FnMut(&str),
) -> Result<Pushed> {
    let name = match target {
        Location::Url(name) if is_in_registry(target) => name,
        _ => {
            let what =
                format!("'{target}' is no name of an image in a registry, such as oci://registry/name:tag");
            return Err(CliError::usage(what));
        }
    };
    let Publication { image, tree, list, platform, annotations } = publication;
    let reference = named(target, OciReference::parse(name))?;
    let settings = read_settings(&[name.as_str()], platform.as_deref(), note)?;
    let platform = settings.platform.clone().unwrap_or_else(Platform::of_this_machine);
    let login = settings.logins.get(&reference.repository());
    let upload = ImageUpload { image, tree, list, platform, annotations };
    oci::push(&reference, login, upload, timeout).map_err(|e| pushing(target, &e))
}
