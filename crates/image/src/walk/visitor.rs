//! The interface between a walk and the tool that it serves.

use crate::{Finding, Nid, Node};
use std::ops::ControlFlow;

/// Whether a name is the first one of its inode that the walk meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link<'a> {
    /// The first name.
    First,
    /// A further name, with the path of the first one if the walk has room to remember it.
    Again(Option<&'a [u8]>),
}

/// A name of the tree and its inode.
#[derive(Debug, Clone, Copy)]
pub struct Visit<'a> {
    /// The path from the root of the image, `/` first.
    pub path: &'a [u8],
    /// The last part of the path; empty for the root. Never `.` or `..`, and without `/` and NUL.
    pub name: &'a [u8],
    /// Levels below the start of the walk.
    pub depth: usize,
    /// The inode.
    pub node: &'a Node,
    /// Whether this is the first name of the inode.
    pub link: Link<'a>,
}

/// Receives the entries of a walk. Returning [`ControlFlow::Break`] ends the whole walk.
pub trait Visitor {
    /// Returns whether to visit this path; called before its inode is read.
    fn wants(&mut self, path: &[u8]) -> bool {
        let _ = path;
        true
    }

    /// Visits a directory before its entries. If it returns false, the walk skips the entries and
    /// [`leave`](Self::leave). The default visits it as a [`file`](Self::file), and then its entries.
    fn enter(&mut self, visit: &Visit<'_>) -> ControlFlow<(), bool> {
        self.file(visit).map_continue(|()| true)
    }

    /// Visits the same directory after its entries; `directories` is the number of directories among them.
    fn leave(&mut self, visit: &Visit<'_>, directories: u64) -> ControlFlow<()> {
        let _ = (visit, directories);
        ControlFlow::Continue(())
    }

    /// Visits anything that is not a directory.
    fn file(&mut self, visit: &Visit<'_>) -> ControlFlow<()>;

    /// Visits a name whose inode cannot be read, before the [finding](Self::finding) that says why.
    fn unreadable(&mut self, nid: Nid, path: &[u8]) {
        let _ = (nid, path);
    }

    /// Records a fault of the image.
    fn finding(&mut self, finding: Finding);
}
