//! A run: consecutive blocks that one thread loads.
//!
//! Until it is completed or dropped, its blocks are marked as loading, and other readers wait for them.

use super::{Blocks, Entry, Loaded};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Blocks that one thread loads. Dropped without [`Run::complete`], they are missing again.
pub(crate) struct Run {
    owner: Arc<Blocks>,
    pub(super) blocks: Range<u64>,
    is_prefetch: bool,
    /// How often blocks had been forgotten when it began.
    forgotten: u64,
    /// Before this block, the thread that fetches the run ahead goes on.
    pub(super) chain_end: u64,
}

impl Run {
    /// Blocks that were marked as loading.
    pub(crate) fn new(owner: Arc<Blocks>, blocks: Range<u64>, is_prefetch: bool) -> Self {
        let forgotten = owner.forgotten.load(Ordering::Relaxed);
        Run { owner, blocks, is_prefetch, forgotten, chain_end: 0 }
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
        for block in blocks {
            match loaded.next() {
                Some(bytes) => state.set_ready(block, Arc::new(bytes), run_blocks, self.is_prefetch),
                None => {
                    state.blocks.remove(&block);
                    state.unread_blocks -= usize::from(self.is_prefetch);
                }
            }
        }
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
        if self.is_prefetch {
            state.unread_blocks -= (self.blocks.end - self.blocks.start) as usize;
        }
        drop(state);
        self.owner.ended.notify_all();
    }
}
