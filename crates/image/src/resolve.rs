//! Resolution of paths through symbolic links, which never leaves the image.

use crate::read::FileKind;
use crate::{Image, ImageError, Node, Result};

/// Symbolic links followed per path at most; the limit of Linux.
pub const MAX_LINKS: usize = 40;
/// Names in the list of remaining ones at most, those of link targets included; a target has at most 4095 bytes.
const MAX_NAMES: usize = 1 << 16;

/// An inode and its path without symbolic links.
#[derive(Debug, Clone)]
pub struct Located {
    /// The absolute path, beginning with `/`. Each name but the last is a directory.
    pub path: Vec<u8>,
    /// The inode.
    pub node: Node,
}

impl Image {
    /// Finds the inode at this path from the root, through symbolic links. An absolute target begins at the image's
    /// root, whose `..` is the root itself, so no path leads out of the image. At most [`MAX_LINKS`] links are
    /// followed.
    pub fn resolve(&self, path: &[u8]) -> Result<Node> {
        self.follow(path, true).map(|located| located.node)
    }

    /// As [`Image::resolve`], but a symbolic link at the end is followed only if a slash is after it.
    pub fn locate(&self, path: &[u8]) -> Result<Located> {
        self.follow(path, path.ends_with(b"/"))
    }

    /// Returns the path of each of these without links, as by [`Image::locate`].
    pub(crate) fn locate_all(&self, paths: &[Vec<u8>]) -> Result<Vec<Vec<u8>>> {
        paths.iter().map(|path| self.locate(path).map(|located| located.path)).collect()
    }

    fn follow(&self, path: &[u8], follows_last: bool) -> Result<Located> {
        let root = self.root()?;
        let mut remaining: Vec<Vec<u8>> = names(path);
        let mut parents: Vec<(Vec<u8>, Node)> = Vec::new();
        let mut links = 0;
        while let Some(name) = remaining.pop() {
            if name == b".." {
                parents.pop();
                continue;
            }
            let here = parents.last().map_or(&root, |(_, node)| node);
            let node = here.lookup(&name).map_err(|error| match error {
                ImageError::NotFound { .. } => ImageError::NotFound { name: path.to_vec() },
                ImageError::NotADirectory { .. } => ImageError::ParentNotDirectory { path: join(&parents) },
                other => other,
            })?;
            if node.kind() != FileKind::Symlink || (remaining.is_empty() && !follows_last) {
                parents.push((name, node));
                continue;
            }
            links += 1;
            let target = node.read_link()?;
            let inserted = names(&target);
            if links > MAX_LINKS || remaining.len() + inserted.len() > MAX_NAMES {
                return Err(ImageError::TooManyLinks { path: path.to_vec() });
            }
            if target.first() == Some(&b'/') {
                parents.clear();
            }
            remaining.extend(inserted);
        }
        Ok(Located { path: join(&parents), node: parents.pop().map_or(root, |(_, node)| node) })
    }
}

/// Joins names into an absolute path; `/` for none.
fn join(parents: &[(Vec<u8>, Node)]) -> Vec<u8> {
    match parents {
        [] => b"/".to_vec(),
        _ => parents.iter().flat_map(|(name, _)| [b"/", name.as_slice()].concat()).collect(),
    }
}

/// Splits a path into its names, in reverse order.
fn names(path: &[u8]) -> Vec<Vec<u8>> {
    let names = path.split(|&b| b == b'/').filter(|name| !name.is_empty() && *name != b".");
    names.rev().map(<[u8]>::to_vec).collect()
}
