//! Where writers at the memory limit wait for room, and the parker for work.
//!
//! One lock and two queues. All that is waited for changes under the lock (or, for
//! memory, before the lock is taken to tell of it), and is looked at under the lock
//! before sleeping, so no wake-up is lost. A writer that finds room takes it in the same
//! look, so that no other can take it in between, and returns with it or without hope.
//!
//! A writer is refused only by a verdict that is newer than its call: the parker has
//! looked again since, and something hinders it (the backing is full or fails, a budget
//! is used up, nothing can be parked). Verdicts are cheap, and an old one may have been
//! overtaken by a discard. The exception is a medium that hangs: after half a minute in
//! which nothing was parked a writer gives up, and others do not even begin to wait
//! until something is parked again, so that this costs one wait and not one per write.
//!
//! What a writer needs is remembered until there was room for it: the parker works for
//! it even where memory is below the marks, which happens at limits of a few frames.
//!
//! Room also appears when others discard pages, which nobody reports here; writers look
//! for it themselves now and then.

#[cfg(loom)]
use loom::sync::{Condvar, Mutex, MutexGuard};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
#[cfg(not(loom))]
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long a writer waits while nothing is parked: as long as the kernel gives a disk to answer a request.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long until a writer looks for room unasked.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Writes that waited for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Throttled {
    /// How many.
    pub writes: u64,
    /// How long in all, microseconds.
    pub time_us: u64,
}

/// The meeting point.
#[derive(Debug)]
pub struct Throttle {
    door: Mutex<Door>,
    /// Writers sleep here.
    room: Condvar,
    /// The parker sleeps here.
    work: Condvar,
    /// A copy of the door's, to be read without the lock.
    stopping: AtomicBool,
    patience: Duration,
    look_again: Duration,
    writes: AtomicU64,
    time_us: AtomicU64,
}

#[derive(Debug, Default)]
struct Door {
    /// A parker exists.
    running: bool,
    stopping: bool,
    /// There is hope, says the last verdict.
    open: bool,
    /// A writer gave up waiting, and nothing was parked since.
    stalled: bool,
    /// The parker has been called and has not answered yet.
    called: bool,
    waiting: u32,
    /// The most that a writer needs which found no room; 0 when there was room for it since.
    needed_bytes: u64,
    /// Counts news of memory freed.
    news: u64,
    /// Counts the looks of the parker at what there is to do.
    look: u64,
    /// The last look that ended with a verdict.
    verdict: u64,
}

impl Default for Throttle {
    fn default() -> Self {
        Throttle::with_patience(PATIENCE, LOOK_AGAIN)
    }
}

impl Throttle {
    /// One with other times than usual.
    pub fn with_patience(patience: Duration, look_again: Duration) -> Self {
        Throttle {
            door: Mutex::new(Door::default()),
            room: Condvar::new(),
            work: Condvar::new(),
            stopping: AtomicBool::new(false),
            patience,
            look_again,
            writes: AtomicU64::new(0),
            time_us: AtomicU64::new(0),
        }
    }

    fn door(&self) -> MutexGuard<'_, Door> {
        // Nothing here panics with the lock held, and the door has no invariant between fields.
        self.door.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For writers: waits until `take_room` returns true, and returns that. False if there is no hope of it; then the
    /// write fails as it would without a backing.
    ///
    /// `take_room` takes the room that the writer needs, `needed_bytes`, if it is there. It is called several times,
    /// with a lock held: it must be cheap and take no lock. The caller holds no lock and no stream that parking could
    /// need.
    pub fn wait_for_room(&self, needed_bytes: u64, take_room: &mut dyn FnMut() -> bool) -> bool {
        let mut door = self.door();
        if take_room() {
            return true;
        }
        if !door.running || door.stopping {
            return false;
        }
        if door.stalled {
            self.call(&mut door, needed_bytes);
            return false;
        }
        let (began, look) = (Instant::now(), door.look);
        door.waiting += 1;
        let (mut since, mut news) = (began, door.news);
        let found = loop {
            // Again in each round: the parker may have answered the call before there was anything to free.
            self.call(&mut door, needed_bytes);
            door = self.sleep(&self.room, door, self.look_again);
            if take_room() {
                break true;
            }
            let is_refused = !door.open && door.verdict > look;
            if is_refused || door.stalled || !door.running || door.stopping {
                break false;
            }
            if door.news != news {
                (since, news) = (Instant::now(), door.news);
            } else if since.elapsed() >= self.patience {
                door.stalled = true;
                break false;
            }
        };
        door.waiting -= 1;
        drop(door);
        self.writes.fetch_add(1, Relaxed);
        self.time_us.fetch_add(began.elapsed().as_micros() as u64, Relaxed);
        found
    }

    fn call(&self, door: &mut Door, needed_bytes: u64) {
        door.needed_bytes = door.needed_bytes.max(needed_bytes);
        door.called = true;
        self.work.notify_one();
    }

    fn sleep<'a>(
        &'a self,
        queue: &Condvar,
        door: MutexGuard<'a, Door>,
        time: Duration,
    ) -> MutexGuard<'a, Door> {
        queue.wait_timeout(door, time).unwrap_or_else(PoisonError::into_inner).0
    }

    /// For the parker: it exists now. False, and nothing changes, if another one does.
    pub fn begin(&self) -> bool {
        let mut door = self.door();
        if door.running {
            return false;
        }
        *door = Door { running: true, open: true, waiting: door.waiting, ..Door::default() };
        self.stopping.store(false, Relaxed);
        true
    }

    /// For the parker: it is gone. Writers that wait give up.
    pub fn end(&self) {
        let mut door = self.door();
        (door.running, door.open) = (false, false);
        self.room.notify_all();
    }

    /// Tells the parker to end.
    pub fn stop(&self) {
        let mut door = self.door();
        (door.stopping, door.open) = (true, false);
        self.stopping.store(true, Relaxed);
        self.room.notify_all();
        self.work.notify_all();
    }

    /// Whether the parker is to end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    /// For the parker: memory was freed.
    pub fn tell_of_room(&self) {
        let mut door = self.door();
        door.news += 1;
        door.stalled = false;
        self.room.notify_all();
    }

    /// For the parker: whether there is hope, as far as its last look goes. Without it writers give up that have
    /// waited since before that look.
    pub fn set_open(&self, open: bool) {
        let mut door = self.door();
        door.open = open && door.running && !door.stopping;
        door.verdict = door.look;
        if !door.open {
            if door.waiting == 0 {
                door.needed_bytes = 0;
            }
            self.room.notify_all();
        }
    }

    /// Whether writers wait.
    #[cfg(test)]
    pub fn is_awaited(&self) -> bool {
        self.door().waiting > 0
    }

    /// For the parker: what the writer needs that needs the most of those that found no room; 0 if none did.
    pub fn needed_bytes(&self) -> u64 {
        self.door().needed_bytes
    }

    /// For the parker: there is room for what writers need. Those that wait look for it, and call again if another
    /// has taken it.
    pub fn end_need(&self) {
        let mut door = self.door();
        (door.needed_bytes, door.stalled) = (0, false);
        self.room.notify_all();
    }

    /// For the parker: sleeps for a time, or until a writer calls or it is to stop. May return for no reason. A new
    /// look begins when it returns.
    pub fn wait_for_work(&self, time: Duration) {
        let mut door = self.door();
        if !door.called && !door.stopping && !time.is_zero() {
            door = self.sleep(&self.work, door, time);
        }
        door.called = false;
        door.look += 1;
    }

    /// What was counted.
    pub fn counted(&self) -> Throttled {
        Throttled { writes: self.writes.load(Relaxed), time_us: self.time_us.load(Relaxed) }
    }
}
