//! Overwriting and parking while the medium stays half or four fifths full.
//!
//! The data is parked once; then pages drawn at random are overwritten and parked, a
//! sixteenth at a time, until every page has been overwritten several times on
//! average. Only passes are timed. What a medium can hold differs by layout:
//! the log's has room for the compressed bytes, the other's for whole pages.

use super::Bench;
use super::bed::Bed;
use super::content::Content;
use super::history;
use super::medium::Waiting;
use crate::plan::SEED;
use crate::report::Report;
use crate::stats::Random;
use crate::table::{Table, number};
use pagefold_backing::Backing;
use pagefold_page::PAGE_SIZE;
use pagefold_store::parking::LayoutKind;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Shares of the medium that are live, per cent.
const LIVE_PERCENT: [u64; 2] = [50, 80];
/// The data is overwritten in so many parts.
const PARTS: u64 = 16;
/// Where segments and blocks begin.
const DATA_START: u64 = 1 << 20;

/// Measures on the modelled medium and on a real file, and adds a table.
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
    let mut table = Table::new("steady state: random overwrites, parked; real pages", &columns);
    for percent in LIVE_PERCENT {
        for layout in [LayoutKind::Log, LayoutKind::Blocks] {
            let len = medium_len(bench, data_len, layout, percent);
            let (modelled, switch) = bench.modelled.make(len)?;
            let figure = steady(bench, &content, layout, modelled, || switch.set(Waiting::Off))?;
            figure.tell(&mut table, "modelled", percent, layout);
            match bench.file.make(len) {
                Ok(file) => {
                    let figure = steady(bench, &content, layout, file, || {})?;
                    figure.tell(&mut table, "real file", percent, layout);
                }
                Err(e) => report.note(format!("the steady state was not measured on a real file: {e:#}")),
            }
        }
    }
    report.tables.push(table);
    Ok(())
}

/// Bytes of a medium of which so much is live.
fn medium_len(bench: &Bench, data_len: u64, layout: LayoutKind, percent: u64) -> u64 {
    let live = match layout {
        LayoutKind::Log => data_len,
        LayoutKind::Blocks => bench.plan.history_pages * PAGE_SIZE as u64,
    };
    DATA_START + (live * 100 / percent).next_multiple_of(1 << 20)
}

/// Sums of the passes that count.
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
    fn tell(&self, table: &mut Table, medium: &str, percent: u64, layout: LayoutKind) {
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
    let mut bed = Bed::new(layout, backing, pages, content.clone())?;
    bed.put(0..pages)?;
    bed.park(0..pages)?;
    let mut random = Random(SEED);
    let mut figure = Figure::default();
    for part in 0..(bench.plan.steady_warm_up + bench.plan.steady_overwrites) * PARTS {
        let drawn: BTreeSet<u64> = (0..pages / PARTS).map(|_| random.below(pages)).collect();
        let held = |bed: &Bed| bed.store().stats().mm.compr_data_size;
        bed.put(drawn)?;
        let compressed = held(&bed);
        let before = bed.stats();
        let pass = bed.park(0..pages)?;
        let after = bed.stats();
        if part < bench.plan.steady_warm_up * PARTS {
            continue;
        }
        figure.pages += pass.report.parked_pages;
        figure.seconds += pass.seconds;
        figure.compressed_bytes += compressed;
        figure.written_bytes += after.written_bytes - before.written_bytes;
        figure.cleaned_bytes += after.cleaned_bytes - before.cleaned_bytes;
        figure.cleaner_read_bytes += after.cleaner_read_bytes - before.cleaner_read_bytes;
        figure.cleaned_segments += after.cleaned_segments - before.cleaned_segments;
    }
    before_check();
    bed.verify()?;
    Ok(figure)
}
