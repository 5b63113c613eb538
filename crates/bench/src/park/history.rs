//! The log after a history of freeing, against an empty one.
//!
//! The medium has four times the room of the data. All is parked; then, four times,
//! every second page is freed and as many are parked anew. Which ones is decided by
//! another bit of the page's number each time, so that no segment empties by itself and
//! the oldest have a sixteenth of their pages left. Then every second page is freed
//! once more, and a fresh full set is parked and timed, as it is on an empty medium of
//! the same size. One page per block has the same history beside it.

use super::Bench;
use super::bed::{Bed, Pass, roomy_len};
use super::content::Content;
use super::{medium, plan};
use crate::report::{Report, Row};
use crate::stats::Rounds;
use crate::table::{Table, number};
use pagefold_backing::Backing;
use pagefold_page::PAGE_SIZE;
use pagefold_store::parking::LayoutKind;
use std::sync::Arc;

/// How often every second page is freed.
const HISTORY: u64 = 4;
/// The medium / the data.
const ROOM: u64 = 4;
/// Where segments and blocks begin.
const DATA_START: u64 = 1 << 20;

/// Measures on the modelled medium and on a real file.
pub fn measure(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    let content = Content::real(&bench.sets);
    let data_len = data_len(&content, bench.plan.history_pages)?;
    let media = media(bench, data_len, &mut |len| Ok(bench.modelled.make(len)?.0))?;
    on(bench, &content, "modelled medium", &media, report)?;
    match media_on_file(bench, data_len) {
        Ok(media) => on(bench, &content, "real file", &media, report),
        Err(e) => {
            report.note(format!("the history was not measured on a real file: {e:#}"));
            Ok(())
        }
    }
}

/// Bytes that so many pages take in the log.
pub fn data_len(content: &Content, pages: u64) -> anyhow::Result<u64> {
    let mut bed = Bed::new(LayoutKind::Log, medium::memory(roomy_len(pages))?, pages, content.clone())?;
    bed.put(0..pages)?;
    Ok(bed.park(0..pages)?.report.written_bytes)
}

/// Two media for each layout: one to have a history, one to be empty.
struct Media {
    log: [Arc<dyn Backing>; 2],
    blocks: [Arc<dyn Backing>; 2],
}

type Make<'m> = dyn FnMut(u64) -> anyhow::Result<Arc<dyn Backing>> + 'm;

fn media(bench: &Bench, data_len: u64, make: &mut Make) -> anyhow::Result<Media> {
    let log = DATA_START + (ROOM * data_len).next_multiple_of(1 << 20);
    let blocks = DATA_START + ROOM * bench.plan.history_pages * PAGE_SIZE as u64;
    Ok(Media { log: [make(log)?, make(log)?], blocks: [make(blocks)?, make(blocks)?] })
}

fn media_on_file(bench: &Bench, data_len: u64) -> anyhow::Result<Media> {
    media(bench, data_len, &mut |len| bench.file.make(len))
}

fn on(
    bench: &Bench,
    content: &Content,
    name: &str,
    media: &Media,
    report: &mut Report,
) -> anyhow::Result<()> {
    let title = format!("a full set parked after a history: {}, real pages", media.log[0].describe());
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

/// Pages per second on either medium, and bytes written after the history.
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
    // The first round touches all memory.
    for round in 0..=bench.plan.history_rounds {
        // New stores, and so new layouts, on media that are warm.
        let mut used = Bed::new(layout, backings[0].clone(), 2 * pages, content.clone())?;
        let mut empty = Bed::new(layout, backings[1].clone(), 2 * pages, content.clone())?;
        live_through(&mut used, pages)?;
        let fresh = pages..2 * pages;
        used.put(fresh.clone())?;
        // As many versions, so that both park the same pages.
        (0..=HISTORY).try_for_each(|_| empty.put([]))?;
        empty.put(fresh.clone())?;
        let before = used.stats();
        let park = |bed: &Bed| bed.park(fresh.clone());
        let (after, first): (Pass, Pass) = match round % 2 {
            0 => (park(&used)?, park(&empty)?),
            _ => {
                let first = park(&empty)?;
                (park(&used)?, first)
            }
        };
        let cleaned = used.stats().cleaned_bytes - before.cleaned_bytes;
        if round > 0 {
            figure.after.push(after.pages_per_s());
            figure.empty.push(first.pages_per_s());
            figure.written.push(after.report.written_bytes as f64 / after.report.payload_bytes as f64);
            figure.cleaned.push(cleaned as f64 / after.report.payload_bytes as f64);
        }
        if round == bench.plan.history_rounds {
            used.verify()?;
            empty.verify()?;
        }
    }
    Ok(figure)
}

/// Parks all pages, then frees every second and parks as many again, and again; ends with half of them freed.
fn live_through(bed: &mut Bed, pages: u64) -> anyhow::Result<()> {
    bed.put(0..pages)?;
    bed.park(0..pages)?;
    let half = |bit: u64| (0..pages).filter(move |page| page >> bit & 1 == 0);
    for bit in 0..HISTORY {
        bed.free(half(bit))?;
        bed.put(half(bit))?;
        bed.park(0..pages)?;
    }
    bed.free(half(HISTORY))
}
