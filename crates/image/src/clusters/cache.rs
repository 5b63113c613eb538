//! The cache of decoded clusters and of metadata, shared by all readers of an image.
//!
//! Eviction is S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023): a new piece enters
//! a small queue and soon leaves the cache unless it is read again, so one pass over a big file does not evict the
//! pieces that other readers use. A piece that returns shortly after its eviction enters the main queue.
//!
//! The cache has no size limit: it fills all memory of the budget that no request needs, and evicts pieces when the
//! budget calls [`Reclaim::reclaim`]. A reader's `Arc` keeps an evicted piece alive; the last one returns its buffer
//! to the budget.
//!
//! One mutex guards all of it, held for a few queue operations. Pieces are dropped after the mutex is released, except after
//! a panic: the next user empties the cache.

use crate::Address;
use crate::budget::{Budget, GrantedBuffer, Reclaim};
use crate::read::{Algorithm, Cluster};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

/// The identity of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    /// Stored bytes of metadata from this address on.
    Meta(Address),
    /// The output of a cluster from its first byte on. The key contains all parameters of the decoding, so an image
    /// that describes the same stored bytes as two kinds of stream gets two pieces.
    Cluster { at: Address, len_bytes: u32, algorithm: Algorithm, zero_padded: bool },
}

impl From<&Cluster> for Key {
    fn from(cluster: &Cluster) -> Self {
        let Cluster { at, len_bytes, algorithm, zero_padded, prefix_only: _ } = *cluster;
        Key::Cluster { at, len_bytes, algorithm, zero_padded }
    }
}

/// Cached bytes: the beginning of a cluster's output, perhaps all of it, or a block of metadata.
pub(crate) struct Piece {
    pub(crate) buffer: GrantedBuffer,
    /// Bytes of contents at the beginning of the buffer.
    pub(crate) len_bytes: usize,
    /// Whether the decoder has checked that the cluster's output ends with these bytes.
    pub(crate) is_whole: bool,
}

impl Piece {
    /// Returns the contents.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.buffer.get(..self.len_bytes).unwrap_or(&self.buffer)
    }

    fn footprint(&self) -> u64 {
        Budget::footprint(self.buffer.len())
    }
}

/// Share of the small queue, in tenths of all bytes.
const SMALL_TENTHS: u64 = 1;
/// Hits are counted up to this many.
const MAX_HITS: u8 = 3;
/// Ghosts (keys of evicted pieces) are limited to the number of pieces, but this many are always allowed.
const MIN_GHOSTS: usize = 64;
/// Ghosts at most.
const MAX_GHOSTS: usize = 16_384;

/// The cache of one image.
#[derive(Default)]
pub(crate) struct Cache {
    state: Mutex<CacheState>,
}

#[derive(Default)]
struct CacheState {
    pieces: HashMap<Key, Entry>,
    small: VecDeque<Key>,
    main: VecDeque<Key>,
    /// Ghosts in the order in which they were added, with their numbers. An entry whose number is not the one in
    /// `ghost_worth` has none any more: its key has returned to the cache, or is a younger ghost.
    ghosts: VecDeque<(Key, u64)>,
    /// For each ghost, whether caching it was worth the memory, and its number.
    ghost_worth: HashMap<Key, (Worth, u64)>,
    /// The number of the next ghost.
    next_ghost: u64,
    small_bytes: u64,
    main_bytes: u64,
}

struct Entry {
    piece: Arc<Piece>,
    hits: u8,
    in_main: bool,
    /// Bytes that readers have copied from the piece.
    served_bytes: u64,
}

impl Entry {
    /// Judges whether the piece has served at least half as many bytes as it holds. The alternative, decoding through a
    /// window, needs no cache memory and decodes half of a cluster per read on average.
    fn worth(&self) -> Worth {
        match self.served_bytes >= self.piece.len_bytes as u64 / 2 {
            true => Worth::Useful,
            false => Worth::Wasted,
        }
    }
}

/// Whether caching a piece is or was worth its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Worth {
    /// The piece is cached, or was evicted after it had served enough reads.
    Useful,
    /// The piece was evicted before it had served enough reads: there was too little memory to keep it.
    Wasted,
    /// The cluster does not decode as far as a piece would reach.
    Damaged,
}

impl Cache {
    /// The state. If a thread has panicked while it changed the state, all pieces are dropped: their queues and sums may be
    /// wrong.
    fn state(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(|poisoned| {
            let mut state = poisoned.into_inner();
            *state = CacheState::default();
            self.state.clear_poison();
            state
        })
    }

    /// Returns the piece if it reaches at least to the end of `range`, the bytes that the caller will copy. Counts as
    /// a use.
    pub(crate) fn get(&self, key: &Key, range: Range<usize>) -> Option<Arc<Piece>> {
        let mut state = self.state();
        let entry = state.pieces.get_mut(key)?;
        if entry.piece.len_bytes < range.end {
            return None;
        }
        entry.served_bytes += range.len() as u64;
        entry.hits = (entry.hits + 1).min(MAX_HITS);
        Some(entry.piece.clone())
    }

    /// Returns the worth of a cached piece of any length, of a ghost, or of a damaged cluster; `None` for an unknown
    /// key. Does not count as a use.
    pub(crate) fn worth(&self, key: &Key) -> Option<Worth> {
        let state = self.state();
        match state.ghost_worth.get(key).map(|(worth, _)| *worth) {
            Some(Worth::Damaged) => Some(Worth::Damaged),
            _ if state.pieces.contains_key(key) => Some(Worth::Useful),
            worth => worth,
        }
    }

    /// Remembers for a while that a cluster does not decode as far as a piece of it would reach, so that not every read
    /// tries it again.
    pub(crate) fn note_damage(&self, key: Key) {
        self.state().add_ghost(key, Worth::Damaged);
    }

    /// Whether a piece of at least `len_bytes` is cached. Does not count as a use.
    pub(crate) fn contains(&self, key: &Key, len_bytes: usize) -> bool {
        self.state().pieces.get(key).is_some_and(|entry| entry.piece.len_bytes >= len_bytes)
    }

    /// Adds `piece`, unless one is cached that serves all that it does. Replaces a shorter one, and one of the same
    /// length whose end was not checked.
    pub(crate) fn insert(&self, key: Key, piece: Arc<Piece>) {
        let mut state = self.state();
        if let Some(entry) = state.pieces.get_mut(&key) {
            let has_new_end = piece.is_whole && !entry.piece.is_whole;
            if entry.piece.len_bytes >= piece.len_bytes + usize::from(has_new_end) {
                return;
            }
            let (new_bytes, in_main) = (piece.footprint(), entry.in_main);
            let old = std::mem::replace(&mut entry.piece, piece);
            let queue_bytes = state.queue_bytes(in_main);
            *queue_bytes = *queue_bytes + new_bytes - old.footprint();
            drop(state);
            drop(old);
            return;
        }
        let in_main = state.ghost_worth.remove(&key).is_some();
        *state.queue_bytes(in_main) += piece.footprint();
        if in_main {
            state.main.push_back(key)
        } else {
            state.small.push_back(key)
        }
        state.pieces.insert(key, Entry { piece, hits: 0, in_main, served_bytes: 0 });
    }

    /// Bytes of all cached buffers.
    pub(crate) fn held_bytes(&self) -> u64 {
        let state = self.state();
        state.small_bytes + state.main_bytes
    }
}

impl CacheState {
    fn queue_bytes(&mut self, in_main: bool) -> &mut u64 {
        if in_main { &mut self.main_bytes } else { &mut self.small_bytes }
    }

    /// Takes the next piece from a queue and evicts it or moves it. Returns `None` if the cache is empty, `Some(None)`
    /// if the piece stays.
    fn evict_step(&mut self) -> Option<Option<Arc<Piece>>> {
        let all_bytes = self.small_bytes + self.main_bytes;
        let from_small = self.main.is_empty() || self.small_bytes * 10 > all_bytes * SMALL_TENTHS;
        match if from_small { self.small.pop_front() } else { None } {
            Some(key) => Some(self.pop_small(key)),
            None => {
                let key = self.main.pop_front()?;
                Some(self.pop_main(key))
            }
        }
    }

    fn pop_small(&mut self, key: Key) -> Option<Arc<Piece>> {
        let entry = self.pieces.get_mut(&key)?;
        let bytes = entry.piece.footprint();
        self.small_bytes -= bytes;
        if entry.hits > 1 {
            (entry.hits, entry.in_main) = (0, true);
            self.main_bytes += bytes;
            self.main.push_back(key);
            return None;
        }
        let worth = entry.worth();
        self.add_ghost(key, worth);
        self.pieces.remove(&key).map(|entry| entry.piece)
    }

    fn pop_main(&mut self, key: Key) -> Option<Arc<Piece>> {
        let entry = self.pieces.get_mut(&key)?;
        if entry.hits > 0 {
            entry.hits -= 1;
            self.main.push_back(key);
            return None;
        }
        self.main_bytes -= entry.piece.footprint();
        if entry.worth() == Worth::Wasted {
            self.add_ghost(key, Worth::Wasted);
        }
        self.pieces.remove(&key).map(|entry| entry.piece)
    }

    fn add_ghost(&mut self, key: Key, worth: Worth) {
        let number = self.next_ghost;
        self.next_ghost += 1;
        self.ghost_worth.insert(key, (worth, number));
        self.ghosts.push_back((key, number));
        let ghosts_max = self.pieces.len().clamp(MIN_GHOSTS, MAX_GHOSTS);
        // Entries without a ghost count too, so that the queue has a limit.
        while self.ghost_worth.len() > ghosts_max || self.ghosts.len() > 2 * ghosts_max {
            let Some((oldest, number)) = self.ghosts.pop_front() else { break };
            if self.ghost_worth.get(&oldest).is_some_and(|(_, current)| *current == number) {
                self.ghost_worth.remove(&oldest);
            }
        }
    }
}

impl Reclaim for Cache {
    /// Counts evicted pieces; a buffer that a reader still holds returns to the budget later.
    fn reclaim(&self, len_bytes: u64) -> u64 {
        let (mut evicted, mut freed) = (Vec::new(), 0);
        let mut state = self.state();
        // Bounded: each step evicts a piece or takes away one of its hits, of which it has three at most.
        while freed < len_bytes {
            let Some(step) = state.evict_step() else { break };
            if let Some(piece) = step {
                freed += piece.footprint();
                evicted.push(piece);
            }
        }
        drop(state);
        drop(evicted);
        freed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u64) -> Key {
        Key::Meta(Address::image(n))
    }

    fn piece(pages: usize) -> Arc<Piece> {
        Arc::new(Piece {
            buffer: crate::budget::test_buffer(pages * 4096),
            len_bytes: pages * 4096,
            is_whole: false,
        })
    }

    #[test]
    fn a_scan_does_not_evict_pieces_in_use() {
        let cache = Cache::default();
        for n in 0..10 {
            cache.insert(key(n), piece(1));
            cache.get(&key(n), 0..1).unwrap();
            cache.get(&key(n), 0..1).unwrap();
        }
        for n in 100..1100 {
            cache.insert(key(n), piece(1));
            if cache.held_bytes() > 20 * 4096 {
                cache.reclaim(4096);
            }
        }
        assert!((0..10).all(|n| cache.get(&key(n), 0..4096).is_some()));
        assert!(cache.held_bytes() <= 21 * 4096);
    }

    #[test]
    fn a_piece_that_returns_after_eviction_enters_the_main_queue() {
        let cache = Cache::default();
        for n in 0..20 {
            cache.insert(key(n), piece(1));
        }
        cache.reclaim(4096);
        assert!(!cache.contains(&key(0), 1) && cache.worth(&key(0)) == Some(Worth::Wasted));
        cache.insert(key(0), piece(1));
        assert!(cache.state().pieces[&key(0)].in_main);
    }

    /// A key that becomes a ghost again is a young one, and its place as an old one takes no room from others.
    #[test]
    fn a_ghost_that_returned_is_as_young_as_its_last_eviction() {
        let cache = Cache::default();
        for _ in 0..10 * MIN_GHOSTS {
            // It returns, and leaves again.
            cache.state().add_ghost(key(0), Worth::Wasted);
            cache.insert(key(0), piece(1));
            cache.reclaim(u64::MAX);
        }
        (1..MIN_GHOSTS as u64).for_each(|n| cache.state().add_ghost(key(n), Worth::Wasted));
        let is_ghost = |n: u64| cache.worth(&key(n)) == Some(Worth::Wasted);
        cache.state().add_ghost(key(0), Worth::Wasted);
        assert!((0..MIN_GHOSTS as u64).all(is_ghost));
        // The oldest leaves first.
        cache.state().add_ghost(key(1000), Worth::Wasted);
        assert!(is_ghost(0) && !is_ghost(1) && is_ghost(1000));
        let state = cache.state();
        assert!(state.ghosts.len() <= 2 * MIN_GHOSTS && state.ghost_worth.len() == MIN_GHOSTS);
    }

    #[test]
    fn a_panic_during_a_change_empties_the_cache() {
        let cache = Cache::default();
        cache.insert(key(1), piece(1));
        let changing = || {
            let mut state = cache.state();
            state.small_bytes += 1;
            panic!("a panic of this test");
        };
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(changing)).is_err());
        assert!(cache.get(&key(1), 0..1).is_none() && cache.held_bytes() == 0);
        cache.insert(key(1), piece(1));
        assert!(cache.get(&key(1), 0..1).is_some() && cache.held_bytes() == 4096);
    }

    #[test]
    fn a_longer_piece_replaces_a_shorter_one() {
        let cache = Cache::default();
        cache.insert(key(1), piece(1));
        assert!(cache.get(&key(1), 0..4097).is_none());
        cache.insert(key(1), piece(3));
        cache.insert(key(1), piece(2));
        assert_eq!((cache.get(&key(1), 0..1).unwrap().len_bytes, cache.held_bytes()), (3 * 4096, 3 * 4096));
        assert_eq!((cache.reclaim(u64::MAX), cache.held_bytes()), (3 * 4096, 0));
    }

    #[test]
    fn a_piece_that_served_half_of_its_length_was_useful() {
        let cache = Cache::default();
        for (n, reads) in [(1, 1), (2, 2)] {
            cache.insert(key(n), piece(4));
            (0..reads).for_each(|_| assert!(cache.get(&key(n), 4096..8192).is_some()));
        }
        // The second one moves to the main queue, and is evicted from there.
        cache.reclaim(u64::MAX);
        assert_eq!(cache.held_bytes(), 0);
        assert_eq!((cache.worth(&key(1)), cache.worth(&key(2))), (Some(Worth::Wasted), None));
        cache.insert(key(3), piece(4));
        assert!(cache.get(&key(3), 0..8192).is_some());
        cache.reclaim(u64::MAX);
        assert_eq!(cache.worth(&key(3)), Some(Worth::Useful));
    }
}
