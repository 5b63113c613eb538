//! Paths with symbolic links in them, followed inside the image and nowhere else.

use crate::read::FileKind;
use crate::{Image, ImageError, Node};

/// Symbolic links followed on one path, as Linux does.
pub const MAX_LINKS: usize = 40;
/// Names that are still to be followed, with those of links put in; a target has at most 4095 bytes.
const MAX_NAMES: usize = 1 << 16;

/// An inode, and its path without links.
#[derive(Debug, Clone)]
pub struct Located {
    /// From the root, `/` first: each name of it is a directory, but perhaps the last.
    pub path: Vec<u8>,
    /// The inode.
    pub node: Node,
}

impl Image {
    /// The inode at this path from the root, through symbolic links: an absolute target begins at the image's root, and
    /// `..` there stays there, so nothing leads out. At most [`MAX_LINKS`] are followed.
    pub fn resolve(&self, path: &[u8]) -> Result<Node, ImageError> {
        self.follow(path, true).map(|located| located.node)
    }

    /// The same, but a symbolic link at the end is left alone, unless a slash is behind it.
    pub fn locate(&self, path: &[u8]) -> Result<Located, ImageError> {
        self.follow(path, path.ends_with(b"/"))
    }

    /// Where these are, each as by [`Image::locate`].
    pub(crate) fn locate_all(&self, paths: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, ImageError> {
        paths.iter().map(|path| self.locate(path).map(|located| located.path)).collect()
    }

    fn follow(&self, path: &[u8], follows_last: bool) -> Result<Located, ImageError> {
        let root = self.root()?;
        let mut todo: Vec<Vec<u8>> = names(path);
        let mut way: Vec<(Vec<u8>, Node)> = Vec::new();
        let mut links = 0;
        while let Some(name) = todo.pop() {
            if name == b".." {
                way.pop();
                continue;
            }
            let here = way.last().map_or(&root, |(_, node)| node);
            let node = here.lookup(&name).map_err(|error| match error {
                ImageError::NotFound { .. } => ImageError::NotFound { name: path.to_vec() },
                ImageError::NotADirectory { .. } => ImageError::NoWay { path: joined(&way) },
                other => other,
            })?;
            if node.kind() != FileKind::Symlink || (todo.is_empty() && !follows_last) {
                way.push((name, node));
                continue;
            }
            links += 1;
            let target = node.read_link()?;
            let more = names(&target);
            if links > MAX_LINKS || todo.len() + more.len() > MAX_NAMES {
                return Err(ImageError::TooManyLinks { path: path.to_vec() });
            }
            if target.first() == Some(&b'/') {
                way.clear();
            }
            todo.extend(more);
        }
        Ok(Located { path: joined(&way), node: way.pop().map_or(root, |(_, node)| node) })
    }
}

/// The path of the last of these; `/` for none.
fn joined(way: &[(Vec<u8>, Node)]) -> Vec<u8> {
    match way {
        [] => b"/".to_vec(),
        _ => way.iter().flat_map(|(name, _)| [b"/", name.as_slice()].concat()).collect(),
    }
}

/// The names of a path, the first one last.
fn names(path: &[u8]) -> Vec<Vec<u8>> {
    let names = path.split(|&b| b == b'/').filter(|name| !name.is_empty() && *name != b".");
    names.rev().map(<[u8]>::to_vec).collect()
}
