//! `pagefold bench park`: moving pages to a medium, measured.
//!
//! The engine is measured in this process, without a door. There is no kernel to stand
//! beside (its write-back needs a zram that most kernels do not have), so its
//! layout does: one uncompressed page per block, first fit, in the same engine on the
//! same medium. Every bed reads all its pages back when it has been measured.
//!
//! | module | what |
//! |---|---|
//! | `plan` | counts, media and targets |
//! | `medium` | the modelled medium, a real file, memory |
//! | `content`, `bed` | which pages; a store that parks them, and knows what they must be |
//! | `batch` | many pages in flight against one |
//! | `history`, `steady` | the log after a history, and when nearly full |
//! | `bytes` | bytes written per page |
//! | `reads` | reads from memory while pages are parked |
//! | `automatic`, `clients` | a working set larger than memory |

mod automatic;
mod batch;
mod bed;
mod bytes;
mod clients;
mod content;
mod history;
mod medium;
mod plan;
mod reads;
mod steady;

use super::pages::{self, PageSet};
use super::report::Report;
use crate::output;
use clap::{Args, ValueEnum, ValueHint};
use medium::FileAt;
use plan::ParkPlan;
use std::io::IsTerminal;
use std::path::PathBuf;

/// `bench park`.
#[derive(Debug, Args)]
pub struct ParkArgs {
    /// Files of raw 4096-byte pages [default: bench/out/*.pages]
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
    /// Where to put the file of the rows on a real file; it must not exist, and is removed at once, so
    /// that nothing is left whatever ends the command [default: a nameless file here or in TMPDIR]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,
    /// What a request to the modelled medium takes, microseconds
    #[arg(long, value_name = "US", default_value_t = 100)]
    pub delay_us: u64,
    /// Requests that the modelled medium works on at once
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub depth: u32,
    /// Bandwidth of the modelled medium, bytes per second [default: unbounded]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    pub medium_bytes_per_s: Option<u64>,
}

/// The rows of `bench park`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// 32 pages in flight against one, on the modelled medium
    Batch,
    /// 32 pages in flight against one, on a real file
    File,
    /// The log after a history of freeing, against an empty one
    History,
    /// Overwriting and parking while the medium is half and four fifths full
    Steady,
    /// Bytes written per page
    Bytes,
    /// Reads from memory while pages are parked
    Reads,
    /// A working set twice the memory limit
    Zipf,
}

/// What all rows are measured with.
struct Bench<'a> {
    plan: ParkPlan,
    modelled: medium::Modelled,
    file: FileAt<'a>,
    sets: Vec<PageSet>,
}

/// Measures what was asked for and prints it.
pub fn run(args: &ParkArgs) -> anyhow::Result<()> {
    let plan = if args.quick { ParkPlan::QUICK } else { ParkPlan::FULL };
    let (sets, missing) = pages::load(&args.pages, plan.set_pages_max)?;
    let modelled = medium::Modelled::new(args.delay_us, args.depth, args.medium_bytes_per_s);
    let bench = Bench { plan, modelled, file: FileAt(args.file.as_deref()), sets };
    let mut report = Report::new((plan, modelled), args.quick, missing);
    if cfg!(debug_assertions) {
        report.note("this is a debug build: its figures mean nothing; use --release".into());
    }
    if !modelled.is_reference() {
        report.note(format!("the modelled medium is not the reference one: {}", modelled.describe()));
    }
    for part in Part::value_variants() {
        if args.only.is_empty() || args.only.contains(part) {
            progress(args, *part);
            measure(*part, &bench, &mut report)?;
        }
    }
    let text = if args.json { report.json()? } else { report.text() };
    Ok(output::text(&text)?)
}

fn measure(part: Part, bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    match part {
        Part::Batch => batch::on_modelled(bench, report),
        Part::File => batch::on_file(bench, report),
        Part::History => history::measure(bench, report),
        Part::Steady => steady::measure(bench, report),
        Part::Bytes => bytes::measure(bench, report),
        Part::Reads => reads::measure(bench, report),
        Part::Zipf => automatic::measure(bench, report),
    }
}

/// Says on a terminal what is being done; a full run takes many minutes.
fn progress(args: &ParkArgs, part: Part) {
    if !args.quick && std::io::stderr().is_terminal() {
        let name = part.to_possible_value().map(|v| v.get_name().to_string()).unwrap_or_default();
        output::diagnostics(&format!("measuring {name} ...\n"));
    }
}
