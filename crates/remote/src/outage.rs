//! How a mount reads a block just after another read of it has failed at its deadline.
//!
//! The kernel sends the requests of several programs for one name or page one after the other, and one of a single program
//! again if it failed. The last of them would wait for several deadlines. So for a second after such a failure reads of the
//! same block make single attempts, one at a time, which together may take half a second. Beside them, and when that time
//! is used up, reads fail at once, as if they had waited with the first one. Any request that succeeds ends this.
//!
//! Other blocks are not concerned: a program that goes on to another file would lose many files for one outage. Nor are
//! reads outside of a scope, those of commands: nobody waits behind them.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long reads fail with the one that has failed.
const SHARED_FOR: Duration = Duration::from_secs(1);
/// The longest time of all attempts meanwhile, and the shortest one for which an attempt is made.
const PROBES: Duration = Duration::from_millis(500);
const LEAST_PROBE: Duration = Duration::from_millis(20);
/// Blocks that are noted for one failure: more than a mount has threads.
const MAX_BLOCKS: usize = 64;

/// How a read may ask the store.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Permission {
    /// Until its deadline.
    Full,
    /// Once, for this time at most. If that fails, the reader calls [`Outage::probed`].
    Probe(Duration),
    /// Not at all: another read has just failed with this error.
    None(String),
}

/// The last reads that failed at their deadlines, if no request has succeeded since.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    failure: Mutex<Option<TimedOutReads>>,
}

#[derive(Debug)]
struct TimedOutReads {
    at: Instant,
    /// The blocks that could not be read.
    blocks: Vec<u64>,
    error: String,
    /// Time that is left for attempts; none while there is one.
    probes_left: Duration,
}

impl Outage {
    /// How a read of a block may ask the store that has this time left.
    pub(crate) fn permission(&self, block: u64, now: Instant, remaining: Duration) -> Permission {
        let mut failure = self.lock();
        let failure = failure.as_mut().filter(|failure| failure.is_shared(now));
        match failure.filter(|failure| failure.blocks.contains(&block)) {
            None => Permission::Full,
            Some(failure) if failure.probes_left.min(remaining) < LEAST_PROBE => {
                Permission::None(failure.error.clone())
            }
            Some(failure) => Permission::Probe(std::mem::take(&mut failure.probes_left)),
        }
    }

    /// Notes that an attempt that was permitted for `permitted` failed after this time.
    pub(crate) fn probed(&self, permitted: Duration, took: Duration) {
        if let Some(failure) = &mut *self.lock() {
            failure.probes_left = permitted.saturating_sub(took);
        }
    }

    /// Notes that a read of a block, which had time for several attempts, failed at its deadline, with the error of its last attempt.
    pub(crate) fn failed(&self, block: u64, now: Instant, error: &str) {
        let mut failure = self.lock();
        match failure.as_mut().filter(|failure| failure.is_shared(now)) {
            // Reads that fail together are one failure.
            Some(failure) => {
                if failure.blocks.len() < MAX_BLOCKS && !failure.blocks.contains(&block) {
                    failure.blocks.push(block);
                }
            }
            None => {
                let (blocks, error) = (vec![block], error.to_string());
                *failure = Some(TimedOutReads { at: now, blocks, error, probes_left: PROBES });
            }
        }
    }

    /// Notes that a request succeeded.
    pub(crate) fn ended(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<TimedOutReads>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TimedOutReads {
    fn is_shared(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < SHARED_FOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn for_a_second_one_read_at_a_time_probes_and_the_others_fail() {
        let (outage, start) = (Outage::default(), Instant::now());
        let after = |ms| start + Duration::from_millis(ms);
        let (long, none) = (Duration::from_secs(5), || Permission::None("first".into()));
        assert_eq!(outage.permission(7, start, long), Permission::Full);
        outage.failed(7, start, "first");
        // A read without time left does not take the time of others.
        assert_eq!(outage.permission(7, after(0), Duration::ZERO), none());
        assert_eq!(outage.permission(7, after(0), long), Permission::Probe(PROBES));
        assert_eq!(outage.permission(7, after(1), long), none());
        let took = Duration::from_millis(400);
        outage.probed(PROBES, took);
        // The reads that failed with the first one, and the attempt.
        outage.failed(8, after(10), "second");
        outage.failed(7, after(400), "third");
        assert_eq!(outage.permission(7, after(500), long), Permission::Probe(PROBES - took));
        outage.probed(PROBES - took, PROBES);
        for ms in [510, 999] {
            assert_eq!(outage.permission(7, after(ms), long), none());
            assert_eq!(outage.permission(8, after(ms), long), none());
            assert_eq!(outage.permission(9, after(ms), long), Permission::Full, "another block");
        }
        assert_eq!(outage.permission(7, after(1000), long), Permission::Full);
        outage.failed(7, after(4000), "fourth");
        assert_eq!(outage.permission(7, after(4000), long), Permission::Probe(PROBES));
        outage.ended();
        outage.probed(PROBES, took);
        assert_eq!(outage.permission(7, after(4001), long), Permission::Full);
    }
}
