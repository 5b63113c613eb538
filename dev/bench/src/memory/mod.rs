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
//! | `plan`, `role` | the works, their sizes and figures; the roles of processes |
//! | `run` | starts the measured processes, one after the other |
//! | `child` | a measured process |
//! | `passes`, `job` | the work: over all pages; sort and group |
//!
//! The path of a measurement: this file -> `run` -> (a new process) `child` and the work -> JSON on standard output ->
//! `run`. If cgroups, swap or root are missing, a note names what is missing, and pagefold's side is measured alone.

mod cgroup;
mod child;
mod guard;
mod passes;
mod plan;
mod role;
mod run;
mod swap;

/// The job of the example `larger-than-memory`: make, sort and group a table.
#[expect(dead_code, reason = "only the example prints the names of the phases")]
#[path = "../../../../crates/memory/examples/larger-than-memory/job.rs"]
mod job;

use crate::pages::{self, PageSet};
use crate::report::{self, Report, Side};
use anyhow::Context;
use clap::Args;
use pagefold_page::{PAGE_SIZE, size};
use plan::{MemoryPlan, PAGES_MAX, Subject, Task, figures};
use role::Role;
use std::path::PathBuf;

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
    report.note(format!("{size} of data; limit {limit}"));
    let bench = run::Bench::new(plan, file, report)?;
    for task in report::chosen(&args.only) {
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
