//! The whiteouts of a layer, in each form that they have, and the attributes of overlayfs.

use crate::source::whiteouts::{self, OPAQUE, WhiteoutName, of_overlay};
use crate::tree::{InodeId, Metadata, Tree, Xattr};
use crate::{BuildError, Result};

/// Attributes that overlayfs keeps for itself. Merged files do not need them.
const OWN: [&[u8]; 8] =
    [b"opaque", b"origin", b"impure", b"nlink", b"upper", b"uuid", b"protattr", b"whiteout"];
/// Attributes by which a file has its contents or names elsewhere.
const ELSEWHERE: [&[u8]; 2] = [b"redirect", b"metacopy"];

/// The meaning of an entry of a layer.
#[derive(Debug, PartialEq, Eq)]
pub enum Entry<'n> {
    /// A file of the layer.
    File,
    /// This name of the lower layers is removed.
    Whiteout(&'n [u8]),
    /// It belongs to the form of the layer, and is no file.
    Nothing,
}

impl<'n> Entry<'n> {
    /// Recognizes an entry.
    pub fn of(tree: &Tree, name: &'n [u8], id: InodeId) -> Result<Self> {
        match WhiteoutName::of(name) {
            Some(WhiteoutName::Of(of)) => return Ok(Entry::Whiteout(of)),
            Some(WhiteoutName::Opaque | WhiteoutName::Meta) => return Ok(Entry::Nothing),
            Some(WhiteoutName::Nothing) => return Err(BuildError::refused(name, "a whiteout of no name")),
            None => {}
        }
        let is_marked = whiteouts::is_marked(tree, id, |name| name == b"whiteout");
        Ok(if whiteouts::is_device(tree, id) || is_marked { Entry::Whiteout(name) } else { Entry::File })
    }
}

/// Whether a directory hides the names of lower layers.
pub fn is_opaque(tree: &Tree, directory: InodeId) -> bool {
    let is_opaque = |(name, value): &Xattr| of_overlay(name) == Some(b"opaque") && **value == *b"y";
    tree.child(directory, OPAQUE).is_some()
        || (tree.has_xattrs(directory) && tree.xattrs(directory).iter().any(is_opaque))
}

/// Removes the attributes of overlayfs. Fails if the layer does not have all of the file.
pub fn without_attributes(mut metadata: Metadata) -> Result<Metadata, String> {
    let elsewhere = metadata
        .xattrs
        .iter()
        .find(|(name, _)| of_overlay(name).is_some_and(|name| ELSEWHERE.contains(&name)));
    if let Some((name, _)) = elsewhere {
        return Err(format!(
            "its attribute '{}' says that a lower layer has its contents or names, which is not merged; write the layer \
             without redirect_dir and metacopy",
            name.escape_ascii()
        ));
    }
    metadata.xattrs.retain(|(name, _)| of_overlay(name).is_none_or(|name| !OWN.contains(&name)));
    Ok(metadata)
}
