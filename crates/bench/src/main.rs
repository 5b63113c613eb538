//! `pagefold-bench`: the reference measurements.
//!
//! Each compares pagefold with something that exists, on the same pages, in one run of
//! one process, alternating, and quotes a ratio: absolute times move with the
//! machine, ratios hardly do. A target that is missed is printed as missed and is
//! no failure. What the rows mean and what makes them meaningless: `docs/benchmarks.md`.
//!
//! | module | what |
//! |---|---|
//! | `plan` | the fixed numbers: rounds, counts, targets |
//! | `pages` | page sets: captured files, or a stand-in |
//! | `subject`, `engine`, `zram` | what is measured: one trait, pagefold and the kernel |
//! | `compare`, `same_filled`, `threads`, `density` | the measurements |
//! | `park` | the measurements of parking, a folder of their own |
//! | `memory` | compressed memory beside the kernel's swap to zram, a folder of their own |
//! | `zipf` | which page comes next, where few are used often |
//! | `stats`, `report`, `table`, `output` | medians and spread; tables and JSON; printing |
//!
//! It is a program of its own, so that the `pagefold` program has nothing that its users do not need. Doors are not
//! measured here but by `bench/doors.py`, which needs clients from outside.

// Printing panics when it cannot write: `output` does it.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod compare;
mod density;
mod engine;
mod memory;
mod output;
mod pages;
mod park;
mod plan;
mod report;
mod same_filled;
mod stats;
mod store;
mod subject;
mod table;
mod threads;
mod zipf;
mod zram;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use std::path::PathBuf;
use std::process::ExitCode;

/// Measure pagefold beside what the kernel has.
#[derive(Debug, Parser)]
#[command(name = "pagefold-bench", version, about, propagate_version = true, max_term_width = 100)]
#[command(subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    /// What to measure
    #[command(subcommand)]
    command: BenchCommand,
}

fn main() -> ExitCode {
    match run(&Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            output::error(&format!("{e:#}"));
            ExitCode::FAILURE
        }
    }
}

/// The measurements.
#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Measure the engine against the kernel's zram, on the same pages
    ///
    /// Takes pages that bench/capture.py has captured, and the kernel's /dev/zram0 as the peer where
    /// it exists and is not in use (needs root; the device is put back as it was). Says what is
    /// missing and measures the rest. A missed target is printed and is no failure.
    Store(StoreArgs),
    /// Measure parking: batches, the log after a history, bytes, reads beside it, and automatic parking
    ///
    /// Measures on a modelled medium (so long a request, so many at once) and on a real file with direct
    /// I/O, which needs up to a few GiB of room and is gone when the command ends, whatever ends it. All
    /// pages are read back and compared afterwards. A missed target is printed and is no failure.
    Park(park::ParkArgs),
    /// Measure compressed memory against the kernel's way: a memory cgroup that swaps to zram
    ///
    /// The same program does the same work in a process of its own, once in compressed memory and once in
    /// plain memory with the same limit, swapping to /dev/zram0 (needs root; the device is taken only if nobody
    /// uses it and is put back as it was). Says what is missing and measures the rest. All contents are
    /// checked. A missed target is printed and is no failure.
    Memory(memory::MemoryArgs),
}

/// `pagefold-bench store`.
#[derive(Debug, Args)]
pub struct StoreArgs {
    /// Files of raw 4096-byte pages [default: bench/out/*.pages]
    #[arg(long, value_name = "FILE", num_args = 1.., value_hint = ValueHint::FilePath)]
    pub pages: Vec<PathBuf>,
    /// Run everything once with small counts: shows that it works, measures nothing
    #[arg(long)]
    pub quick: bool,
    /// Run only these measurements
    #[arg(long, value_enum, value_name = "NAME", num_args = 1..)]
    pub only: Vec<Measurement>,
    /// Print JSON with every round's figures
    #[arg(long)]
    pub json: bool,
}

/// The parts of `pagefold-bench store`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Measurement {
    /// Store, load, ratio and memory of each page set, beside the kernel's
    Pages,
    /// Same-filled pages and the check for them
    SameFilled,
    /// Two threads on one store, beside two that share nothing
    Threads,
    /// Memory per byte stored after many random overwrites
    Density,
}

/// Runs the measurement.
fn run(command: &BenchCommand) -> anyhow::Result<()> {
    match command {
        BenchCommand::Store(args) => store::run(args),
        BenchCommand::Park(args) => park::run(args),
        BenchCommand::Memory(args) => memory::run(args),
    }
}
