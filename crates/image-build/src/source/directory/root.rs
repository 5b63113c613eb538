//! The directory that a tree is made from.

use super::read_errors::{ReadErrors, Unreadables};
use crate::Result;
use crate::error::path_of;
use crate::source::scanned::LateErrors;
use crate::source::{Scanned, UnreadableFile};
use pagefold_sys::SysError;
use pagefold_sys::beneath::Folder;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// The directory that a tree is made from.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) folder: Folder,
    /// For messages.
    pub(super) path: PathBuf,
    /// Contents that could not be read.
    pub(super) read_errors: ReadErrors,
    /// The directory that was opened last, with its path: the next file is likely to be in it.
    pub(super) last_opened: Mutex<Option<(Box<[u8]>, Folder)>>,
}

impl Root {
    /// Opens a file for reading, never through a symbolic link.
    pub(super) fn open(&self, path: &[u8]) -> std::result::Result<File, SysError> {
        let Some(cut) = path.iter().rposition(|&byte| byte == b'/') else {
            return self.folder.open_source(path);
        };
        let (parent, name) = (&path[..cut], &path[cut + 1..]);
        let mut last = self.last_opened.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((opened, folder)) if **opened == *parent => folder.open_source(name),
            _ => {
                let folder = self.folder.open_folder(parent)?;
                let file = folder.open_source(name);
                *last = Some((parent.into(), folder));
                file
            }
        }
    }

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
