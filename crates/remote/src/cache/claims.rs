//! Keeps processes from fetching the same blocks at once.
//!
//! A process that fetches blocks holds a lock on their range of the file; the kernel releases it when the process dies.
//! Another process that wants them waits for them to appear, for a bounded time: the owner may be stopped, or slow. Then it
//! fetches them itself, and waits for nobody for a minute. So a claim is a hint, and right bytes never depend on one.

use super::folder::now_s;
use super::object::CachedObject;
use crate::blocks::Loaded;
use pagefold_sys::{SysError, rangelock};
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The time between two looks for blocks that another process fetches.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const MAX_PAUSE: Duration = Duration::from_millis(10);
/// How long nobody waits after a wait in vain, seconds.
const NO_WAIT_S: u64 = 60;

/// The right to fetch blocks, while this value lives.
struct FetchLock {
    file: Arc<File>,
    range: Range<u64>,
    blocks: Range<u64>,
}

impl Drop for FetchLock {
    fn drop(&mut self) {
        // The lock ends with the file otherwise.
        let _ = rangelock::unlock(&self.file, &self.range);
    }
}

/// How long to wait for another process.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wait {
    /// Until this time. Then the blocks are fetched although another process claims them.
    Bounded(Instant),
    /// Not at all. Blocks that another process claims are not fetched.
    Never,
}

/// The next step for blocks.
enum Prepared {
    /// The first blocks are cached: their bytes.
    Cached(Loaded),
    /// These blocks, the first ones, are to be fetched, while the claim lives.
    Fetch(Range<u64>, Option<FetchLock>),
    /// Another process fetches the blocks.
    Busy,
}

impl CachedObject {
    /// Returns the first of the blocks, at least one: cached ones, or else those that `fetch` returns, which are stored.
    /// `None` if another process fetches them, and this one is not to wait. The range is not empty.
    pub(crate) fn load<E>(
        &self,
        blocks: &Range<u64>,
        wait: Wait,
        fetch: impl FnOnce(&Range<u64>) -> Result<Loaded, E>,
    ) -> Result<Option<Loaded>, E> {
        match self.prepare(blocks, wait) {
            Prepared::Cached(loaded) => Ok(Some(loaded)),
            Prepared::Busy => Ok(None),
            Prepared::Fetch(missing, claim) => {
                let loaded = fetch(&missing)?;
                self.write(missing.start, &loaded);
                drop(claim);
                Ok(Some(loaded))
            }
        }
    }

    fn prepare(&self, blocks: &Range<u64>, wait: Wait) -> Prepared {
        let (mut pause, mut has_waited) = (FIRST_PAUSE, false);
        loop {
            let cached = self.read(blocks);
            if !cached.is_empty() {
                return Prepared::Cached(cached);
            }
            if self.cache.writes.is_paused() {
                // Nobody would find what is fetched.
                return Prepared::Fetch(blocks.clone(), None);
            }
            let missing = self.missing(blocks);
            match self.claim(&missing) {
                Ok(Some(claim)) => return self.prepare_claimed(blocks, claim),
                Ok(None) => {}
                Err(_) => return Prepared::Fetch(missing, None),
            }
            let Wait::Bounded(end) = wait else { return Prepared::Busy };
            if now_s() < self.no_wait_until_s.load(Ordering::Relaxed) {
                return Prepared::Fetch(missing, None);
            }
            if Instant::now() + pause > end {
                self.no_wait_until_s.store(now_s() + NO_WAIT_S, Ordering::Relaxed);
                return Prepared::Fetch(missing, None);
            }
            if !has_waited {
                self.cache.counters.waits.fetch_add(1, Ordering::Relaxed);
            }
            has_waited = true;
            std::thread::sleep(pause);
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    /// Looks once more: the owner before may have stored the blocks since the last look.
    fn prepare_claimed(&self, blocks: &Range<u64>, claim: FetchLock) -> Prepared {
        let cached = self.read(blocks);
        if cached.is_empty() {
            return Prepared::Fetch(claim.blocks.clone(), Some(claim));
        }
        Prepared::Cached(cached)
    }

    /// `None` if another process claims some of the blocks. Fails where there are no such locks.
    fn claim(&self, blocks: &Range<u64>) -> Result<Option<FetchLock>, SysError> {
        let (file, range) = (self.file(), self.layout.data(blocks));
        let is_mine = rangelock::try_lock(&file, &range)?;
        Ok(is_mine.then(|| FetchLock { file, range, blocks: blocks.clone() }))
    }
}
