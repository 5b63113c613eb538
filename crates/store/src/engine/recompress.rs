//! The thread of automatic recompression.
//!
//! A rule names an age and a codec: pages that were not accessed for that long are recompressed. The thread uses a
//! bounded share of one CPU: after each stretch of pages it rests for a multiple of the time that the stretch took.
//! While CPUs or disks of the machine are busy, it does nothing. A page that is written later gets the primary codec.
//!
//! The thread also advances the clock of access times, because in a store without a backing no other thread does.

use crate::engine::Store;
use crate::policy::{self, Load};
use crate::recompress::{RecompressError, RecompressRequest, run_pass};
use crate::slot::AccessTime;
use crate::writeback::Which;
use pagefold_sys::{signal, timer};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between advances of the clock.
const TICK: Duration = Duration::from_millis(250);
/// Shortest rest.
const REST_MIN: Duration = Duration::from_millis(10);
/// Time between readings of the machine's pressure.
const PRESSURE_PERIOD: Duration = Duration::from_secs(1);
/// Shortest time between two passes of a rule.
const PASS_PERIOD_MIN: Duration = Duration::from_secs(5);
/// A rule's passes are apart by its age divided by this, so a page is recompressed at most so much later than its age.
const PASSES_PER_AGE: u32 = 8;

/// A rule of automatic recompression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecompressRule {
    /// The time since a page's last access from which on it is recompressed, seconds. Access times reach back 8192 s; a
    /// longer time seldom comes.
    pub age_s: u64,
    /// The priority of a further codec of the store.
    pub priority: u8,
}

/// The configuration of automatic recompression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AutoRecompress {
    /// The rules. A page to which several apply gets the codec of the highest priority.
    pub rules: Vec<RecompressRule>,
    /// The most of one CPU that the thread uses while the machine is idle enough, per cent, 1 to 100.
    pub cpu_percent: u8,
}

/// Automatic recompression of one store: owns the thread, and stops and joins it on drop.
pub struct RecompressThread {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

/// The most time that counts as work on a stretch of pages: longer ones are those in which the process was stopped.
const STRETCH_MAX: Duration = Duration::from_secs(1);

/// Tells the thread to stop, and wakes it.
#[derive(Default)]
struct Stop {
    is_stopping: Mutex<bool>,
    wake: Condvar,
}

impl Stop {
    /// Waits for `time`, or until the thread is to stop. Returns whether it is.
    fn wait(&self, time: Duration) -> bool {
        let deadline = timer::deadline(Instant::now(), time);
        let mut is_stopping = self.is_stopping.lock();
        while !*is_stopping && !self.wake.wait_until(&mut is_stopping, deadline).timed_out() {}
        *is_stopping
    }
}

impl RecompressThread {
    /// Starts the thread. A store without the times of accesses has no ages: rules do nothing there. Returns an error
    /// if a rule names a codec that the store does not have, or the thread cannot be started.
    pub fn start(store: Arc<Store>, config: AutoRecompress) -> io::Result<Self> {
        for rule in &config.rules {
            let target = request(*rule).target(&store.pages.codecs);
            target.map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        }
        let stop = Arc::new(Stop::default());
        let thread_stop = stop.clone();
        let builder = std::thread::Builder::new().name("pagefold-rc".into());
        let thread = signal::spawn_masked(builder, move || {
            RecompressDriver::new(&store, &thread_stop, config, &mut policy::machine_load).run();
        })?;
        Ok(RecompressThread { stop, thread: Some(thread) })
    }
}

impl Drop for RecompressThread {
    fn drop(&mut self) {
        *self.stop.is_stopping.lock() = true;
        self.stop.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic of the thread; the store is whole without it.
            let _ = thread.join();
        }
    }
}

/// The work of the thread.
struct RecompressDriver<'a> {
    store: &'a Store,
    stop: &'a Stop,
    config: AutoRecompress,
    load: &'a mut dyn FnMut() -> Option<Load>,
    /// When each rule's next pass is due.
    due: Vec<Instant>,
}

impl<'a> RecompressDriver<'a> {
    fn new(
        store: &'a Store,
        stop: &'a Stop,
        mut config: AutoRecompress,
        load: &'a mut dyn FnMut() -> Option<Load>,
    ) -> Self {
        // The highest priority first, so that no page is compressed twice in a row.
        config.rules.sort_by_key(|rule| std::cmp::Reverse(rule.priority));
        let due = vec![Instant::now(); config.rules.len()];
        RecompressDriver { store, stop, config, load, due }
    }

    fn run(mut self) {
        while !self.stop.wait(TICK) {
            pagefold_sys::injected_panic::at(|| "recompress".into());
            self.store.pages.tick();
            for at in 0..self.due.len() {
                if Instant::now() >= self.due[at] && !self.is_busy() {
                    let rule = self.config.rules[at];
                    if self.store.access_times {
                        self.pass(rule);
                    }
                    self.due[at] = timer::deadline(Instant::now(), pass_period(rule));
                }
            }
        }
    }

    /// Runs one pass of a rule, with rests.
    fn pass(&mut self, rule: RecompressRule) {
        let mut pace = Pace::new();
        let store = self.store;
        match run_pass(&store.pages, &request(rule), &mut |_| self.rest(&mut pace)) {
            Ok(_) => {}
            // Memory for the codec was missing. The rule's next pass allocates it again.
            Err(RecompressError::Codec(_)) => {}
            Err(error) => debug_assert!(false, "`start` has checked the rules: {error}"),
        }
    }

    /// Rests after a stretch of pages, and while the machine is busy. Breaks if the thread is to stop.
    fn rest(&mut self, pace: &mut Pace) -> ControlFlow<()> {
        let percent = u32::from(self.config.cpu_percent.clamp(1, 100));
        pace.owed += pace.worked_from.elapsed().min(STRETCH_MAX) * (100 - percent) / percent;
        // A stretch without a page to try takes less than a microsecond: sleeping costs more.
        let mut left = if pace.owed >= REST_MIN { std::mem::take(&mut pace.owed) } else { Duration::ZERO };
        while left > Duration::ZERO {
            let part = left.min(TICK);
            if self.stop.wait(part) {
                return ControlFlow::Break(());
            }
            self.store.pages.tick();
            left -= part;
        }
        if pace.pressure_at.elapsed() >= PRESSURE_PERIOD {
            while self.is_busy() {
                if self.stop.wait(TICK) {
                    return ControlFlow::Break(());
                }
                self.store.pages.tick();
            }
            pace.pressure_at = Instant::now();
        }
        pace.worked_from = Instant::now();
        ControlFlow::Continue(())
    }

    /// Whether threads of the machine wait for CPUs or disks so much that this thread must not compete with them.
    fn is_busy(&mut self) -> bool {
        let percent_max = self.store.recompress_busy_percent();
        percent_max > 0 && (self.load)().is_some_and(|load| load.is_above(percent_max))
    }
}

/// The times that the rests of a pass depend on.
struct Pace {
    worked_from: Instant,
    pressure_at: Instant,
    /// Rest that the thread has not taken yet.
    owed: Duration,
}

impl Pace {
    fn new() -> Self {
        Pace { worked_from: Instant::now(), pressure_at: Instant::now(), owed: Duration::ZERO }
    }
}

/// The pass of a rule.
fn request(rule: RecompressRule) -> RecompressRequest {
    RecompressRequest {
        which: Which::NotAccessedFor { age_s: rule.age_s },
        priority: Some(rule.priority),
        ..RecompressRequest::default()
    }
}

fn pass_period(rule: RecompressRule) -> Duration {
    let age_s = rule.age_s.min(AccessTime::AGE_MAX_S);
    PASS_PERIOD_MIN.max(Duration::from_secs(age_s) / PASSES_PER_AGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::StoreConfig;
    use pagefold_codec::CodecSpec;
    use pagefold_page::PAGE_SIZE;
    use pagefold_sys::pressure::Stall;

    fn store() -> Store {
        let mut config = StoreConfig::new(1000 * PAGE_SIZE as u64);
        config.further_codecs[0] = Some(CodecSpec::named("zstd"));
        config.access_times = true;
        let store = Store::new(config).unwrap();
        let text: Vec<u8> = (0..100_000u64).flat_map(|i| (i * i).to_string().into_bytes()).collect();
        for index in 0..64 {
            let at = index as usize * 1000;
            store.write(index * PAGE_SIZE as u64, &text[at..at + PAGE_SIZE]).unwrap();
        }
        store
    }

    fn stall(avg10_centipercent: u32) -> Stall {
        Stall { avg10_centipercent, total_us: 0 }
    }

    /// Runs one pass of a rule for pages of any age under `load`; returns how many pages it recompressed.
    fn one_pass(store: &Store, load: &mut dyn FnMut() -> Option<Load>) -> u64 {
        let (stop, rule) = (Stop::default(), RecompressRule { age_s: 0, priority: 1 });
        let config = AutoRecompress { rules: vec![rule], cpu_percent: 50 };
        RecompressDriver::new(store, &stop, config, load).pass(rule);
        store.stats().recompress.recompressed_pages
    }

    #[test]
    fn a_pass_recompresses_what_is_old_enough_and_rests() {
        let store = store();
        assert_eq!(one_pass(&store, &mut || None), 64);
        assert_eq!(one_pass(&store, &mut || None), 64);
    }

    #[test]
    fn the_time_between_passes_of_a_rule_ends_at_the_greatest_age() {
        let period = |age_s| pass_period(RecompressRule { age_s, priority: 1 });
        assert_eq!((period(0), period(80)), (PASS_PERIOD_MIN, Duration::from_secs(10)));
        assert_eq!(period(u64::MAX), Duration::from_secs(AccessTime::AGE_MAX_S / 8));
    }

    #[test]
    fn a_busy_machine_is_busy_by_either_resource() {
        let (store, stop) = (store(), Stop::default());
        for (cpu, io, is_busy) in [(0, 0, false), (4001, 0, true), (0, 4001, true), (4000, 4000, false)] {
            let mut load = || Some(Load { cpu: stall(cpu), io: stall(io) });
            let config = AutoRecompress { rules: Vec::new(), cpu_percent: 50 };
            assert_eq!(
                RecompressDriver::new(&store, &stop, config, &mut load).is_busy(),
                is_busy,
                "{cpu} {io}"
            );
        }
        store.set_recompress_busy_percent(0);
        let mut load = || Some(Load { cpu: stall(10_000), io: stall(10_000) });
        let config = AutoRecompress { rules: Vec::new(), cpu_percent: 50 };
        assert!(!RecompressDriver::new(&store, &stop, config, &mut load).is_busy());
    }

    #[test]
    fn a_rule_for_a_codec_that_the_store_does_not_have_is_refused() {
        let store = Arc::new(store());
        for (priority, is_valid) in [(0, false), (1, true), (2, false), (200, false)] {
            let rules = vec![RecompressRule { age_s: 3600, priority }];
            let started = RecompressThread::start(store.clone(), AutoRecompress { rules, cpu_percent: 1 });
            let kind = started.map(drop).map_err(|e| e.kind());
            assert_eq!(kind, if is_valid { Ok(()) } else { Err(io::ErrorKind::InvalidInput) }, "{priority}");
        }
    }

    #[test]
    fn a_stop_ends_a_rest() {
        let (store, stop) = (store(), Stop::default());
        *stop.is_stopping.lock() = true;
        let config = AutoRecompress { rules: Vec::new(), cpu_percent: 1 };
        let mut load = || None;
        let mut driver = RecompressDriver::new(&store, &stop, config, &mut load);
        let mut pace = Pace { worked_from: Instant::now() - Duration::from_secs(3600), ..Pace::new() };
        assert!(driver.rest(&mut pace).is_break());
    }
}
