//! `pagefold-bench store`: the engine, called directly in the measuring thread, against the kernel's zram.
//!
//! `subject` makes the stores; `pages` compares pagefold's and the kernel's; `kept` measures memory
//! that outlives its process; `recompress` reads beside recompression.

mod kept;
mod pages;
mod recompress;
pub mod subject;

use crate::report::{self, Report};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// `pagefold-bench store`.
#[derive(Debug, Args)]
pub struct StoreArgs {
    /// Run only these measurements
    #[arg(long, value_enum, value_name = "NAME", num_args = 1..)]
    only: Vec<Measurement>,
}

/// The parts of `pagefold-bench store`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Measurement {
    /// Store and load of each page set, and the memory that it takes, against the kernel's
    Pages,
    /// A store in memory that outlives its process, against one in private memory, and its recovery
    Kept,
    /// Reads during recompression, against reads while threads run the codecs alone
    Recompress,
}

/// Runs the chosen measurements on all page sets.
pub fn run(args: &StoreArgs, files: &[PathBuf], report: &mut Report) -> anyhow::Result<()> {
    for set in &crate::pages::load(files, report)? {
        for measurement in report::chosen(&args.only) {
            match measurement {
                Measurement::Pages => pages::measure(set, report)?,
                Measurement::Kept => kept::measure(set, report)?,
                Measurement::Recompress => recompress::measure(set, report)?,
            }
        }
    }
    Ok(())
}
