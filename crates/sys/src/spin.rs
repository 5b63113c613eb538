//! [`Spinner`]: a server thread that tries again for a bounded time before it sleeps, while that pays off.
//!
//! Waking a sleeping thread on another CPU takes longer than many requests. So a thread that expects its next request
//! soon may look for it a few times first. It adapts, as the kernel's polling of halted CPUs does
//! (`Documentation/virt/guest-halt-polling.rst`): the time to spin grows while requests come soon after it had slept, and
//! becomes zero when they do not come at all. It takes no CPU from others: a thread that the kernel preempted while it
//! spun stops for [`REST`].

use rustix::process::{RUsageWho, getrusage};
use std::time::{Duration, Instant};

/// The first time to spin.
const FIRST: Duration = Duration::from_micros(10);
/// How long a thread does not spin after another program wanted its CPU.
const REST: Duration = Duration::from_millis(100);

/// The spinning of one thread.
#[derive(Debug)]
pub struct Spinner {
    /// The longest time to spin; zero: never.
    most: Duration,
    /// The time to spin at present.
    window: Duration,
    rests_until: Option<Instant>,
}

impl Spinner {
    /// A spinner that spins for at most this long at a time; zero: never.
    pub fn new(most: Duration) -> Self {
        Spinner { most, window: Duration::ZERO, rests_until: None }
    }

    /// Calls `try_once` until it returns a value, for as long as it pays off; then calls `sleep`, which waits for one.
    pub fn wait<T, E>(
        &mut self,
        mut try_once: impl FnMut() -> Result<Option<T>, E>,
        sleep: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        if self.most.is_zero() {
            return sleep();
        }
        let start = Instant::now();
        if self.may_spin(start) {
            let preempted = preemptions();
            loop {
                if let Some(found) = try_once()? {
                    return Ok(found);
                }
                if start.elapsed() >= self.window {
                    break;
                }
                std::hint::spin_loop();
            }
            if preemptions() != preempted {
                self.rests_until = Some(Instant::now() + REST);
            }
        }
        let found = sleep()?;
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

/// How often the kernel has taken the CPU from the calling thread.
fn preemptions() -> i64 {
    getrusage(RUsageWho::Thread).involuntary_context_switches as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    /// Waits once, for something that takes `late` to come after the thread sleeps; returns how often it was tried.
    fn wait(spinner: &mut Spinner, late: Duration) -> u32 {
        let mut tries = 0;
        let never = || {
            tries += 1;
            Ok::<Option<()>, Infallible>(None)
        };
        let slept = || {
            std::thread::sleep(late);
            Ok(())
        };
        assert!(spinner.wait(never, slept).is_ok());
        tries
    }

    #[test]
    fn zero_never_spins() {
        let mut spinner = Spinner::new(Duration::ZERO);
        assert_eq!((0..5).map(|_| wait(&mut spinner, Duration::ZERO)).sum::<u32>(), 0);
    }

    #[test]
    fn the_time_grows_while_requests_come_soon_and_ends_when_they_do_not() {
        let most = Duration::from_secs(5);
        let mut spinner = Spinner::new(most);
        assert_eq!(wait(&mut spinner, Duration::ZERO), 0);
        assert_eq!(spinner.window, FIRST);
        let mut before = spinner.window;
        for _ in 0..4 {
            spinner.rests_until = None;
            assert!(wait(&mut spinner, Duration::ZERO) > 0);
            assert_eq!(spinner.window, before * 2);
            before = spinner.window;
        }
        spinner.adapt(most + FIRST);
        assert!(spinner.window.is_zero());
        assert_eq!(wait(&mut spinner, Duration::ZERO), 0);
        spinner.window = most;
        spinner.adapt(most);
        assert_eq!(spinner.window, most);
    }

    #[test]
    fn a_request_that_comes_meanwhile_needs_no_sleep() {
        let mut spinner = Spinner::new(Duration::from_secs(5));
        wait(&mut spinner, Duration::ZERO);
        spinner.window = Duration::from_secs(5);
        let mut tries = 0;
        let third = || {
            tries += 1;
            Ok::<_, Infallible>((tries == 3).then_some(7))
        };
        assert_eq!(spinner.wait(third, || panic!("it slept")), Ok(7));
    }

    #[test]
    fn a_thread_whose_cpu_is_wanted_rests() {
        let mut spinner = Spinner::new(Duration::from_secs(5));
        spinner.window = FIRST;
        spinner.rests_until = Some(Instant::now() + Duration::from_secs(5));
        assert_eq!(wait(&mut spinner, Duration::ZERO), 0);
        spinner.rests_until = Some(Instant::now());
        assert!(wait(&mut spinner, Duration::ZERO) > 0);
    }
}
