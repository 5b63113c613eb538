//! Whether a disk works: the last failure for people, and a pause in which a failing disk is not used.
//!
//! A full disk may get space again, and a disk that was remounted read-only may be repaired. So a failure pauses the use of
//! the disk and does not end it. The first failure is reported, further ones are not, because there may be thousands.

use pagefold_sys::SysError;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a failing disk is not used.
const PAUSE: Duration = Duration::from_secs(30);

/// The state of one use of a disk: reading, or writing.
pub(crate) struct Health {
    /// The use: "read" or "written".
    done: &'static str,
    max_failures: u32,
    report: Arc<dyn Fn(&str) + Send + Sync>,
    started: Instant,
    /// Milliseconds since `started` until which the disk is not used.
    paused_until_ms: AtomicU64,
    /// Failures since the last success.
    failures: AtomicU32,
    error: Mutex<Option<String>>,
    has_reported: Mutex<bool>,
}

impl Health {
    /// A disk that works. It is paused after `max_failures` failures in a row.
    pub(crate) fn new(
        done: &'static str,
        max_failures: u32,
        report: Arc<dyn Fn(&str) + Send + Sync>,
    ) -> Self {
        Health {
            done,
            max_failures,
            report,
            started: Instant::now(),
            paused_until_ms: AtomicU64::new(0),
            failures: AtomicU32::new(0),
            error: Mutex::default(),
            has_reported: Mutex::default(),
        }
    }

    /// Whether the disk is not to be used now.
    pub(crate) fn is_paused(&self) -> bool {
        let until = self.paused_until_ms.load(Ordering::Relaxed);
        until > 0 && self.elapsed_ms() < until
    }

    /// The last failure; `None` if the disk has worked since.
    pub(crate) fn error(&self) -> Option<String> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn succeeded(&self) {
        if self.failures.load(Ordering::Relaxed) > 0 {
            self.failures.store(0, Ordering::Relaxed);
            self.paused_until_ms.store(0, Ordering::Relaxed);
            *self.error.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    pub(crate) fn failed(&self, error: &SysError) {
        if self.failures.fetch_add(1, Ordering::Relaxed) + 1 < self.max_failures {
            return;
        }
        let until = self.elapsed_ms() + PAUSE.as_millis() as u64;
        self.paused_until_ms.store(until, Ordering::Relaxed);
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
        let had_reported =
            std::mem::replace(&mut *self.has_reported.lock().unwrap_or_else(PoisonError::into_inner), true);
        if !had_reported {
            (self.report)(&format!("the cache of remote images cannot be {} now: {error}", self.done));
        }
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_paused_after_failures_in_a_row_and_the_first_is_reported() {
        let reported = Arc::new(Mutex::new(Vec::new()));
        let lines = reported.clone();
        let report = Arc::new(move |text: &str| lines.lock().unwrap().push(text.to_string()));
        let health = Health::new("written", 2, report);
        let full = SysError::new("writing", 28);
        health.failed(&full);
        assert!(!health.is_paused() && health.error().is_none());
        health.succeeded();
        health.failed(&full);
        assert!(!health.is_paused());
        health.failed(&full);
        health.failed(&full);
        assert!(health.is_paused() && health.error().unwrap().contains("No space left"));
        let text = "the cache of remote images cannot be written now: writing: No space left on device (os error 28)";
        assert_eq!(*reported.lock().unwrap(), [text]);
        health.succeeded();
        assert!(!health.is_paused() && health.error().is_none());
    }
}
