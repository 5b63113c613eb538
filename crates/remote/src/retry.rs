//! Repeats a request until it succeeds or the deadline of its read has passed.
//!
//! The pause between two attempts doubles, and has a random part, so that many readers do not return to a server in
//! step. Near the deadline it is half of the time that is left: an outage that ends just before the deadline is survived
//! too. A server that limits requests is never asked sooner than it wants, nor sooner than after the time of the doubled
//! pauses; where that does not fit the deadline, there is no further attempt.

use crate::RemoteError;
use crate::answer::AttemptError;
use pagefold_backing::DeadlineScope;
use pagefold_sys::timer;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant};

/// The first pause, before its random part.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause that the server does not ask for.
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// The shortest pause. If less time is left, there is no further attempt.
const MIN_PAUSE: Duration = Duration::from_millis(10);

/// The time until which a read must end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    pub(crate) end: Instant,
    pub(crate) timeout: Duration,
}

impl Deadline {
    /// The deadline of a read that begins now.
    pub(crate) fn after(timeout: Duration) -> Self {
        Deadline { end: timer::deadline(Instant::now(), timeout), timeout }
    }

    /// The deadline of a read in the scope of this thread.
    pub(crate) fn of_current_request(timeout: Duration) -> Self {
        Deadline {
            end: timer::deadline(DeadlineScope::begun().unwrap_or_else(Instant::now), timeout),
            timeout,
        }
    }

    /// The same, or `most` from now if that is sooner.
    pub(crate) fn within(&self, most: Duration) -> Self {
        Deadline { end: self.end.min(timer::deadline(Instant::now(), most)), ..*self }
    }

    /// The time that is left.
    pub(crate) fn remaining(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }
}

/// Calls `attempt` until it succeeds, fails permanently, or the deadline has passed. Calls `pause` with the pause before
/// each further attempt.
pub(crate) fn until_deadline<T>(
    deadline: &Deadline,
    mut pause: impl FnMut(Duration),
    mut attempt: impl FnMut() -> Result<T, AttemptError>,
) -> Result<T, RemoteError> {
    let mut backoff = FIRST_PAUSE;
    let mut before = None;
    loop {
        let (error, retry_after) = match attempt() {
            Ok(value) => return Ok(value),
            Err(AttemptError::Permanent(error)) => return Err(error),
            Err(AttemptError::Transient { error, retry_after }) => (error, retry_after),
        };
        let remaining = deadline.remaining();
        if remaining < MIN_PAUSE {
            // An attempt that the deadline cut says nothing about the server; the one before it does.
            let last = before.filter(|_| remaining.is_zero()).unwrap_or(error).to_string();
            return Err(RemoteError::TimedOut { timeout: deadline.timeout, last });
        }
        let usual = jittered(backoff);
        let next = match retry_after.map(|asked| asked.max(usual)) {
            Some(asked) if asked >= remaining => {
                let last = error.to_string();
                return Err(RemoteError::Busy { pause: asked, left: remaining, last });
            }
            Some(asked) => asked,
            None => usual.min(remaining / 2).max(MIN_PAUSE),
        };
        before = Some(error);
        pause(next);
        backoff = (backoff * 2).min(MAX_PAUSE);
    }
}

/// A random time between half of `pause` and all of it.
fn jittered(pause: Duration) -> Duration {
    // Each `RandomState` has other keys.
    let random = RandomState::new().build_hasher().finish();
    pause / 2 + (pause / 2).mul_f64(random as f64 / u64::MAX as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transient(retry_after: Option<u64>) -> AttemptError {
        let error = RemoteError::Status { status: 503 };
        AttemptError::Transient { error, retry_after: retry_after.map(Duration::from_secs) }
    }

    #[test]
    fn no_timeout_is_too_long() {
        for deadline in [Deadline::after(Duration::MAX), Deadline::of_current_request(Duration::MAX)] {
            for deadline in [deadline, deadline.within(Duration::MAX)] {
                assert!(deadline.remaining() > Duration::from_secs(1 << 30));
            }
        }
    }

    #[test]
    fn pauses_grow_to_a_limit_and_end_at_the_deadline() {
        let deadline = Deadline::after(Duration::from_secs(3600));
        let mut pauses = Vec::new();
        let mut attempts = 0;
        let result = until_deadline(
            &deadline,
            |pause| pauses.push(pause),
            || {
                attempts += 1;
                if attempts < 12 { Err(transient(None)) } else { Ok(attempts) }
            },
        );
        assert_eq!((result, pauses.len()), (Ok(12), 11));
        for (n, pause) in pauses.iter().enumerate() {
            let full = (FIRST_PAUSE * (1 << n)).min(MAX_PAUSE);
            assert!((full / 2..=full).contains(pause), "{n}: {pause:?}");
        }
        let mut pauses = Vec::new();
        let two = [Some(3), Some(1000)].map(transient);
        let mut failures = two.into_iter();
        let result =
            until_deadline(&deadline, |pause| pauses.push(pause), || failures.next().map_or(Ok(()), Err));
        assert_eq!((result, pauses), (Ok(()), [3, 1000].map(Duration::from_secs).to_vec()));
    }

    #[test]
    fn a_permanent_failure_ends_it_at_once_and_a_transient_one_at_the_deadline() {
        let gone = RemoteError::Status { status: 404 };
        let deadline = Deadline::after(Duration::from_millis(200));
        let result = until_deadline::<()>(
            &deadline,
            |_| panic!("a pause"),
            || Err(AttemptError::Permanent(gone.clone())),
        );
        assert_eq!(result, Err(gone));
        let mut attempts = 0;
        let result = until_deadline::<()>(&deadline, std::thread::sleep, || {
            attempts += 1;
            Err(transient(None))
        });
        let text = result.unwrap_err().to_string();
        assert_eq!(text, "no answer within 0.2 s: the server answers with status 503");
        assert!(attempts >= 3 && deadline.remaining() < MIN_PAUSE, "{attempts}");
    }

    #[test]
    fn a_server_that_limits_requests_is_not_asked_again_sooner_than_it_wants() {
        let deadline = Deadline::after(Duration::from_secs(60));
        let mut attempts = 0;
        let result = until_deadline::<()>(
            &deadline,
            |_| panic!("a pause"),
            || {
                attempts += 1;
                Err(transient(Some(61)))
            },
        );
        let text = result.unwrap_err().to_string();
        assert!(text.contains("for 61 s") && text.contains("the 60 s") && text.contains("503"), "{text}");
        assert_eq!(attempts, 1);
        // Without a time, the pauses do not become shorter near the deadline.
        let deadline = Deadline::after(Duration::from_millis(600));
        let mut pauses = Vec::new();
        let result = until_deadline::<()>(
            &deadline,
            |pause| {
                pauses.push(pause);
                std::thread::sleep(pause);
            },
            || Err(transient(Some(0))),
        );
        assert!(matches!(result, Err(RemoteError::Busy { .. })), "{result:?}");
        let is_usual = |(n, pause): (usize, &Duration)| *pause >= FIRST_PAUSE * (1 << n) / 2;
        assert!(pauses.iter().enumerate().all(is_usual), "{pauses:?}");
    }

    #[test]
    fn an_attempt_that_the_deadline_cuts_does_not_hide_the_error_before_it() {
        let last = |failures: &[u16]| {
            let deadline = Deadline::after(Duration::from_millis(100));
            let mut failures = failures.iter();
            let result = until_deadline::<()>(
                &deadline,
                |_| (),
                || {
                    let status = failures.next().copied();
                    if failures.len() == 0 {
                        std::thread::sleep(deadline.remaining());
                    }
                    let error = RemoteError::Status { status: status.unwrap_or(0) };
                    Err(AttemptError::Transient { error, retry_after: None })
                },
            );
            result.unwrap_err().to_string()
        };
        assert_eq!(last(&[503, 504]), "no answer within 0.1 s: the server answers with status 503");
        assert_eq!(last(&[504]), "no answer within 0.1 s: the server answers with status 504");
    }
}
