//! Random overwrites and writeback while the medium stays half or four fifths full.
//!
//! The data is written back once; then random pages are overwritten and written back, a sixteenth of the data at a
//! time, until every page has been overwritten several times on average. Only writeback passes are timed. The size of
//! the medium depends on the layout: the log needs room for compressed bytes, the other layout for whole pages.

use super::Bench;
use super::content::Content;
use super::history;
use super::medium::DelayMode;
use super::test_store::TestStore;
use crate::plan::SEED;
use crate::report::Report;
use crate::stats::Random;
use crate::table::{Table, number};
use pagefold_backing::Backing;
use pagefold_page::PAGE_SIZE;
use pagefold_store::writeback::LayoutKind;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Shares of the medium that the data fills, per cent.
const LIVE_PERCENT: [u64; 2] = [50, 80];
/// Number of passes in which as many pages are overwritten as the data has.
const PARTS: u64 = 16;
/// Offset of the first segment or block.
const DATA_START: u64 = 1 << 20;

/// Measures on the modelled medium and on a real file, and adds a table. Without direct I/O, adds a note.
pub fn measure(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    let content = Content::real(&bench.sets);
    let data_len = history::data_len(&content, bench.plan.history_pages)?;
    let columns = [
        "medium, live, layout",
        "pages/s",
        "MB/s compressed",
        "bytes written per page",
        "write amplification",
        "of that by the cleaner",
        "bytes read by the cleaner per page",
        "cleaned segments",
    ];
    let mut table = Table::new("steady state: random overwrites, written back; real pages", &columns);
    for percent in LIVE_PERCENT {
        for layout in [LayoutKind::Log, LayoutKind::Blocks] {
            let len = medium_len(bench, data_len, layout, percent);
            let (modelled, clock) = bench.modelled.make(len)?;
            let figure = steady(bench, &content, layout, modelled, || clock.set_mode(DelayMode::Off))?;
            figure.push_row(&mut table, "modelled", percent, layout);
            match bench.file.make(len) {
                Ok(file) => {
                    let figure = steady(bench, &content, layout, file, || {})?;
                    figure.push_row(&mut table, "real file", percent, layout);
                }
                Err(e) => report.note(format!("the steady state was not measured on a real file: {e:#}")),
            }
        }
    }
    report.tables.push(table);
    Ok(())
}

/// Returns the size of a medium, bytes, of which the data fills `percent`.
fn medium_len(bench: &Bench, data_len: u64, layout: LayoutKind, percent: u64) -> u64 {
    let live = match layout {
        LayoutKind::Log => data_len,
        LayoutKind::Blocks => bench.plan.history_pages * PAGE_SIZE as u64,
    };
    DATA_START + (live * 100 / percent).next_multiple_of(1 << 20)
}

/// Sums over the passes that count.
#[derive(Default)]
struct Figure {
    pages: u64,
    seconds: f64,
    compressed_bytes: u64,
    written_bytes: u64,
    cleaned_bytes: u64,
    cleaner_read_bytes: u64,
    cleaned_segments: u64,
}

impl Figure {
    fn push_row(&self, table: &mut Table, medium: &str, percent: u64, layout: LayoutKind) {
        let per_page = |bytes: u64| bytes as f64 / self.pages as f64;
        let written = self.written_bytes + self.cleaned_bytes;
        let compressed = self.compressed_bytes as f64;
        let name = if layout == LayoutKind::Log { "log" } else { "blocks" };
        table.push([
            format!("{medium}, {percent} %, {name}"),
            number(self.pages as f64 / self.seconds),
            number(compressed / self.seconds / 1e6),
            number(per_page(written)),
            number(written as f64 / compressed),
            number(self.cleaned_bytes as f64 / compressed),
            number(per_page(self.cleaner_read_bytes)),
            self.cleaned_segments.to_string(),
        ]);
    }
}

fn steady(
    bench: &Bench,
    content: &Content,
    layout: LayoutKind,
    backing: Arc<dyn Backing>,
    before_check: impl Fn(),
) -> anyhow::Result<Figure> {
    let pages = bench.plan.history_pages;
    let mut store = TestStore::new(layout, backing, pages, content.clone())?;
    store.put(0..pages)?;
    store.write_back(0..pages)?;
    let mut random = Random(SEED);
    let mut figure = Figure::default();
    for part in 0..(bench.plan.steady_warm_up + bench.plan.steady_overwrites) * PARTS {
        let drawn: BTreeSet<u64> = (0..pages / PARTS).map(|_| random.below(pages)).collect();
        let compressed_bytes = |store: &TestStore| store.inner().stats().mm.compr_data_size;
        store.put(drawn)?;
        let compressed = compressed_bytes(&store);
        let before = store.stats();
        let pass = store.write_back(0..pages)?;
        let after = store.stats();
        if part < bench.plan.steady_warm_up * PARTS {
            continue;
        }
        figure.pages += pass.report.written_back_pages;
        figure.seconds += pass.seconds;
        figure.compressed_bytes += compressed;
        figure.written_bytes += after.written_bytes - before.written_bytes;
        figure.cleaned_bytes += after.cleaned_bytes - before.cleaned_bytes;
        figure.cleaner_read_bytes += after.cleaner_read_bytes - before.cleaner_read_bytes;
        figure.cleaned_segments += after.cleaned_segments - before.cleaned_segments;
    }
    before_check();
    store.verify()?;
    Ok(figure)
}
