//! A source whose bytes are verified as they are read.
//!
//! A read is cut at blocks. Whole blocks are read into the caller's buffer and hashed there; of a block that the read
//! wants in part, all is read. The hash must be the one in the block's node of the tree, which was verified in the same
//! way against the node above it, and so on up to the root hash, which [`VerifiedSource::open`] compares with the digest.
//!
//! Verified nodes are kept in a [`NodeCache`] of a fixed size: a node that left it is read and verified again, so the
//! tree may change at any time without harm. Data is not kept: each read hashes it again.
//!
//! Wrong bytes may come from a cache of the source, with right ones on the medium. So they are discarded there and read once
//! more before a read fails.

use super::hash::{BlockHasher, Hash};
use super::layout::Layout;
use super::{BLOCK_BYTES, Descriptor, Digest, HASH_BYTES, HASHES_PER_BLOCK, Salt, VerityError};
use crate::slot_cache::SlotCache;
use pagefold_backing::{BackingError, ByteSource, Prefetched};
use std::sync::Arc;

/// The most memory that a [`VerifiedSource`] takes for verified nodes, bytes.
pub const MAX_CACHE_BYTES: usize = 4 << 20;

/// The contents of a verified block of the tree.
type Node = [u8; BLOCK_BYTES];

/// A source that returns only bytes that belong to a digest. A read of others fails with [`BackingError::Mismatch`], and
/// leaves undefined bytes in the buffer.
pub struct VerifiedSource {
    data: Arc<dyn ByteSource>,
    tree: Arc<dyn ByteSource>,
    layout: Layout,
    hasher: BlockHasher,
    root_hash: Hash,
    /// Verified blocks of the tree by position. A tree is read in order of its data, and neighbours have different slots.
    nodes: SlotCache<Arc<Node>>,
}

impl VerifiedSource {
    /// Opens `data` for verified reading with its Merkle tree.
    ///
    /// Reads the root of the tree, or the only block of the data. Fails if these do not belong to `digest`. The other
    /// blocks are verified when they are read.
    pub fn open(
        data: Arc<dyn ByteSource>,
        tree: Arc<dyn ByteSource>,
        digest: Digest,
        salt: &Salt,
    ) -> Result<Self, VerityError> {
        let layout = Layout::of(data.len_bytes());
        let (expected_bytes, found_bytes) = (layout.tree_bytes(), tree.len_bytes());
        if expected_bytes != found_bytes {
            return Err(VerityError::TreeLength {
                data_bytes: layout.data_bytes,
                expected_bytes,
                found_bytes,
            });
        }
        let hasher = BlockHasher::new(salt);
        let root_hash = match (layout.data_blocks, layout.levels.is_empty()) {
            (0, _) => [0; HASH_BYTES],
            (_, true) => {
                read_block(&*data, 0, layout.data_bytes as usize).map(|block| hasher.hash(&block))?
            }
            (_, false) => read_block(&*tree, 0, BLOCK_BYTES).map(|block| hasher.hash(&block))?,
        };
        let descriptor = Descriptor { data_bytes: layout.data_bytes, root_hash, salt: salt.clone() };
        let found = descriptor.digest();
        if found != digest {
            return Err(VerityError::WrongDigest { expected: digest, found });
        }
        let nodes = SlotCache::new(expected_bytes.min(MAX_CACHE_BYTES as u64) as usize / BLOCK_BYTES);
        Ok(VerifiedSource { data, tree, layout, hasher, root_hash, nodes })
    }

    /// The verified block of the tree that holds the hashes of `index`-th group of 128 blocks below `level`.
    fn node(&self, level: usize, index: u64) -> Result<Arc<Node>, BackingError> {
        let position = self.layout.levels[level].start + index;
        if let Some(node) = self.nodes.get(position) {
            return Ok(node);
        }
        let expected = self.expected_hash(level + 1, index)?;
        let start = position * BLOCK_BYTES as u64;
        let mut node = read_block(&*self.tree, start, BLOCK_BYTES)?;
        let mut is_right = self.hasher.hash(&node) == expected;
        if !is_right && self.tree.discard_cached(start, BLOCK_BYTES as u64) {
            node = read_block(&*self.tree, start, BLOCK_BYTES)?;
            is_right = self.hasher.hash(&node) == expected;
        }
        if !is_right {
            return Err(mismatch(format!("block {position} of the Merkle tree"), position));
        }
        let node = Arc::new(node);
        self.nodes.insert(position, node.clone());
        Ok(node)
    }

    /// The hash that block `index` of the level below `level` must have. Level 0 is above the data.
    fn expected_hash(&self, level: usize, index: u64) -> Result<Hash, BackingError> {
        if level == self.layout.levels.len() {
            return Ok(self.root_hash);
        }
        let node = self.node(level, index / HASHES_PER_BLOCK as u64)?;
        Ok(hash_in(&node, index))
    }

    /// Verifies whole blocks of the data from block `first` on; the last block of all may be shorter.
    fn verify(&self, first: u64, blocks: &[u8]) -> Result<(), BackingError> {
        // The node of the block before, which has the hashes of its neighbours too.
        let mut last_node: Option<(u64, Arc<Node>)> = None;
        for (block, bytes) in (first..).zip(blocks.chunks(BLOCK_BYTES)) {
            let index = block / HASHES_PER_BLOCK as u64;
            let expected = match &last_node {
                _ if self.layout.levels.is_empty() => self.root_hash,
                Some((found, node)) if *found == index => hash_in(node, block),
                _ => {
                    let (_, node) = last_node.insert((index, self.node(0, index)?));
                    hash_in(node, block)
                }
            };
            if self.hasher.hash(bytes) != expected {
                return Err(mismatch(format!("block {block}"), block));
            }
        }
        Ok(())
    }

    /// Fills `blocks` from byte `start`, where block `first` begins, and verifies them.
    fn read_blocks(&self, first: u64, start: u64, blocks: &mut [u8]) -> Result<(), BackingError> {
        self.data.read_at(start, blocks)?;
        match self.verify(first, blocks) {
            Err(e) if e.is_mismatch() && self.data.discard_cached(start, blocks.len() as u64) => {
                self.data.read_at(start, blocks)?;
                self.verify(first, blocks)
            }
            verified => verified,
        }
    }

    /// Fills `buf` from byte `within` of a block, of which all is read.
    fn read_part(&self, block: u64, within: usize, buf: &mut [u8]) -> Result<(), BackingError> {
        let (start, len_bytes) = self.layout.data_block(block);
        let mut whole = [0; BLOCK_BYTES];
        self.read_blocks(block, start, &mut whole[..len_bytes])?;
        buf.copy_from_slice(&whole[within..within + buf.len()]);
        Ok(())
    }
}

impl ByteSource for VerifiedSource {
    fn len_bytes(&self) -> u64 {
        self.layout.data_bytes
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BackingError> {
        self.check_range(offset, buf.len() as u64)?;
        let (mut at, mut rest) = (offset, buf);
        while !rest.is_empty() {
            let (block, within) = (at / BLOCK_BYTES as u64, (at % BLOCK_BYTES as u64) as usize);
            let block_bytes = self.layout.data_block(block).1;
            let reaches_end = at + rest.len() as u64 == self.layout.data_bytes;
            let is_part = within > 0 || rest.len() < block_bytes;
            let len_bytes = match (is_part, reaches_end) {
                (true, _) => rest.len().min(block_bytes - within),
                (false, true) => rest.len(),
                (false, false) => rest.len() / BLOCK_BYTES * BLOCK_BYTES,
            };
            let (here, after) = rest.split_at_mut(len_bytes);
            match is_part {
                true => self.read_part(block, within, here)?,
                false => self.read_blocks(block, at, here)?,
            }
            (at, rest) = (at + len_bytes as u64, after);
        }
        Ok(())
    }

    fn prefetch(&self, offset: u64, len_bytes: u64) -> Prefetched {
        if self.check_range(offset, len_bytes).is_err() {
            return Prefetched::Failed;
        }
        if let Some(level) = self.layout.levels.first() {
            // The hashes of the range; the levels above are short.
            let group_bytes = (BLOCK_BYTES * HASHES_PER_BLOCK) as u64;
            let groups = offset / group_bytes..(offset + len_bytes).div_ceil(group_bytes);
            let start = (level.start + groups.start) * BLOCK_BYTES as u64;
            let _ = self.tree.prefetch(start, groups.end.saturating_sub(groups.start) * BLOCK_BYTES as u64);
        }
        self.data.prefetch(offset, len_bytes)
    }

    fn describe(&self) -> String {
        format!("{}, verified", self.data.describe())
    }
}

/// Reads the first `len_bytes` of a block; zeroes follow them.
fn read_block(source: &dyn ByteSource, offset: u64, len_bytes: usize) -> Result<Node, BackingError> {
    let mut block = [0; BLOCK_BYTES];
    source.read_at(offset, &mut block[..len_bytes])?;
    Ok(block)
}

/// The hash of block `index` in the node above it.
fn hash_in(node: &Node, index: u64) -> Hash {
    let place = (index % HASHES_PER_BLOCK as u64) as usize * HASH_BYTES;
    let mut hash = [0; HASH_BYTES];
    hash.copy_from_slice(&node[place..place + HASH_BYTES]);
    hash
}

fn mismatch(what: String, block: u64) -> BackingError {
    let at = block.saturating_mul(BLOCK_BYTES as u64);
    BackingError::Mismatch { what: format!("{what} ({BLOCK_BYTES} bytes at {at}) differs from its digest") }
}
