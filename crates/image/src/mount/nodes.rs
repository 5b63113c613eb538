//! Nodes that were used lately, so that a read need not parse its inode and index header again.

use crate::{Image, ImageError, Nid, Node};
use std::sync::{Mutex, PoisonError};

/// How many are kept. A node has a few hundred bytes.
const SLOTS: usize = 256;

/// A table with one place for each remainder of an inode's number.
pub(super) struct Nodes {
    image: Image,
    slots: Vec<Mutex<Option<Node>>>,
}

impl Nodes {
    pub(super) fn new(image: Image) -> Self {
        Nodes { image, slots: (0..SLOTS).map(|_| Mutex::new(None)).collect() }
    }

    pub(super) fn image(&self) -> &Image {
        &self.image
    }

    /// The node, kept or read.
    pub(super) fn get(&self, nid: Nid) -> Result<Node, ImageError> {
        // Inodes lie 1 to some slots of 32 bytes apart, so the low bits alone would leave places empty.
        let hash = nid.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
        let Some(slot) = self.slots.get(hash as usize % SLOTS) else { return self.image.node(nid) };
        let kept = slot.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(node) = kept.filter(|node| node.nid() == nid) {
            return Ok(node);
        }
        let node = self.image.node(nid)?;
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(node.clone());
        Ok(node)
    }
}
