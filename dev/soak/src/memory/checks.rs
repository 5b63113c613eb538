//! Checks after the load: limits, the region's count of memory against the kernel's, no CPU use at rest, no leaked
//! resources.

use super::config::{Config, PAGE};
use crate::process::Rest;
use crate::verdict::{Fault, FaultKind};
use pagefold_memory::{Region, RegionStats};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// How long the region may take to come to rest after the load.
const SETTLING: Duration = Duration::from_secs(20);
/// At rest the process uses almost no CPU time.
const REST: Rest =
    Rest { settling: SETTLING, interval: Duration::from_millis(400), cpu_max: Duration::from_millis(100) };

/// Number of pages that the store refused. Such pages stay resident beyond the limit.
fn refused(stats: &RegionStats) -> u64 {
    let pool = &stats.pool;
    pool.reject_alloc_fail + pool.reject_compress_fail + pool.reject_reclaim_fail
}

fn memory_fault(message: String, stats: &RegionStats) -> Fault {
    Fault::new(FaultKind::Memory, format!("{message}: {stats:?}"))
}

/// Checks a region after all users have stopped.
pub fn check(config: &Config, region: &Region) -> Result<(), Fault> {
    let stats = region.stats();
    let most = config.largest_limit() * PAGE;
    if refused(&stats) == 0 && stats.memory.resident_max > most {
        return Err(memory_fault(format!("the largest limit was {most}"), &stats));
    }
    if let Some(frames) = config.pool_frames
        && stats.memory.pool > frames * PAGE
    {
        return Err(memory_fault(format!("the pool's limit is {} bytes", frames * PAGE), &stats));
    }
    if stats.faults.failed > 0 || stats.pool.decompress_fail > 0 {
        return Err(Fault::new(FaultKind::Contents, format!("faults failed: {stats:?}")));
    }
    wait_until("resident pages stay above the limit", region, || {
        let stats = region.stats();
        refused(&stats) > 0 || stats.memory.resident <= stats.memory.limit
    })?;
    wait_until("the region and the kernel count resident pages differently", region, || {
        let before = region.stats().memory.resident;
        let present = present_pages();
        let after = region.stats().memory.resident;
        before != after || before == present * PAGE
    })?;
    check_rest(region)
}

/// Waits until a condition holds. `problem` describes the fault if it does not within [`SETTLING`].
fn wait_until(problem: &str, region: &Region, mut condition: impl FnMut() -> bool) -> Result<(), Fault> {
    let until = Instant::now() + SETTLING;
    while !condition() {
        if Instant::now() > until {
            let problem = format!("{problem} (the kernel counts {} pages)", present_pages());
            return Err(memory_fault(problem, &region.stats()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Checks that the region's threads use no CPU time. If pages were refused there is no check, because the region
/// retries them.
fn check_rest(region: &Region) -> Result<(), Fault> {
    let stats = region.stats();
    if refused(&stats) > 0 {
        return Ok(());
    }
    // Writeback may continue for a while after the load.
    REST.wait(std::process::id()).map_err(|problem| {
        Fault::new(FaultKind::Idle, format!("the process of the region {problem}: {:?}", region.stats()))
    })
}

/// Discards all pages, and checks that the region uses no memory for them afterwards.
pub fn check_empty(region: &Region) -> Result<(), Fault> {
    // SAFETY: no other thread uses the region now, and there are no references into it.
    let dropped = unsafe { region.discard_shared(..) };
    dropped.map_err(|e| Fault::failed("discarding everything", e))?;
    wait_until("everything is discarded, but memory stays in use", region, || {
        let stats = region.stats();
        let used = stats.folded_bytes + stats.stored_bytes + stats.compressed_bytes + stats.memory.pool;
        used == 0 && stats.memory.resident <= stats.memory.limit
    })
}

/// Resources of this process that a region must release when it is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resources {
    descriptors: usize,
    threads: usize,
    pages: u64,
}

impl Resources {
    /// Counts the resources.
    pub fn now() -> Self {
        let count = |dir: &str| std::fs::read_dir(dir).into_iter().flatten().count();
        Resources {
            descriptors: count("/proc/self/fd"),
            threads: count("/proc/self/task"),
            pages: present_pages(),
        }
    }

    /// Checks that the process does not have more resources now.
    pub fn check(self) -> Result<(), Fault> {
        let until = Instant::now() + SETTLING;
        loop {
            let now = Resources::now();
            let is_released =
                now.descriptors <= self.descriptors && now.threads <= self.threads && now.pages == self.pages;
            if is_released {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(Fault::new(
                    FaultKind::Leftover,
                    format!("the region was dropped; before {self:?}, now {now:?}"),
                ));
            }
            // A thread that was joined may stay in /proc for a moment.
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Counts, by the kernel's page map, the present pages of all regions of the process and of their staging areas. In
/// this process only they are mappings with the flags `dc` (not inherited by children) and `nh` or `hg` (no huge pages, or huge
/// pages). Zero
/// pages count.
fn present_pages() -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let Ok(pagemap) = File::open("/proc/self/pagemap") else { return 0 };
    let (mut pages, mut current) = (0, None);
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let has = |flag: &str| flags.split_whitespace().any(|f| f == flag);
            let of_region = current.filter(|_| has("dc") && (has("nh") || has("hg")));
            pages += of_region.map_or(0, |(start, end)| present(&pagemap, start, end));
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
