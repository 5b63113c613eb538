//! A measured process: the same program for both sides.
//!
//! It reads the pages, enters its cgroup, and only then allocates the measured memory, so that the memory of the pages
//! is charged to another cgroup. It prints its values as JSON on standard output. The kernel kills it if the process that
//! started it dies.

use super::cgroup::Group;
use super::plan::{MemoryPlan, PAGES_MAX, Subject, Task};
use super::{job, passes};
use crate::pages::PageSet;
use crate::stats::Clock;
use crate::{output, zram};
use anyhow::Context;
use pagefold_memory::{Region, RegionConfig};
use pagefold_sys::mem::Reservation;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Bytes that the kernel uses for each page of swapped data in addition to the memory that zram reports: a slot in
/// zram's table (16), the swap map (1), the cgroup of the swapped page (2).
const KERNEL_TABLES_LEN: u64 = 16 + 1 + 2;

/// The parameters of a process.
#[derive(Debug, Serialize, Deserialize)]
pub struct ChildSpec {
    /// The side.
    pub subject: Subject,
    /// The work.
    pub task: Task,
    /// Sizes and counts.
    pub plan: MemoryPlan,
    /// Path of the file with the source pages; `None` is the stand-in.
    pub pages: Option<PathBuf>,
    /// The cgroup to enter.
    pub group: Option<Group>,
    /// Id of the process that started it.
    pub parent: u32,
}

/// The report of a process that has done its work: its values, and the checksum of the data, which must be the same on
/// both sides. An unknown value is NaN, in JSON null.
pub type ChildReport = (Vec<Option<f64>>, u64);

/// The body of the process: does the work and prints the report on standard output.
pub fn run(spec: &ChildSpec) -> anyhow::Result<()> {
    die_with_parent(spec.parent)?;
    let source = PageSet::read(spec.pages.as_deref(), PAGES_MAX)?;
    if let Some(group) = &spec.group {
        group.enter()?;
    }
    let len_bytes = spec.plan.size_bytes;
    let before_bytes = spec.charged_bytes(0)?;
    let mut region;
    let plain;
    let memory: &mut [u8] = match spec.subject {
        Subject::Region => {
            // The pool has no separate limit here, because zram has none.
            let config = RegionConfig::new(len_bytes, spec.plan.limit_bytes);
            region = Region::new(RegionConfig { max_pool_percent: 100, ..config })?;
            region.bytes_mut()
        }
        Subject::Swap => {
            plain = Reservation::new(usize::try_from(len_bytes)?)?;
            // SAFETY: the reservation is mapped, readable, writable and zeroed for its whole length, and lives until the
            // end of this function. All access is through this slice.
            unsafe { std::slice::from_raw_parts_mut(plain.base().as_ptr(), plain.len_bytes()) }
        }
    };
    let (values, checksum) = match spec.task {
        Task::Fill => {
            let (pages, [fill, fill_cpu]) = passes::fill(memory, &source);
            let ([read, read_cpu], checksum) = passes::read_in_order(pages);
            let held_bytes = spec.charged_bytes(pages.len())? - before_bytes;
            passes::compare(pages, &source)?;
            (vec![fill, fill_cpu, read, read_cpu, held_bytes], checksum)
        }
        Task::Random => {
            let (pages, _) = passes::fill(memory, &source);
            let (read, checksum) = passes::read_at_random(pages);
            passes::compare(pages, &source)?;
            (read.to_vec(), checksum)
        }
        Task::Job => {
            let clock = Clock::of_process();
            let checksum = job::run(memory, job::SEED, &mut |_, _| ())?.checksum;
            (clock.stop(1).map(|ns| ns / 1e9).to_vec(), checksum)
        }
    };
    Ok(output::deliver(&serde_json::to_string(&(values, checksum))?)?)
}

impl ChildSpec {
    /// Memory that is charged to the cgroup now and, on the kernel's side, used by zram and by the kernel's tables for
    /// this many pages, bytes; NaN without a cgroup.
    fn charged_bytes(&self, pages: usize) -> anyhow::Result<f64> {
        let Some(group) = &self.group else { return Ok(f64::NAN) };
        let swap_bytes = match self.subject {
            Subject::Region => 0,
            Subject::Swap => zram::memory(0)?.used + pages as u64 * KERNEL_TABLES_LEN,
        };
        Ok((group.usage_bytes()? + swap_bytes) as f64)
    }
}

/// Asks the kernel to kill this process when its parent dies. Fails if the parent has already died.
fn die_with_parent(parent: u32) -> anyhow::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .context("asking the kernel to kill this process when its parent dies")?;
    // The parent may have died before the request.
    anyhow::ensure!(std::os::unix::process::parent_id() == parent, "the process that measures has died");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::job;
    use crate::store::subject::new_store;

    /// Original bytes / compressed bytes of memory, with lz4.
    fn ratio(memory: &[u8]) -> f64 {
        let store = new_store(memory.len() as u64).unwrap();
        store.write(0, memory).unwrap();
        let mm = store.stats().mm;
        mm.orig_data_size as f64 / mm.compr_data_size as f64
    }

    #[test]
    fn the_table_of_the_job_compresses_like_real_tables() {
        let mut memory = vec![0; 8 << 20];
        let mut made = None;
        job::run(&mut memory, job::SEED, &mut |_, _| ()).unwrap();
        let sorted = ratio(&memory);
        job::make(&mut memory, job::SEED).map(|_| made = Some(ratio(&memory))).unwrap();
        let made = made.unwrap();
        assert!((2.5..3.5).contains(&made) && (2.5..3.5).contains(&sorted), "made {made}, sorted {sorted}");
    }
}
