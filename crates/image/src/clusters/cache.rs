//! Decompressed bytes and pages of metadata, shared by all readers.
//!
//! The order of eviction is S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023): what is
//! new enters a small queue and leaves it soon unless it is asked for again, so that one pass over a big file does
//! not push out what others use; what was pushed out a moment ago and comes back enters the main queue.
//!
//! It has no size of its own: it holds what the budget has no other use for, and gives it back when the
//! budget asks ([`Reclaim`]).

use crate::Address;
use crate::read::{Algorithm, Cluster};
use pagefold_backing::{Budget, Buffer, Reclaim};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a piece holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    /// Bytes of metadata as they are in their space, from this address on.
    Meta(Address),
    /// What a cluster decodes to, from its first byte on: all that says how is part of the key, so that an image that names
    /// the same bytes as two kinds of stream gets two pieces.
    Cluster { at: Address, len_bytes: u32, algorithm: Algorithm, zero_padded: bool },
}

impl From<&Cluster> for Key {
    fn from(cluster: &Cluster) -> Self {
        let Cluster { at, len_bytes, algorithm, zero_padded, prefix_only: _ } = *cluster;
        Key::Cluster { at, len_bytes, algorithm, zero_padded }
    }
}

/// The beginning of something, perhaps all of it.
pub(crate) struct Piece {
    pub(crate) buffer: Buffer,
    /// How much of the buffer is contents.
    pub(crate) len_bytes: usize,
}

impl Piece {
    /// Its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.buffer.get(..self.len_bytes).unwrap_or(&self.buffer)
    }

    fn footprint(&self) -> u64 {
        Budget::footprint(self.buffer.len())
    }
}

/// A share of the small queue, in tenths of all bytes.
const SMALL_TENTHS: u64 = 1;
/// Hits are counted up to this many.
const MAX_HITS: u8 = 3;
/// Keys remembered after eviction, if there are as many; otherwise as many as there are pieces.
const MIN_GHOSTS: usize = 64;
/// Keys remembered after eviction at most.
const MAX_GHOSTS: usize = 16_384;

#[derive(Default)]
pub(crate) struct Cache {
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    pieces: HashMap<Key, Entry>,
    small: VecDeque<Key>,
    main: VecDeque<Key>,
    ghosts: VecDeque<Key>,
    /// Of each ghost, whether keeping it had been worth its memory.
    ghost_set: HashMap<Key, Worth>,
    small_bytes: u64,
    main_bytes: u64,
}

struct Entry {
    piece: Arc<Piece>,
    hits: u8,
    in_main: bool,
    /// Bytes that readers have had of it.
    served_bytes: u64,
}

impl Entry {
    /// Whether it has served half of what was decoded for it. The window needs no memory, and decodes half of a cluster on
    /// average to serve one read.
    fn worth(&self) -> Worth {
        match self.served_bytes >= self.piece.len_bytes as u64 / 2 {
            true => Worth::Kept,
            false => Worth::Wasted,
        }
    }
}

/// What is known of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Worth {
    /// It is there, or was evicted after it had served.
    Kept,
    /// It was evicted before it had served for what it took: there was too little memory to keep it.
    Wasted,
}

impl Cache {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The piece, if it reaches at least to the end of `range`, which is what the caller reads of it.
    pub(crate) fn get(&self, key: &Key, range: Range<usize>) -> Option<Arc<Piece>> {
        let mut books = self.books();
        let entry = books.pieces.get_mut(key)?;
        if entry.piece.len_bytes < range.end {
            return None;
        }
        entry.served_bytes += range.len() as u64;
        entry.hits = (entry.hits + 1).min(MAX_HITS);
        Some(entry.piece.clone())
    }

    /// What is known of such a piece, however short; `None` if nothing is. Does not count as a use.
    pub(crate) fn knows(&self, key: &Key) -> Option<Worth> {
        let books = self.books();
        match books.pieces.contains_key(key) {
            true => Some(Worth::Kept),
            false => books.ghost_set.get(key).copied(),
        }
    }

    /// Whether there is a piece that reaches at least `len_bytes`. Does not count as a use.
    pub(crate) fn holds(&self, key: &Key, len_bytes: usize) -> bool {
        self.books().pieces.get(key).is_some_and(|entry| entry.piece.len_bytes >= len_bytes)
    }

    /// Keeps `piece`, in place of a shorter one.
    pub(crate) fn insert(&self, key: Key, piece: Arc<Piece>) {
        let mut books = self.books();
        if let Some(entry) = books.pieces.get_mut(&key) {
            if entry.piece.len_bytes >= piece.len_bytes {
                return;
            }
            let (new_bytes, in_main) = (piece.footprint(), entry.in_main);
            let old = std::mem::replace(&mut entry.piece, piece);
            let queue_bytes = books.queue_bytes(in_main);
            *queue_bytes = *queue_bytes + new_bytes - old.footprint();
            drop(books);
            drop(old);
            return;
        }
        let in_main = books.ghost_set.remove(&key).is_some();
        *books.queue_bytes(in_main) += piece.footprint();
        if in_main {
            books.main.push_back(key)
        } else {
            books.small.push_back(key)
        }
        books.pieces.insert(key, Entry { piece, hits: 0, in_main, served_bytes: 0 });
    }

    /// Bytes held.
    pub(crate) fn held_bytes(&self) -> u64 {
        let books = self.books();
        books.small_bytes + books.main_bytes
    }
}

impl Books {
    fn queue_bytes(&mut self, in_main: bool) -> &mut u64 {
        if in_main { &mut self.main_bytes } else { &mut self.small_bytes }
    }

    /// Takes one step of the eviction order: a piece that is evicted, or one that moves.
    fn step(&mut self) -> Option<Option<Arc<Piece>>> {
        let all_bytes = self.small_bytes + self.main_bytes;
        let from_small = self.main.is_empty() || self.small_bytes * 10 > all_bytes * SMALL_TENTHS;
        match if from_small { self.small.pop_front() } else { None } {
            Some(key) => Some(self.leave_small(key)),
            None => {
                let key = self.main.pop_front()?;
                Some(self.leave_main(key))
            }
        }
    }

    fn leave_small(&mut self, key: Key) -> Option<Arc<Piece>> {
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
        self.remember(key, worth);
        self.pieces.remove(&key).map(|entry| entry.piece)
    }

    fn leave_main(&mut self, key: Key) -> Option<Arc<Piece>> {
        let entry = self.pieces.get_mut(&key)?;
        if entry.hits > 0 {
            entry.hits -= 1;
            self.main.push_back(key);
            return None;
        }
        self.main_bytes -= entry.piece.footprint();
        if entry.worth() == Worth::Wasted {
            self.remember(key, Worth::Wasted);
        }
        self.pieces.remove(&key).map(|entry| entry.piece)
    }

    fn remember(&mut self, key: Key, worth: Worth) {
        if self.ghost_set.insert(key, worth).is_none() {
            self.ghosts.push_back(key);
        }
        let room = self.pieces.len().clamp(MIN_GHOSTS, MAX_GHOSTS);
        while self.ghosts.len() > room {
            let Some(oldest) = self.ghosts.pop_front() else { break };
            self.ghost_set.remove(&oldest);
        }
    }
}

impl Reclaim for Cache {
    fn reclaim(&self, len_bytes: u64) -> u64 {
        let (mut evicted, mut freed) = (Vec::new(), 0);
        let mut books = self.books();
        // Bounded: a step evicts, or uses up a hit, of which each piece has three at most.
        while freed < len_bytes {
            let Some(step) = books.step() else { break };
            if let Some(piece) = step {
                freed += piece.footprint();
                evicted.push(piece);
            }
        }
        drop(books);
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
        Arc::new(Piece { buffer: Buffer::new(pages * 4096), len_bytes: pages * 4096 })
    }

    #[test]
    fn a_scan_does_not_push_out_what_is_used() {
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
    fn what_comes_back_after_eviction_enters_the_main_queue() {
        let cache = Cache::default();
        for n in 0..20 {
            cache.insert(key(n), piece(1));
        }
        cache.reclaim(4096);
        assert!(!cache.holds(&key(0), 1) && cache.knows(&key(0)) == Some(Worth::Wasted));
        cache.insert(key(0), piece(1));
        assert!(cache.books().pieces[&key(0)].in_main);
    }

    #[test]
    fn a_longer_piece_takes_the_place_of_a_shorter_one() {
        let cache = Cache::default();
        cache.insert(key(1), piece(1));
        assert!(cache.get(&key(1), 0..4097).is_none());
        cache.insert(key(1), piece(3));
        cache.insert(key(1), piece(2));
        assert_eq!((cache.get(&key(1), 0..1).unwrap().len_bytes, cache.held_bytes()), (3 * 4096, 3 * 4096));
        assert_eq!((cache.reclaim(u64::MAX), cache.held_bytes()), (3 * 4096, 0));
    }

    #[test]
    fn a_piece_that_served_half_of_itself_was_worth_keeping() {
        let cache = Cache::default();
        for (n, reads) in [(1, 1), (2, 2)] {
            cache.insert(key(n), piece(4));
            (0..reads).for_each(|_| assert!(cache.get(&key(n), 4096..8192).is_some()));
        }
        // The second one moves to the main queue, and is evicted from there.
        cache.reclaim(u64::MAX);
        assert_eq!(cache.held_bytes(), 0);
        assert_eq!((cache.knows(&key(1)), cache.knows(&key(2))), (Some(Worth::Wasted), None));
        cache.insert(key(3), piece(4));
        assert!(cache.get(&key(3), 0..8192).is_some());
        cache.reclaim(u64::MAX);
        assert_eq!(cache.knows(&key(3)), Some(Worth::Kept));
    }
}
