//! The directory that a tree is made from.

use crate::error::path_of;
use pagefold_sys::beneath::Folder;
use std::path::PathBuf;

/// The directory that a tree is made from.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) folder: Folder,
    /// For messages.
    pub(super) path: PathBuf,
}

impl Root {
    pub(super) fn shown(&self, path: &[u8]) -> PathBuf {
        // Joining an empty path would append a slash.
        if path.is_empty() { self.path.clone() } else { self.path.join(path_of(path)) }
    }
}
