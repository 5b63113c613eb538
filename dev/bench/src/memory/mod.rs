//! `pagefold-bench memory`: compressed memory against the kernel's swap to zram.
//!
//! The kernel's side is the same program in a memory cgroup with the same limit, swapping to zram with the same codec.
//! In each round, each side is a separate process: this program with `--role`. It allocates memory, works in it, checks
//! everything that it reads, and prints its figures as JSON. A cgroup measures the memory of both sides; only the
//! cgroup of the kernel's side has a limit.
//!
//! | module | contents |
//! |---|---|
//! | `plan` | sizes, counts and targets |
//! | `cgroup`, `swap` | memory control groups; the swap area on zram |
//! | `guard` | a process that releases both, even if the measuring process is killed |
//! | `run` | starts the measured processes, one after the other |
//! | `child` | a measured process and its report |
//! | `space` | the memory that a side works in |
//! | `passes`, `skewed`, `job` | the work: over all pages; with a Zipf distribution; sort and group |
//! | `blocks` | blocks of an arena of `libpagefold`, against malloc |
//! | `below` | memory that never reaches its limit, against ordinary memory |
//! | `same_filled` | same-filled pages of pagefold's side, with and without the check for them |
//! | `rows` | runs the rounds of all rows; figures with targets, and tables |
//!
//! The path of a measurement: `rows` -> `run` -> (a new process) `child` -> `space` and the work -> JSON on standard
//! output -> `run` -> `rows`. If cgroups, swap or root are missing, a note names what is missing, and pagefold's side
//! is measured alone.

mod below;
mod blocks;
mod cgroup;
mod child;
mod guard;
mod passes;
mod plan;
mod rows;
mod run;
mod same_filled;
mod skewed;
mod space;
mod swap;

/// The job of the example `larger-than-memory`: make, sort and group a table.
#[path = "../../../../crates/memory/examples/larger-than-memory/job.rs"]
mod job;

use super::pages;
use super::report::Report;
use crate::output;
use anyhow::Context;
use clap::{Args, ValueEnum, ValueHint};
use pagefold_page::{PAGE_SIZE, size};
use plan::MemoryPlan;
use serde::{Deserialize, Serialize};
use space::ServiceChoice;
use std::path::PathBuf;

/// `pagefold-bench memory`.
#[derive(Debug, Args)]
pub struct MemoryArgs {
    /// Files of raw 4096-byte pages; only one is used: the set 'python' if present, else the first [default:
    /// bench/out/*.pages]
    #[arg(long, value_name = "FILE", num_args = 1.., value_hint = ValueHint::FilePath)]
    pub pages: Vec<PathBuf>,
    /// Run everything once with small counts: a test of the program, without meaningful figures
    #[arg(long)]
    pub quick: bool,
    /// Run only these rows
    #[arg(long, value_enum, value_name = "ROW", num_args = 1..)]
    pub only: Vec<RowKind>,
    /// Print JSON with every round's figures
    #[arg(long)]
    pub json: bool,
    /// Size of the data [default: 1G; 64M with --quick]
    #[arg(long, value_name = "SIZE")]
    pub size: Option<String>,
    /// Limit of the data's resident part [default: a quarter of the size]
    #[arg(long, value_name = "SIZE")]
    pub limit: Option<String>,
    /// Threads that serve the faults of pagefold's side
    #[arg(long, value_enum, value_name = "THREADS", default_value = "faulting-thread")]
    pub service: ServiceChoice,
    /// Number of rounds; each round runs one process for each side [default: 3; 1 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub rounds: Option<u16>,
    /// Internal: the role of a process that this program has started.
    #[arg(long, hide = true, value_name = "JSON")]
    pub role: Option<String>,
}

/// The rows of `pagefold-bench memory`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RowKind {
    /// Writing all pages in order
    Fill,
    /// Reading them in order
    Sequential,
    /// Reading eight bytes from random pages
    Random,
    /// Sort and group-by of a table
    Job,
    /// Two threads on pages chosen with a Zipf distribution
    Zipf,
    /// Blocks of an arena of libpagefold, chosen with a Zipf distribution, against malloc
    Blocks,
    /// All memory in use
    Memory,
    /// Memory that never reaches its limit, against ordinary memory
    Below,
    /// Same-filled pages, against the same pages without the check for them
    SameFilled,
}

/// The role of a process that this program has started.
#[derive(Debug, Serialize, Deserialize)]
pub enum Role {
    /// A measured process.
    Child(child::ChildSpec),
    /// The process that removes cgroups and the swap area at the end.
    Guard(guard::GuardSpec),
}

/// Runs the chosen rows and prints the report; with `--role`, does the work of that role instead.
pub fn run(args: &MemoryArgs) -> anyhow::Result<()> {
    if let Some(role) = &args.role {
        return match serde_json::from_str(role).context("parsing --role")? {
            Role::Child(spec) => child::run(&spec),
            Role::Guard(spec) => guard::run(&spec),
        };
    }
    let plan = plan_of(args)?;
    let (mut sets, missing) = pages::load(&args.pages, 1 << 20)?;
    let python = sets.iter().position(|set| set.name == "python").unwrap_or(0);
    let set = sets.swap_remove(python);
    drop(sets);
    let mut report = Report::new(plan, args.quick, missing);
    if cfg!(debug_assertions) {
        report.note("this is a debug build: its figures mean nothing; use --release".into());
    }
    rows::measure(&set, &plan, args, &mut report)?;
    let text = if args.json { report.json()? } else { report.text() };
    Ok(output::text(&text)?)
}

/// The plan, changed by the options.
fn plan_of(args: &MemoryArgs) -> anyhow::Result<MemoryPlan> {
    const MIN_BYTES: u64 = 1 << 20;
    let mut plan = if args.quick { MemoryPlan::QUICK } else { MemoryPlan::FULL };
    plan.service = args.service;
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
    if let Some(rounds) = args.rounds {
        plan.rounds = rounds.into();
    }
    Ok(plan)
}
