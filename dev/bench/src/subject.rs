//! The measured stores: the trait [`Subject`], and the loops that store, load and verify a page set.

use super::pages::PageSet;
use pagefold_page::PAGE_SIZE;
use pagefold_sys::cpu;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Memory that a subject uses for its pages.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Memory {
    /// Bytes of the pages before compression.
    pub original: u64,
    /// Bytes of the compressed objects.
    pub stored: u64,
    /// Memory used for these objects as zram's `mem_used_total` defines it: without slots.
    pub used: u64,
    /// `used` and everything else that grows with the number of pages: slots, lists, free frames kept ready.
    /// The kernel's slots take 16 bytes for each page of the device.
    pub with_slots: u64,
}

impl Memory {
    /// Original bytes / memory used.
    pub fn ratio(&self) -> f64 {
        self.original as f64 / self.used as f64
    }
}

/// Average time per page, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Took {
    /// CPU time of the calling thread, in user space and in the kernel. All subjects work in this thread, so on an
    /// idle machine this equals the wall time; on a busy machine it excludes other processes.
    pub cpu_ns: f64,
    /// Wall time.
    pub wall_ns: f64,
}

/// A running measurement of [`Took`].
struct Clock {
    cpu: Duration,
    wall: Instant,
}

impl Clock {
    fn start() -> Self {
        Clock { cpu: cpu::thread_time(), wall: Instant::now() }
    }

    fn stop(&self, pages: usize) -> Took {
        let cpu_ns = (cpu::thread_time() - self.cpu).as_nanos() as f64 / pages as f64;
        Took { cpu_ns, wall_ns: ns_per_page(self.wall, pages) }
    }
}

/// A store of pages to measure: pagefold's or the kernel's.
pub trait Subject {
    /// The name in the tables.
    fn name(&self) -> &'static str;

    /// Stores bytes at a byte offset, both multiples of a page.
    fn store(&mut self, at: u64, bytes: &[u8]) -> anyhow::Result<()>;

    /// Loads bytes from a byte offset. `bytes` is aligned to a page.
    fn load(&mut self, at: u64, bytes: &mut [u8]) -> anyhow::Result<()>;

    /// The memory used now.
    fn memory(&self) -> anyhow::Result<Memory>;
}

/// Stores a whole set in requests of `request_len` bytes. Returns the time per page.
pub fn store_all(
    subject: &mut dyn Subject,
    set: &PageSet,
    request_len: usize,
    shift_pages: usize,
) -> anyhow::Result<Took> {
    let clock = Clock::start();
    for at in (0..set.bytes().len()).step_by(request_len) {
        subject.store(at as u64, set.shifted(at, request_len, shift_pages))?;
    }
    Ok(clock.stop(set.len()))
}

/// Loads a whole set in requests of the length of `buf`, each into `buf`. Returns the time per page.
pub fn load_all(subject: &mut dyn Subject, set: &PageSet, buf: &mut [u8]) -> anyhow::Result<Took> {
    let clock = Clock::start();
    for at in (0..set.bytes().len()).step_by(buf.len()) {
        subject.load(at as u64, buf)?;
    }
    Ok(clock.stop(set.len()))
}

/// Checks that the subject returns the set as it was stored with this shift.
pub fn verify(
    subject: &mut dyn Subject,
    set: &PageSet,
    shift_pages: usize,
    buf: &mut [u8],
) -> anyhow::Result<()> {
    for at in (0..set.bytes().len()).step_by(buf.len()) {
        subject.load(at as u64, buf)?;
        let equal = *buf == *set.shifted(at, buf.len(), shift_pages);
        let page = at / PAGE_SIZE;
        anyhow::ensure!(equal, "{} returned other bytes than were stored, near page {page}", subject.name());
    }
    Ok(())
}

/// Nanoseconds per page since `started`.
pub fn ns_per_page(started: Instant, pages: usize) -> f64 {
    started.elapsed().as_nanos() as f64 / pages as f64
}
