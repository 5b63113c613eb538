//! `pagefold-bench writeback`: the writeback of pages to a medium.
//!
//! The engine is called directly in this process, without an export. The kernel is no peer, because most kernels have
//! no zram with writeback. Instead the peer is the kernel's layout in the same engine on the same medium: one
//! uncompressed page per block, first fit. After each measurement, all pages are read back and compared.
//!
//! `medium` has the modelled medium and the real file, `test_store` a store with writeback that knows its expected
//! contents, and this file the measurements. The calling thread alone writes pages and writes them back.

mod medium;
mod test_store;

use crate::pages::{self, PageSet};
use crate::random::{Random, SEED};
use crate::report::Target::{AtLeast, AtMost};
use crate::report::{self, Figure, Report, Side};
use crate::stats::Clock;
use clap::{Args, ValueEnum, ValueHint};
use medium::Medium;
use pagefold_page::{PAGE_SIZE, Page};
use pagefold_store::writeback::LayoutKind;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use test_store::TestStore;

const BLOCKS: &str = "one page per block";

/// `pagefold-bench writeback`.
#[derive(Debug, Args)]
pub struct WritebackArgs {
    /// Run only these rows
    #[arg(long, value_enum, value_name = "ROW", num_args = 1..)]
    only: Vec<RowKind>,
    /// Folder of the file for the rows on a real file; the file has no name, so it disappears however the
    /// command ends [default: this folder, or TMPDIR]
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    folder: Option<PathBuf>,
    /// Time of a request to the modelled medium, microseconds
    #[arg(long, value_name = "US", default_value_t = 100)]
    delay_us: u64,
    /// Queue depth of the modelled medium: requests that it processes at the same time
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    depth: u32,
}

/// The rows of `pagefold-bench writeback`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RowKind {
    /// All pages at once, with 32 pages in flight and with one
    Batch,
    /// Overwriting and writeback on a medium that is half full
    HalfFull,
    /// The same on a medium that is four fifths full
    NearlyFull,
}

/// Runs the chosen measurements on both media. Without direct I/O, adds a note instead of the real file's rows.
pub fn run(args: &WritebackArgs, files: &[PathBuf], report: &mut Report) -> anyhow::Result<()> {
    let sets = pages::load(files, report)?;
    // Same-filled pages take no space on a medium.
    let pages: Vec<&Page> = sets.iter().flat_map(PageSet::not_same_filled).collect();
    let file = Medium::File(args.folder.clone());
    for medium in [Medium::modelled(args.delay_us, args.depth), file] {
        if let Err(e) = medium.make(medium::HEADER_LEN) {
            report.note(format!("not measured on the {}: {e:#}", medium.name()));
            continue;
        }
        for row in report::chosen(&args.only) {
            match row {
                RowKind::Batch => batch(&medium, &pages, report)?,
                RowKind::HalfFull => steady(&medium, &pages, 50, report)?,
                RowKind::NearlyFull => steady(&medium, &pages, 80, report)?,
            }
        }
    }
    Ok(())
}

/// Writes back many pages at once: the log, and one page per block, with 32 pages in flight and with one.
fn batch(medium: &Medium, pages: &[&Page], report: &mut Report) -> anyhow::Result<()> {
    let figures = [
        Figure("write back, batches of 32", "pages/s", AtLeast(1.0)),
        Figure("CPU time per page written back", "ns", AtMost(1.0)),
    ];
    let subjects = [
        ("pagefold", LayoutKind::Log, 32),
        (BLOCKS, LayoutKind::Blocks, 32),
        ("one page per block, batches of 1", LayoutKind::Blocks, 1),
    ];
    let count = report.pick(100_000, 2000);
    let make = |(_, layout, _)| TestStore::new(layout, medium.make(medium::ample_len(count))?, count, pages);
    let mut stores = subjects.into_iter().map(make).collect::<anyhow::Result<Vec<_>>>()?;
    let mut sides = Vec::new();
    for ((name, _, batch), store) in subjects.into_iter().zip(&mut stores) {
        sides.push(Side::new(name, move |round| {
            store.put(0..count)?;
            // The first round touches all memory and does not count, so it uses the fast batch size for all.
            store.set_batch(if round == 0 { 32 } else { batch });
            let clock = Clock::of_thread();
            let written_back = store.write_back()?.written_back_pages;
            let [wall_ns, cpu_ns] = clock.stop(written_back as usize);
            Ok(vec![1e9 / wall_ns, cpu_ns])
        }));
    }
    report.compare(&medium.name(), &figures, report.pick([1, 3], [1, 1]), sides)?;
    stores.iter().try_for_each(TestStore::verify)
}

/// Overwrites random pages and writes back, while the data fills `percent` of the medium: the log and one page per block.
///
/// The size of the medium depends on the layout: the log needs space for compressed bytes, the other layout for whole
/// pages. The data is written back once before the first round.
fn steady(medium: &Medium, pages: &[&Page], percent: u64, report: &mut Report) -> anyhow::Result<()> {
    let figures = [
        Figure("write back after random overwrites", "pages/s", AtLeast(1.0)),
        Figure("write amplification", "x", AtMost(1.0)),
        Figure("bytes written per page", "B", AtMost(1.0)),
    ];
    let count = report.pick(78_000, 4000);
    let lens = [(LayoutKind::Log, log_len(pages, count)?), (LayoutKind::Blocks, count * PAGE_SIZE as u64)];
    let mut stores = Vec::new();
    for (layout, len) in lens {
        let len = medium::HEADER_LEN + (len * 100 / percent).next_multiple_of(1 << 20);
        let store = TestStore::new(layout, medium.make(len)?, count, pages)?;
        store.write_back()?;
        stores.push(store);
    }
    let mut sides = Vec::new();
    for (name, store) in ["pagefold", BLOCKS].into_iter().zip(&mut stores) {
        let mut random = Random(SEED);
        sides.push(Side::new(name, move |_| overwrite(store, count, &mut random)));
    }
    let set = format!("{}, {percent} % full", medium.name());
    report.compare(&set, &figures, report.pick([3, 3], [1, 1]), sides)?;
    stores.iter().try_for_each(TestStore::verify)
}

/// The number of bytes that this many pages take in the log.
fn log_len(pages: &[&Page], count: u64) -> anyhow::Result<u64> {
    let memory = Arc::new(medium::memory(medium::ample_len(count))?);
    Ok(TestStore::new(LayoutKind::Log, memory, count, pages)?.write_back()?.written_bytes)
}

/// Overwrites as many random pages as there are, a sixteenth at a time, and writes these back. Only the passes are
/// timed. Returns pages per second, bytes written for each compressed byte, and bytes written for each page.
fn overwrite(store: &mut TestStore, count: u64, random: &mut Random) -> anyhow::Result<Vec<f64>> {
    const PARTS: u64 = 16;
    let (mut pages, mut ns, mut compressed) = (0, 0.0, 0);
    let written = |store: &TestStore| store.stats().written_bytes + store.stats().cleaned_bytes;
    let before = written(store);
    for _ in 0..PARTS {
        let drawn: BTreeSet<u64> = (0..count / PARTS).map(|_| random.below(count)).collect();
        store.put(drawn)?;
        compressed += store.compressed_bytes();
        let clock = Clock::of_thread();
        pages += store.write_back()?.written_back_pages;
        ns += clock.stop(1)[0];
    }
    let bytes = (written(store) - before) as f64;
    Ok(vec![pages as f64 * 1e9 / ns, bytes / compressed as f64, bytes / pages as f64])
}
