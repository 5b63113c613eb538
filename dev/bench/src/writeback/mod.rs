//! `pagefold-bench writeback`: the writeback of pages to a medium.
//!
//! The engine is called directly in this process, without an export. The kernel is no peer, because most kernels have
//! no zram with writeback. Instead the peer is the kernel's layout in the same engine on the same medium: one
//! uncompressed page per block, first fit. After each measurement, all pages are read back and compared.
//!
//! | module | contents |
//! |---|---|
//! | `plan` | counts and targets |
//! | `medium` | the modelled medium, a real file, memory |
//! | `content`, `test_store` | the contents of pages; a store with writeback that knows its expected contents |
//! | `batch` | 32 pages in flight against one |
//! | `history`, `steady` | an aged log against an empty one; the log in steady state on a nearly full medium |
//! | `bytes` | bytes written per page |
//! | `reads` | reads from memory while pages are written back |
//! | `automatic`, `clients` | automatic writeback with a working set larger than the memory limit |
//!
//! All rows except `reads` and `automatic` write and write back with the calling thread alone. `reads` pins one reader
//! and one worker to a CPU each. `automatic` runs client threads and one writeback thread.

mod automatic;
mod batch;
mod bytes;
mod clients;
mod content;
mod history;
mod medium;
mod plan;
mod reads;
mod steady;
mod test_store;

use super::pages::{self, PageSet};
use super::report::Report;
use crate::output;
use clap::{Args, ValueEnum, ValueHint};
use medium::FileLocation;
use plan::WritebackPlan;
use std::io::IsTerminal;
use std::path::PathBuf;

/// `pagefold-bench writeback`.
#[derive(Debug, Args)]
pub struct WritebackArgs {
    /// Files of raw 4096-byte pages [default: bench/out/*.pages]
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
    /// Path of the file for the rows on a real file; it must not exist, and its name is removed at once, so
    /// that it disappears however the command ends [default: an unnamed file here or in TMPDIR]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,
    /// Time of a request to the modelled medium, microseconds
    #[arg(long, value_name = "US", default_value_t = 100)]
    pub delay_us: u64,
    /// Queue depth of the modelled medium: requests that it processes at the same time
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub depth: u32,
    /// Bandwidth of the modelled medium, bytes per second [default: unbounded]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    pub medium_bytes_per_s: Option<u64>,
}

/// The rows of `pagefold-bench writeback`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RowKind {
    /// 32 pages in flight against one, on the modelled medium
    Batch,
    /// 32 pages in flight against one, on a real file
    File,
    /// The log after pages were freed and rewritten several times, against an empty log
    History,
    /// Overwriting and writeback on a medium that is half or four fifths full
    Steady,
    /// Bytes written per page
    Bytes,
    /// Reads from memory while pages are written back
    Reads,
    /// A working set twice the memory limit
    Zipf,
}

/// The setup that all rows share.
struct Bench<'a> {
    plan: WritebackPlan,
    modelled: medium::Modelled,
    file: FileLocation<'a>,
    sets: Vec<PageSet>,
}

/// Runs the chosen rows and prints the report.
pub fn run(args: &WritebackArgs) -> anyhow::Result<()> {
    let plan = if args.quick { WritebackPlan::QUICK } else { WritebackPlan::FULL };
    let (sets, missing) = pages::load(&args.pages, plan.set_pages_max)?;
    let modelled = medium::Modelled::new(args.delay_us, args.depth, args.medium_bytes_per_s);
    let bench = Bench { plan, modelled, file: FileLocation(args.file.as_deref()), sets };
    let mut report = Report::new((plan, modelled), args.quick, missing);
    if cfg!(debug_assertions) {
        report.note("this is a debug build: its figures mean nothing; use --release".into());
    }
    if !modelled.is_reference() {
        report.note(format!("the modelled medium is not the reference one: {}", modelled.describe()));
    }
    for kind in RowKind::value_variants() {
        if args.only.is_empty() || args.only.contains(kind) {
            progress(args, *kind);
            measure(*kind, &bench, &mut report)?;
        }
    }
    let text = if args.json { report.json()? } else { report.text() };
    Ok(output::text(&text)?)
}

fn measure(kind: RowKind, bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    match kind {
        RowKind::Batch => batch::on_modelled(bench, report),
        RowKind::File => batch::on_file(bench, report),
        RowKind::History => history::measure(bench, report),
        RowKind::Steady => steady::measure(bench, report),
        RowKind::Bytes => bytes::measure(bench, report),
        RowKind::Reads => reads::measure(bench, report),
        RowKind::Zipf => automatic::measure(bench, report),
    }
}

/// Prints the current row on a terminal; a full run takes many minutes.
fn progress(args: &WritebackArgs, kind: RowKind) {
    if !args.quick && std::io::stderr().is_terminal() {
        let name = kind.to_possible_value().map(|v| v.get_name().to_string()).unwrap_or_default();
        output::diagnostics(&format!("measuring {name} ...\n"));
    }
}
