//! Where trees come from.
//!
//! A source fills a [`Tree`](super::tree::Tree) with names and metadata, and with [`Content`](super::content::Content)
//! that is read later.
//!
//! | module | source |
//! |---|---|
//! | `directory` | a directory of a mounted file system |
//! | `tar` | a tar archive, which is a file and not compressed |

pub mod directory;
pub mod tar;

use super::tree::Tree;
use std::path::PathBuf;

/// A tree, and what was left out of it.
#[derive(Debug)]
pub struct Scanned {
    /// The tree.
    pub tree: Tree,
    /// Files and directories that could not be read, with the reason; only if that was asked for.
    pub unreadable: Vec<(PathBuf, String)>,
    /// Attributes whose kind the format does not have.
    pub dropped_xattrs: u64,
}

impl Scanned {
    /// Begins with a tree from which nothing was left out.
    pub(crate) fn new(tree: Tree) -> Self {
        Scanned { tree, unreadable: Vec::new(), dropped_xattrs: 0 }
    }
}
