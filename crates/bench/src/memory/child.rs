//! A measured process: the same program for both sides.
//!
//! It reads the pages and makes its tables first, enters its cgroup, and only then makes the memory that is
//! measured; so what it held before is charged elsewhere. It dies with the process that started it.

use super::cgroup::GroupAt;
use super::plan::MemoryPlan;
use super::space::{self, Side};
use super::{job, passes, same_filled, skewed};
use crate::output;
use crate::zram;
use anyhow::Context;
use pagefold_page::{PAGE_SIZE, Page};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Bytes that the kernel keeps for each page of swapped data, beside what zram says that it uses: a slot in
/// zram's table (16), the swap map (1), the owners of swapped pages (2).
const KERNEL_TABLES_LEN: u64 = 16 + 1 + 2;

/// The work of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Task {
    /// Fill, then read in order; then the memory held.
    Pass,
    /// Fill, then read at random.
    Random,
    /// Sort and group-by.
    Job,
    /// Two threads, few pages used often.
    Zipf,
    /// Same-filled pages, with the check for them and without it; on our side only.
    SameFilled {
        /// Whether the check is on.
        check: bool,
    },
}

/// What a process is to do.
#[derive(Debug, Serialize, Deserialize)]
pub struct ChildSpec {
    /// Who keeps its memory within the limit.
    pub side: Side,
    /// Its work.
    pub task: Task,
    /// Sizes and counts.
    pub plan: MemoryPlan,
    /// Where the pages are.
    pub pages: PathBuf,
    /// The cgroup to enter.
    pub group: Option<GroupAt>,
    /// The process that started it.
    pub parent: u32,
}

/// What it tells when it is done.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Told {
    /// Figures by name, the unit last.
    pub figures: BTreeMap<String, f64>,
    /// Of what was worked on, to compare the sides.
    pub checksum: u64,
    /// Charged to its cgroup and held by zram before it made its memory, bytes.
    pub before_bytes: u64,
    /// What its memory has counted.
    pub statistics: serde_json::Value,
}

/// The body of the process: works, and tells on standard output.
pub fn run(spec: &ChildSpec) -> anyhow::Result<()> {
    die_with(spec.parent)?;
    let source = Source::read(&spec.pages)?;
    let skewed = match spec.task {
        Task::Zipf => Some(skewed::Plan::new(&spec.plan)?),
        _ => None,
    };
    if let Some(group) = &spec.group {
        group.enter()?;
    }
    let meter = Meter { group: spec.group.as_ref(), side: spec.side };
    let mut told = Told { before_bytes: meter.bytes()?, ..Told::default() };
    if let Task::SameFilled { check } = spec.task {
        same_filled::run(&spec.plan, check, &mut told)?;
        return tell(&told);
    }
    let mut space = space::make(spec.side, spec.len_bytes(), &spec.plan)?;
    match spec.task {
        Task::Pass => {
            passes::fill_and_read(space.bytes_mut(), &source, &mut told)?;
            if spec.group.is_some() {
                let held = meter.bytes()?.saturating_sub(told.before_bytes);
                told.figures.insert("held_bytes".into(), (held + spec.tables_bytes()) as f64);
            }
            passes::compare(space.bytes_mut(), &source)?;
        }
        Task::Random => passes::fill_and_read_at_random(space.bytes_mut(), &source, &mut told)?,
        Task::Job => run_job(space.bytes_mut(), &mut told)?,
        Task::Zipf => {
            let plan = skewed.context("no plan for the skewed work")?;
            skewed::run(&plan, space.bytes_mut(), &source, &mut told)?;
        }
        // Makes its own memory.
        Task::SameFilled { .. } => {}
    }
    told.statistics = space.statistics();
    tell(&told)
}

fn tell(told: &Told) -> anyhow::Result<()> {
    Ok(output::deliver_line(&serde_json::to_string(told)?)?)
}

impl ChildSpec {
    /// Bytes of the data.
    fn len_bytes(&self) -> u64 {
        match self.task {
            Task::Zipf => self.plan.zipf_size_bytes(),
            _ => self.plan.size_bytes,
        }
    }

    /// What the kernel's tables take for the data, beside what zram says that it uses, bytes.
    pub fn tables_bytes(&self) -> u64 {
        match self.side {
            Side::Pagefold => 0,
            Side::Kernel => self.len_bytes() / PAGE_SIZE as u64 * KERNEL_TABLES_LEN,
        }
    }
}

/// Has the kernel kill this process when the one that started it dies.
fn die_with(parent: u32) -> anyhow::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .context("asking to die with the process that measures")?;
    // It may have died before that.
    let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get().cast_unsigned());
    anyhow::ensure!(now == Some(parent), "the process that measures has died");
    Ok(())
}

/// What a process is charged for.
pub struct Meter<'a> {
    /// Its cgroup.
    pub group: Option<&'a GroupAt>,
    /// Whose memory it works in.
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

/// The pages that the data is made of, again and again.
pub struct Source {
    bytes: Vec<u8>,
}

impl Source {
    fn read(path: &PathBuf) -> anyhow::Result<Self> {
        let bytes = std::fs::read(path).with_context(|| format!("reading pages from {}", path.display()))?;
        anyhow::ensure!(bytes.len() >= PAGE_SIZE, "there are no pages in {}", path.display());
        Ok(Source { bytes })
    }

    /// Of these bytes.
    #[cfg(test)]
    pub fn of(bytes: Vec<u8>) -> Self {
        Source { bytes }
    }

    /// All pages.
    pub fn pages(&self) -> &[Page] {
        self.bytes.as_chunks().0
    }

    /// The page that belongs at this place.
    pub fn page(&self, index: usize) -> &Page {
        let pages = self.pages();
        &pages[index % pages.len()]
    }
}

/// Time that passes, and the CPU time of all threads of this process.
pub struct Clock {
    wall: Instant,
    cpu: Duration,
}

impl Clock {
    /// From now on.
    pub fn start() -> Self {
        Clock { wall: Instant::now(), cpu: process_time() }
    }

    /// Tells nanoseconds for each of `count` things as `NAME_ns` and `NAME_cpu_ns`.
    pub fn tell_ns(&self, name: &str, count: usize, told: &mut Told) {
        let per_one = |time: Duration| time.as_nanos() as f64 / count as f64;
        told.figures.insert(format!("{name}_ns"), per_one(self.wall.elapsed()));
        told.figures.insert(format!("{name}_cpu_ns"), per_one(process_time() - self.cpu));
    }

    /// Tells seconds as `NAME_s` and `NAME_cpu_s`.
    pub fn tell_s(&self, name: &str, told: &mut Told) {
        told.figures.insert(format!("{name}_s"), self.wall.elapsed().as_secs_f64());
        told.figures.insert(format!("{name}_cpu_s"), (process_time() - self.cpu).as_secs_f64());
    }
}

fn process_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

fn run_job(memory: &mut [u8], told: &mut Told) -> anyhow::Result<()> {
    let mut phases: Vec<(job::Phase, Instant)> = Vec::new();
    let clock = Clock::start();
    let outcome = job::run(memory, job::SEED, &mut |phase, _| {
        if phases.last().is_none_or(|(last, _)| *last != phase) {
            phases.push((phase, Instant::now()));
        }
    })?;
    clock.tell_s("job", told);
    let ends = phases.iter().skip(1).map(|(_, began)| *began).chain([Instant::now()]);
    for ((phase, began), end) in phases.iter().zip(ends) {
        told.figures.insert(format!("job_{}_s", phase.name()), (end - *began).as_secs_f64());
    }
    told.checksum = outcome.checksum;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::job;
    use crate::engine;

    /// Original bytes / compressed bytes of pages, lz4.
    fn ratio(memory: &[u8]) -> f64 {
        let store = engine::new_store(memory.len() as u64).unwrap();
        store.write(0, memory).unwrap();
        let memory = engine::memory(&store);
        memory.original as f64 / memory.stored as f64
    }

    #[test]
    fn the_table_of_the_job_compresses_as_tables_do() {
        let mut memory = vec![0; 8 << 20];
        let mut made = None;
        job::run(&mut memory, job::SEED, &mut |_, _| ()).unwrap();
        let sorted = ratio(&memory);
        job::make(&mut memory, job::SEED).map(|_| made = Some(ratio(&memory))).unwrap();
        let made = made.unwrap();
        assert!((2.5..3.5).contains(&made) && (2.5..3.5).contains(&sorted), "made {made}, sorted {sorted}");
    }
}
