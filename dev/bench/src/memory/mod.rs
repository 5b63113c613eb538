//! `pagefold-bench memory`: compressed memory against the kernel's swap to zram.
//!
//! The kernel's side is the same program in a memory cgroup with the same limit, swapping to zram with the same codec.
//! In each round, each side is a separate process: this program with `--role`. It allocates memory, works in it, checks
//! everything that it reads, and prints its values as JSON. A cgroup measures the memory of both sides; only the
//! cgroup of the kernel's side has a limit.
//!
//! | module | contents |
//! |---|---|
//! | `cgroup`, `swap` | memory control groups; the swap area on zram |
//! | `guard` | a process that releases both, even if the measuring process is killed |
//! | `run` | starts the measured processes, one after the other |
//! | `child` | a measured process |
//! | `passes`, `skewed`, `job` | the work: over all pages; with a Zipf distribution; sort and group |
//!
//! The path of a measurement: this file -> `run` -> (a new process) `child` and the work -> JSON on standard output ->
//! `run`. If cgroups, swap or root are missing, a note names what is missing, and pagefold's side is measured alone.

mod cgroup;
mod child;
mod guard;
mod passes;
mod run;
mod skewed;
mod swap;

/// The job of the example `larger-than-memory`: make, sort and group a table.
#[expect(dead_code, reason = "only the example prints the names of the phases")]
#[path = "../../../../crates/memory/examples/larger-than-memory/job.rs"]
mod job;

use crate::pages::{self, PageSet};
use crate::report::Target::{AtLeast, AtMost};
use crate::report::{Figure, Report, Side};
use anyhow::Context;
use child::{Subject, Task};
use clap::Args;
use pagefold_page::{PAGE_SIZE, size};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Pages used of the set; the rest is ignored.
const PAGES_MAX: usize = 1 << 20;

/// `pagefold-bench memory`.
#[derive(Debug, Args)]
pub struct MemoryArgs {
    /// Run only these works
    #[arg(long, value_enum, value_name = "WORK", num_args = 1..)]
    only: Vec<Task>,
    /// Size of the data [default: 1G; 64M with --quick]
    #[arg(long, value_name = "SIZE")]
    size: Option<String>,
    /// Limit of the data's resident part [default: a quarter of the size]
    #[arg(long, value_name = "SIZE")]
    limit: Option<String>,
    /// Number of rounds; each round runs one process for each side [default: 3; 1 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// Internal: the role of a process that this program has started.
    #[arg(long, hide = true, value_name = "JSON")]
    pub role: Option<String>,
}

/// The role of a process that this program has started.
#[derive(Debug, Serialize, Deserialize)]
enum Role {
    /// A measured process.
    Child(child::ChildSpec),
    /// The process that removes cgroups and the swap area at the end.
    Guard(guard::GuardSpec),
}

/// Sizes and repetitions.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct MemoryPlan {
    /// Bytes of the data of all works except `zipf`.
    size_bytes: u64,
    /// Limit of resident memory, or of the memory charged to the cgroup, bytes.
    limit_bytes: u64,
    /// Operations of each thread of `zipf` before the measurement.
    warm_up_ops: usize,
    /// Measured operations of each thread of `zipf`.
    ops: usize,
}

impl MemoryPlan {
    const FULL: MemoryPlan =
        MemoryPlan { size_bytes: 1 << 30, limit_bytes: 256 << 20, warm_up_ops: 500_000, ops: 1_000_000 };
    const QUICK: MemoryPlan =
        MemoryPlan { size_bytes: 64 << 20, limit_bytes: 16 << 20, warm_up_ops: 10_000, ops: 50_000 };

    /// Bytes of the data of a work: with a Zipf distribution three times the limit.
    fn len_bytes(&self, task: Task) -> u64 {
        if task == Task::Zipf { 3 * self.limit_bytes } else { self.size_bytes }
    }

    /// Bytes of the largest data of any work.
    fn largest_bytes(&self) -> u64 {
        self.size_bytes.max(self.len_bytes(Task::Zipf))
    }
}

/// The figures of a work.
fn figures(task: Task) -> &'static [Figure] {
    match task {
        Task::Fill => &[
            Figure("fill, per page", "ns", AtMost(0.4)),
            Figure("fill, CPU time of all threads per page", "ns", AtMost(1.0)),
            Figure("sequential read, per page", "ns", AtMost(0.15)),
            Figure("sequential read, CPU time of all threads per page", "ns", AtMost(1.0)),
            Figure("memory held after both passes", "B", AtMost(1.0)),
        ],
        Task::Random => &[
            Figure("random read, per access", "ns", AtMost(0.5)),
            Figure("random read, CPU time of all threads per access", "ns", AtMost(1.0)),
        ],
        Task::Job => &[
            Figure("sort and group-by", "s", AtMost(0.5)),
            Figure("sort and group-by, CPU time of all threads", "s", AtMost(1.0)),
        ],
        Task::Zipf => &[
            Figure("two threads, Zipf 0.99", "/s", AtLeast(2.0)),
            Figure("two threads, Zipf 0.99, CPU time of all threads per access", "ns", AtMost(1.0)),
        ],
    }
}

/// Does the work of a role.
pub fn play(role: &str) -> anyhow::Result<()> {
    match serde_json::from_str(role).context("parsing --role")? {
        Role::Child(spec) => child::run(&spec),
        Role::Guard(spec) => guard::run(&spec),
    }
}

/// Runs the chosen works with the set 'python' if present, else the first.
pub fn run(args: &MemoryArgs, files: &[PathBuf], report: &mut Report) -> anyhow::Result<()> {
    let plan = plan_of(args, report.quick)?;
    let files = pages::files(files, report);
    let is_python = |file: &&PathBuf| file.file_stem().is_some_and(|stem| stem == "python");
    let file = files.iter().find(is_python).or(files.first()).cloned();
    let set = PageSet::read(file.as_deref(), PAGES_MAX)?.name;
    let rounds = args.rounds.map_or(report.pick(3, 1), usize::from);
    let [size, limit] = [plan.size_bytes, plan.limit_bytes].map(size::Human);
    report.note(format!("{size} of data, or three times the limit with Zipf; limit {limit}"));
    let bench = run::Bench::new(plan, file, report)?;
    for task in crate::chosen(&args.only) {
        let ours = Side::new("pagefold", |_| bench.round(Subject::Region, task));
        let peer = match bench.swaps {
            true => Side::new("kernel swap to zram", |_| bench.round(Subject::Swap, task)),
            false => Side::missing("kernel swap to zram"),
        };
        // All rounds count, because each side of each round is a new process.
        report.compare(&set, figures(task), [0, rounds], vec![ours, peer])?;
        bench.checksum.take();
        if let killed @ 1.. = bench.killed.take() {
            report.note(format!(
                "{task:?}: the kernel killed its side {killed} times: out of memory in its cgroup, with swap left"
            ));
        }
    }
    Ok(())
}

/// The plan, changed by the options.
fn plan_of(args: &MemoryArgs, quick: bool) -> anyhow::Result<MemoryPlan> {
    const MIN_BYTES: u64 = 1 << 20;
    let mut plan = if quick { MemoryPlan::QUICK } else { MemoryPlan::FULL };
    let whole_pages = |text: &str| -> anyhow::Result<u64> {
        let bytes = size::parse(text)? / PAGE_SIZE as u64 * PAGE_SIZE as u64;
        anyhow::ensure!(bytes >= MIN_BYTES, "'{text}' is too little: the minimum is 1M");
        Ok(bytes)
    };
    if let Some(text) = &args.size {
        plan.size_bytes = whole_pages(text)?;
        plan.limit_bytes = (plan.size_bytes / 4).next_multiple_of(PAGE_SIZE as u64);
    }
    if let Some(text) = &args.limit {
        plan.limit_bytes = whole_pages(text)?;
    }
    Ok(plan)
}
