//! [`Scanned`]: what a source returns.

use super::unreadable::Unreadable;
use crate::tree::Tree;
use std::ops::ControlFlow;

/// Called while a source is read, with the number of inodes so far.
pub type OnEntry<'a> = dyn FnMut(u64) -> ControlFlow<()> + 'a;

/// A tree, and what was left out of it.
#[derive(Debug)]
pub struct Scanned {
    /// The tree.
    pub tree: Tree,
    /// Files that were left out because they could not be read, and directories that stay empty because of that, with the
    /// reason; only if that was asked for.
    pub unreadable: Unreadable,
    /// Attributes whose kind the format does not have.
    pub dropped_xattrs: u64,
}

impl Scanned {
    /// Begins with a tree from which nothing was left out.
    pub(crate) fn new(tree: Tree) -> Self {
        Scanned { tree, unreadable: Unreadable::default(), dropped_xattrs: 0 }
    }
}
