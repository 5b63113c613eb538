//! How reads ask a store just after another read has failed at its deadline.
//!
//! Reads of a store that is away wait for their deadlines. Programs do not see these reads alone: the kernel sends the
//! requests of several programs for one name or page one after the other, and the threads of a mount serve a few at once.
//! The last of them would wait for several deadlines. So for a second after such a failure reads make single attempts, one
//! at a time, which together may take half a second. Beside them, and when that time is used up, reads fail at once, as if
//! they had waited with the first one. Any request that succeeds ends this.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long reads fail with the one that has failed.
const SHARED_FOR: Duration = Duration::from_secs(1);
/// The longest time of all attempts meanwhile, and the shortest one for which an attempt is made.
const PROBES: Duration = Duration::from_millis(500);
const LEAST_PROBE: Duration = Duration::from_millis(20);

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

/// The last read that failed at its deadline, if no request has succeeded since.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    failure: Mutex<Option<Failure>>,
}

#[derive(Debug)]
struct Failure {
    at: Instant,
    error: String,
    /// Time that is left for attempts; none while there is one.
    probes_left: Duration,
}

impl Outage {
    /// How a read may ask the store that has this time left.
    pub(crate) fn permission(&self, now: Instant, remaining: Duration) -> Permission {
        let mut failure = self.lock();
        match failure.as_mut().filter(|failure| failure.is_shared(now)) {
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

    /// Notes that a read failed at its deadline, with the error of its last attempt.
    pub(crate) fn failed(&self, now: Instant, error: &str) {
        let mut failure = self.lock();
        // Reads that fail together are one failure.
        if !failure.as_ref().is_some_and(|failure| failure.is_shared(now)) {
            *failure = Some(Failure { at: now, error: error.to_string(), probes_left: PROBES });
        }
    }

    /// Notes that a request succeeded.
    pub(crate) fn ended(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Failure>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Failure {
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
        assert_eq!(outage.permission(start, long), Permission::Full);
        outage.failed(start, "first");
        // A read without time left does not take the time of others.
        assert_eq!(outage.permission(after(0), Duration::ZERO), none());
        assert_eq!(outage.permission(after(0), long), Permission::Probe(PROBES));
        assert_eq!(outage.permission(after(1), long), none());
        let took = Duration::from_millis(400);
        outage.probed(PROBES, took);
        // The reads that failed with the first one, and the attempt.
        outage.failed(after(10), "second");
        outage.failed(after(400), "third");
        assert_eq!(outage.permission(after(500), long), Permission::Probe(PROBES - took));
        outage.probed(PROBES - took, PROBES);
        for ms in [510, 999] {
            assert_eq!(outage.permission(after(ms), long), none());
        }
        assert_eq!(outage.permission(after(1000), long), Permission::Full);
        outage.failed(after(4000), "fourth");
        assert_eq!(outage.permission(after(4000), long), Permission::Probe(PROBES));
        outage.ended();
        outage.probed(PROBES, took);
        assert_eq!(outage.permission(after(4001), long), Permission::Full);
    }
}
