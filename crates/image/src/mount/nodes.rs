//! A direct-mapped cache of recently used nodes, which saves a read from parsing the inode and the index header again.
//!
//! Each slot has a mutex, held to copy a node in or out. The number of slots bounds the memory: a new node replaces
//! the one in its slot.

use crate::{Image, Nid, Node, Result};
use std::sync::{Mutex, PoisonError};

/// Slots of the cache. A node has a few hundred bytes.
const SLOTS: usize = 256;

/// The cache. An inode's number is hashed to its slot.
pub(super) struct NodeCache {
    image: Image,
    slots: Vec<Mutex<Option<Node>>>,
}

impl NodeCache {
    pub(super) fn new(image: Image) -> Self {
        NodeCache { image, slots: (0..SLOTS).map(|_| Mutex::new(None)).collect() }
    }

    pub(super) fn image(&self) -> &Image {
        &self.image
    }

    /// Returns a node from the cache, or reads it.
    pub(super) fn get(&self, nid: Nid) -> Result<Node> {
        // Numbers of neighbouring inodes differ by the inode's length in steps of 32 bytes: their low bits alone would
        // leave slots empty.
        let hash = nid.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
        let Some(slot) = self.slots.get(hash as usize % SLOTS) else { return self.image.node(nid) };
        let cached = slot.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(node) = cached.filter(|node| node.nid() == nid) {
            return Ok(node);
        }
        let node = self.image.node(nid)?;
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(node.clone());
        Ok(node)
    }
}
