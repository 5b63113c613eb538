//! Finds the longest earlier match of every position, within a window.
//!
//! The positions of the window that have the same hash form a binary search tree, ordered by the bytes that follow
//! them; the root is the latest position. Inserting a position walks from the root to its place, and so passes the
//! position with the longest common beginning.

use super::block::{LAST_LITERALS, LAST_MATCH_TO_END, MATCH_LEN_MIN, common_len, four_bytes};

const HASH_BITS_MAX: u32 = 15;
/// A match of this length is good enough: the tree is not searched further. The positions within a match that is
/// longer are not inserted.
const NICE_LEN: usize = 512;

/// A match of a position. A length of 0 is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Match {
    pub(super) len: u32,
    pub(super) offset: u32,
}

/// The trees of one source's positions.
pub(super) struct Matches {
    window: usize,
    /// Most steps of a walk.
    depth: usize,
    hash_bits: u32,
    /// The root of each tree, as position + 1; 0 is none.
    roots: Box<[u32]>,
    /// The two subtrees of each position of the window, as position + 1: smaller and greater ones. Those of a position
    /// are written when it is inserted, so they need no clearing.
    children: Box<[u32]>,
    children_mask: usize,
    /// A long match that the current position is within: its end and offset.
    long: (usize, usize),
}

impl Matches {
    /// Returns the heap bytes for this window.
    pub(super) fn heap_bytes(window: usize) -> usize {
        size_of::<u32>() * ((1 << HASH_BITS_MAX) + 2 * (window + 1).next_power_of_two())
    }

    pub(super) fn new(window: usize, depth: usize) -> Self {
        let nodes = (window + 1).next_power_of_two();
        Matches {
            window,
            depth,
            hash_bits: HASH_BITS_MAX,
            roots: vec![0; 1 << HASH_BITS_MAX].into_boxed_slice(),
            children: vec![0; 2 * nodes].into_boxed_slice(),
            children_mask: nodes - 1,
            long: (0, 0),
        }
    }

    /// Forgets all positions. About `expected_len` will be inserted.
    pub(super) fn clear(&mut self, expected_len: usize) {
        self.hash_bits = expected_len.next_power_of_two().ilog2().clamp(10, HASH_BITS_MAX);
        self.roots[..1 << self.hash_bits].fill(0);
        self.long = (0, 0);
    }

    /// Returns the longest match at `at`, and inserts the position. Positions are passed in ascending order.
    pub(super) fn find(&mut self, src: &[u8], at: usize) -> Match {
        if at + LAST_MATCH_TO_END > src.len() {
            return Match::default();
        }
        let (long_end, long_offset) = self.long;
        if at + NICE_LEN < long_end {
            return Match { len: (long_end - at) as u32, offset: long_offset as u32 };
        }
        let len_max = src.len() - LAST_LITERALS - at;
        let (mut len, offset) = self.insert(src, at, len_max.min(NICE_LEN));
        if len == NICE_LEN {
            len += common_len(src, at - offset + len, at + len, len_max - len);
            self.long = (at + len, offset);
        }
        match len >= MATCH_LEN_MIN {
            true => Match { len: len as u32, offset: offset as u32 },
            false => Match::default(),
        }
    }

    /// Makes `at` the root of its tree, and returns length and offset of its longest match, at most `len_max`.
    fn insert(&mut self, src: &[u8], at: usize, len_max: usize) -> (usize, usize) {
        let hash = four_bytes(src, at).wrapping_mul(0x9e37_79b1) >> (u32::BITS - self.hash_bits);
        let mut next = std::mem::replace(&mut self.roots[hash as usize], at as u32 + 1);
        // Where the next smaller and the next greater position belong, and how much they share with `at` at least.
        let node = 2 * (at & self.children_mask);
        let (mut smaller, mut greater) = (node, node + 1);
        let (mut smaller_len, mut greater_len) = (0, 0);
        let (mut best_len, mut best_offset) = (0, 0);
        for _ in 0..self.depth {
            let Some(from) = (next as usize).checked_sub(1).filter(|from| at - from <= self.window) else {
                break;
            };
            let children = 2 * (from & self.children_mask);
            let shared = smaller_len.min(greater_len);
            let len = shared + common_len(src, from + shared, at + shared, len_max - shared);
            if len > best_len {
                (best_len, best_offset) = (len, at - from);
                if len == len_max {
                    // `at` replaces `from`, which is equal as far as compared.
                    self.children[smaller] = self.children[children];
                    self.children[greater] = self.children[children + 1];
                    return (best_len, best_offset);
                }
            }
            if src[from + len] < src[at + len] {
                self.children[smaller] = next;
                (smaller, smaller_len) = (children + 1, len);
                next = self.children[smaller];
            } else {
                self.children[greater] = next;
                (greater, greater_len) = (children, len);
                next = self.children[greater];
            }
        }
        self.children[smaller] = 0;
        self.children[greater] = 0;
        (best_len, best_offset)
    }
}
