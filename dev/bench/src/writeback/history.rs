//! Writeback to an aged log against writeback to an empty log.
//!
//! The medium is four times as large as the data. The history: all pages are written back; then, four times, half of
//! the pages are freed, rewritten and written back. Each time another bit of the page's index chooses this half, so
//! that no segment becomes empty without the cleaner, and the oldest segments keep a sixteenth of their pages. Then
//! half of the pages are freed once more. The measurement: a full set of other pages is written back, on this medium
//! and on an empty medium of the same size. The table also has the layout of one page per block, with the same history.

use super::Bench;
use super::content::Content;
use super::test_store::{Pass, TestStore, ample_len};
use super::{medium, plan};
use crate::report::{Report, Row};
use crate::stats::Rounds;
use crate::table::{Table, number};
use pagefold_backing::Backing;
use pagefold_page::PAGE_SIZE;
use pagefold_store::writeback::LayoutKind;
use std::sync::Arc;

/// How often half of the pages are freed and rewritten.
const REWRITES: u64 = 4;
/// Size of the medium / size of the data.
const MEDIUM_TIMES_DATA: u64 = 4;
/// Offset of the first segment or block.
const DATA_START: u64 = 1 << 20;

/// Measures on the modelled medium and on a real file. Without direct I/O, adds a note instead of the latter.
pub fn measure(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    let content = Content::real(&bench.sets);
    let data_len = data_len(&content, bench.plan.history_pages)?;
    let media = media(bench, data_len, &mut |len| Ok(bench.modelled.make(len)?.0))?;
    measure_on(bench, &content, "modelled medium", &media, report)?;
    match media_on_file(bench, data_len) {
        Ok(media) => measure_on(bench, &content, "real file", &media, report),
        Err(e) => {
            report.note(format!("the history was not measured on a real file: {e:#}"));
            Ok(())
        }
    }
}

/// Returns the number of bytes that this many pages take in the log.
pub fn data_len(content: &Content, pages: u64) -> anyhow::Result<u64> {
    let mut store =
        TestStore::new(LayoutKind::Log, medium::memory(ample_len(pages))?, pages, content.clone())?;
    store.put(0..pages)?;
    Ok(store.write_back(0..pages)?.report.written_bytes)
}

/// Two media for each layout: the first gets a history, the second stays empty.
struct Media {
    log: [Arc<dyn Backing>; 2],
    blocks: [Arc<dyn Backing>; 2],
}

type Make<'m> = dyn FnMut(u64) -> anyhow::Result<Arc<dyn Backing>> + 'm;

fn media(bench: &Bench, data_len: u64, make: &mut Make) -> anyhow::Result<Media> {
    let log = DATA_START + (MEDIUM_TIMES_DATA * data_len).next_multiple_of(1 << 20);
    let blocks = DATA_START + MEDIUM_TIMES_DATA * bench.plan.history_pages * PAGE_SIZE as u64;
    Ok(Media { log: [make(log)?, make(log)?], blocks: [make(blocks)?, make(blocks)?] })
}

fn media_on_file(bench: &Bench, data_len: u64) -> anyhow::Result<Media> {
    media(bench, data_len, &mut |len| bench.file.make(len))
}

fn measure_on(
    bench: &Bench,
    content: &Content,
    name: &str,
    media: &Media,
    report: &mut Report,
) -> anyhow::Result<()> {
    let title = format!("a full set written back after a history: {}, real pages", media.log[0].describe());
    let columns =
        ["layout", "pages/s, empty", "pages/s, after", "ratio", "written / payload", "cleaned / payload"];
    let mut table = Table::new(title, &columns);
    let layouts = [("log", LayoutKind::Log, &media.log), ("blocks", LayoutKind::Blocks, &media.blocks)];
    for (layout_name, layout, backings) in layouts {
        let figure = rounds(bench, content, layout, backings)?;
        table.push([
            layout_name.into(),
            number(figure.empty.median()),
            number(figure.after.median()),
            format!("{:.3}", figure.after.over(&figure.empty).median()),
            number(figure.written.median()),
            number(figure.cleaned.median()),
        ]);
        if layout == LayoutKind::Log {
            let comparable = bench.sets.iter().all(|set| set.comparable);
            let row = Row::of_all("log after a history", comparable, "pages/s", "empty log", plan::HISTORY);
            report.rows.push(Row {
                set: name.into(),
                ours: figure.after.median(),
                peer: Some(figure.empty.median()),
                ratio: Some(figure.after.over(&figure.empty).median()),
                ..row
            });
        }
    }
    report.tables.push(table);
    Ok(())
}

/// Pages per second on the aged and on the empty medium; bytes written and bytes cleaned / payload on the aged one.
#[derive(Default)]
struct Figure {
    after: Rounds,
    empty: Rounds,
    written: Rounds,
    cleaned: Rounds,
}

fn rounds(
    bench: &Bench,
    content: &Content,
    layout: LayoutKind,
    backings: &[Arc<dyn Backing>; 2],
) -> anyhow::Result<Figure> {
    let pages = bench.plan.history_pages;
    let mut figure = Figure::default();
    // The first round touches all memory and does not count.
    for round in 0..=bench.plan.history_rounds {
        // Each round makes new stores, and so empty layouts, on media that have been touched.
        let mut aged = TestStore::new(layout, backings[0].clone(), 2 * pages, content.clone())?;
        let mut empty = TestStore::new(layout, backings[1].clone(), 2 * pages, content.clone())?;
        make_history(&mut aged, pages)?;
        let fresh = pages..2 * pages;
        aged.put(fresh.clone())?;
        // Empty writes increment the version as often as the history does, so that both stores write the same contents.
        (0..=REWRITES).try_for_each(|_| empty.put([]))?;
        empty.put(fresh.clone())?;
        let before = aged.stats();
        let write_back = |store: &TestStore| store.write_back(fresh.clone());
        let (after, on_empty): (Pass, Pass) = match round % 2 {
            0 => (write_back(&aged)?, write_back(&empty)?),
            _ => {
                let on_empty = write_back(&empty)?;
                (write_back(&aged)?, on_empty)
            }
        };
        let cleaned = aged.stats().cleaned_bytes - before.cleaned_bytes;
        if round > 0 {
            figure.after.push(after.pages_per_s());
            figure.empty.push(on_empty.pages_per_s());
            figure.written.push(after.report.written_bytes as f64 / after.report.payload_bytes as f64);
            figure.cleaned.push(cleaned as f64 / after.report.payload_bytes as f64);
        }
        if round == bench.plan.history_rounds {
            aged.verify()?;
            empty.verify()?;
        }
    }
    Ok(figure)
}

/// Makes the history: writes back all pages; then frees, rewrites and writes back half of them, [`REWRITES`] times;
/// ends with half of them freed.
fn make_history(store: &mut TestStore, pages: u64) -> anyhow::Result<()> {
    store.put(0..pages)?;
    store.write_back(0..pages)?;
    let half = |bit: u64| (0..pages).filter(move |page| page >> bit & 1 == 0);
    for bit in 0..REWRITES {
        store.free(half(bit))?;
        store.put(half(bit))?;
        store.write_back(0..pages)?;
    }
    store.free(half(REWRITES))
}
