//! `pagefold-bench`: the reference measurements.
//!
//! Each measurement compares pagefold with another implementation, on the same pages and in alternating rounds of one
//! run, and reports a ratio: absolute times depend on the machine, ratios hardly do. A missed target is printed as
//! missed and is no failure. `bench/README.md` explains the rows and the conditions that make them meaningless.
//!
//! | module | contents |
//! |---|---|
//! | `store` | the engine against the kernel's zram |
//! | `writeback` | the log against one page per block, on two media |
//! | `memory` | compressed memory against the kernel's swap to zram |
//! | `zram` | the kernel's zram device, for `store` and `memory` |
//! | `pages` | page sets: captured files, or a stand-in |
//! | `report` | the engine: rounds of two sides, rows, the table and the JSON |
//! | `stats`, `random`, `output` | medians, clocks and threads; random numbers; printing |
//!
//! A program passes its sides to [`report::Report::compare`], which runs them one after the other and adds rows; the
//! report is printed once at the end. Only one test or command at a time can use `/dev/zram0`; a command that does not
//! get it reports the reason and measures pagefold alone.
//!
//! This is a separate program, so that the `pagefold` program contains nothing that its users do not need. The exports
//! are measured by `bench/exports.py` instead, which needs external clients.

// `println!` panics if it cannot write; `output` returns the error.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod memory;
mod output;
mod pages;
mod random;
mod report;
mod stats;
mod store;
mod writeback;
mod zram;

use clap::{Args, Parser, Subcommand, ValueHint};
use report::Report;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measure pagefold against the kernel's zram and swap
#[derive(Debug, Parser)]
#[command(name = "pagefold-bench", version, about, propagate_version = true, max_term_width = 100)]
#[command(subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    common: Common,
    /// The measurements to run
    #[command(subcommand)]
    command: BenchCommand,
}

/// The options of all commands.
#[derive(Debug, Args)]
struct Common {
    /// Files of raw 4096-byte pages [default: bench/out/*.pages]
    #[arg(long, global = true, value_name = "FILE", num_args = 1.., value_hint = ValueHint::FilePath)]
    pages: Vec<PathBuf>,
    /// Run everything once with small counts: a test of the program, without meaningful figures
    #[arg(long, global = true)]
    quick: bool,
    /// Print JSON with every round's figures
    #[arg(long, global = true)]
    json: bool,
}

/// The measurements.
#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Measure the engine against the kernel's zram, on the same pages
    ///
    /// Uses the pages that bench/capture.py captured, and the kernel's /dev/zram0 as the peer if it exists
    /// and is not in use (needs root; the device is restored afterwards). Reports missing requirements and
    /// measures the rest. A missed target is printed and is no failure.
    Store(store::StoreArgs),
    /// Measure writeback to a log against writeback of one page to each block
    ///
    /// Measures on a modelled medium (with a latency and a queue depth) and on a real file with direct I/O.
    /// The file needs up to a few GiB and has no name, so it disappears however the command ends. All pages
    /// are read back and compared afterwards. A missed target is printed and is no failure.
    Writeback(writeback::WritebackArgs),
    /// Measure compressed memory against a memory cgroup that swaps to the kernel's zram
    ///
    /// Separate processes of the same program do the same work, one in compressed memory and one in plain
    /// memory with the same limit, swapping to /dev/zram0 (needs root; the device must not be in use and is
    /// restored afterwards). Of the page files, only one is used: 'python' if present, else the first. Reports
    /// missing requirements and measures the rest. All contents are checked. A missed target is printed and is
    /// no failure.
    Memory(memory::MemoryArgs),
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            output::error(&format!("{e:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(Cli { common, command }: &Cli) -> anyhow::Result<()> {
    let mut report = Report::new(common.quick);
    if cfg!(debug_assertions) {
        report.note("this is a debug build: its figures mean nothing; use --release".into());
    }
    match command {
        BenchCommand::Store(args) => store::run(args, &common.pages, &mut report)?,
        BenchCommand::Writeback(args) => writeback::run(args, &common.pages, &mut report)?,
        BenchCommand::Memory(memory::MemoryArgs { role: Some(role), .. }) => return memory::play(role),
        BenchCommand::Memory(args) => memory::run(args, &common.pages, &mut report)?,
    }
    let text = if common.json { report.json()? } else { report.text() };
    Ok(output::text(&text)?)
}
