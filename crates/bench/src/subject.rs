//! What is measured: something that stores and loads pages and says what memory that takes.

use super::pages::PageSet;
use pagefold_page::PAGE_SIZE;
use pagefold_sys::cpu;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Memory for the pages held.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Memory {
    /// Bytes of the pages, as they were.
    pub original: u64,
    /// Bytes of the compressed objects.
    pub stored: u64,
    /// Memory used for them, by the definition of `mem_used_total`: slots not counted.
    pub used: u64,
    /// The same with everything else that grows with the pages: slots, lists, frames kept ready.
    /// The kernel's are 16 bytes for every page of the device.
    pub with_slots: u64,
}

impl Memory {
    /// Original bytes / memory used.
    pub fn ratio(&self) -> f64 {
        self.original as f64 / self.used as f64
    }
}

/// Time for one page, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Took {
    /// On the CPU, in user space and in the kernel. All subjects work in the calling thread, so on an
    /// idle machine this is the time that passes; on a busy one it leaves out what others take.
    pub cpu_ns: f64,
    /// As time passes.
    pub wall_ns: f64,
}

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

/// A store of pages, ours or another's.
pub trait Subject {
    /// Its name in the tables.
    fn name(&self) -> &'static str;

    /// Stores bytes at a byte offset, both multiples of a page.
    fn store(&mut self, at: u64, bytes: &[u8]) -> anyhow::Result<()>;

    /// Loads bytes from a byte offset. `bytes` is aligned to a page.
    fn load(&mut self, at: u64, bytes: &mut [u8]) -> anyhow::Result<()>;

    /// The memory it takes now.
    fn memory(&self) -> anyhow::Result<Memory>;
}

/// Stores a whole set in requests of `request_len` bytes. Returns the time it took.
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

/// Loads a whole set into one buffer, again and again. Returns the time it took.
pub fn load_all(subject: &mut dyn Subject, set: &PageSet, buf: &mut [u8]) -> anyhow::Result<Took> {
    let clock = Clock::start();
    for at in (0..set.bytes().len()).step_by(buf.len()) {
        subject.load(at as u64, buf)?;
    }
    Ok(clock.stop(set.len()))
}

/// Checks that a set reads back as it was stored with this shift.
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
        anyhow::ensure!(equal, "{} gave other bytes than were stored, near page {page}", subject.name());
    }
    Ok(())
}

/// Nanoseconds per page since `started`.
pub fn ns_per_page(started: Instant, pages: usize) -> f64 {
    started.elapsed().as_nanos() as f64 / pages as f64
}
