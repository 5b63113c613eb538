//! `pagefold-bench`: the reference measurements.
//!
//! Each measurement compares pagefold with another implementation, on the same pages and in alternating rounds of one
//! run, and reports a ratio: absolute times depend on the machine, ratios hardly do. A missed target is printed as
//! missed and is no failure. `docs/benchmarks.md` explains the rows and the conditions that make them meaningless.
//!
//! | module | contents |
//! |---|---|
//! | `plan` | the fixed numbers: rounds, counts, targets |
//! | `pages` | page sets: captured files, or a stand-in |
//! | `subject`, `engine`, `zram` | the trait of a measured store, and its implementations: pagefold and the kernel |
//! | `store` | runs `compare`, `same_filled`, `threads`, `statistics`, `recompress`, `density`, `zram_tree`: the measurements of the engine |
//! | `writeback` | the measurements of writeback |
//! | `memory` | compressed memory against the kernel's swap to zram |
//! | `arena` | blocks of an arena of `libpagefold` against the system's malloc |
//! | `zipf` | random page numbers, a few of which occur often |
//! | `stats`, `report`, `table`, `output` | medians and spread; tables and JSON; printing |
//!
//! A command runs from its module (`store`, `writeback::run`, `memory::run`) through the measurements, which push rows
//! and tables, to [`report::Report`], which is printed once at the end. Measurements run one after the other; those
//! that need several threads or processes start them for one round and join them. Only one test or command at a time
//! can use `/dev/zram0`; a command that does not get it reports the reason and measures pagefold alone.
//!
//! This is a separate program, so that the `pagefold` program contains nothing that its users do not need. The exports
//! are measured by `bench/exports.py` instead, which needs external clients.

// `println!` panics if it cannot write; `output` returns the error.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod arena;
mod compare;
mod density;
mod engine;
mod memory;
mod output;
mod pages;
mod plan;
mod recompress;
mod report;
mod same_filled;
mod statistics;
mod stats;
mod store;
mod subject;
mod table;
mod threads;
mod writeback;
mod zipf;
mod zram;
mod zram_tree;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use std::path::PathBuf;
use std::process::ExitCode;

/// Measure pagefold against the kernel's zram and swap
#[derive(Debug, Parser)]
#[command(name = "pagefold-bench", version, about, propagate_version = true, max_term_width = 100)]
#[command(subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    /// The measurements to run
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
    /// Uses the pages that bench/capture.py captured, and the kernel's /dev/zram0 as the peer if it exists
    /// and is not in use (needs root; the device is restored afterwards). Reports missing requirements and
    /// measures the rest. A missed target is printed and is no failure.
    Store(StoreArgs),
    /// Measure writeback: batches, the aged log, bytes written, reads meanwhile, and automatic writeback
    ///
    /// Measures on a modelled medium (with a latency and a queue depth) and on a real file with direct I/O.
    /// The file needs up to a few GiB and has no name, so it disappears however the command ends. All pages
    /// are read back and compared afterwards. A missed target is printed and is no failure.
    Writeback(writeback::WritebackArgs),
    /// Measure compressed memory against a memory cgroup that swaps to the kernel's zram
    ///
    /// Separate processes of the same program do the same work, one in compressed memory and one in plain
    /// memory with the same limit, swapping to /dev/zram0 (needs root; the device must not be in use and is
    /// restored afterwards). Reports missing requirements and measures the rest. All contents are checked.
    /// A missed target is printed and is no failure.
    Memory(memory::MemoryArgs),
    /// Measure blocks of compressed memory, as C programs allocate them, against the system's malloc
    Arena(arena::ArenaArgs),
}

/// `pagefold-bench store`.
#[derive(Debug, Args)]
pub struct StoreArgs {
    /// Files of raw 4096-byte pages [default: bench/out/*.pages]
    #[arg(long, value_name = "FILE", num_args = 1.., value_hint = ValueHint::FilePath)]
    pub pages: Vec<PathBuf>,
    /// Run everything once with small counts: a test of the program, without meaningful figures
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
    /// Store, load, ratio and memory of each page set, against the kernel's
    Pages,
    /// Same-filled pages and the check for them
    SameFilled,
    /// Two threads on one store, against two threads with a store each
    Threads,
    /// Recompression with zstd: its speed and the memory that it saves; the cost of codecs that are not used
    Recompress,
    /// Two threads while statistics are read every millisecond, against two threads alone
    Statistics,
    /// Memory per byte stored after many random overwrites
    Density,
    /// A file of statistics in the tree of `pagefold zram-tree`, against the kernel's sysfs
    Tree,
}

/// Runs the command.
fn run(command: &BenchCommand) -> anyhow::Result<()> {
    match command {
        BenchCommand::Store(args) => store::run(args),
        BenchCommand::Writeback(args) => writeback::run(args),
        BenchCommand::Memory(args) => memory::run(args),
        BenchCommand::Arena(args) => arena::run(args),
    }
}
