//! [`Scanned`]: what a source returns.

use super::layers::Notes;
use super::nested::OverlayFound;
use super::unreadable::{Unreadable, UnreadableFile, UnreadableXattr};
use crate::Result;
use crate::tree::Tree;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Called while a source is read, with the number of inodes so far.
pub type OnEntry<'a> = dyn FnMut(u64) -> ControlFlow<()> + 'a;

/// A tree, and what was left out of it.
#[derive(Debug)]
pub struct Scanned {
    /// The tree.
    pub tree: Tree,
    /// Files that were left out because they could not be read, and directories that stay empty because of that, with the
    /// reason; only if that was asked for.
    pub unreadable: Unreadable<UnreadableFile>,
    /// Files that stay with zeroes in place of contents that could not be read; only if that was asked for.
    pub zero_filled: Unreadable<UnreadableFile>,
    /// Attributes that were left out because they could not be read.
    pub unreadable_xattrs: Unreadable<UnreadableXattr>,
    /// Attributes whose kind the format does not have.
    pub dropped_xattrs: u64,
    /// Labels of the host that were left out; only of directories.
    pub host_labels: u64,
    /// Whiteouts and attributes of overlayfs that the source has, before they were treated.
    pub overlay: OverlayFound,
    /// Sentences for the user about an unusual source, such as an archive without the mark of its end.
    pub notes: Vec<String>,
    /// Notes for the merge of layers, if the source is one.
    pub(super) layer_notes: Notes,
    /// Memory that the names and metadata of an archive were charged with, bytes.
    pub(super) metadata_bytes: u64,
    late: Option<Arc<dyn LateErrors>>,
}

/// A source that notes errors of reading contents while an image is built.
pub(super) trait LateErrors: std::fmt::Debug + Send + Sync {
    /// See [`Scanned::settle_read_errors`].
    fn settle(&self, scanned: &mut Scanned, is_built: bool) -> Result<bool>;
}

impl Scanned {
    /// Begins with a tree from which nothing was left out.
    pub(crate) fn new(tree: Tree) -> Self {
        Scanned {
            layer_notes: Notes::new(tree.spill()),
            metadata_bytes: 0,
            tree,
            unreadable: Unreadable::default(),
            zero_filled: Unreadable::default(),
            unreadable_xattrs: Unreadable::default(),
            dropped_xattrs: 0,
            host_labels: 0,
            overlay: OverlayFound::default(),
            notes: Vec::new(),
            late: None,
        }
    }

    /// Sets what notes errors after the scan.
    pub(super) fn set_late_errors(&mut self, late: Arc<dyn LateErrors>) {
        self.late = Some(late);
    }

    /// To be called after each build of the tree, with whether it succeeded; it may have failed because a file had zeroes only
    /// the second time that it was read ([`BuildError::Changed`](crate::BuildError::Changed)). Removes files from the tree
    /// whose contents could not be read, or lists them. Returns whether the image has to be built again.
    pub fn settle_read_errors(&mut self, is_built: bool) -> Result<bool> {
        match self.late.clone() {
            Some(late) => late.settle(self, is_built),
            None => Ok(false),
        }
    }
}
