//! Many pages in flight against one: what batches are for.
//!
//! Random data, so that each page is 4096 bytes in any layout, in the kernel's layout,
//! one page per block; the log, which packs 32 such pages into one write, beside it.

use super::Bench;
use super::bed::{Bed, roomy_len};
use super::content::Content;
use super::medium::Waiting;
use super::plan;
use crate::plan::Target;
use crate::report::{Report, Row};
use crate::stats::Rounds;
use crate::table::{Table, number};
use pagefold_backing::Backing;
use pagefold_store::parking::LayoutKind;
use pagefold_sys::cpu;
use std::sync::Arc;

/// What is compared: layout and batch size.
const SUBJECTS: [(&str, LayoutKind, u32); 3] = [
    ("blocks, batch 32", LayoutKind::Blocks, 32),
    ("blocks, batch 1", LayoutKind::Blocks, 1),
    ("log, batch 32", LayoutKind::Log, 32),
];

/// The row on the modelled medium.
pub fn on_modelled(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    let mut switches = Vec::new();
    let mut make = |len| {
        let (backing, switch) = bench.modelled.make(len)?;
        switches.push(switch);
        Ok(backing)
    };
    let beds = beds(bench, &mut make)?;
    let what = "park random data, batch 32";
    let figures = measure(bench, beds, || switches.iter().for_each(|switch| switch.set(Waiting::Off)))?;
    let limit = bench.modelled.requests_per_s();
    report.tables.push(table(&format!("{what}: {}", bench.modelled.describe()), &figures, Some(limit)));
    report.rows.push(row(what, "modelled medium", plan::BATCH, &figures));
    Ok(())
}

/// The row on a real file.
pub fn on_file(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    let mut describe = String::new();
    let mut make = |len| {
        let backing = bench.file.make(len)?;
        describe = backing.describe();
        Ok(backing)
    };
    let beds = match beds(bench, &mut make) {
        Ok(beds) => beds,
        Err(e) => {
            report.note(format!("not measured on a real file: {e:#}"));
            return Ok(());
        }
    };
    let what = "park random data, batch 32";
    let figures = measure(bench, beds, || {})?;
    report.tables.push(table(&format!("{what}: {describe}"), &figures, None));
    report.rows.push(row(what, "real file", plan::BATCH_FILE, &figures));
    Ok(())
}

type Make<'m> = dyn FnMut(u64) -> anyhow::Result<Arc<dyn Backing>> + 'm;

fn beds<'a>(bench: &Bench, make: &mut Make) -> anyhow::Result<Vec<Bed<'a>>> {
    let pages = bench.plan.batch_pages;
    let bed = |(_, layout, _)| Bed::new(layout, make(roomy_len(pages))?, pages, Content::Random);
    SUBJECTS.into_iter().map(bed).collect()
}

/// One subject's rounds.
#[derive(Default)]
struct Figure {
    pages_per_s: Rounds,
    cpu_us_per_page: Rounds,
}

fn measure(bench: &Bench, mut beds: Vec<Bed>, before_check: impl Fn()) -> anyhow::Result<Vec<Figure>> {
    let mut figures: Vec<Figure> = SUBJECTS.iter().map(|_| Figure::default()).collect();
    for round in 0..=bench.plan.batch_rounds {
        let mut order: Vec<usize> = (0..beds.len()).collect();
        order.rotate_left(round % beds.len());
        for i in order {
            let bed = &mut beds[i];
            let pages = 0..bed.len();
            bed.put(pages.clone())?;
            // The first round touches all memory; one page at a time would only take longer.
            bed.set_batch(if round == 0 { 32 } else { SUBJECTS[i].2 });
            let started = cpu::thread_time();
            let pass = bed.park(pages)?;
            let cpu = cpu::thread_time() - started;
            if round > 0 {
                figures[i].pages_per_s.push(pass.pages_per_s());
                figures[i].cpu_us_per_page.push(cpu.as_secs_f64() * 1e6 / pass.report.parked_pages as f64);
            }
        }
    }
    before_check();
    beds.iter().try_for_each(Bed::verify)?;
    Ok(figures)
}

fn row(what: &'static str, set: &str, target: Target, figures: &[Figure]) -> Row {
    let [many, one] = [&figures[0].pages_per_s, &figures[1].pages_per_s];
    let row = Row::of_all(what, true, "pages/s", "batch 1", target);
    Row {
        set: set.into(),
        ours: many.median(),
        peer: Some(one.median()),
        ratio: Some(many.over(one).median()),
        ..row
    }
}

fn table(title: &str, figures: &[Figure], limit: Option<f64>) -> Table {
    let columns = ["random data", "pages/s", "against batch 1", "of the medium's limit", "CPU us/page"];
    let mut table = Table::new(title, &columns);
    let one = &figures[1].pages_per_s;
    for ((name, _, _), figure) in SUBJECTS.iter().zip(figures) {
        // The limit is of requests, and is one of pages only where each page is a request.
        let share = limit.filter(|_| name.starts_with("blocks"));
        table.push([
            name.to_string(),
            number(figure.pages_per_s.median()),
            number(figure.pages_per_s.over(one).median()),
            share.map_or("-".into(), |limit| format!("{:.3}", figure.pages_per_s.median() / limit)),
            number(figure.cpu_us_per_page.median()),
        ]);
    }
    table
}
