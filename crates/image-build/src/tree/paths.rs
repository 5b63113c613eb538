//! Paths in a tree, and the names that patterns leave out.

use super::{Body, InodeId, Metadata, Name, Tree};
use crate::content::Bytes;
use crate::rules::Pattern;
use crate::table::Table;
use crate::{BuildError, Result};
use std::sync::Arc;

impl Tree {
    /// Returns the path of the entry `name` of a directory, without a slash at the beginning; that of the root is empty.
    pub(crate) fn path(&self, parent: InodeId, name: Name) -> Vec<u8> {
        let mut names = vec![self.name(name)];
        let mut at = parent;
        while at != InodeId::ROOT {
            let directory = self.record(at);
            names.push(self.name(directory.name));
            at = directory.parent;
        }
        names.reverse();
        names.join(b"/".as_slice())
    }

    /// Returns the path of a directory, as [`path`](Self::path) does.
    pub(crate) fn directory_path(&self, id: InodeId) -> Vec<u8> {
        match id {
            InodeId::ROOT => Vec::new(),
            id => self.path(self.record(id).parent, self.record(id).name),
        }
    }

    /// Returns the parent of a directory and its name there; `None` for the root.
    pub(crate) fn parent(&self, id: InodeId) -> Option<(InodeId, &[u8])> {
        let record = (id != InodeId::ROOT).then(|| self.record(id))?;
        Some((record.parent, self.name(record.name)))
    }

    /// Returns a path of an inode, for messages: the whole tree is searched. Empty: it has no name, or is the root.
    pub(crate) fn path_of(&self, id: InodeId) -> Vec<u8> {
        let mut stack = vec![InodeId::ROOT];
        while let Some(directory) = stack.pop() {
            let mut entries = self.entries(directory);
            while let Some((name, child)) = entries.next_entry() {
                match child == id {
                    true => return self.path(directory, name),
                    false if self.is_directory(child) => stack.push(child),
                    false => {}
                }
            }
        }
        Vec::new()
    }

    /// Removes the names that match a pattern, with all below them.
    pub fn exclude(&mut self, patterns: &[Pattern]) -> Result<()> {
        if patterns.is_empty() {
            return Ok(());
        }
        let mut stack = Table::new(self.spill());
        stack.push(InodeId::ROOT)?;
        while let Some(id) = stack.pop() {
            let path = self.directory_path(id);
            let mut excluded = Table::new(self.spill());
            let mut entries = self.entries(id);
            while let Some((name, child)) = entries.next_entry() {
                match Pattern::any_matches(patterns, &join(&path, self.name(name))) {
                    true => {
                        excluded.push(name)?;
                    }
                    false if self.is_directory(child) => {
                        stack.push(child)?;
                    }
                    false => {}
                }
            }
            for name in excluded.iter() {
                let name = self.name(name).to_vec();
                self.remove(id, &name);
            }
        }
        Ok(())
    }

    /// Removes all names of these inodes, which are no directories.
    pub(crate) fn remove_inodes(&mut self, inodes: &mut [InodeId]) -> Result<()> {
        inodes.sort_unstable();
        let mut stack = Table::new(self.spill());
        if !inodes.is_empty() {
            stack.push(InodeId::ROOT)?;
        }
        while let Some(id) = stack.pop() {
            let mut removed = Vec::new();
            let mut entries = self.entries(id);
            while let Some((name, child)) = entries.next_entry() {
                match self.is_directory(child) {
                    true => _ = stack.push(child)?,
                    false if inodes.binary_search(&child).is_ok() => removed.push(self.name(name).to_vec()),
                    false => {}
                }
            }
            for name in removed {
                self.remove(id, &name);
            }
        }
        Ok(())
    }

    /// Returns the directory at `path`, and makes the directories that are missing with this metadata. A name that
    /// another type of file has is an error. Empty names and `.` are passed over; `..` is refused.
    pub fn make_directories(&mut self, path: &[u8], metadata: &Metadata) -> Result<InodeId> {
        let mut id = InodeId::ROOT;
        for name in names(path) {
            id = match self.child(id, name) {
                Some(child) if self.is_directory(child) => child,
                Some(_) => return Err(BuildError::refused(path, "a name in its path is no directory")),
                None => self.add(id, name, metadata.clone(), Body::Directory)?,
            };
        }
        Ok(id)
    }

    /// Returns the inode at `path`. Symbolic links are not followed.
    pub fn find(&self, path: &[u8]) -> Option<InodeId> {
        names(path).try_fold(InodeId::ROOT, |id, name| self.child(id, name))
    }

    /// Adds a regular file at `path`, from memory, and the directories that are missing.
    pub fn add_bytes(&mut self, path: &[u8], contents: impl Into<Arc<[u8]>>) -> Result<InodeId> {
        let (parent, name) = split(path)?;
        let parent = self.make_directories(parent, &Metadata::default())?;
        let metadata = Metadata { permissions: 0o644, ..Metadata::default() };
        self.add(parent, name, metadata, Body::Regular(Arc::new(Bytes(contents.into()))))
    }
}

fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let slash = if directory.is_empty() { b"".as_slice() } else { b"/" };
    [directory, slash, name].concat()
}

/// Splits a path into its directory and its last name.
pub fn split(path: &[u8]) -> Result<(&[u8], &[u8])> {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    let trimmed = &path[..end];
    let cut = trimmed.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    match &trimmed[cut..] {
        b"" | b"." => Err(BuildError::refused(path, "it has no name")),
        name => Ok((&trimmed[..cut], name)),
    }
}

/// The names of a path; `.` and empty ones are left out.
fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".")
}
