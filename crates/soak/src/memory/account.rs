//! What must hold when a load is over: limits, the count of memory against the kernel's, rest, and nothing left.

use super::config::{Config, PAGE};
use crate::part::{Fault, FaultKind};
use crate::process;
use pagefold_memory::{Region, RegionStats};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// How long something may take to come true once nothing is asked any more.
const SETTLING: Duration = Duration::from_secs(20);
/// How long rest is looked at, and how much of the CPUs' time may go meanwhile.
const REST: Duration = Duration::from_millis(400);
const REST_CPU: Duration = Duration::from_millis(100);

/// Pages that the store refused: they stay resident beyond the limit.
fn refused(stats: &RegionStats) -> u64 {
    let pool = &stats.pool;
    pool.reject_alloc_fail + pool.reject_compress_fail + pool.reject_reclaim_fail
}

fn memory(message: String, stats: &RegionStats) -> Fault {
    Fault::new(FaultKind::Memory, format!("{message}: {stats:?}"))
}

/// Checks a region that nobody uses any more.
pub fn check(config: &Config, region: &Region) -> Result<(), Fault> {
    let stats = region.stats();
    let most = config.largest_limit() * PAGE;
    if refused(&stats) == 0 && stats.memory.resident_max > most {
        return Err(memory(format!("the largest limit was {most}"), &stats));
    }
    if let Some(frames) = config.pool_frames
        && stats.memory.pool > frames * PAGE
    {
        return Err(memory(format!("the pool's limit is {} bytes", frames * PAGE), &stats));
    }
    if stats.faults.failed > 0 || stats.pool.decompress_fail > 0 {
        return Err(Fault::new(FaultKind::Contents, format!("faults failed: {stats:?}")));
    }
    comes_true("resident pages do not come within the limit", region, || {
        let stats = region.stats();
        refused(&stats) > 0 || stats.memory.resident <= stats.memory.limit
    })?;
    comes_true("resident pages are counted otherwise than by the kernel", region, || {
        let before = region.stats().memory.resident;
        let present = present_pages();
        let after = region.stats().memory.resident;
        before != after || before == present * PAGE
    })?;
    rest(region)
}

fn comes_true(what: &str, region: &Region, mut holds: impl FnMut() -> bool) -> Result<(), Fault> {
    let until = Instant::now() + SETTLING;
    while !holds() {
        if Instant::now() > until {
            let what = format!("{what} (the kernel counts {} pages)", present_pages());
            return Err(memory(what, &region.stats()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Whoever has nothing to do does nothing. Where pages are refused, they are tried again and again.
fn rest(region: &Region) -> Result<(), Fault> {
    let stats = region.stats();
    if refused(&stats) > 0 {
        return Ok(());
    }
    let used = || process::cpu_time(std::process::id()).unwrap_or_default();
    // Writing back may go on for a while after the load.
    let until = Instant::now() + SETTLING;
    loop {
        let before = used();
        std::thread::sleep(REST);
        let taken = used().saturating_sub(before);
        if taken <= REST_CPU {
            return Ok(());
        }
        if Instant::now() > until {
            let message = format!("nobody uses the region, but {taken:?} of CPU time went in {REST:?}");
            return Err(Fault::new(FaultKind::Idle, format!("{message}: {:?}", region.stats())));
        }
    }
}

/// Discards everything, and checks that nothing is held any more.
pub fn check_empty(region: &Region) -> Result<(), Fault> {
    // SAFETY: nobody else uses the region now, and there are no references into it.
    let dropped = unsafe { region.discard_shared(0, region.len_bytes()) };
    dropped.map_err(|e| Fault::failed("discarding everything", e))?;
    comes_true("everything is discarded, but not given back", region, || {
        let stats = region.stats();
        let held = stats.folded_bytes + stats.stored_bytes + stats.compressed_bytes + stats.memory.pool;
        held == 0 && stats.memory.resident <= stats.memory.limit
    })
}

/// What a process holds that a region must give back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    descriptors: usize,
    threads: usize,
    pages: u64,
}

impl Held {
    /// What there is now.
    pub fn now() -> Self {
        let count = |dir: &str| std::fs::read_dir(dir).into_iter().flatten().count();
        Held {
            descriptors: count("/proc/self/fd"),
            threads: count("/proc/self/task"),
            pages: present_pages(),
        }
    }

    /// Checks that there is no more now than there was.
    pub fn check(self) -> Result<(), Fault> {
        let until = Instant::now() + SETTLING;
        loop {
            let now = Held::now();
            let is_back =
                now.descriptors <= self.descriptors && now.threads <= self.threads && now.pages == self.pages;
            if is_back {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(Fault::new(
                    FaultKind::Leftover,
                    format!("the region is gone; before {self:?}, now {now:?}"),
                ));
            }
            // The kernel's end of a thread comes after it was waited for.
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Pages present in the ranges and staging areas of all regions of the process, by the kernel's account: they are the
/// mappings here that children do not get and that have no huge pages. Pages of zeroes count as well.
fn present_pages() -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let Ok(pagemap) = File::open("/proc/self/pagemap") else { return 0 };
    let (mut pages, mut current) = (0, None);
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let has = |flag: &str| flags.split_whitespace().any(|f| f == flag);
            let ours = current.filter(|_| has("dc") && has("nh"));
            pages += ours.map_or(0, |(start, end)| present(&pagemap, start, end));
        } else if let Some((start, end)) = line.split(' ').next().and_then(|range| range.split_once('-')) {
            let number = |text: &str| u64::from_str_radix(text, 16).ok();
            current = number(start).zip(number(end)).or(current);
        }
    }
    pages
}

fn present(pagemap: &File, start: u64, end: u64) -> u64 {
    const PRESENT_OR_SWAPPED: u64 = 0b11 << 62;
    let mut bytes = vec![0; ((end - start) / PAGE * 8) as usize];
    if pagemap.read_exact_at(&mut bytes, start / PAGE * 8).is_err() {
        return 0;
    }
    let entries = bytes.as_chunks::<8>().0.iter().map(|entry| u64::from_le_bytes(*entry));
    entries.filter(|entry| entry & PRESENT_OR_SWAPPED != 0).count() as u64
}
