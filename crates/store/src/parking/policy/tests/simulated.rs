//! A store that is a list of slots, a medium that is a speed, and a clock that is a number.

use crate::parking::error::ParkError;
use crate::parking::policy::ages::age_ticks;
use crate::parking::policy::condition::Condition;
use crate::parking::policy::driver::Driver;
use crate::parking::policy::engine::{Engine, Memory, Sweep, Swept};
use crate::parking::policy::quiet::Load;
use crate::parking::policy::settings::Policy;
use crate::parking::policy::throttle::Throttle;
use crate::parking::report::Progress;
use crate::slot::{Content, Parked, Peek, Slot, Stamp};
use pagefold_backing::BackingError;
use pagefold_page::PageCount;
use std::cell::{Cell, RefCell};
use std::ops::ControlFlow;
use std::time::Duration;

pub(super) const LEN: u64 = 1000;
pub(super) const BATCH: u64 = 32;
/// Longer than any test runs.
pub(super) const FOREVER: Duration = Duration::from_secs(3600);

/// A page that was parked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Event {
    pub(super) at: Duration,
    pub(super) index: usize,
    pub(super) len_bytes: u64,
    pub(super) stamp: Stamp,
}

/// The store.
pub(super) struct World {
    pub(super) now: Cell<Duration>,
    pub(super) slots: Vec<Slot>,
    pub(super) limit_bytes: Cell<u64>,
    pub(super) policy: Policy,
    /// Bytes the medium takes a second.
    pub(super) speed: Cell<u64>,
    pub(super) room_bytes: Cell<u64>,
    pub(super) fails: Cell<bool>,
    /// Every so many batches fail; 0 is none.
    pub(super) fails_every: Cell<u64>,
    /// Sweeps do not get hold of the first so many pages, as if another pass had taken them.
    pub(super) held: Cell<usize>,
    /// What a look at a slot takes.
    pub(super) look_time: Cell<Duration>,
    batches: Cell<u64>,
    pub(super) limit_left: Cell<Option<u64>>,
    pub(super) written_bytes: Cell<u64>,
    pub(super) parked: RefCell<Vec<Event>>,
    /// When the slots were walked, swept, and tended.
    pub(super) walks: RefCell<Vec<Duration>>,
    pub(super) sweeps: RefCell<Vec<Duration>>,
    pub(super) tends: RefCell<Vec<(Duration, bool)>>,
    /// What each tend writes, if it may.
    pub(super) cleaning_bytes: Cell<u64>,
    pub(super) used_bytes: Cell<u64>,
}

impl World {
    pub(super) fn new(page_count: usize, limit_bytes: u64) -> Self {
        World {
            now: Cell::new(Duration::from_secs(1000)),
            slots: (0..page_count).map(|_| Slot::new()).collect(),
            limit_bytes: Cell::new(limit_bytes),
            policy: Policy::with_throttle(Throttle::with_patience(FOREVER, FOREVER)),
            speed: Cell::new(100_000_000),
            room_bytes: Cell::new(u64::MAX),
            fails: Cell::new(false),
            fails_every: Cell::new(0),
            held: Cell::new(0),
            look_time: Cell::new(Duration::from_nanos(10)),
            batches: Cell::new(0),
            limit_left: Cell::new(None),
            written_bytes: Cell::new(0),
            parked: RefCell::default(),
            walks: RefCell::default(),
            sweeps: RefCell::default(),
            tends: RefCell::default(),
            cleaning_bytes: Cell::new(0),
            used_bytes: Cell::new(0),
        }
    }

    /// Writes a page that was last accessed so many ticks ago.
    pub(super) fn write(&self, index: usize, len_bytes: u64, age_ticks: u16) {
        let old = self.slots[index].lock().fold(0, len_bytes as u16, 0);
        self.slots[index].lock().set_stamp(self.stamp_now().before(age_ticks));
        self.use_bytes(len_bytes as i64 - content_len(old));
    }

    /// Writes pages `LEN` bytes long, one age each.
    pub(super) fn write_all(&self, ages: impl IntoIterator<Item = u16>) {
        ages.into_iter().enumerate().for_each(|(index, age)| self.write(index, LEN, age));
    }

    /// Reads a page so many ticks ago.
    pub(super) fn access(&self, index: usize, age_ticks: u16) {
        self.slots[index].lock().touch(self.stamp_now().before(age_ticks));
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

    pub(super) fn is_parked(&self, index: usize) -> bool {
        self.slots[index].peek().is_parked()
    }

    pub(super) fn age(&self, stamp: Stamp) -> u16 {
        age_ticks(stamp, self.stamp_now())
    }

    /// Drives for a time; `event` happens before each step.
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
            self.policy.state().throttle().wait_for_work(Duration::ZERO);
            let wait = driver.step();
            assert!(self.now.get() - before < Duration::from_secs(1), "a step is short");
            self.pass(wait.max(Duration::from_micros(10)));
        }
    }

    pub(super) fn run(&self, time: Duration) {
        self.run_with(time, &mut || None, &mut || {});
    }

    /// Writes a batch.
    fn submit(&self, batch: &mut Vec<usize>, report: &mut crate::parking::report::ParkReport) {
        let len_bytes: u64 = batch.iter().map(|i| self.slots[*i].peek().object_len_bytes() as u64).sum();
        self.pass(Duration::from_nanos(len_bytes * 1_000_000_000 / self.speed.get()));
        self.batches.set(self.batches.get() + 1);
        let every = self.fails_every.get();
        if self.fails.get() || every > 0 && self.batches.get().is_multiple_of(every) {
            report.failed_pages += batch.len() as u64;
            report.error = Some(ParkError::Io(error()));
            return batch.clear();
        }
        self.written_bytes.set(self.written_bytes.get() + len_bytes);
        report.written_bytes += len_bytes;
        report.parked_pages += batch.len() as u64;
        for index in batch.drain(..) {
            let mut slot = self.slots[index].lock();
            let stamp = slot.stamp();
            assert!(slot.select());
            let generation = slot.generation();
            let old = slot.park(generation, Parked { location: 8, len_bytes: 1, priority: 0 });
            let len_bytes = content_len(old.unwrap()) as u64;
            self.use_bytes(-(len_bytes as i64));
            self.room_bytes.set(self.room_bytes.get() - len_bytes);
            self.parked.borrow_mut().push(Event { at: self.now.get(), index, len_bytes, stamp });
        }
    }

    /// Whether a page may go, by room and limit: the budget is charged before it is written.
    fn charge(&self, batch: &[usize], len_bytes: u64) -> Result<(), ParkError> {
        let pending: u64 = batch.iter().map(|i| self.slots[*i].peek().object_len_bytes() as u64).sum();
        if self.room_bytes.get() < pending + len_bytes {
            return Err(ParkError::Full);
        }
        match self.limit_left.get() {
            Some(0) => Err(ParkError::Budget),
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

impl Engine for World {
    fn now(&self) -> Duration {
        self.now.get()
    }

    fn stamp_now(&self) -> Stamp {
        Stamp::at(self.now.get())
    }

    fn memory(&self) -> Memory {
        Memory { used_bytes: self.used_bytes.get(), limit_bytes: self.limit_bytes.get() }
    }

    fn page_count(&self) -> PageCount {
        PageCount(self.slots.len() as u64)
    }

    fn peeks(&self, visit: &mut dyn FnMut(&Peek) -> ControlFlow<()>) {
        self.walks.borrow_mut().push(self.now.get());
        self.pass(self.look_time.get() * self.slots.len() as u32);
        let _ = self.slots.iter().try_for_each(|slot| visit(&slot.peek()));
    }

    fn park_aged(
        &self,
        sweep: &Sweep,
        goal: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<Swept, ParkError> {
        self.sweeps.borrow_mut().push(self.now.get());
        assert!(1 <= sweep.span.0 && sweep.span.0 <= self.slots.len() as u64);
        let (mut swept, mut batch) = (Swept::default(), Vec::new());
        while swept.seen < sweep.span {
            let index = ((sweep.from.0 + swept.seen.0) % self.slots.len() as u64) as usize;
            let peek = self.slots[index].peek();
            if index >= self.held.get() && peek.is_object() && self.age(peek.stamp()) >= sweep.age_ticks_min {
                if peek.is_accessed() && !sweep.urgent {
                    self.slots[index].lock().clear_accessed();
                } else if let Err(e) = self.charge(&batch, peek.object_len_bytes() as u64) {
                    swept.report.error = Some(e);
                    break;
                } else {
                    batch.push(index);
                }
            }
            swept.seen.0 += 1;
            self.pass(self.look_time.get());
            if batch.len() as u64 == BATCH {
                self.submit(&mut batch, &mut swept.report);
                let report = &swept.report;
                let progress = Progress {
                    seen_pages: swept.seen.0,
                    total_pages: sweep.span.0,
                    parked_pages: report.parked_pages,
                    written_bytes: report.written_bytes,
                };
                if goal(&progress).is_break() {
                    swept.report.error = swept.report.error.or(Some(ParkError::Stopped));
                    return Ok(swept);
                }
            }
        }
        if !batch.is_empty() {
            self.submit(&mut batch, &mut swept.report);
        }
        Ok(swept)
    }

    fn tend(&self, clean: bool) {
        self.tends.borrow_mut().push((self.now.get(), clean));
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

/// A small generator; tests want the same numbers every time.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

/// A reader of pressure that finds none.
pub(super) fn calm() -> impl FnMut() -> Option<Load> {
    || None
}
