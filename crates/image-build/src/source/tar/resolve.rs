//! Paths of members and of hard links through the symbolic links of the archive: as a process resolves them whose root
//! is that of the archive (chroot(2)), and as OCI layers mean them.
//!
//! An absolute target begins at the root, and `..` does not leave it. The last name of a path is not followed. Directories
//! that are missing, also below the target of a link, are those that the caller has to make: the file that a link of a
//! layer leads to may be in a lower layer.
//!
//! The work is bounded: a short path can lead through targets with thousands of names each, so their names are counted.

use super::fault::refused;
use crate::Result;
use crate::tree::{InodeId, Tree};
use pagefold_image::format::dirent::NAME_LEN_MAX;

/// Longest path, bytes, before and after its links are followed: Linux resolves no longer ones, so extraction of a member
/// would fail, and reading it in the image too.
pub const PATH_BYTES_MAX: usize = 4095;
/// Most links of one path, as Linux has it.
const LINKS_MAX: usize = 40;
/// Names of targets that all paths together may lead through: so many, and so many more for each path. An archive whose
/// every member is below a link needs the targets' few names for each.
const TARGET_NAMES: u64 = 1 << 22;
const TARGET_NAMES_OF_PATH: u64 = 64;

/// Resolves paths, and counts the work.
pub struct Resolver {
    /// Names of targets that may still be walked through.
    names_left: u64,
}

/// Where a path of directories leads.
#[derive(Debug)]
pub struct Resolved {
    /// The last directory that exists.
    pub directory: InodeId,
    /// The names below it that are missing, one below the other.
    pub missing: Vec<Vec<u8>>,
    /// Length of the path of all these, bytes, with a slash at its end; 0 for the root.
    pub path_bytes: usize,
}

impl Resolver {
    /// Begins with no work done.
    pub fn new() -> Self {
        Resolver { names_left: TARGET_NAMES }
    }

    /// Follows a path of directories from the root. Fails if a name in it is another type of file, if there are too many
    /// links, as in a loop, or if the path becomes too long.
    pub fn resolve(&mut self, tree: &Tree, path: &[&[u8]]) -> Result<Resolved> {
        self.names_left = self.names_left.saturating_add(TARGET_NAMES_OF_PATH);
        let mut at = Resolved { directory: InodeId::ROOT, missing: Vec::new(), path_bytes: 0 };
        // The next name is the last one.
        let mut names: Vec<&[u8]> = path.iter().rev().copied().collect();
        let mut links = 0;
        while let Some(name) = names.pop() {
            match name {
                b"" | b"." => continue,
                b".." => {
                    at.leave(tree);
                    continue;
                }
                _ => {}
            }
            let child = if at.missing.is_empty() { tree.child(at.directory, name) } else { None };
            let Some(child) = child else {
                at.missing.push(name.to_vec());
                at.lengthen(name)?;
                continue;
            };
            if tree.is_directory(child) {
                at.directory = child;
                at.lengthen(name)?;
                continue;
            }
            let Some(target) = tree.link_target(child) else {
                return Err(refused(format!("it is below '{}', no directory", at.shown(tree, name))));
            };
            links += 1;
            if links > LINKS_MAX {
                return Err(refused(format!(
                    "its path leads through more than {LINKS_MAX} symbolic links, or through a loop of them: the last \
                     one is '{}', a link to '{}'",
                    at.shown(tree, name),
                    String::from_utf8_lossy(target)
                )));
            }
            if target.starts_with(b"/") {
                at = Resolved { directory: InodeId::ROOT, missing: Vec::new(), path_bytes: 0 };
            }
            let before = names.len();
            names.extend(target.rsplit(|&byte| byte == b'/'));
            let left = self.names_left.checked_sub((names.len() - before) as u64);
            self.names_left = left.ok_or_else(|| {
                refused(format!(
                    "the symbolic links up to here lead through too many names: the last one is '{}'",
                    at.shown(tree, name)
                ))
            })?;
        }
        Ok(at)
    }
}

impl Resolved {
    /// Goes up by one directory, but not out of the root.
    fn leave(&mut self, tree: &Tree) {
        if let Some(name) = self.missing.pop() {
            self.path_bytes -= name.len() + 1;
        } else if let Some((parent, name)) = tree.parent(self.directory) {
            self.path_bytes -= name.len() + 1;
            self.directory = parent;
        }
    }

    fn lengthen(&mut self, name: &[u8]) -> Result<()> {
        self.path_bytes += name.len() + 1;
        match self.path_bytes <= PATH_BYTES_MAX {
            true => Ok(()),
            false => Err(refused("its symbolic links lead to a path of more than 4095 bytes")),
        }
    }

    /// The path of a name here, for messages.
    fn shown(&self, tree: &Tree, name: &[u8]) -> String {
        let directory = tree.directory_path(self.directory);
        let names = [directory.as_slice(), name];
        let names = &names[usize::from(directory.is_empty())..];
        String::from_utf8_lossy(&names.join(b"/".as_slice())).into_owned()
    }
}

/// Splits a path into names. A slash at the beginning is dropped, as programs that extract do. `..` takes back the name
/// before it, whatever that is: so do umoci and docker, while GNU tar follows a link there with `-P`, and refuses the
/// path without.
pub fn names(path: &[u8]) -> Result<Vec<&[u8]>> {
    let what = match path {
        b"" => "it has no name",
        path if path.contains(&0) => "a path with a NUL byte",
        path if path.len() > PATH_BYTES_MAX => "a path of more than 4095 bytes",
        path => return without_dots(path),
    };
    Err(refused(what))
}

fn without_dots(path: &[u8]) -> Result<Vec<&[u8]>> {
    let mut names = Vec::new();
    for name in path.split(|&byte| byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => _ = names.pop().ok_or_else(|| refused("a path that '..' leads out of the archive"))?,
            name if name.len() > NAME_LEN_MAX => return Err(refused("a name of more than 255 bytes")),
            name => names.push(name),
        }
    }
    Ok(names)
}
