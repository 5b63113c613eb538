//! [`Spinner`]: a server thread that tries again for a bounded time before it sleeps, while that pays off.
//!
//! Waking a sleeping thread on another CPU takes longer than many requests. So a thread that expects its next request
//! soon may look for it a few times first. It adapts, as the kernel's polling of halted CPUs does
//! (`Documentation/virt/guest-halt-polling.rst`): the time to spin grows while requests come soon after it had slept, and
//! becomes zero when they do not come at all. It takes no CPU from others: a thread that the kernel preempted while it
//! spun does not spin for a tenth of a second.
//!
//! Where the process may keep idle CPUs awake, a thread sleeps at once instead: see [`awake`](crate::awake).

use crate::awake::AwakeCpus;
use crate::cpu::Switches;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The first time to spin.
const FIRST: Duration = Duration::from_micros(10);
/// How long a thread does not spin after another program wanted its CPU.
const REST: Duration = Duration::from_millis(100);

/// How a waiting thread looks for its next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// It returns at once.
    Look,
    /// It sleeps until there is something.
    Sleep,
}

/// The spinning of one thread.
#[derive(Debug)]
pub struct Spinner {
    /// The longest time to spin; zero: never.
    most: Duration,
    /// The time to spin at present.
    window: Duration,
    rests_until: Option<Instant>,
    /// Keeps CPUs awake in place of spinning.
    awake: Option<Arc<AwakeCpus>>,
}

impl Spinner {
    /// A spinner that spins for at most this long at a time; zero: never. It never spins if `awake` keeps the CPUs awake
    /// instead, on one of which its request may be made.
    pub fn new(most: Duration, awake: Option<Arc<AwakeCpus>>) -> Self {
        Spinner { most, window: Duration::ZERO, rests_until: None, awake }
    }

    /// Calls `attempt` until it returns a value: with [`Attempt::Look`] for as long as that pays off, then with
    /// [`Attempt::Sleep`].
    pub fn wait<T, E>(&mut self, mut attempt: impl FnMut(Attempt) -> Result<Option<T>, E>) -> Result<T, E> {
        if let Some(awake) = &self.awake {
            awake.note_reply();
            let found = sleep(attempt)?;
            awake.note_request();
            return Ok(found);
        }
        if self.most.is_zero() {
            return sleep(attempt);
        }
        let start = Instant::now();
        if self.may_spin(start) {
            let before = Switches::of_thread().preemptions;
            let mut found = attempt(Attempt::Look)?;
            while found.is_none() && start.elapsed() < self.window {
                std::hint::spin_loop();
                found = attempt(Attempt::Look)?;
            }
            if Switches::of_thread().preemptions != before {
                self.rests_until = Some(Instant::now() + REST);
            }
            if let Some(found) = found {
                return Ok(found);
            }
        }
        let found = sleep(attempt)?;
        self.adapt(start.elapsed());
        Ok(found)
    }

    fn may_spin(&mut self, now: Instant) -> bool {
        if self.rests_until.is_some_and(|until| now >= until) {
            self.rests_until = None;
        }
        !self.window.is_zero() && self.rests_until.is_none()
    }

    /// Chooses the next time to spin, after a request that came so late that the thread slept.
    fn adapt(&mut self, waited: Duration) {
        self.window = match waited <= self.most {
            true => (self.window * 2).clamp(FIRST.min(self.most), self.most),
            false => Duration::ZERO,
        };
    }
}

fn sleep<T, E>(mut attempt: impl FnMut(Attempt) -> Result<Option<T>, E>) -> Result<T, E> {
    loop {
        if let Some(found) = attempt(Attempt::Sleep)? {
            return Ok(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    /// Waits once, for something that comes when the thread sleeps; returns how often it looked.
    fn wait(spinner: &mut Spinner) -> u32 {
        let mut looks = 0;
        let waited = spinner.wait(|attempt| {
            looks += u32::from(attempt == Attempt::Look);
            Ok::<_, Infallible>((attempt == Attempt::Sleep).then_some(()))
        });
        assert!(waited.is_ok());
        looks
    }

    #[test]
    fn zero_never_spins() {
        let mut spinner = Spinner::new(Duration::ZERO, None);
        assert_eq!((0..5).map(|_| wait(&mut spinner)).sum::<u32>(), 0);
    }

    #[test]
    fn the_time_grows_while_requests_come_soon_and_ends_when_they_do_not() {
        let most = Duration::from_secs(5);
        let mut spinner = Spinner::new(most, None);
        assert_eq!(wait(&mut spinner), 0);
        assert_eq!(spinner.window, FIRST);
        let mut before = spinner.window;
        for _ in 0..4 {
            spinner.rests_until = None;
            assert!(wait(&mut spinner) > 0);
            assert_eq!(spinner.window, before * 2);
            before = spinner.window;
        }
        spinner.adapt(most + FIRST);
        assert!(spinner.window.is_zero());
        assert_eq!(wait(&mut spinner), 0);
        spinner.window = most;
        spinner.adapt(most);
        assert_eq!(spinner.window, most);
    }

    #[test]
    fn a_request_that_comes_meanwhile_needs_no_sleep() {
        let mut spinner = Spinner::new(Duration::from_secs(5), None);
        wait(&mut spinner);
        spinner.window = Duration::from_secs(5);
        let mut looks = 0;
        let third = |attempt| {
            assert_eq!(attempt, Attempt::Look, "it slept");
            looks += 1;
            Ok::<_, Infallible>((looks == 3).then_some(7))
        };
        assert_eq!(spinner.wait(third), Ok(7));
    }

    #[test]
    fn a_thread_whose_cpu_is_wanted_rests() {
        let mut spinner = Spinner::new(Duration::from_secs(5), None);
        spinner.window = FIRST;
        spinner.rests_until = Some(Instant::now() + Duration::from_secs(5));
        assert_eq!(wait(&mut spinner), 0);
        spinner.rests_until = Some(Instant::now());
        assert!(wait(&mut spinner) > 0);
    }
}
