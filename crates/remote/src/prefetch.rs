//! Blocks that are fetched because a list says that they will be read.
//!
//! Such a block is unread until a reader takes it. Unread blocks leave last, and there are never more of them than three
//! quarters of all: so a prefetch evicts neither what it has fetched, nor all that readers have fetched. Without room, the
//! caller waits until readers have taken some, or gives up.

use crate::blocks::{Blocks, Run, RunKind};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// The next step of a prefetch of blocks.
pub(crate) enum PrefetchClaim {
    /// All blocks are there or on their way.
    Nothing,
    /// There is no room for unread blocks.
    NoRoom,
    /// The caller fetches these blocks.
    Fetch(Run),
}

impl Blocks {
    /// The most unread blocks.
    fn max_unread_blocks(&self) -> usize {
        (self.max_blocks * 3 / 4).max(1)
    }

    /// Marks the next missing blocks of a range as loading, as many as one request may have.
    pub(crate) fn claim_prefetch(self: &Arc<Self>, wanted: &Range<u64>) -> PrefetchClaim {
        let mut state = self.lock();
        let wanted = wanted.start..wanted.end.min(self.all_blocks());
        let Some(first) = wanted.clone().find(|block| !state.blocks.contains_key(block)) else {
            return PrefetchClaim::Nothing;
        };
        let room = self.max_unread_blocks().saturating_sub(state.unread_blocks) as u64;
        if room == 0 {
            return PrefetchClaim::NoRoom;
        }
        state.prefetched_at = Some(Instant::now());
        let end = wanted.end.min(first + room.min(self.max_run_blocks()));
        let run = state.begin(first..end, true);
        PrefetchClaim::Fetch(Run::new(self.clone(), run, RunKind::Prefetched))
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

    /// Fetches what it can of a range, and returns the blocks fetched and whether there was room for all.
    fn prefetch(blocks: &Arc<Blocks>, range: Range<u64>) -> (Vec<Range<u64>>, bool) {
        let mut runs = Vec::new();
        loop {
            match blocks.claim_prefetch(&range) {
                PrefetchClaim::Nothing => return (runs, true),
                PrefetchClaim::NoRoom => return (runs, false),
                PrefetchClaim::Fetch(run) => {
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
        // One was taken: there is room for one.
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
            let PrefetchClaim::Fetch(run) = blocks.claim_prefetch(&(0..50)) else { panic!("no room") };
            assert_eq!(run.blocks(), &(0..3));
            assert!(matches!(blocks.claim_prefetch(&(3..50)), PrefetchClaim::NoRoom));
        }
        assert!(read(&blocks, 0));
    }
}
