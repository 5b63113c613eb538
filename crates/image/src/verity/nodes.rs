//! A cache of verified blocks of a Merkle tree, of a fixed size.
//!
//! The slot of a block is its position in the tree modulo the number of slots, so there is nothing to search and nothing
//! to evict: a block takes the place of another one that has the same slot. A tree is read in order of its data, and
//! neighbours have different slots. Each slot has a separate lock, held for the copy of one pointer.

use super::BLOCK_BYTES;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The contents of a verified block.
pub(super) type Node = [u8; BLOCK_BYTES];

/// A block by its position in the tree.
type Slot = Option<(u64, Arc<Node>)>;

/// Verified blocks by their position in the tree.
pub(super) struct NodeCache {
    slots: Box<[Mutex<Slot>]>,
}

impl NodeCache {
    /// A cache of at most `max` blocks, and of no more than the tree has; of one at least.
    pub(super) fn new(tree_blocks: u64, max: usize) -> Self {
        let count = usize::try_from(tree_blocks).unwrap_or(max).min(max).max(1);
        NodeCache { slots: (0..count).map(|_| Mutex::default()).collect() }
    }

    fn slot(&self, position: u64) -> MutexGuard<'_, Slot> {
        let index = (position % self.slots.len() as u64) as usize;
        self.slots[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, position: u64) -> Option<Arc<Node>> {
        let slot = self.slot(position);
        slot.as_ref().filter(|(found, _)| *found == position).map(|(_, node)| node.clone())
    }

    pub(super) fn insert(&self, position: u64, node: Arc<Node>) {
        let replaced = self.slot(position).replace((position, node));
        // The lock is released before the memory is.
        drop(replaced);
    }
}
