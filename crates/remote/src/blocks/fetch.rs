//! A fetch: consecutive blocks that one thread loads, and which blocks are fetched before a reader wants them.
//!
//! Until it is completed or dropped, its blocks are marked as loading, and other readers wait for them. Blocks are fetched
//! ahead if a sequence is long enough not to be chance, and nobody waits for blocks elsewhere, whose request would share
//! the link. The threads that fetch them are those of `ahead.rs`.
//!
//! Others are fetched because a list says that they will be read. Such a block is unread until a reader takes it. Unread
//! blocks leave last, and there are never more of them than three quarters of all: so a prefetch evicts neither what it has
//! fetched, nor all that readers have fetched. Without space, the caller waits until readers have taken some, or gives up.

use super::{Blocks, Entry, FIRST_RUN_BLOCKS, GROWTH, Loaded, State};
use pagefold_backing::Prefetched;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time after blocks of a list were fetched in which nothing else is fetched ahead.
const PREFETCH_PAUSE: Duration = Duration::from_millis(300);
/// Shortest sequence after which anything is fetched: two reads that meet may do so by chance, as of two clusters that a
/// page has parts of.
const MIN_SEQUENCE_BLOCKS: u64 = 2 * FIRST_RUN_BLOCKS;
/// Most runs that are fetched ahead of a reader.
const MAX_AHEAD_RUNS: u64 = 2;
/// Shortest sequence in which requests follow each other without a reader.
const LONG_SEQUENCE_BLOCKS: u64 = 512;

/// The reason why blocks are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FetchKind {
    /// A reader, which waits for them.
    Waited,
    /// Nobody yet: they are fetched ahead of a reader in order.
    Ahead,
    /// Nobody yet: a list names them.
    Prefetched,
}

/// Blocks that one thread loads. Dropped without [`Fetch::complete`], they are missing again.
pub(crate) struct Fetch {
    owner: Arc<Blocks>,
    blocks: Range<u64>,
    kind: FetchKind,
    /// How often blocks had been forgotten when it began.
    forgotten: u64,
    /// Before this block, the thread that fetches ahead goes on.
    chain_end: u64,
}

impl Fetch {
    /// Returns a function that claims what to fetch next without waiting for a reader.
    pub(crate) fn next(&self) -> impl Fn() -> Option<Fetch> + use<> {
        let (owner, blocks, chain_end) = (self.owner.clone(), self.blocks.clone(), self.chain_end);
        move || owner.run_chained(&blocks, chain_end)
    }

    /// The numbers of the blocks.
    pub(crate) fn blocks(&self) -> &Range<u64> {
        &self.blocks
    }

    /// Adds the blocks, and wakes the readers that wait for them.
    pub(crate) fn complete(mut self, loaded: Loaded) {
        self.settle(loaded);
    }

    /// Adds the first blocks, those that are `loaded`; the others are missing again. Wakes the readers that wait for them.
    fn settle(&mut self, loaded: Loaded) {
        let blocks = std::mem::replace(&mut self.blocks, 0..0);
        let mut state = self.owner.lock();
        // Blocks that did not come are not a part of the sequence.
        let missing = (blocks.end - blocks.start).saturating_sub(loaded.len() as u64);
        let run_blocks = state.blocks.get(&blocks.start).map_or(1, Entry::run_blocks);
        let run_blocks = run_blocks.saturating_sub(missing).max(1);
        let is_current = state.forgotten == self.forgotten;
        let mut loaded = loaded.into_iter().filter(|_| is_current);
        let is_prefetch = self.kind == FetchKind::Prefetched;
        for block in blocks.clone() {
            match loaded.next() {
                Some(bytes) => state.set_ready(block, Arc::new(bytes), run_blocks, is_prefetch),
                None => {
                    state.blocks.remove(&block);
                    state.unread_blocks -= usize::from(is_prefetch);
                }
            }
        }
        if self.kind == FetchKind::Waited {
            state.waited.retain(|waited| waited.start != blocks.start);
        }
        state.evict(self.owner.max_blocks);
        drop(state);
        self.owner.ended.notify_all();
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        if !self.blocks.is_empty() {
            self.settle(Loaded::new());
        }
    }
}

impl Blocks {
    /// Marks the blocks as loading that a reader of the wanted ones loads, and waits for. `sequence_blocks`: the blocks that
    /// it has loaded of a sequence; `None` if it does not read one.
    pub(super) fn begin_waited(
        self: &Arc<Self>,
        state: &mut State,
        wanted: Range<u64>,
        sequence_blocks: Option<u64>,
    ) -> Fetch {
        match sequence_blocks {
            Some(own) => self.begin_sequence(state, wanted, own, FetchKind::Waited),
            None => {
                let end = wanted.end.min(wanted.start + self.max_run_blocks().max(1));
                self.begin(state, wanted.start..end, None, FetchKind::Waited)
            }
        }
    }

    /// Marks the missing blocks at the beginning of a range as loading. `sequence_blocks`: the blocks that the sequence
    /// before them has; `None` if they are no sequence.
    fn begin(
        self: &Arc<Self>,
        state: &mut State,
        range: Range<u64>,
        sequence_blocks: Option<u64>,
        kind: FetchKind,
    ) -> Fetch {
        let first_present = range.clone().find(|block| state.blocks.contains_key(block));
        let blocks = range.start..first_present.unwrap_or(range.end);
        let len_blocks = blocks.end - blocks.start;
        let run_blocks = sequence_blocks.map_or(1, |before| before + len_blocks);
        blocks.clone().for_each(|block| _ = state.blocks.insert(block, Entry::Loading { run_blocks }));
        match kind {
            FetchKind::Waited => state.waited.push(blocks.clone()),
            FetchKind::Ahead => {}
            FetchKind::Prefetched => state.unread_blocks += len_blocks as usize,
        }
        Fetch { owner: self.clone(), blocks, kind, forgotten: state.forgotten, chain_end: 0 }
    }

    /// Marks the blocks of a sequence that are to be loaded from the first wanted one on: those that are wanted, or more,
    /// but none that is there or on its way. The sequence has at least `own_blocks` already.
    fn begin_sequence(
        self: &Arc<Self>,
        state: &mut State,
        wanted: Range<u64>,
        own_blocks: u64,
        kind: FetchKind,
    ) -> Fetch {
        let before = wanted.start.checked_sub(1).and_then(|before| state.blocks.get(&before));
        let before = before.map_or(0, Entry::run_blocks).max(own_blocks);
        let grown_blocks = if before > 0 { (before.saturating_mul(GROWTH)).max(FIRST_RUN_BLOCKS) } else { 1 };
        let len_blocks = grown_blocks.max(wanted.end - wanted.start).clamp(1, self.max_run_blocks());
        let end = wanted.start.saturating_add(len_blocks).min(self.all_blocks());
        self.begin(state, wanted.start..end, Some(before), kind)
    }

    /// Marks the next missing blocks of a range as loading, as many as one request may have. Fails as done if all blocks are
    /// there or on their way, and for lack of space for unread blocks.
    pub(crate) fn claim_prefetch(self: &Arc<Self>, wanted: &Range<u64>) -> Result<Fetch, Prefetched> {
        let mut state = self.lock();
        let wanted = wanted.start..wanted.end.min(self.all_blocks());
        let missing = wanted.clone().find(|block| !state.blocks.contains_key(block));
        let first = missing.ok_or(Prefetched::Done)?;
        let max_unread_blocks = (self.max_blocks * 3 / 4).max(1);
        let room = max_unread_blocks.saturating_sub(state.unread_blocks) as u64;
        if room == 0 {
            return Err(Prefetched::NoRoom);
        }
        state.prefetched_at = Some(Instant::now());
        let end = wanted.end.min(first + room.min(self.max_run_blocks()));
        Ok(self.begin(&mut state, first..end, Some(0), FetchKind::Prefetched))
    }
}

/// The runs that are fetched ahead of readers.
impl Blocks {
    /// Returns the next run to fetch ahead of a reader that has just read block `last`; `None` if it does not read in
    /// order, if enough is there or on its way, or if another reader waits for other blocks: these would come later, and
    /// the readers that wait use the link. Far ahead of a long sequence only, because what follows the end of
    /// a sequence is fetched in vain.
    pub(crate) fn run_ahead(self: &Arc<Self>, last: u64) -> Option<Fetch> {
        self.run_after(last, last)
    }

    /// As [`Blocks::run_ahead`], for a reader that is about to read blocks from `first` to `last`: then what follows is on
    /// its way while it waits.
    pub(crate) fn run_ahead_of(self: &Arc<Self>, first: u64, last: u64) -> Option<Fetch> {
        self.run_after(first.checked_sub(1)?, last)
    }

    /// The next run after block `last`, if block `known` belongs to a sequence.
    fn run_after(self: &Arc<Self>, known: u64, last: u64) -> Option<Fetch> {
        let mut state = self.lock();
        let (run_blocks, max) =
            (state.blocks.get(&known).map_or(0, Entry::run_blocks), self.max_run_blocks());
        // A list knows better what will be read, and needs the link.
        let is_prefetching = state.prefetched_at.is_some_and(|at| at.elapsed() < PREFETCH_PAUSE);
        if run_blocks < MIN_SEQUENCE_BLOCKS || is_prefetching {
            return None;
        }
        let most = (MAX_AHEAD_RUNS * max).min(self.max_blocks as u64 / 2);
        let ahead_blocks = (MAX_AHEAD_RUNS * run_blocks).min(most);
        let end = (last + 1 + ahead_blocks).min(self.all_blocks());
        if state.waits_beside(&self.near(known..end)) {
            return None;
        }
        let missing = (last + 1..end).find(|block| !state.blocks.contains_key(block))?;
        let mut fetch = self.begin_sequence(&mut state, missing..missing + 1, 0, FetchKind::Ahead);
        let is_long = run_blocks >= LONG_SEQUENCE_BLOCKS;
        fetch.chain_end = if is_long { (end + ahead_blocks / 2).min(self.all_blocks()) } else { 0 };
        Some(fetch)
    }

    /// The run after one that was fetched ahead and is there, up to where that one says. So the thread that fetched it need
    /// not wait for a reader: if all threads did, their requests would begin and end together, and the link would be
    /// idle for a latency in between.
    pub(crate) fn run_chained(self: &Arc<Self>, fetched: &Range<u64>, chain_end: u64) -> Option<Fetch> {
        let mut state = self.lock();
        if state.waits_beside(&self.near(fetched.start..chain_end)) {
            return None;
        }
        let missing = (fetched.end..chain_end).find(|block| !state.blocks.contains_key(block))?;
        Some(self.begin_sequence(&mut state, missing..missing + 1, 0, FetchKind::Ahead))
    }

    /// The blocks that the reader of a sequence may wait for while these are fetched ahead of it.
    fn near(&self, ahead: Range<u64>) -> Range<u64> {
        let margin = 2 * MAX_AHEAD_RUNS * self.max_run_blocks();
        ahead.start.saturating_sub(margin)..ahead.end.saturating_add(margin)
    }
}

impl State {
    /// Whether a reader waits for a run that is not of these blocks.
    fn waits_beside(&self, blocks: &Range<u64>) -> bool {
        self.waited.iter().any(|run| run.end <= blocks.start || run.start >= blocks.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::{BLOCK_BYTES, Loaded};
    use std::time::Duration;

    fn blocks(len: u64, max: u64) -> Arc<Blocks> {
        Arc::new(Blocks::new(len * BLOCK_BYTES, (max * BLOCK_BYTES) as usize))
    }

    fn loaded(run: &Range<u64>) -> Loaded {
        run.clone().map(|block| vec![block as u8; BLOCK_BYTES as usize]).collect()
    }

    /// Fetches what it can of a range, and returns the blocks fetched and whether there was space for all.
    fn prefetch(blocks: &Arc<Blocks>, range: Range<u64>) -> (Vec<Range<u64>>, bool) {
        let mut runs = Vec::new();
        loop {
            match blocks.claim_prefetch(&range) {
                Err(end) => return (runs, matches!(end, Prefetched::Done)),
                Ok(run) => {
                    let loaded = loaded(run.blocks());
                    runs.push(run.blocks().clone());
                    run.complete(loaded);
                }
            }
        }
    }

    /// Reads a byte of a block, and returns whether it had to be loaded.
    fn read(blocks: &Arc<Blocks>, block: u64) -> bool {
        let is_loaded = std::cell::Cell::new(false);
        let mut byte = [0];
        let end = Instant::now() + Duration::from_secs(60);
        let read = blocks.read::<()>(block * BLOCK_BYTES, &mut byte, end, &|run| {
            is_loaded.set(true);
            Ok(loaded(run))
        });
        assert!(read.is_ok() && byte == [block as u8]);
        is_loaded.get()
    }

    #[test]
    #[allow(clippy::single_range_in_vec_init, reason = "a run of blocks is a range")]
    fn unread_blocks_stay_until_they_are_read_and_leave_room_for_others() {
        let blocks = blocks(100, 8);
        assert_eq!(prefetch(&blocks, 10..14), (vec![10..14], true));
        // Three quarters of eight.
        assert_eq!(prefetch(&blocks, 10..20), (vec![14..16], false));
        // Readers of other blocks evict none of them.
        for block in (30..90).step_by(2) {
            assert!(read(&blocks, block));
        }
        assert!(!read(&blocks, 10) && !read(&blocks, 10));
        // One was taken: there is space for one.
        assert_eq!(prefetch(&blocks, 10..20), (vec![16..17], false));
        for block in 11..17 {
            assert!(!read(&blocks, block), "{block}");
        }
        assert_eq!(prefetch(&blocks, 98..200), (vec![98..100], true));
        assert_eq!(prefetch(&blocks, 200..300), (vec![], true));
    }

    #[test]
    fn nothing_is_fetched_ahead_of_readers_while_a_list_is_fetched() {
        let blocks = blocks(200, 100);
        assert!([60, 61, 69].into_iter().all(|block| read(&blocks, block)));
        assert!(blocks.run_ahead(69).is_some());
        assert!(prefetch(&blocks, 0..4).1 && blocks.run_ahead(69).is_none());
        blocks.lock().prefetched_at = None;
        assert!(blocks.run_ahead(69).is_some());
    }

    #[test]
    fn a_prefetch_that_fails_leaves_its_room_to_the_next() {
        let blocks = blocks(100, 4);
        for _ in 0..3 {
            let Ok(run) = blocks.claim_prefetch(&(0..50)) else { panic!("no space") };
            assert_eq!(run.blocks(), &(0..3));
            assert!(matches!(blocks.claim_prefetch(&(3..50)), Err(Prefetched::NoRoom)));
        }
        assert!(read(&blocks, 0));
    }
}
