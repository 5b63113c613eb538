//! Waiting after the medium failed, or was full.
//!
//! Pages stay where they are meanwhile. The first wait is a second and each further one
//! twice the last, up to a minute; a page that was parked in between starts them anew.
//! A full backing is tried earlier when it has more room than it had, free or to be
//! had by cleaning.

use super::condition::Condition;
use pagefold_backing::BackingError;
use std::time::Duration;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Cause {
    /// No room for a write, when there were so many bytes of it.
    Full { room_bytes: u64 },
    /// The medium failed.
    Failing(BackingError),
}

/// What is wrong, and until when it is waited for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trouble {
    cause: Option<Cause>,
    until: Duration,
    /// The last wait.
    pause: Duration,
}

impl Trouble {
    /// Notes that the backing was full, with so many bytes of room. `parked` says that pages were parked before.
    pub(crate) fn full(&mut self, now: Duration, room_bytes: u64, parked: bool) {
        self.begin(now, Cause::Full { room_bytes }, parked);
    }

    /// Notes that the medium failed.
    pub(crate) fn failing(&mut self, now: Duration, error: BackingError, parked: bool) {
        self.begin(now, Cause::Failing(error), parked);
    }

    fn begin(&mut self, now: Duration, cause: Cause, parked: bool) {
        self.pause = match parked || self.pause.is_zero() {
            true => FIRST,
            false => (self.pause * 2).min(LONGEST),
        };
        self.until = now.saturating_add(self.pause);
        self.cause = Some(cause);
    }

    /// Notes that all is well.
    pub(crate) fn end(&mut self) {
        *self = Trouble::default();
    }

    /// What to show, and how long to wait, if it is too early for another try. `room_bytes` is called for a full
    /// backing only.
    pub(crate) fn hinders(
        &self,
        now: Duration,
        room_bytes: &dyn Fn() -> u64,
    ) -> Option<(Condition, Duration)> {
        let wait = self.until.saturating_sub(now);
        if wait.is_zero() {
            return None;
        }
        match self.cause.as_ref()? {
            Cause::Full { room_bytes: before } if room_bytes() > *before => None,
            Cause::Full { .. } => Some((Condition::Full, wait)),
            Cause::Failing(error) => Some((Condition::Failing(error.clone()), wait)),
        }
    }

    /// Whether the medium failed and is not to be tried yet.
    pub(crate) fn is_failing(&self, now: Duration) -> bool {
        matches!(self.cause, Some(Cause::Failing(_))) && now < self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error() -> BackingError {
        BackingError::Io { operation: "write", offset: 0, len_bytes: 4096, errno: libc::EIO }
    }

    #[test]
    fn waits_double_up_to_a_minute_and_start_anew_after_a_success() {
        let (mut trouble, mut now, mut waits) = (Trouble::default(), Duration::ZERO, Vec::new());
        for _ in 0..9 {
            trouble.failing(now, error(), false);
            let (condition, wait) = trouble.hinders(now, &|| 0).unwrap();
            assert_eq!(condition, Condition::Failing(error()));
            assert!(trouble.is_failing(now));
            now += wait;
            assert_eq!(trouble.hinders(now, &|| 0), None);
            waits.push(wait.as_secs());
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        trouble.failing(now, error(), true);
        assert_eq!(trouble.hinders(now, &|| 0).unwrap().1, FIRST);
        trouble.end();
        assert_eq!(trouble.hinders(now, &|| 0), None);
    }

    #[test]
    fn a_full_backing_is_tried_when_it_has_more_room() {
        let mut trouble = Trouble::default();
        trouble.full(Duration::ZERO, 100, false);
        assert_eq!(trouble.hinders(Duration::ZERO, &|| 100), Some((Condition::Full, FIRST)));
        assert_eq!(trouble.hinders(Duration::ZERO, &|| 101), None);
        assert!(!trouble.is_failing(Duration::ZERO));
    }
}
