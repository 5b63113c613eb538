//! `pagefold bench memory`: compressed memory beside the kernel's way.
//!
//! The kernel's way is the same program in a memory cgroup with the same limit, swapping to zram with
//! the same codec. Each side of each round is a process of its own: this program again, which makes its
//! memory, works, checks everything it reads, and tells its figures. A cgroup meters both sides; it has a
//! limit only on the kernel's.
//!
//! | module | what |
//! |---|---|
//! | `plan` | sizes, counts and targets |
//! | `cgroup`, `swap` | memory control groups; the swap area on zram |
//! | `guard` | the process that gives both back, whatever becomes of this one |
//! | `run` | starts the measured processes, round by round |
//! | `child` | a measured process, and what it tells |
//! | `space` | where its data lies: the two sides |
//! | `passes`, `skewed`, `job` | the work: over all pages; over few more than others; sort and group |
//! | `same_filled` | same-filled pages of our side, with the check for them and without |
//! | `rows` | figures with targets, and the table beside them |

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

/// The job is the one of the example `larger-than-memory`.
#[path = "../../../../examples/larger-than-memory/job.rs"]
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

/// `bench memory`.
#[derive(Debug, Args)]
pub struct MemoryArgs {
    /// Files of raw 4096-byte pages, of which one set is used: python, or else the first [default:
    /// bench/out/*.pages]
    #[arg(long, value_name = "FILE", num_args = 1.., value_hint = ValueHint::FilePath)]
    pub pages: Vec<PathBuf>,
    /// Run everything once with small counts: shows that it works, measures nothing
    #[arg(long)]
    pub quick: bool,
    /// Run only these rows
    #[arg(long, value_enum, value_name = "ROW", num_args = 1..)]
    pub only: Vec<Part>,
    /// Print JSON with every round's figures
    #[arg(long)]
    pub json: bool,
    /// Size of the data [default: 1G; 64M with --quick]
    #[arg(long, value_name = "SIZE")]
    pub size: Option<String>,
    /// What of it may be resident [default: a quarter of the size]
    #[arg(long, value_name = "SIZE")]
    pub limit: Option<String>,
    /// Who serves the faults of our side
    #[arg(long, value_enum, value_name = "WHO", default_value = "faulting-thread")]
    pub service: ServiceChoice,
    /// Rounds, each of which is a process for each side [default: 3; 1 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub rounds: Option<u16>,
    /// Not for people: what this program is told when it starts itself.
    #[arg(long, hide = true, value_name = "JSON")]
    pub role: Option<String>,
}

/// The rows of `bench memory`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Writing all pages in order
    Fill,
    /// Reading them in order
    Sequential,
    /// Reading eight bytes of random pages
    Random,
    /// Sort and group-by of a table
    Job,
    /// Two threads on pages of which few are used often
    Zipf,
    /// Memory held in all
    Memory,
    /// Same-filled pages, against the same with the check for them off
    SameFilled,
}

/// What this program is when it has started itself.
#[derive(Debug, Serialize, Deserialize)]
pub enum Role {
    /// A measured process.
    Child(child::ChildSpec),
    /// The process that clears up.
    Guard(guard::GuardSpec),
}

/// Measures what was asked for and prints it.
pub fn run(args: &MemoryArgs) -> anyhow::Result<()> {
    if let Some(role) = &args.role {
        return match serde_json::from_str(role).context("reading what role to play")? {
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

/// The plan, with what was asked for.
fn plan_of(args: &MemoryArgs) -> anyhow::Result<MemoryPlan> {
    const LEAST: u64 = 1 << 20;
    let mut plan = if args.quick { MemoryPlan::QUICK } else { MemoryPlan::FULL };
    plan.service = args.service;
    let whole_pages = |text: &str| -> anyhow::Result<u64> {
        let bytes = size::parse(text)? / PAGE_SIZE as u64 * PAGE_SIZE as u64;
        anyhow::ensure!(bytes >= LEAST, "'{text}' is too little: 1M is the least");
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
