//! The index: runs of pages by page number, each with the block that it begins in, in leaves under one root.
//!
//! A reader of a stream sees the blocks first and the index at the end. It compares them by a sum over all pages and
//! their places, so it needs no memory for either. The sum finds errors of writers and of media; it is no defence
//! against a forged file, from which a reader takes the blocks only.

use crate::block::{ENTRIES_MAX, FRAME_LEN};
use crate::bytes::{put, u64_at};

/// Length of a run in a leaf, and of a leaf in the root, bytes.
pub(crate) const RUN_LEN: usize = 16;
/// Runs of a leaf.
pub(crate) const LEAF_RUNS: usize = 4096;
/// The longest file: offsets have 48 bits.
pub(crate) const OFFSET_MAX: u64 = 1 << 48;
const PAGE_BITS: u32 = 40;
const COUNT_MAX: u64 = 1 << 16;
const OFFSET_BITS: u32 = 48;

/// Consecutive pages that lie one after the other in one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Run {
    /// The first page.
    pub(crate) page: u64,
    /// The number of pages.
    pub(crate) count: u64,
    /// Where the block begins, bytes.
    pub(crate) offset: u64,
    /// The entry of the first page in the block.
    pub(crate) entry: u64,
}

impl Run {
    /// Adds the page at the next entry of the same block. Returns false if it does not continue the run.
    pub(crate) fn extend(&mut self, page: u64, offset: u64, entry: u64) -> bool {
        let continues = offset == self.offset
            && entry == self.entry + self.count
            && page == self.page + self.count
            && self.count < COUNT_MAX;
        self.count += u64::from(continues);
        continues
    }

    pub(crate) fn encode(&self) -> [u8; RUN_LEN] {
        let mut bytes = [0; RUN_LEN];
        put(&mut bytes, 0, &(self.page | (self.count - 1) << PAGE_BITS).to_le_bytes());
        put(&mut bytes, 8, &(self.offset | self.entry << OFFSET_BITS).to_le_bytes());
        bytes
    }

    /// The run in these bytes; `None` if it cannot be one.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (first, second) = (u64_at(bytes, 0), u64_at(bytes, 8));
        let run = Run {
            page: first & ((1 << PAGE_BITS) - 1),
            count: (first >> PAGE_BITS & (COUNT_MAX - 1)) + 1,
            offset: second & (OFFSET_MAX - 1),
            entry: second >> OFFSET_BITS,
        };
        let is_possible = first >> (PAGE_BITS + 16) == 0 && run.entry + run.count <= ENTRIES_MAX as u64;
        is_possible.then_some(run)
    }
}

/// The sum over pages and their places.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PlaceSum {
    pub(crate) pages: u64,
    sum: u64,
}

impl PlaceSum {
    /// Adds a page at an entry of the block at `offset`.
    pub(crate) fn add(&mut self, page: u64, offset: u64, entry: u64) {
        self.pages += 1;
        self.sum = self.sum.wrapping_add(mix(page, offset | entry << OFFSET_BITS));
    }
}

/// The chain over leaves in their order, which the root repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LeafChain {
    pub(crate) leaves: u64,
    chain: u64,
}

impl LeafChain {
    /// Adds the leaf at `offset`, whose first run begins with `page`.
    pub(crate) fn add(&mut self, page: u64, offset: u64) {
        self.leaves += 1;
        self.chain = mix(self.chain ^ page, offset);
    }
}

/// A number that changes unpredictably with both (the finalizer of MurmurHash3).
fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b.wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    x = (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ x >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ x >> 33
}

/// The bytes of a leaf, with room for the header of its frame.
pub(crate) fn leaf(runs: &[Run]) -> Vec<u8> {
    let mut frame = vec![0; FRAME_LEN];
    runs.iter().for_each(|run| frame.extend_from_slice(&run.encode()));
    frame
}

/// The bytes of the root for leaves, each with its first page and its offset.
pub(crate) fn root(leaves: &[(u64, u64)]) -> Vec<u8> {
    let mut frame = vec![0; FRAME_LEN];
    for (page, offset) in leaves {
        frame.extend_from_slice(&page.to_le_bytes());
        frame.extend_from_slice(&offset.to_le_bytes());
    }
    frame
}
