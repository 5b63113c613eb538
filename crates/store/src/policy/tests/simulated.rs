//! A simulated store: a list of slots, a medium with a speed, and a clock that tests advance.

use crate::error::WritebackError;
use crate::policy::backoff::Load;
use crate::policy::driver::Driver;
use crate::policy::settings::Condition;
use crate::policy::settings::Policy;
use crate::policy::target::{Memory, Sweep, SweepResult, WritebackTarget};
use crate::policy::throttle::Throttle;
use crate::report::Progress;
use crate::slot::{AccessTime, BackingLocation, Content, Intents, Slot, SlotSnapshot};
use pagefold_backing::BackingError;
use pagefold_page::PageCount;
use std::cell::{Cell, RefCell};
use std::ops::ControlFlow;
use std::time::Duration;

/// No slot outlives the process here.
const NONE: &Intents = &Intents::NONE;

pub(super) const LEN: u64 = 1000;
pub(super) const BATCH: u64 = 32;
/// Longer than the run time of any test.
pub(super) const FOREVER: Duration = Duration::from_secs(3600);

/// A page that was written back.
#[derive(Debug, Clone, Copy)]
pub(super) struct Event {
    pub(super) at: Duration,
    pub(super) index: usize,
    pub(super) len_bytes: u64,
    pub(super) last_access: AccessTime,
}

/// The simulated store, medium and clock.
pub(super) struct SimulatedStore {
    pub(super) now: Cell<Duration>,
    pub(super) slots: Vec<Slot>,
    pub(super) limit_bytes: Cell<u64>,
    pub(super) policy: Policy,
    /// Bytes per second that the medium writes.
    pub(super) speed: Cell<u64>,
    pub(super) room_bytes: Cell<u64>,
    pub(super) fails: Cell<bool>,
    /// Every n-th batch fails; 0 means none.
    pub(super) fails_every: Cell<u64>,
    /// Sweeps skip the first so many pages, as if another pass were writing them.
    pub(super) skipped: Cell<usize>,
    /// The time to examine a slot.
    pub(super) slot_time: Cell<Duration>,
    batches: Cell<u64>,
    pub(super) limit_left: Cell<Option<u64>>,
    pub(super) written_bytes: Cell<u64>,
    pub(super) written_back: RefCell<Vec<Event>>,
    /// The times of walks, sweeps and maintenance.
    pub(super) walks: RefCell<Vec<Duration>>,
    pub(super) sweeps: RefCell<Vec<Duration>>,
    pub(super) maintenance_runs: RefCell<Vec<(Duration, bool)>>,
    /// Bytes that each run of maintenance writes, if it may.
    pub(super) cleaning_bytes: Cell<u64>,
    pub(super) used_bytes: Cell<u64>,
}

impl SimulatedStore {
    pub(super) fn new(page_count: usize, limit_bytes: u64) -> Self {
        SimulatedStore {
            now: Cell::new(Duration::from_secs(1000)),
            slots: (0..page_count).map(|_| Slot::new()).collect(),
            limit_bytes: Cell::new(limit_bytes),
            policy: Policy::with_throttle(Throttle::with_timeouts(FOREVER, FOREVER)),
            speed: Cell::new(100_000_000),
            room_bytes: Cell::new(u64::MAX),
            fails: Cell::new(false),
            fails_every: Cell::new(0),
            skipped: Cell::new(0),
            slot_time: Cell::new(Duration::from_nanos(10)),
            batches: Cell::new(0),
            limit_left: Cell::new(None),
            written_bytes: Cell::new(0),
            written_back: RefCell::default(),
            walks: RefCell::default(),
            sweeps: RefCell::default(),
            maintenance_runs: RefCell::default(),
            cleaning_bytes: Cell::new(0),
            used_bytes: Cell::new(0),
        }
    }

    /// Writes a page with a last access `age_ticks` ago.
    pub(super) fn write(&self, index: usize, len_bytes: u64, age_ticks: u16) {
        let old = self.slots[index]
            .lock()
            .publish(Content::Folded { handle: 0, len_bytes: len_bytes as u16, priority: 0 }, NONE);
        self.slots[index].lock().set_last_access(self.access_time_now().before(age_ticks));
        self.use_bytes(len_bytes as i64 - content_len(old));
    }

    /// Writes a page of `LEN` bytes for each age.
    pub(super) fn write_all(&self, ages: impl IntoIterator<Item = u16>) {
        ages.into_iter().enumerate().for_each(|(index, age)| self.write(index, LEN, age));
    }

    /// Records a read of a page `age_ticks` ago.
    pub(super) fn access(&self, index: usize, age_ticks: u16) {
        self.slots[index].lock().touch(self.access_time_now().before(age_ticks));
    }

    fn use_bytes(&self, len_bytes: i64) {
        self.used_bytes.set(self.used_bytes.get().checked_add_signed(len_bytes).unwrap());
    }

    pub(super) fn pass(&self, time: Duration) {
        self.now.set(self.now.get() + time);
    }

    pub(super) fn condition(&self) -> Condition {
        self.policy.condition()
    }

    pub(super) fn is_written_back(&self, index: usize) -> bool {
        self.slots[index].snapshot().is_written_back()
    }

    pub(super) fn age(&self, last_access: AccessTime) -> u16 {
        last_access.age_ticks(self.access_time_now())
    }

    /// Runs the driver for `time`; calls `event` before each step.
    pub(super) fn run_with(
        &self,
        time: Duration,
        load: &mut dyn FnMut() -> Option<Load>,
        event: &mut dyn FnMut(),
    ) {
        let mut driver = Driver::new(self, &self.policy, load);
        let until = self.now.get() + time;
        while self.now.get() < until {
            event();
            let before = self.now.get();
            self.policy.throttle().wait_for_work(Duration::ZERO);
            let wait = driver.step();
            assert!(self.now.get() - before < Duration::from_secs(1), "a step is short");
            self.pass(wait.max(Duration::from_micros(10)));
        }
    }

    pub(super) fn run(&self, time: Duration) {
        self.run_with(time, &mut || None, &mut || {});
    }

    /// Writes a batch.
    fn submit(&self, batch: &mut Vec<usize>, report: &mut crate::report::WritebackReport) {
        let len_bytes: u64 = batch.iter().map(|i| self.slots[*i].snapshot().object_len_bytes() as u64).sum();
        self.pass(Duration::from_nanos(len_bytes * 1_000_000_000 / self.speed.get()));
        self.batches.set(self.batches.get() + 1);
        let every = self.fails_every.get();
        if self.fails.get() || every > 0 && self.batches.get().is_multiple_of(every) {
            report.failed_pages += batch.len() as u64;
            report.error = Some(WritebackError::Io(error()));
            return batch.clear();
        }
        self.written_bytes.set(self.written_bytes.get() + len_bytes);
        report.written_bytes += len_bytes;
        report.written_back_pages += batch.len() as u64;
        for index in batch.drain(..) {
            let mut slot = self.slots[index].lock();
            let last_access = slot.last_access();
            assert!(slot.begin_writeback());
            let generation = slot.generation();
            let old =
                slot.write_back(generation, BackingLocation { location: 8, len_bytes: 1, priority: 0 }, NONE);
            let len_bytes = content_len(old.unwrap()) as u64;
            self.use_bytes(-(len_bytes as i64));
            self.room_bytes.set(self.room_bytes.get() - len_bytes);
            self.written_back.borrow_mut().push(Event { at: self.now.get(), index, len_bytes, last_access });
        }
    }

    /// Checks the backing's space and charges `writeback_limit` for a page.
    fn charge(&self, batch: &[usize], len_bytes: u64) -> Result<(), WritebackError> {
        let pending: u64 = batch.iter().map(|i| self.slots[*i].snapshot().object_len_bytes() as u64).sum();
        if self.room_bytes.get() < pending + len_bytes {
            return Err(WritebackError::Full);
        }
        match self.limit_left.get() {
            Some(0) => Err(WritebackError::Budget),
            Some(left) => {
                self.limit_left.set(Some(left - 1));
                Ok(())
            }
            None => Ok(()),
        }
    }
}

pub(super) fn error() -> BackingError {
    BackingError::Io { operation: "write", offset: 4096, len_bytes: 4096, errno: libc::EIO }
}

fn content_len(content: Content) -> i64 {
    match content {
        Content::Folded { len_bytes, .. } => i64::from(len_bytes),
        _ => 0,
    }
}

impl WritebackTarget for SimulatedStore {
    fn now(&self) -> Duration {
        self.now.get()
    }

    fn access_time_now(&self) -> AccessTime {
        AccessTime::at(self.now.get())
    }

    fn memory(&self) -> Memory {
        Memory { used_bytes: self.used_bytes.get(), limit_bytes: self.limit_bytes.get() }
    }

    fn page_count(&self) -> PageCount {
        PageCount(self.slots.len() as u64)
    }

    fn each_snapshot(&self, visit: &mut dyn FnMut(&SlotSnapshot) -> ControlFlow<()>) {
        self.walks.borrow_mut().push(self.now.get());
        self.pass(self.slot_time.get() * self.slots.len() as u32);
        let _ = self.slots.iter().try_for_each(|slot| visit(&slot.snapshot()));
    }

    fn write_back_aged(
        &self,
        sweep: &Sweep,
        on_progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<SweepResult, WritebackError> {
        self.sweeps.borrow_mut().push(self.now.get());
        assert!(1 <= sweep.span.0 && sweep.span.0 <= self.slots.len() as u64);
        let (mut result, mut batch) = (SweepResult::default(), Vec::new());
        while result.seen < sweep.span {
            let index = ((sweep.from.0 + result.seen.0) % self.slots.len() as u64) as usize;
            let snapshot = self.slots[index].snapshot();
            if index >= self.skipped.get()
                && snapshot.is_object()
                && self.age(snapshot.last_access()) >= sweep.age_ticks_min
            {
                if snapshot.is_accessed() && !sweep.urgent {
                    self.slots[index].lock().clear_accessed();
                } else if let Err(e) = self.charge(&batch, snapshot.object_len_bytes() as u64) {
                    result.report.error = Some(e);
                    break;
                } else {
                    batch.push(index);
                }
            }
            result.seen.0 += 1;
            self.pass(self.slot_time.get());
            if batch.len() as u64 == BATCH {
                self.submit(&mut batch, &mut result.report);
                let report = &result.report;
                let progress = Progress {
                    seen_pages: result.seen.0,
                    total_pages: sweep.span.0,
                    written_back_pages: report.written_back_pages,
                    written_bytes: report.written_bytes,
                };
                if on_progress(&progress).is_break() {
                    result.report.error = result.report.error.or(Some(WritebackError::Stopped));
                    return Ok(result);
                }
            }
        }
        if !batch.is_empty() {
            self.submit(&mut batch, &mut result.report);
        }
        Ok(result)
    }

    fn run_maintenance(&self, clean: bool) {
        self.maintenance_runs.borrow_mut().push((self.now.get(), clean));
        if clean {
            self.written_bytes.set(self.written_bytes.get() + self.cleaning_bytes.get());
        }
    }

    fn bytes_written(&self) -> u64 {
        self.written_bytes.get()
    }

    fn backing_room_bytes(&self) -> u64 {
        self.room_bytes.get()
    }

    fn limit_left(&self) -> Option<u64> {
        self.limit_left.get()
    }
}

/// A small random generator with a seed, so that tests are repeatable.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

/// A reader of pressure files that finds no pressure.
pub(super) fn calm() -> impl FnMut() -> Option<Load> {
    || None
}
