//! [`AwakeCpus`]: keeps idle CPUs from sleeping while requests follow each other closely.
//!
//! A request that wakes a thread on an idle CPU waits until that CPU has left its sleep. In a virtual machine this takes 25
//! us and more, and deep sleeps of other machines take longer: more than many requests. A process can limit the time that
//! idle CPUs may take to wake up: as long as it has [`DEVICE`] open with that time as the value
//! (Documentation/admin-guide/pm/cpuidle.rst, "Power Management Quality of Service for CPUs"). When the process dies, the
//! kernel forgets the limit. With the idle driver `haltpoll` of virtual machines the limit is 0, so that idle CPUs poll: the only
//! other thing that they can do there is to leave the CPU to the host. With other drivers it is the time of the lightest sleep,
//! which takes little power and nothing from the other thread of a core. Without an idle driver the limit has no effect.
//!
//! Only a CPU that has nothing else to do polls, so no program waits for it; but one on the other thread of its core is slower
//! meanwhile. Polling takes power, and time of the host of a virtual machine. So a thread asks for it only while at least
//! `OFTEN` requests come within `PERIOD`, each soon after the reply before, and takes the request back otherwise.
//!
//! Of many requests at a time, threads find the next one without sleeping: CPUs that sleep let them find even more, and CPUs
//! that are awake made large and many requests slower by a tenth. So the thread does not ask while the process sleeps clearly
//! less often than its threads wait for requests. Requests that end one wait together count as one. On a busy machine, whose
//! CPUs are hardly ever idle, it does not ask either.

use crate::SysError;
use crate::cpu::Switches;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// The device by which a process limits the time that idle CPUs take to wake up. Usually only root can open it.
pub const DEVICE: &str = "/dev/cpu_dma_latency";

/// How often it is checked whether requests still come.
const PERIOD: Duration = Duration::from_millis(5);
/// As many requests have to come within a period, each soon after the reply before.
const OFTEN: u32 = 16;
/// Requests come one at a time if the process sleeps at least so many eighths as often as its threads wait for them. With one
/// request at a time it was 8 and more of them, with four of 4 KiB 7, with eight of 128 KiB 6, and with 32 of 4 KiB 2.
const SLEEP_EIGHTHS: u64 = 7;
/// The time over which it is found out whether the machine is busy. The kernel counts idle time in units of 10 ms.
const WINDOW: Duration = Duration::from_millis(200);
/// CPUs of a busy machine are idle for less than one part in so many of the time.
const BUSY_PARTS: u64 = 16;
/// The limit with which idle CPUs poll, that of the lightest sleep (C1), and the value that takes the limit back, us.
const POLL: i32 = 0;
const LIGHT_SLEEP: i32 = 2;
const NO_LIMIT: i32 = -1;
/// The file with the name of the driver of idle CPUs, its name in virtual machines that can poll, and what stands there for
/// none.
const IDLE_DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";
const IDLE_DRIVER_OF_GUESTS: &str = "haltpoll";
const NO_IDLE_DRIVER: &str = "none";
/// The file whose first line has the times of all CPUs.
const TIMES: &str = "/proc/stat";

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
    /// Requests, and those of them that came soon.
    requests: AtomicU32,
    soon: AtomicU32,
    /// When the latter count was last a multiple of `OFTEN`, ns since the beginning.
    often_ns: AtomicU64,
    /// Whether that happened twice within a period: the thread is to ask the kernel. It takes this back.
    is_wanted: AtomicBool,
    has_ended: Mutex<bool>,
    changed: Condvar,
}

/// The machine, as far as the thread uses it.
trait Machine: Send + 'static {
    /// Keeps idle CPUs awake, or lets them sleep again.
    fn keep_awake(&mut self, awake: bool);
    /// The times of all CPUs since it started; `None` if they are hidden.
    fn times(&mut self) -> Option<CpuTimes>;
    /// How often threads of this process have gone to sleep.
    fn sleeps(&mut self) -> u64;
}

/// The sums of the times of all CPUs, in units of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CpuTimes {
    idle: u64,
    all: u64,
}

/// Whether the machine is busy, found out anew after each window.
struct Busyness {
    is_busy: bool,
    since: Instant,
    times: Option<CpuTimes>,
}

impl Busyness {
    fn new(machine: &mut impl Machine) -> Self {
        Busyness { is_busy: false, since: Instant::now(), times: machine.times() }
    }

    /// Returns whether the machine was busy in the last window that has passed. A machine that hides its times is not.
    fn look(&mut self, machine: &mut impl Machine) -> bool {
        if self.since.elapsed() >= WINDOW {
            let times = machine.times();
            let passed = self.times.zip(times).map(|(before, now)| {
                (now.idle.saturating_sub(before.idle), now.all.saturating_sub(before.all))
            });
            self.is_busy = passed.is_some_and(|(idle, all)| idle.saturating_mul(BUSY_PARTS) < all);
            (self.since, self.times) = (Instant::now(), times);
        }
        self.is_busy
    }
}

impl AwakeCpus {
    /// Starts the thread that asks the kernel. A request counts if it comes within `soon` after the reply
    /// before, whichever threads they are of: several threads may take turns.
    ///
    /// Fails if this process may not open the device, or the kernel has none, or it has no driver of idle CPUs.
    pub fn start(soon: Duration) -> Result<Self, SysError> {
        Self::start_on(soon, Kernel::open()?)
    }

    fn start_on(soon: Duration, machine: impl Machine) -> Result<Self, SysError> {
        let shared = Arc::new(Shared::default());
        let of_thread = shared.clone();
        let thread = Builder::new().name("awake-cpus".into()).spawn(move || of_thread.run(machine));
        let thread = thread.map_err(|e| SysError::io("starting the thread that keeps CPUs awake", &e))?;
        Ok(AwakeCpus { soon, begin: Instant::now(), shared, thread: Some(thread) })
    }

    /// Notes that a thread has replied, and waits for its next request.
    pub fn note_reply(&self) {
        self.shared.last_ns.store(self.now_ns(), Ordering::Relaxed);
    }

    /// Notes that a request came, or several together. Takes a lock once in a while only.
    pub fn note_request(&self) {
        let now_ns = self.now_ns();
        let last_ns = self.shared.last_ns.swap(now_ns, Ordering::Relaxed);
        self.note(now_ns, Duration::from_nanos(now_ns.saturating_sub(last_ns)));
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Notes that a request came at a time, this long after the reply before. Wakes the thread after at most twice `OFTEN`
    /// requests that came soon: it counts the requests between two times at which their count was a multiple of `OFTEN`.
    fn note(&self, now_ns: u64, waited: Duration) {
        let shared = &self.shared;
        shared.requests.fetch_add(1, Ordering::Relaxed);
        if waited > self.soon
            || !shared.soon.fetch_add(1, Ordering::Relaxed).wrapping_add(1).is_multiple_of(OFTEN)
        {
            return;
        }
        let before_ns = shared.often_ns.swap(now_ns, Ordering::Relaxed);
        let is_often = u128::from(now_ns.saturating_sub(before_ns)) <= PERIOD.as_nanos();
        if is_often && !shared.is_wanted.swap(true, Ordering::Relaxed) {
            // The thread has looked at `is_wanted` under the lock, and waits now.
            drop(shared.lock());
            shared.changed.notify_one();
        }
    }
}

impl Drop for AwakeCpus {
    fn drop(&mut self) {
        *self.shared.lock() = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // An error means that the thread panicked: there is no result to lose.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.has_ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for awake CPUs when they are wanted and the machine is not busy; takes that back after a period with few requests,
    /// or when the machine is busy; until it has ended.
    fn run(&self, mut machine: impl Machine) {
        let mut busyness = Busyness::new(&mut machine);
        // In the last period in which requests came often.
        let mut came_singly = true;
        while self.wait_until_wanted() {
            let mut are_awake = false;
            loop {
                let keep = came_singly && !busyness.look(&mut machine);
                if keep != are_awake {
                    machine.keep_awake(keep);
                    are_awake = keep;
                }
                let sleeps = machine.sleeps();
                let Some(Passed { requests, soon }) = self.wait_for_a_period() else { break };
                let sleeps = machine.sleeps().saturating_sub(sleeps);
                if requests >= OFTEN {
                    came_singly = sleeps.saturating_mul(8) >= u64::from(requests) * SLEEP_EIGHTHS;
                }
                if soon < OFTEN {
                    break;
                }
            }
            if are_awake {
                machine.keep_awake(false);
            }
            self.is_wanted.store(false, Ordering::Relaxed);
        }
    }

    /// Waits; returns false when it has ended.
    fn wait_until_wanted(&self) -> bool {
        let waits = |has_ended: &mut bool| !*has_ended && !self.is_wanted.load(Ordering::Relaxed);
        let waited = self.changed.wait_while(self.lock(), waits);
        !*waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a period, and returns what came meanwhile; `None` when it has ended.
    fn wait_for_a_period(&self) -> Option<Passed> {
        let counts = || (self.requests.load(Ordering::Relaxed), self.soon.load(Ordering::Relaxed));
        let before = counts();
        let waited = self.changed.wait_timeout_while(self.lock(), PERIOD, |has_ended| !*has_ended);
        let has_ended = *waited.unwrap_or_else(PoisonError::into_inner).0;
        let now = counts();
        (!has_ended)
            .then(|| Passed { requests: now.0.wrapping_sub(before.0), soon: now.1.wrapping_sub(before.1) })
    }
}

/// The requests of a period.
struct Passed {
    requests: u32,
    /// Those that came soon after the reply before.
    soon: u32,
}

/// The kernel of this machine.
struct Kernel {
    device: File,
    /// The limit for awake CPUs, us.
    limit_us: i32,
    /// `None` where a sandbox hides it.
    times: Option<File>,
}

/// Whether the kernel has a driver of idle CPUs. Without one, a limit on their wake-up time has no effect.
pub fn has_idle_driver() -> bool {
    idle_driver().is_some()
}

/// The name of the driver of idle CPUs.
fn idle_driver() -> Option<String> {
    named_driver(&std::fs::read_to_string(IDLE_DRIVER).ok()?).map(str::to_string)
}

/// The name of a driver in the contents of its file.
fn named_driver(text: &str) -> Option<&str> {
    Some(text.trim()).filter(|name| !name.is_empty() && *name != NO_IDLE_DRIVER)
}

impl Kernel {
    fn open() -> Result<Self, SysError> {
        let Some(driver) = idle_driver() else {
            return Err(SysError::new("looking for a driver of idle CPUs", libc::ENODEV));
        };
        let failed = |e| SysError::io(format!("opening {DEVICE}"), &e);
        let device = File::options().write(true).open(DEVICE).map_err(failed)?;
        let limit_us = if driver == IDLE_DRIVER_OF_GUESTS { POLL } else { LIGHT_SLEEP };
        Ok(Kernel { device, limit_us, times: File::open(TIMES).ok() })
    }
}

impl Machine for Kernel {
    fn keep_awake(&mut self, awake: bool) {
        let limit_us = if awake { self.limit_us } else { NO_LIMIT };
        // A refused value leaves CPUs as they are: only latency depends on it.
        let _ = self.device.write_all(&limit_us.to_ne_bytes());
    }

    fn times(&mut self) -> Option<CpuTimes> {
        let mut text = [0; 256];
        let read = self.times.as_ref()?.read_at(&mut text, 0).ok()?;
        cpu_times(text.get(..read)?)
    }

    fn sleeps(&mut self) -> u64 {
        Switches::of_process().sleeps
    }
}

/// The times in the beginning of `/proc/stat`: the fourth number of the first line is idle time, the fifth is idle time while a
/// thread waits for a device, and the sum of the first eight is all time.
fn cpu_times(text: &[u8]) -> Option<CpuTimes> {
    let (line, _) = std::str::from_utf8(text).ok()?.split_once('\n')?;
    let numbers = line.strip_prefix("cpu ")?.split_ascii_whitespace();
    let numbers = numbers.map(|number| number.parse::<u64>().ok()).collect::<Option<Vec<_>>>()?;
    let idle = numbers.get(3)?.checked_add(*numbers.get(4)?)?;
    Some(CpuTimes { idle, all: numbers.get(..8)?.iter().sum() })
}

#[cfg(test)]
mod tests;
