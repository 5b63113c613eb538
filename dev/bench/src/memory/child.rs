//! A measured process: the same program for both sides.
//!
//! It reads the pages and prepares its work, enters its cgroup, and only then allocates the measured memory, so that
//! the memory of the preparation is charged to another cgroup. It prints its report as JSON on standard output. The
//! kernel kills it if the process that started it dies.

use super::cgroup::GroupPath;
use super::plan::MemoryPlan;
use super::space::{self, Side};
use super::{below, blocks, job, passes, same_filled, skewed};
use crate::output;
use crate::zram;
use anyhow::Context;
use pagefold_page::{PAGE_SIZE, Page};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Bytes that the kernel uses for each page of swapped data in addition to the memory that zram reports: a slot in
/// zram's table (16), the swap map (1), the cgroup of the swapped page (2).
const KERNEL_TABLES_LEN: u64 = 16 + 1 + 2;

/// The work of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Task {
    /// Fill, then read in order; then measure the memory in use.
    Pass,
    /// Fill, then read at random.
    Random,
    /// Sort and group-by.
    Job,
    /// Two threads on pages chosen with a Zipf distribution.
    Zipf,
    /// Blocks of an arena, or of malloc, chosen with a Zipf distribution.
    Blocks,
    /// Same-filled pages, with or without the check for them; on pagefold's side only.
    SameFilled {
        /// Whether the check is on.
        check: bool,
    },
    /// Data that stays below the limit, in a region or in ordinary memory; on pagefold's side only.
    Below {
        /// Whether the data is in a region.
        in_region: bool,
    },
}

/// The work of a process.
#[derive(Debug, Serialize, Deserialize)]
pub struct ChildSpec {
    /// The side: pagefold or the kernel.
    pub side: Side,
    /// The task.
    pub task: Task,
    /// Sizes and counts.
    pub plan: MemoryPlan,
    /// Path of the file with the source pages.
    pub pages: PathBuf,
    /// The cgroup to enter.
    pub group: Option<GroupPath>,
    /// Id of the process that started it.
    pub parent: u32,
}

/// The report of a process that has done its work.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ChildReport {
    /// Figures by name; a name ends in the unit.
    pub figures: BTreeMap<String, f64>,
    /// Checksum of the data, which must be the same on both sides.
    pub checksum: u64,
    /// Memory charged to the cgroup and used by zram before the measured memory was allocated, bytes.
    pub before_bytes: u64,
    /// Counters of the region; null on the kernel's side.
    pub statistics: serde_json::Value,
}

/// The body of the process: does the work and prints the report on standard output.
pub fn run(spec: &ChildSpec) -> anyhow::Result<()> {
    die_with_parent(spec.parent)?;
    let source = Source::read(&spec.pages)?;
    let skewed = match spec.task {
        Task::Zipf => Some(skewed::Operations::new(&spec.plan)?),
        _ => None,
    };
    let zipf = (spec.task == Task::Blocks).then(|| blocks::prepare(&spec.plan)).transpose()?;
    if let Some(group) = &spec.group {
        group.enter()?;
    }
    let meter = Meter { group: spec.group.as_ref(), side: spec.side };
    let mut report = ChildReport { before_bytes: meter.bytes()?, ..ChildReport::default() };
    if let Task::SameFilled { check } = spec.task {
        same_filled::run(&spec.plan, check, &mut report)?;
        return send(&report);
    }
    if let Task::Below { in_region } = spec.task {
        below::run(&spec.plan, in_region, &mut report)?;
        return send(&report);
    }
    if let Some(zipf) = zipf {
        blocks::run(&spec.plan, spec.side, &zipf, &mut report)?;
        return send(&report);
    }
    let mut space = space::make(spec.side, spec.len_bytes(), &spec.plan)?;
    match spec.task {
        Task::Pass => {
            passes::fill_and_read(space.bytes_mut(), &source, &mut report)?;
            if spec.group.is_some() {
                let held = meter.bytes()?.saturating_sub(report.before_bytes);
                report.figures.insert("held_bytes".into(), (held + spec.tables_bytes()) as f64);
            }
            passes::compare(space.bytes_mut(), &source)?;
        }
        Task::Random => passes::fill_and_read_at_random(space.bytes_mut(), &source, &mut report)?,
        Task::Job => run_job(space.bytes_mut(), &mut report)?,
        Task::Zipf => {
            let operations = skewed.context("no operations for the skewed work")?;
            skewed::run(&operations, space.bytes_mut(), &source, &mut report)?;
        }
        // Done above: they make their regions themselves.
        Task::SameFilled { .. } | Task::Below { .. } | Task::Blocks => {}
    }
    report.statistics = space.statistics();
    send(&report)
}

fn send(report: &ChildReport) -> anyhow::Result<()> {
    Ok(output::deliver_line(&serde_json::to_string(report)?)?)
}

impl ChildSpec {
    /// Bytes of the data.
    fn len_bytes(&self) -> u64 {
        match self.task {
            Task::Zipf => self.plan.zipf_size_bytes(),
            _ => self.plan.size_bytes,
        }
    }

    /// Bytes of the kernel's tables for the data, which zram does not report; 0 on pagefold's side.
    pub fn tables_bytes(&self) -> u64 {
        match self.side {
            Side::Pagefold => 0,
            Side::Kernel => self.len_bytes() / PAGE_SIZE as u64 * KERNEL_TABLES_LEN,
        }
    }
}

/// Asks the kernel to kill this process when its parent dies. Fails if the parent has already died.
fn die_with_parent(parent: u32) -> anyhow::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .context("asking the kernel to kill this process when its parent dies")?;
    // The parent may have died before the request.
    let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get().cast_unsigned());
    anyhow::ensure!(now == Some(parent), "the process that measures has died");
    Ok(())
}

/// Measures the memory that a process is charged for.
pub struct Meter<'a> {
    /// The cgroup of the process; without one the result is 0.
    pub group: Option<&'a GroupPath>,
    /// The side that it measures.
    pub side: Side,
}

impl Meter<'_> {
    /// The cgroup's usage and, on the kernel's side, the memory that zram uses, bytes.
    pub fn bytes(&self) -> anyhow::Result<u64> {
        let Some(group) = self.group else { return Ok(0) };
        let zram_bytes = match self.side {
            Side::Pagefold => 0,
            Side::Kernel => zram::memory(0)?.used,
        };
        Ok(group.usage_bytes()? + zram_bytes)
    }
}

/// The source pages; the data consists of them, repeated.
pub struct Source {
    bytes: Vec<u8>,
}

impl Source {
    fn read(path: &PathBuf) -> anyhow::Result<Self> {
        let bytes = std::fs::read(path).with_context(|| format!("reading pages from {}", path.display()))?;
        anyhow::ensure!(bytes.len() >= PAGE_SIZE, "there are no pages in {}", path.display());
        Ok(Source { bytes })
    }

    /// A source with these bytes.
    #[cfg(test)]
    pub fn of(bytes: Vec<u8>) -> Self {
        Source { bytes }
    }

    /// All pages.
    pub fn pages(&self) -> &[Page] {
        self.bytes.as_chunks().0
    }

    /// The page at this index of the data.
    pub fn page(&self, index: usize) -> &Page {
        let pages = self.pages();
        &pages[index % pages.len()]
    }
}

/// A running measurement of wall time and of the CPU time of all threads of this process.
pub struct Clock {
    wall: Instant,
    cpu: Duration,
}

impl Clock {
    /// Starts the measurement.
    pub fn start() -> Self {
        Clock { wall: Instant::now(), cpu: process_time() }
    }

    /// Adds the nanoseconds for each of `count` items to the report, as `NAME_ns` and `NAME_cpu_ns`.
    pub fn record_ns(&self, name: &str, count: usize, report: &mut ChildReport) {
        let per_one = |time: Duration| time.as_nanos() as f64 / count as f64;
        report.figures.insert(format!("{name}_ns"), per_one(self.wall.elapsed()));
        report.figures.insert(format!("{name}_cpu_ns"), per_one(process_time() - self.cpu));
    }

    /// Adds the seconds to the report, as `NAME_s` and `NAME_cpu_s`.
    pub fn record_s(&self, name: &str, report: &mut ChildReport) {
        report.figures.insert(format!("{name}_s"), self.wall.elapsed().as_secs_f64());
        report.figures.insert(format!("{name}_cpu_s"), (process_time() - self.cpu).as_secs_f64());
    }
}

fn process_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

fn run_job(memory: &mut [u8], report: &mut ChildReport) -> anyhow::Result<()> {
    let mut phases: Vec<(job::Phase, Instant)> = Vec::new();
    let clock = Clock::start();
    let result = job::run(memory, job::SEED, &mut |phase, _| {
        if phases.last().is_none_or(|(last, _)| *last != phase) {
            phases.push((phase, Instant::now()));
        }
    })?;
    clock.record_s("job", report);
    let ends = phases.iter().skip(1).map(|(_, began)| *began).chain([Instant::now()]);
    for ((phase, began), end) in phases.iter().zip(ends) {
        report.figures.insert(format!("job_{}_s", phase.name()), (end - *began).as_secs_f64());
    }
    report.checksum = result.checksum;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::job;
    use crate::engine;

    /// Original bytes / compressed bytes of memory, with lz4.
    fn ratio(memory: &[u8]) -> f64 {
        let store = engine::new_store(memory.len() as u64).unwrap();
        store.write(0, memory).unwrap();
        let memory = engine::memory(&store);
        memory.original as f64 / memory.stored as f64
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
