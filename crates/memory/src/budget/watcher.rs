//! The thread of a budget that follows the pressure on memory: it reads, asks the policy, and sets the limit.

use super::pressure::{Follower, PressurePolicy, Reading};
use super::split::{Region, Split};
use pagefold_sys::memroom::RoomReader;
use pagefold_sys::memstall::StallReader;
use pagefold_sys::signal;
use parking_lot::Mutex;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between readings while there is plenty of memory.
const PAUSE: Duration = Duration::from_secs(1);
/// Time between readings while memory is tight.
const PAUSE_TIGHT: Duration = Duration::from_millis(100);
/// Least time between readings. Pages that do not compress take up to some 20 MiB of the store in it, less than the least
/// reserve.
const PAUSE_LEAST: Duration = Duration::from_millis(20);

/// The running thread. It ends when this is dropped.
pub(super) struct Watcher {
    is_ending: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Watcher {
    /// Sets the limit for the first time, and starts the thread.
    pub(super) fn start(policy: PressurePolicy, split: &Arc<Mutex<Split<Region>>>) -> io::Result<Self> {
        let mut watch = Watch {
            split: Arc::downgrade(split),
            room: RoomReader::open(),
            stall: StallReader::open(),
            follower: Follower::new(policy),
            start: Instant::now(),
            last: Instant::now(),
        };
        watch.step();
        let is_ending = Arc::new(AtomicBool::new(false));
        let ending = is_ending.clone();
        let thread = std::thread::Builder::new().name("pagefold-watch".into());
        let thread = signal::spawn_masked(thread, move || {
            let mut pause = PAUSE;
            while !ending.load(Relaxed) {
                std::thread::park_timeout(pause);
                std::thread::sleep(PAUSE_LEAST.saturating_sub(watch.last.elapsed()));
                pause = if watch.step() { PAUSE_TIGHT } else { PAUSE };
            }
        })?;
        Ok(Watcher { is_ending, thread })
    }
}

impl Watcher {
    /// Asks for a reading soon: a region is about to fold pages, so the store takes memory that the last reading found
    /// available. Allocates nothing and waits for nothing.
    pub(super) fn wake(&self) {
        self.thread.thread().unpark();
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // The thread holds no region and is not waited for: the last clone may be dropped by a thread that it needs.
        self.is_ending.store(true, Relaxed);
        self.thread.thread().unpark();
    }
}

struct Watch {
    split: Weak<Mutex<Split<Region>>>,
    room: RoomReader,
    stall: StallReader,
    follower: Follower,
    start: Instant,
    /// The last reading.
    last: Instant,
}

impl Watch {
    /// Sets the limit. Returns whether memory is tight.
    fn step(&mut self) -> bool {
        let Some(split) = self.split.upgrade() else { return false };
        self.last = Instant::now();
        let room = self.room.read();
        let stall = self.stall.read().map_or(0, |(_, stall)| stall.avg10_centipercent);
        let mut split = split.lock();
        let decision = self.follower.step(&Reading {
            at: self.start.elapsed(),
            total_bytes: room.total_bytes,
            available_bytes: room.available_bytes,
            stall_centipercent: stall,
            resident_pages: split.in_use_pages(),
            page_ins: split.page_ins(),
            watermark_pages: split.watermark_pages(),
        });
        split.set_total_pages(decision.limit_pages);
        decision.is_tight
    }
}
