//! [`AwakeCpus`]: keeps idle CPUs from sleeping while requests follow each other closely.
//!
//! A request that wakes a thread on an idle CPU waits until that CPU has left its sleep. In a virtual machine this takes 25
//! us and more, and deep sleeps of other machines take longer: more than many requests. A process can ask the kernel that
//! idle CPUs poll instead: as long as it has [`DEVICE`] open with the value 0 (Documentation/admin-guide/pm/cpuidle.rst,
//! "Power Management Quality of Service for CPUs"). When the process dies, the kernel forgets the request.
//!
//! Only a CPU that has nothing else to do polls, so this takes no time from programs. It takes power, and time of the host
//! of a virtual machine. So a thread asks for it only while at least `OFTEN` requests come soon after the one before
//! within `PERIOD`, and takes the request back otherwise.

use crate::SysError;
use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// The device by which a process limits the time that idle CPUs take to wake up. Usually only root can open it.
pub const DEVICE: &str = "/dev/cpu_dma_latency";

/// How often it is checked whether requests still come.
const PERIOD: Duration = Duration::from_millis(10);
/// As many requests have to come within a period, each soon after the one before.
const OFTEN: u32 = 16;
/// The limit with which idle CPUs poll, and the value that takes the limit back, us.
const POLL: i32 = 0;
const NO_LIMIT: i32 = -1;

/// Keeps idle CPUs from sleeping while requests follow each other closely. Dropping it ends that.
#[derive(Debug)]
pub struct AwakeCpus {
    /// How soon a request has to come after the reply before, of any thread.
    soon: Duration,
    begin: Instant,
    shared: Arc<Shared>,
    /// `None` once it was joined.
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// The time of the last reply, or request, ns since the beginning.
    last_ns: AtomicU64,
    /// Requests that came soon, since the thread last looked.
    count: AtomicU32,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_wanted: bool,
    has_ended: bool,
}

impl AwakeCpus {
    /// Starts the thread that asks the kernel. A request counts if it comes within `soon` after the reply
    /// before, whichever threads they are of: several threads may take turns.
    ///
    /// Fails if this process may not open the device, or the kernel has none.
    pub fn start(soon: Duration) -> Result<Self, SysError> {
        let failed = |e| SysError::io(format!("opening {DEVICE}"), &e);
        let mut device = File::options().write(true).open(DEVICE).map_err(failed)?;
        // A refused value leaves CPUs as they are: only latency depends on it.
        Self::start_with(soon, move |limit_us| _ = device.write_all(&limit_us.to_ne_bytes()))
    }

    fn start_with(soon: Duration, set: impl FnMut(i32) + Send + 'static) -> Result<Self, SysError> {
        let shared = Arc::new(Shared::default());
        let of_thread = shared.clone();
        let thread = Builder::new().name("awake-cpus".into()).spawn(move || of_thread.run(set));
        let thread = thread.map_err(|e| SysError::io("starting the thread that keeps CPUs awake", &e))?;
        Ok(AwakeCpus { soon, begin: Instant::now(), shared, thread: Some(thread) })
    }

    /// Notes that a thread has replied, and waits for its next request.
    pub fn note_reply(&self) {
        self.shared.last_ns.store(self.now_ns(), Ordering::Relaxed);
    }

    /// Notes that a request came. Takes a lock once in a while only.
    pub fn note_request(&self) {
        let now_ns = self.now_ns();
        let last_ns = self.shared.last_ns.swap(now_ns, Ordering::Relaxed);
        self.note(Duration::from_nanos(now_ns.saturating_sub(last_ns)));
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Notes that a request came this long after the reply before.
    fn note(&self, waited: Duration) {
        if waited <= self.soon && self.shared.count.fetch_add(1, Ordering::Relaxed) + 1 == OFTEN {
            self.shared.lock().is_wanted = true;
            self.shared.changed.notify_one();
        }
    }
}

impl Drop for AwakeCpus {
    fn drop(&mut self) {
        self.shared.lock().has_ended = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // An error means that the thread panicked: there is no result to lose.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for awake CPUs when they are wanted, and takes that back after a period with few requests; until it has ended.
    fn run(&self, mut set: impl FnMut(i32)) {
        while self.wait_until_wanted() {
            set(POLL);
            let mut state = self.lock();
            while !state.has_ended && self.count.swap(0, Ordering::Relaxed) >= OFTEN {
                let waited = self.changed.wait_timeout_while(state, PERIOD, |state| !state.has_ended);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            state.is_wanted = false;
            drop(state);
            set(NO_LIMIT);
        }
    }

    /// Waits; returns false when it has ended.
    fn wait_until_wanted(&self) -> bool {
        let state = self.changed.wait_while(self.lock(), |state| !state.is_wanted && !state.has_ended);
        !state.unwrap_or_else(PoisonError::into_inner).has_ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::sync::mpsc::{Receiver, channel};

    const SOON: Duration = Duration::from_micros(50);
    const LONG: Duration = Duration::from_secs(60);

    fn start() -> (AwakeCpus, Receiver<i32>) {
        let (set, limits) = channel();
        (AwakeCpus::start_with(SOON, move |limit| set.send(limit).unwrap()).unwrap(), limits)
    }

    #[test]
    fn cpus_are_kept_awake_while_requests_come_soon_and_not_longer() {
        let (awake, limits) = start();
        for _ in 0..2 {
            (0..OFTEN).for_each(|_| awake.note(SOON));
            assert_eq!(limits.recv_timeout(LONG), Ok(POLL));
            // No more requests.
            assert_eq!(limits.recv_timeout(LONG), Ok(NO_LIMIT));
        }
        // While they come, the request stands.
        let begin = Instant::now();
        let mut noted = 0;
        while begin.elapsed() < 5 * PERIOD || noted < OFTEN {
            awake.note(SOON);
            noted += 1;
        }
        assert_eq!(limits.recv_timeout(LONG), Ok(POLL));
        drop(awake);
        let rest = limits.iter().collect::<Vec<_>>();
        assert_eq!(rest.last(), Some(&NO_LIMIT), "{rest:?}");
    }

    #[test]
    fn threads_that_take_turns_have_the_times_of_all() {
        let (set, limits) = channel();
        let awake = AwakeCpus::start_with(LONG, move |limit| set.send(limit).unwrap()).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..2 * OFTEN {
                scope.spawn(|| {
                    awake.note_reply();
                    awake.note_request();
                });
            }
        });
        assert_eq!(limits.recv_timeout(LONG), Ok(POLL));
        let (set, limits) = channel();
        let awake = AwakeCpus::start_with(Duration::ZERO, move |limit| set.send(limit).unwrap()).unwrap();
        for _ in 0..2 * OFTEN {
            awake.note_reply();
            std::thread::sleep(Duration::from_micros(100));
            awake.note_request();
        }
        drop(awake);
        assert_eq!(limits.iter().count(), 0);
    }

    #[test]
    fn late_requests_and_few_let_cpus_sleep() {
        let (awake, limits) = start();
        (0..10 * OFTEN).for_each(|_| awake.note(SOON + Duration::from_nanos(1)));
        (0..OFTEN - 1).for_each(|_| awake.note(SOON));
        drop(awake);
        assert_eq!(limits.iter().count(), 0);
    }

    /// The present limit of all processes, us.
    fn limit_us() -> Option<i32> {
        let mut limit = [0; 4];
        File::open(DEVICE).and_then(|mut device| device.read_exact(&mut limit)).ok()?;
        Some(i32::from_ne_bytes(limit))
    }

    #[test]
    fn the_kernel_takes_the_request_and_forgets_it() {
        let test = "the_kernel_takes_the_request_and_forgets_it";
        let Some(before) = limit_us().filter(|limit| *limit != POLL) else {
            return pagefold_testkit::skipped!("{test}: {DEVICE} cannot be read, or another process uses it");
        };
        let Ok(awake) = AwakeCpus::start(SOON) else {
            return pagefold_testkit::skipped!("{test}: {DEVICE} cannot be opened");
        };
        let deadline = Instant::now() + LONG;
        while limit_us() != Some(POLL) {
            assert!(Instant::now() < deadline);
            awake.note(SOON);
        }
        drop(awake);
        while limit_us() != Some(before) {
            assert!(Instant::now() < deadline);
        }
    }
}
