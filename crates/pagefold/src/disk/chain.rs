//! The files of a chain: an incremental save, its parents, and the full save that it ends with.
//!
//! An incremental save names its parent, a file in its folder. This opens the files, and compares what their first and last
//! bytes, of fixed forms, say of each other. The reader of the pages verifies the rest.

use crate::image::open::path_failure;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_saved::{CHAIN_FILES_MAX, Ends, Parent, SavedError};
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Digits of an identity in a name.
const ID_DIGITS: usize = 32;

/// A file of a chain.
pub struct ChainFile {
    /// Its path.
    pub path: PathBuf,
    /// The open file, at its beginning.
    pub file: File,
    /// Its first and last bytes.
    pub ends: Ends,
}

/// Opens a saved disk that is a regular file, and its parents: the newest first.
pub fn open(path: &Path) -> Result<Vec<ChainFile>> {
    let newest = open_file(path)?;
    let mut files = vec![];
    if let Some(parent) = newest.ends.head.parent() {
        files = parents(path, newest.ends.head.len_bytes(), parent)?;
    }
    files.insert(0, newest);
    Ok(files)
}

/// Opens the parents of the incremental save at `path`, of a disk of this length: the first one is `parent`.
pub fn parents(path: &Path, len_bytes: u64, parent: &Parent) -> Result<Vec<ChainFile>> {
    let real = path.canonicalize().map_err(|e| path_failure(format!("reading '{}'", path.display()), &e))?;
    let folder = real.parent().unwrap_or(Path::new("/"));
    let mut files: Vec<ChainFile> = Vec::new();
    let mut next = Some(parent.clone());
    while let Some(parent) = next {
        let path = folder.join(&parent.name);
        let child = files.last().map_or(real.as_path(), |child| &child.path).display().to_string();
        let found = open_file(&path)
            .map_err(|e| CliError { message: format!("'{child}' needs the save before it: {e}"), ..e })?;
        let head = &found.ends.head;
        let is_parent = parent.is(head.id(), head.depth(), found.ends.totals.digest);
        if !is_parent || head.len_bytes() != len_bytes || files.len() + 1 >= CHAIN_FILES_MAX {
            let shown = path.display();
            let message = format!(
                "'{child}' needs the save before it, and '{shown}' is another one; find the file whose digest is {}",
                hex(&parent.digest)
            );
            return Err(CliError::new(Exit::Damaged, message));
        }
        next = head.parent().cloned();
        files.push(found);
    }
    Ok(files)
}

/// The second name that the file at `path` may have, and those of its parents, as far as these can be read.
pub fn former_names(path: &Path) -> Vec<PathBuf> {
    let mut names = Vec::new();
    let Ok(real) = path.canonicalize() else { return names };
    let mut next = open_file(&real).ok();
    if let (Some(newest), Some(name)) = (&next, real.file_name()) {
        let id = hex(&newest.ends.head.id());
        names.push(real.with_file_name(second_name(name, &id)));
    }
    while let Some(parent) = next.as_ref().and_then(|found| found.ends.head.parent()) {
        let parent = real.with_file_name(&parent.name);
        if names.len() > CHAIN_FILES_MAX || names.contains(&parent) {
            break;
        }
        next = open_file(&parent).ok();
        names.push(parent);
    }
    names
}

/// The second name of a file with this identity: FILE.ID.
pub fn second_name(name: &OsStr, id: &str) -> OsString {
    [name, OsStr::new("."), OsStr::new(id)].into_iter().collect()
}

fn open_file(path: &Path) -> Result<ChainFile> {
    let what = || format!("reading '{}'", path.display());
    // Opening a pipe does not wait for its writer.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let mut file = file.map_err(|e| path_failure(what(), &e))?;
    let metadata = file.metadata().map_err(|e| path_failure(what(), &e))?;
    if !metadata.is_file() {
        return Err(CliError::usage(format!("{}: it is not a file", what())));
    }
    let ends = Ends::read(&mut file).map_err(|e| failure(path, &e))?;
    std::io::Seek::rewind(&mut file).map_err(|e| path_failure(what(), &e))?;
    Ok(ChainFile { path: path.to_path_buf(), file, ends })
}

/// The error for a saved disk that cannot be read.
pub fn failure(path: &Path, e: &SavedError) -> CliError {
    let exit = match e {
        SavedError::Truncated { .. } | SavedError::Damaged { .. } => Exit::Damaged,
        SavedError::NotSaved => Exit::Usage,
        _ => Exit::Failed,
    };
    CliError::new(exit, format!("reading '{}': {e}", path.display()))
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether `found` is a second name of a save to a file of this name.
pub fn is_second_name(name: &OsStr, found: &OsStr) -> bool {
    let id = found.as_bytes().strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"."));
    id.is_some_and(|id| {
        id.len() == ID_DIGITS && id.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_with_an_identity_are_second_names() {
        let id = "0123456789abcdef0123456789abcdef";
        let is = |found: &str| is_second_name("work.saved".as_ref(), found.as_ref());
        assert!(is(&format!("work.saved.{id}")));
        for other in [id, "work.saved", "work.saved.", "work.saved.bak", &format!("work.saved{id}")] {
            assert!(!is(other), "{other}");
        }
        assert!(!is(&format!("work.saved.{id}0")) && !is(&format!("work.saved.{}", id.to_uppercase())));
        assert!(!is(&format!("other.saved.{id}")));
    }
}
