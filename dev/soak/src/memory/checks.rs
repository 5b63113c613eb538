//! Checks after the load: limits, the region's count of memory against the kernel's, no CPU use at rest, no leaked
//! resources.

use super::config::{Config, PAGE};
use crate::process::{self, Rest};
use crate::verdict::{Fault, OrFault, require};
use pagefold_memory::{Region, RegionStats};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

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

/// Checks a region after all users have stopped.
pub fn check(config: &Config, region: &Region) -> Result<(), Fault> {
    let stats = region.stats();
    let most = config.limits()[1] * PAGE;
    let is_within = refused(&stats) > 0 || stats.memory.resident_max <= most;
    require!(is_within, Memory, "the largest limit was {most}: {stats:?}");
    let pool_max = config.pool_frames.map_or(u64::MAX, |frames| frames * PAGE);
    require!(stats.memory.pool <= pool_max, Memory, "the pool's limit is {pool_max} bytes: {stats:?}");
    let failed = stats.faults.failed + stats.pool.decompress_fail;
    require!(failed == 0, Contents, "faults failed: {stats:?}");
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
    // The region retries pages that were refused. Writeback may continue for a while after the load.
    if refused(&region.stats()) > 0 {
        return Ok(());
    }
    let problem = REST.wait(std::process::id()).err();
    require!(problem.is_none(), Idle, "the process of the region {problem:?}: {:?}", region.stats());
    Ok(())
}

/// Waits until a condition holds. `problem` describes the fault if it does not within [`SETTLING`].
fn wait_until(problem: &str, region: &Region, mut condition: impl FnMut() -> bool) -> Result<(), Fault> {
    let holds = process::wait_until(SETTLING, || Ok(condition()))?;
    let (present, stats) = (present_pages(), region.stats());
    require!(holds, Memory, "{problem} (the kernel counts {present} pages): {stats:?}");
    Ok(())
}

/// Discards all pages, and checks that the region uses no memory for them afterwards.
pub fn check_empty(region: &Region) -> Result<(), Fault> {
    // SAFETY: no other thread uses the region now, and there are no references into it.
    let dropped = unsafe { region.discard_shared(..) };
    dropped.or_fault("discarding everything")?;
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

    /// Checks that the process does not have more resources now. A thread that was joined may stay in /proc for a
    /// moment.
    pub fn check(self) -> Result<(), Fault> {
        let is_released = process::wait_until(SETTLING, || {
            let now = Resources::now();
            let has_no_more = now.descriptors <= self.descriptors && now.threads <= self.threads;
            Ok(has_no_more && now.pages == self.pages)
        })?;
        let now = Resources::now();
        require!(is_released, Leftover, "the region was dropped; before {self:?}, now {now:?}");
        Ok(())
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
