//! The directory that a tree is made from.

use super::read_errors::{ReadErrors, Unreadables};
use crate::Result;
use crate::error::path_of;
use crate::source::scanned::LateErrors;
use crate::source::{Scanned, UnreadableFile};
use pagefold_sys::beneath::Folder;
use std::path::PathBuf;

/// The directory that a tree is made from.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) folder: Folder,
    /// For messages.
    pub(super) path: PathBuf,
    /// Contents that could not be read.
    pub(super) read_errors: ReadErrors,
}

impl Root {
    pub(super) fn shown(&self, path: &[u8]) -> PathBuf {
        // Joining an empty path would append a slash.
        if path.is_empty() { self.path.clone() } else { self.path.join(path_of(path)) }
    }
}

impl LateErrors for Root {
    fn settle(&self, scanned: &mut Scanned, is_built: bool) -> Result<bool> {
        let mut inodes = Vec::new();
        let mut noted = self.read_errors.noted();
        let mut is_new = false;
        for (path, errors) in noted.iter_mut().filter(|(_, errors)| !errors.is_settled) {
            (errors.is_settled, is_new) = (true, true);
            let file = |reason| UnreadableFile { path: self.shown(path), reason };
            match self.read_errors.treatment() {
                Unreadables::Zeroes => {
                    let bytes = errors.zero_bytes();
                    let reason = format!("{bytes} bytes are zeroes: {}", errors.reason);
                    scanned.zero_filled.add(file(reason));
                }
                Unreadables::LeaveOut | Unreadables::Fail => {
                    scanned.unreadable.add(file(errors.reason.clone()));
                    inodes.extend(scanned.tree.find(path));
                }
            }
        }
        drop(noted);
        scanned.tree.remove_inodes(&mut inodes)?;
        Ok(is_new && (!is_built || self.read_errors.treatment() != Unreadables::Zeroes))
    }
}
