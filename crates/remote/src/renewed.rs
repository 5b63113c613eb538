//! A value that expires and is fetched again, once for all readers that want it.
//!
//! Credentials and tokens are such values. The first reader that finds the value stale fetches it; the others wait, each
//! until its own deadline. If fetching fails while the old value still serves, the old one is used.

use crate::RemoteError;
use crate::answer::AttemptError;
use crate::retry::Deadline;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// A value is fetched again this long before it expires, or after half of its life if that is shorter.
const EARLY: Duration = Duration::from_secs(300);

/// A value with the time at which it expires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Expiring<T> {
    pub(crate) value: T,
    /// `None`: never.
    pub(crate) valid_until: Option<SystemTime>,
}

impl<T> Expiring<T> {
    /// A value that does not expire.
    pub(crate) fn never(value: T) -> Self {
        Expiring { value, valid_until: None }
    }
}

impl<T> Expiring<Option<T>> {
    /// No value, as long as nobody refuses that.
    pub(crate) fn none() -> Self {
        Expiring::never(None)
    }
}

/// The value, and whether a reader fetches it.
pub(crate) struct Renewed<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    current: Option<Current<T>>,
    /// Counts the values fetched.
    generation: u64,
    is_fetching: bool,
}

struct Current<T> {
    value: T,
    fetched: Instant,
    renew_after: Option<SystemTime>,
    valid_until: Option<SystemTime>,
    is_refused: bool,
}

impl<T: Clone> Renewed<T> {
    /// No value yet.
    pub(crate) fn new() -> Self {
        let state = State { current: None, generation: 0, is_fetching: false };
        Renewed { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value and its generation, counted from 1. Fetches it if there is none, or none that is young enough.
    pub(crate) fn get(
        &self,
        deadline: &Deadline,
        fetch: impl FnOnce() -> Result<Expiring<T>, AttemptError>,
    ) -> Result<(T, u64), AttemptError> {
        let guard = match self.claim(deadline)? {
            FetchClaim::Value(value, generation) => return Ok((value, generation)),
            FetchClaim::Fetch(guard) => guard,
        };
        let fetched = fetch();
        let mut state = self.lock();
        let now = SystemTime::now();
        let result = match fetched {
            Ok(Expiring { value, valid_until }) => {
                state.generation += 1;
                state.current = Some(Current::new(value.clone(), valid_until, now));
                Ok((value, state.generation))
            }
            Err(error) => match &state.current {
                Some(current) if current.serves(now) => Ok((current.value.clone(), state.generation)),
                _ => Err(error),
            },
        };
        drop(state);
        drop(guard);
        result
    }

    /// Returns a value that serves, or the right to fetch one. Waits until the deadline for another reader that fetches.
    fn claim(&self, deadline: &Deadline) -> Result<FetchClaim<'_, T>, AttemptError> {
        let mut state = self.lock();
        loop {
            let now = SystemTime::now();
            match &state.current {
                // An old one serves while another reader fetches the next one.
                Some(current) if current.is_young(now) || state.is_fetching && current.serves(now) => {
                    return Ok(FetchClaim::Value(current.value.clone(), state.generation));
                }
                _ if !state.is_fetching => {
                    state.is_fetching = true;
                    return Ok(FetchClaim::Fetch(FetchGuard { renewed: self }));
                }
                _ => {}
            }
            let remaining = deadline.remaining();
            if remaining.is_zero() {
                let what = "another reader waits for new credentials".to_string();
                return Err(AttemptError::transient(RemoteError::Connection { what }));
            }
            let waited = self.changed.wait_timeout(state, remaining);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Marks the value of this generation as refused, so that it is not used again. A newer value stays.
    pub(crate) fn refuse(&self, generation: u64) {
        let mut state = self.lock();
        if state.generation == generation
            && let Some(current) = &mut state.current
        {
            current.is_refused = true;
        }
    }

    /// Does what [`refuse`](Self::refuse) does to a value that was fetched at least `age` ago, and returns whether the next
    /// [`get`](Self::get) returns another value than that of this generation.
    pub(crate) fn refuse_old(&self, generation: u64, age: Duration) -> bool {
        let mut state = self.lock();
        let is_newest = state.generation == generation;
        match &mut state.current {
            Some(current) if is_newest => {
                current.is_refused |= current.fetched.elapsed() >= age;
                current.is_refused
            }
            _ => !is_newest,
        }
    }
}

impl<T> Current<T> {
    fn new(value: T, valid_until: Option<SystemTime>, now: SystemTime) -> Self {
        let renew_after = valid_until.map(|until| {
            let life = until.duration_since(now).unwrap_or_default();
            until - EARLY.min(life / 2)
        });
        Current { value, fetched: Instant::now(), renew_after, valid_until, is_refused: false }
    }

    /// Whether no other value is needed yet.
    fn is_young(&self, now: SystemTime) -> bool {
        !self.is_refused && is_before(now, self.renew_after)
    }

    /// Whether the value may be used.
    fn serves(&self, now: SystemTime) -> bool {
        !self.is_refused && is_before(now, self.valid_until)
    }
}

/// The next step of a reader.
enum FetchClaim<'a, T: Clone> {
    Value(T, u64),
    Fetch(FetchGuard<'a, T>),
}

fn is_before(now: SystemTime, end: Option<SystemTime>) -> bool {
    end.is_none_or(|end| now < end)
}

/// Ends fetching, whether it succeeded, failed or panicked.
struct FetchGuard<'a, T: Clone> {
    renewed: &'a Renewed<T>,
}

impl<T: Clone> Drop for FetchGuard<'_, T> {
    fn drop(&mut self) {
        self.renewed.lock().is_fetching = false;
        self.renewed.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn deadline(ms: u64) -> Deadline {
        Deadline::after(Duration::from_millis(ms))
    }

    fn value(n: u64, life: Option<Duration>) -> Result<Expiring<u64>, AttemptError> {
        Ok(Expiring { value: n, valid_until: life.map(|life| SystemTime::now() + life) })
    }

    fn failure() -> Result<Expiring<u64>, AttemptError> {
        Err(AttemptError::transient(RemoteError::Status { status: 503 }))
    }

    #[test]
    fn a_value_is_fetched_once_for_many_readers_and_again_when_it_is_refused() {
        let (renewed, fetches) = (Renewed::new(), AtomicU64::new(0));
        let get = || {
            renewed.get(&deadline(5000), || {
                std::thread::sleep(Duration::from_millis(50));
                value(fetches.fetch_add(1, Ordering::SeqCst), None)
            })
        };
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..8).map(|_| scope.spawn(get)).collect();
            readers.into_iter().for_each(|reader| assert_eq!(reader.join().unwrap(), Ok((0, 1))));
        });
        renewed.refuse(0);
        assert_eq!(get(), Ok((0, 1)), "an older one was refused");
        renewed.refuse(1);
        assert_eq!(get(), Ok((1, 2)));
        assert_eq!(fetches.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_value_is_refused_for_its_age_and_a_newer_one_stays() {
        let renewed = Renewed::new();
        let age = Duration::from_millis(50);
        assert_eq!(renewed.get(&deadline(100), || value(1, None)), Ok((1, 1)));
        assert!(!renewed.refuse_old(1, Duration::from_secs(3600)));
        assert_eq!(renewed.get(&deadline(100), || value(2, None)), Ok((1, 1)), "it was young");
        std::thread::sleep(age);
        assert!(renewed.refuse_old(1, age));
        assert!(renewed.refuse_old(1, age), "another reader was refused, too");
        assert_eq!(renewed.get(&deadline(100), || value(2, None)), Ok((2, 2)));
        assert!(renewed.refuse_old(1, Duration::ZERO), "there is a newer one");
        assert_eq!(renewed.get(&deadline(100), || value(3, None)), Ok((2, 2)));
    }

    #[test]
    fn an_old_value_serves_until_it_expires_if_no_new_one_comes() {
        let renewed = Renewed::new();
        let soon = Duration::from_millis(400);
        assert_eq!(renewed.get(&deadline(100), || value(1, Some(soon))), Ok((1, 1)));
        std::thread::sleep(soon * 6 / 10);
        let mut was_tried = false;
        let still = renewed.get(&deadline(100), || {
            was_tried = true;
            failure()
        });
        assert_eq!((still, was_tried), (Ok((1, 1)), true));
        std::thread::sleep(soon * 6 / 10);
        assert!(renewed.get(&deadline(100), failure).is_err());
        assert_eq!(renewed.get(&deadline(100), || value(2, None)), Ok((2, 2)));
        renewed.refuse(2);
        assert!(renewed.get(&deadline(100), failure).is_err(), "what was refused is not used again");
    }

    #[test]
    fn a_fetch_that_panics_leaves_the_next_reader_to_fetch() {
        let renewed = Renewed::new();
        let fetch =
            || renewed.get(&deadline(1000), || -> Result<Expiring<u64>, AttemptError> { panic!("a test") });
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(fetch)).is_err());
        assert_eq!(renewed.get(&deadline(1000), || value(1, None)), Ok((1, 1)));
    }

    #[test]
    fn a_reader_waits_for_the_fetch_of_another_until_its_deadline() {
        let renewed = Renewed::new();
        let (started, wait) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let renewed = &renewed;
            scope.spawn(move || {
                renewed.get(&deadline(1000), || {
                    started.send(()).unwrap();
                    std::thread::sleep(Duration::from_millis(500));
                    value(1, None)
                })
            });
            wait.recv().unwrap();
            let start = std::time::Instant::now();
            let error = renewed.get(&deadline(100), || panic!("one fetches")).unwrap_err();
            assert!(matches!(error, AttemptError::Transient { .. }));
            assert!(start.elapsed() < Duration::from_millis(400));
        });
    }
}
