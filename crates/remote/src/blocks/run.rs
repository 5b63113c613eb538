//! A run: consecutive blocks that one thread loads; and which runs are fetched ahead of readers.
//!
//! Until it is completed or dropped, its blocks are marked as loading, and other readers wait for them. A run is fetched
//! ahead if a sequence is long enough not to be chance, and nobody waits for blocks elsewhere, whose request would share
//! the link. The threads that fetch it are those of `ahead.rs`.

use super::{Blocks, Entry, FIRST_RUN_BLOCKS, Loaded, State};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Time after blocks of a list were fetched in which nothing else is fetched ahead.
const PREFETCH_PAUSE: Duration = Duration::from_millis(300);
/// Shortest sequence behind which anything is fetched: two reads that meet may do so by chance, as of two clusters that a
/// page has parts of.
const MIN_SEQUENCE_BLOCKS: u64 = 2 * FIRST_RUN_BLOCKS;
/// Runs behind a reader that are fetched ahead at most.
const MAX_AHEAD_RUNS: u64 = 2;
/// Shortest sequence in which requests follow each other without a reader.
const LONG_SEQUENCE_BLOCKS: u64 = 512;

/// The reason why a run is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunKind {
    /// A reader, which waits for it.
    Waited,
    /// Nobody yet: it is fetched ahead of a reader in order.
    Ahead,
    /// Nobody yet: a list names it.
    Prefetched,
}

/// Blocks that one thread loads. Dropped without [`Run::complete`], they are missing again.
pub(crate) struct Run {
    owner: Arc<Blocks>,
    pub(super) blocks: Range<u64>,
    kind: RunKind,
    /// How often blocks had been forgotten when it began.
    forgotten: u64,
    /// Before this block, the thread that fetches the run ahead goes on.
    pub(super) chain_end: u64,
}

impl Run {
    /// Blocks that were marked as loading.
    pub(crate) fn new(owner: Arc<Blocks>, blocks: Range<u64>, kind: RunKind) -> Self {
        let forgotten = owner.forgotten.load(Ordering::Relaxed);
        Run { owner, blocks, kind, forgotten, chain_end: 0 }
    }

    /// Returns a function that claims the run to fetch next without waiting for a reader.
    pub(crate) fn next(&self) -> impl Fn() -> Option<Run> + use<> {
        let (owner, blocks, chain_end) = (self.owner.clone(), self.blocks.clone(), self.chain_end);
        move || owner.run_chained(&blocks, chain_end)
    }

    /// The numbers of the blocks.
    pub(crate) fn blocks(&self) -> &Range<u64> {
        &self.blocks
    }

    /// Adds the blocks, and wakes the readers that wait for them.
    pub(crate) fn complete(mut self, loaded: Loaded) {
        let blocks = std::mem::replace(&mut self.blocks, 0..0);
        let mut state = self.owner.lock();
        // Blocks of the run that did not come are not a part of the sequence.
        let missing = (blocks.end - blocks.start).saturating_sub(loaded.len() as u64);
        let run_blocks = state.blocks.get(&blocks.start).map_or(1, Entry::run_blocks);
        let run_blocks = run_blocks.saturating_sub(missing).max(1);
        let is_current = self.owner.forgotten.load(Ordering::Relaxed) == self.forgotten;
        let mut loaded = loaded.into_iter().filter(|_| is_current);
        let is_prefetch = self.kind == RunKind::Prefetched;
        for block in blocks.clone() {
            match loaded.next() {
                Some(bytes) => state.set_ready(block, Arc::new(bytes), run_blocks, is_prefetch),
                None => {
                    state.blocks.remove(&block);
                    state.unread_blocks -= usize::from(is_prefetch);
                }
            }
        }
        state.end_wait(self.kind, &blocks);
        state.evict(self.owner.max_blocks);
        drop(state);
        self.owner.ended.notify_all();
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.blocks.is_empty() {
            return;
        }
        let mut state = self.owner.lock();
        self.blocks.clone().for_each(|block| _ = state.blocks.remove(&block));
        if self.kind == RunKind::Prefetched {
            state.unread_blocks -= (self.blocks.end - self.blocks.start) as usize;
        }
        state.end_wait(self.kind, &self.blocks);
        drop(state);
        self.owner.ended.notify_all();
    }
}

/// The runs that are fetched ahead of readers.
impl Blocks {
    /// Returns the next run to fetch ahead of a reader that has just read block `last`; `None` if it does not read in
    /// order, if enough is there or on its way, or if another reader waits for other blocks: these would come later, and
    /// the readers that wait use the link. Far ahead of a long sequence only, because what is behind the end of
    /// a sequence is fetched in vain.
    pub(crate) fn run_ahead(self: &Arc<Self>, last: u64) -> Option<Run> {
        self.run_behind(last, last)
    }

    /// As [`Blocks::run_ahead`], for a reader that is about to read blocks from `first` to `last`: then what follows is on
    /// its way while it waits.
    pub(crate) fn run_ahead_of(self: &Arc<Self>, first: u64, last: u64) -> Option<Run> {
        self.run_behind(first.checked_sub(1)?, last)
    }

    /// The next run behind block `last`, if block `known` belongs to a sequence.
    fn run_behind(self: &Arc<Self>, known: u64, last: u64) -> Option<Run> {
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
        let blocks = state.begin_run(&(missing..missing + 1), 0, self.all_blocks(), max);
        let is_long = run_blocks >= LONG_SEQUENCE_BLOCKS;
        let chain_end = if is_long { (end + ahead_blocks / 2).min(self.all_blocks()) } else { 0 };
        let mut run = Run::new(self.clone(), blocks, RunKind::Ahead);
        run.chain_end = chain_end;
        Some(run)
    }

    /// The run behind one that was fetched ahead and is there, up to where that one says. So the thread that fetched it need
    /// not wait for a reader: if all threads did, their requests would begin and end together, and the link would be
    /// idle for a latency in between.
    pub(crate) fn run_chained(self: &Arc<Self>, fetched: &Range<u64>, chain_end: u64) -> Option<Run> {
        let mut state = self.lock();
        if state.waits_beside(&self.near(fetched.start..chain_end)) {
            return None;
        }
        let missing = (fetched.end..chain_end).find(|block| !state.blocks.contains_key(block))?;
        let blocks = state.begin_run(&(missing..missing + 1), 0, self.all_blocks(), self.max_run_blocks());
        Some(Run::new(self.clone(), blocks, RunKind::Ahead))
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

    /// Notes that a run is there, or will not be.
    fn end_wait(&mut self, kind: RunKind, blocks: &Range<u64>) {
        if kind == RunKind::Waited
            && let Some(index) = self.waited.iter().position(|run| run.start == blocks.start)
        {
            self.waited.swap_remove(index);
        }
    }
}
