//! Paths with symbolic links in them, followed inside the image and nowhere else.

use crate::read::FileKind;
use crate::{Image, ImageError, Node};

/// Symbolic links followed on one path, as Linux does.
pub const MAX_LINKS: usize = 40;
/// Names that are still to be followed, with those of links put in; a target has at most 4095 bytes.
const MAX_NAMES: usize = 1 << 16;

impl Image {
    /// The inode at this path from the root, through symbolic links: an absolute target begins at the image's root, and
    /// `..` there stays there, so nothing leads out. At most [`MAX_LINKS`] are followed.
    pub fn resolve(&self, path: &[u8]) -> Result<Node, ImageError> {
        let mut todo: Vec<Vec<u8>> = names(path);
        let mut way = vec![self.root()?];
        let mut links = 0;
        while let Some(name) = todo.pop() {
            let Some(here) = way.last() else { break };
            if name == b".." {
                if way.len() > 1 {
                    way.pop();
                }
                continue;
            }
            let node = here.lookup(&name)?;
            if node.kind() != FileKind::Symlink {
                way.push(node);
                continue;
            }
            links += 1;
            let target = node.read_link()?;
            let more = names(&target);
            if links > MAX_LINKS || todo.len() + more.len() > MAX_NAMES {
                return Err(ImageError::TooManyLinks { path: path.to_vec() });
            }
            if target.first() == Some(&b'/') {
                way.truncate(1);
            }
            todo.extend(more);
        }
        match way.pop() {
            Some(node) => Ok(node),
            None => self.root(),
        }
    }
}

/// The names of a path, the first one last.
fn names(path: &[u8]) -> Vec<Vec<u8>> {
    let names = path.split(|&b| b == b'/').filter(|name| !name.is_empty() && *name != b".");
    names.rev().map(<[u8]>::to_vec).collect()
}
