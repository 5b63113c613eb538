//! The ranges of an object that are in memory, in blocks of 32 KiB, and those that are on their way.
//!
//! A reader of a block that is missing loads it, together with the missing blocks after it that it wants too. A read that
//! begins where another one has ended, or is about to, continues a sequence: then the reader loads four times as many
//! blocks as the sequence has, at least eight, up to what `link.rs` says. A read at another place is no sequence, however
//! many blocks it has: clusters at random places have two or three. Other readers of a block that is on its way wait for
//! it. If loading fails, one of them tries next.
//!
//! At most a fixed number of blocks stay. Those of long runs that were read once from end to end are evicted first
//! (`eviction.rs`): otherwise a sequential reader would evict the metadata and small files that others read again and
//! again. Then the least recently used ones are evicted; those that a list had fetched and nobody has read yet are evicted
//! last (`blocks/fetch.rs`). One mutex guards the table, held for a search and never while a block is loaded or copied out.

mod fetch;

pub(crate) use fetch::Fetch;

use crate::eviction::{BLOCK_BYTES, ReadParts};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Blocks that one request loads at most, as long as nobody says another number.
const MAX_RUN_BLOCKS: u64 = 32;
/// Blocks that a reader loads when it continues where a read has ended.
const FIRST_RUN_BLOCKS: u64 = 8;
/// Growth of a run in a sequence.
const GROWTH: u64 = 4;
/// A block was used just now if there were fewer accesses since; bytes were, if there were fewer than the second. Among many
/// places that were read at random, the next one often follows one of them by chance.
const RECENT_ACCESSES: u64 = 8;
const RECENT_READ_ACCESSES: u64 = 256;
/// Shortest run whose blocks leave first when they were read.
const LONG_RUN_BLOCKS: u64 = 16;

/// The bytes of consecutive blocks, one after the other.
pub(crate) type Loaded = Vec<Vec<u8>>;

/// The blocks of one object.
pub(crate) struct Blocks {
    len_bytes: u64,
    pub(crate) max_blocks: usize,
    max_run_blocks: AtomicU64,
    state: Mutex<State>,
    /// Notified when loading has ended, well or not.
    ended: Condvar,
    pub(crate) hit_bytes: AtomicU64,
}

#[derive(Default)]
struct State {
    blocks: HashMap<u64, Entry>,
    ready_blocks: usize,
    /// Blocks that are prefetched, or are to be, and that nobody has read.
    unread_blocks: usize,
    /// The last time that a list had blocks fetched.
    prefetched_at: Option<Instant>,
    /// The runs that readers load themselves, and so wait for.
    waited: Vec<Range<u64>>,
    /// How often blocks were forgotten.
    forgotten: u64,
    /// Counts accesses.
    clock: u64,
}

enum Entry {
    Loading { run_blocks: u64 },
    Ready { bytes: Arc<Vec<u8>>, run_blocks: u64, used: u64, is_unread: bool, parts: ReadParts },
}

/// The next step of a reader for a block.
enum Claim {
    Copy(Arc<Vec<u8>>),
    Load(Fetch),
    TimedOut,
}

/// The error of a read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReadError<E> {
    /// Loading failed.
    Load(E),
    /// Another reader has been loading a block until the deadline.
    TimedOut,
}

impl Blocks {
    /// No blocks yet of an object of `len_bytes`. At most `max_bytes` will be kept, but one block at least.
    pub(crate) fn new(len_bytes: u64, max_bytes: usize) -> Self {
        let max_blocks = (max_bytes / BLOCK_BYTES as usize).max(1);
        Blocks {
            len_bytes,
            max_blocks,
            max_run_blocks: AtomicU64::new(MAX_RUN_BLOCKS),
            state: Mutex::default(),
            ended: Condvar::new(),
            hit_bytes: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes of the object in these blocks.
    pub(crate) fn byte_range(&self, blocks: &Range<u64>) -> Range<u64> {
        blocks.start * BLOCK_BYTES..blocks.end.saturating_mul(BLOCK_BYTES).min(self.len_bytes)
    }

    /// Adds the first block of the object.
    pub(crate) fn insert_first(&self, bytes: Vec<u8>) {
        let mut state = self.lock();
        state.set_ready(0, Arc::new(bytes), 1, false);
    }

    /// The blocks that are in memory, in any order.
    pub(crate) fn ready(&self) -> Vec<(u64, Vec<u8>)> {
        let ready = |(block, entry): (&u64, &Entry)| match entry {
            Entry::Loading { .. } => None,
            Entry::Ready { bytes, .. } => Some((*block, bytes.to_vec())),
        };
        self.lock().blocks.iter().filter_map(ready).collect()
    }

    /// Drops these blocks, and all that are on their way now when they have come: they may have been read from where
    /// these came from. Returns whether one was there.
    pub(crate) fn forget(&self, blocks: &Range<u64>) -> bool {
        let mut state = self.lock();
        state.forgotten += 1;
        let before = state.ready_blocks;
        blocks.clone().for_each(|block| state.remove_ready(block));
        state.ready_blocks < before
    }

    /// Fills `buf` from byte `offset`, as [`Blocks::read_parts`] does.
    #[cfg(test)]
    pub(crate) fn read<E>(
        self: &Arc<Self>,
        offset: u64,
        buf: &mut [u8],
        end: Instant,
        load: &dyn Fn(&Range<u64>) -> Result<Loaded, E>,
    ) -> Result<(), ReadError<E>> {
        let range = offset..offset + buf.len() as u64;
        let mut rest = buf;
        let mut put = |bytes: &[u8]| {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(bytes.len());
            part.copy_from_slice(bytes);
            rest = after;
        };
        self.read_parts(range.clone(), range.end, end, load, &mut put)
    }

    /// Passes the bytes of a range, which is inside the object, to `put`, in order and in parts. Missing blocks are loaded by
    /// `load`, which gets the numbers of the blocks and returns their bytes, or those of the first of them; it gets those up
    /// to `wanted_end`, where the caller's reader will go on. Waits for other readers' blocks until `end`.
    pub(crate) fn read_parts<E>(
        self: &Arc<Self>,
        range: Range<u64>,
        wanted_end: u64,
        end: Instant,
        load: &dyn Fn(&Range<u64>) -> Result<Loaded, E>,
        put: &mut dyn FnMut(&[u8]),
    ) -> Result<(), ReadError<E>> {
        let mut at = range.start;
        let wanted_end = wanted_end.clamp(range.end, self.len_bytes.max(range.end));
        let mut sequence_blocks = self.lock().is_continued_at(at).then_some(0);
        while at < range.end {
            let block = at / BLOCK_BYTES;
            let copied = match self.claim(block..wanted_end.div_ceil(BLOCK_BYTES), sequence_blocks, end) {
                Claim::Copy(bytes) => {
                    let part = part(&bytes, (at % BLOCK_BYTES) as usize, range.end - at);
                    put(part);
                    let copied = part.len();
                    self.note_read(block, (at % BLOCK_BYTES) as usize, copied);
                    self.hit_bytes.fetch_add(copied as u64, Ordering::Relaxed);
                    copied
                }
                Claim::TimedOut => return Err(ReadError::TimedOut),
                Claim::Load(run) => {
                    let loaded = load(run.blocks()).map_err(ReadError::Load)?;
                    // A read of several runs is a sequence by itself.
                    sequence_blocks = Some(sequence_blocks.unwrap_or(0) + loaded.len() as u64);
                    let (mut copied, first) = (0, run.blocks().start);
                    let mut reads = Vec::with_capacity(loaded.len());
                    for (n, bytes) in loaded.iter().enumerate() {
                        let within = if n == 0 { (at % BLOCK_BYTES) as usize } else { 0 };
                        let part = part(bytes, within, range.end - at - copied as u64);
                        put(part);
                        reads.push((within, part.len()));
                        copied += part.len();
                    }
                    run.complete(loaded);
                    (first..)
                        .zip(reads)
                        .for_each(|(block, (within, len))| self.note_read(block, within, len));
                    copied
                }
            };
            debug_assert!(copied > 0, "the range is inside the object, and each block is whole");
            at += copied as u64;
        }
        Ok(())
    }

    /// Notes that bytes of a block were read, if it is still there.
    fn note_read(&self, block: u64, within: usize, bytes: usize) {
        if let Some(Entry::Ready { parts, .. }) = self.lock().blocks.get_mut(&block) {
            parts.note(within as u64, bytes as u64);
        }
    }

    /// Returns the first of the wanted blocks, or the run that the caller has to load for it. `sequence_blocks`: the blocks
    /// that the reader itself has loaded of a sequence; `None` if it does not read one.
    fn claim(self: &Arc<Self>, wanted: Range<u64>, sequence_blocks: Option<u64>, end: Instant) -> Claim {
        let mut state = self.lock();
        loop {
            state.clock += 1;
            let clock = state.clock;
            match state.blocks.get_mut(&wanted.start) {
                Some(Entry::Ready { bytes, used, is_unread, .. }) => {
                    *used = clock;
                    let (bytes, was_unread) = (bytes.clone(), std::mem::take(is_unread));
                    state.unread_blocks -= usize::from(was_unread);
                    return Claim::Copy(bytes);
                }
                Some(Entry::Loading { .. }) => {}
                None => {
                    return Claim::Load(self.begin_waited(&mut state, wanted, sequence_blocks));
                }
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Claim::TimedOut;
            }
            state = self.ended.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Blocks {
    fn all_blocks(&self) -> u64 {
        self.len_bytes.div_ceil(BLOCK_BYTES)
    }

    /// The most blocks of one request.
    fn max_run_blocks(&self) -> u64 {
        self.max_run_blocks.load(Ordering::Relaxed)
    }

    /// Sets the length of long requests. One takes an eighth of all blocks at most.
    pub(crate) fn set_request_bytes(&self, bytes: u64) {
        let blocks = (bytes / BLOCK_BYTES).min(self.max_blocks as u64 / 8).max(1);
        self.max_run_blocks.store(blocks, Ordering::Relaxed);
    }
}

impl Entry {
    /// Whether a reader in order has read all of the block, and nobody has read it again.
    fn is_passed(&self) -> bool {
        match self {
            Entry::Loading { .. } => false,
            Entry::Ready { bytes, run_blocks, parts, .. } => {
                *run_blocks >= LONG_RUN_BLOCKS && parts.is_passed(bytes.len() as u64)
            }
        }
    }

    /// The length of the sequence that this block was, or is, loaded in, up to the end of its run.
    fn run_blocks(&self) -> u64 {
        match self {
            Entry::Loading { run_blocks } | Entry::Ready { run_blocks, .. } => *run_blocks,
        }
    }
}

impl State {
    /// Whether a read that begins at byte `offset` continues a sequence: the byte before was read not long ago, or its
    /// block is on its way, was loaded for a sequence, or was used just now.
    fn is_continued_at(&self, offset: u64) -> bool {
        let Some(before) = offset.checked_sub(1) else { return false };
        match self.blocks.get(&(before / BLOCK_BYTES)) {
            None => false,
            Some(Entry::Loading { .. }) => true,
            Some(Entry::Ready { run_blocks, parts, used, .. }) => {
                let accesses = self.clock.saturating_sub(*used);
                let was_read = parts.has_read(before % BLOCK_BYTES);
                *run_blocks > 1 || accesses < RECENT_ACCESSES || (was_read && accesses < RECENT_READ_ACCESSES)
            }
        }
    }

    fn set_ready(&mut self, block: u64, bytes: Arc<Vec<u8>>, run_blocks: u64, is_unread: bool) {
        self.clock += 1;
        self.blocks.insert(
            block,
            Entry::Ready { bytes, run_blocks, used: self.clock, is_unread, parts: ReadParts::default() },
        );
        self.ready_blocks += 1;
    }

    /// Drops a block, if it is there.
    fn remove_ready(&mut self, block: u64) {
        if let Some(&Entry::Ready { is_unread, .. }) = self.blocks.get(&block) {
            self.blocks.remove(&block);
            self.unread_blocks -= usize::from(is_unread);
            self.ready_blocks -= 1;
        }
    }

    /// Drops blocks until at most `max_blocks` are there: passed ones, then the least recently used ones; unread ones leave
    /// last.
    fn evict(&mut self, max_blocks: usize) {
        let surplus = self.ready_blocks.saturating_sub(max_blocks);
        if surplus == 0 {
            return;
        }
        let ready = self.blocks.iter().filter_map(|(block, entry)| match entry {
            Entry::Ready { used, is_unread, .. } => Some((!entry.is_passed(), *is_unread, *used, *block)),
            Entry::Loading { .. } => None,
        });
        let mut ready: Vec<_> = ready.collect();
        ready.sort_unstable();
        ready.into_iter().take(surplus).for_each(|(.., block)| self.remove_ready(block));
    }
}

/// The part of a block from byte `within` on, `most` bytes at most.
fn part(block: &[u8], within: usize, most: u64) -> &[u8] {
    let rest = block.get(within..).unwrap_or_default();
    &rest[..rest.len().min(usize::try_from(most).unwrap_or(usize::MAX))]
}

#[cfg(test)]
mod tests;
