//! `pagefold-bench store`: the engine, called directly in the measuring thread, against the kernel's zram.
//!
//! `pages` has both stores and compares them; `threads` two threads on one store; `recompress` reads beside
//! recompression.

mod pages;
mod recompress;
mod same_filled;
mod threads;

pub use pages::{Memory, Subject};

use crate::report::Report;
use clap::{Args, ValueEnum};
use pagefold_store::{CodecSpec, MemLimit, Store, StoreConfig};
use std::path::PathBuf;

/// The codec of all measurements, also of the kernel's zram.
pub const CODEC: &str = "lz4";

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
    /// Same-filled pages, against compressed pages
    SameFilled,
    /// Two threads on one store, against two threads with a store each
    Threads,
    /// Reads during recompression, against reads while threads run the codecs alone
    Recompress,
}

/// Runs the chosen measurements on all page sets.
pub fn run(args: &StoreArgs, files: &[PathBuf], report: &mut Report) -> anyhow::Result<()> {
    for set in &crate::pages::load(files, report)? {
        for measurement in crate::chosen(&args.only) {
            match measurement {
                Measurement::Pages => pages::measure(set, report)?,
                Measurement::SameFilled => same_filled::measure(set, report)?,
                Measurement::Threads => threads::measure(set, report)?,
                Measurement::Recompress => recompress::measure(set, report)?,
            }
        }
    }
    Ok(())
}

/// Makes an empty store of `len_bytes` bytes without a memory limit.
pub fn new_store(len_bytes: u64) -> anyhow::Result<Store> {
    store_with([None, None, None], len_bytes)
}

fn store_with(further_codecs: [Option<CodecSpec>; 3], len_bytes: u64) -> anyhow::Result<Store> {
    let mut config = StoreConfig::new(len_bytes);
    config.codec = CodecSpec::named(CODEC);
    config.mem_limit = MemLimit::Off;
    config.further_codecs = further_codecs;
    Ok(Store::new(config)?)
}

/// Rounds that do not count, and that do. The first stores every page once and so touches all memory; later ones overwrite.
fn rounds(report: &Report) -> [usize; 2] {
    report.pick([2, 9], [1, 1])
}
