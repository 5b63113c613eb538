//! Writeback with 32 pages in flight against one: the benefit of batches.
//!
//! The data is random, so that each page takes 4096 bytes in every layout. The row uses the kernel's layout, one page
//! per block. The table shows the log, too, which packs 32 such pages into one write.

use super::Bench;
use super::content::Content;
use super::medium::DelayMode;
use super::plan;
use super::test_store::{TestStore, ample_len};
use crate::plan::Target;
use crate::report::{Report, Row};
use crate::stats::Rounds;
use crate::table::{Table, number};
use pagefold_backing::Backing;
use pagefold_store::writeback::LayoutKind;
use pagefold_sys::cpu;
use std::sync::Arc;

/// The compared stores: name, layout and batch size.
const SUBJECTS: [(&str, LayoutKind, u32); 3] = [
    ("blocks, batch 32", LayoutKind::Blocks, 32),
    ("blocks, batch 1", LayoutKind::Blocks, 1),
    ("log, batch 32", LayoutKind::Log, 32),
];

/// Measures on the modelled medium, and adds a table and a row.
pub fn on_modelled(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    let mut clocks = Vec::new();
    let mut make = |len| {
        let (backing, clock) = bench.modelled.make(len)?;
        clocks.push(clock);
        Ok(backing)
    };
    let stores = stores(bench, &mut make)?;
    let what = "write back random data, batch 32";
    let figures = measure(bench, stores, || clocks.iter().for_each(|clock| clock.set_mode(DelayMode::Off)))?;
    let limit = bench.modelled.requests_per_s();
    report.tables.push(table(&format!("{what}: {}", bench.modelled.describe()), &figures, Some(limit)));
    report.rows.push(row(what, "modelled medium", plan::BATCH, &figures));
    Ok(())
}

/// Measures on a real file, and adds a table and a row. Without direct I/O, adds a note instead.
pub fn on_file(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    let mut describe = String::new();
    let mut make = |len| {
        let backing = bench.file.make(len)?;
        describe = backing.describe();
        Ok(backing)
    };
    let stores = match stores(bench, &mut make) {
        Ok(stores) => stores,
        Err(e) => {
            report.note(format!("not measured on a real file: {e:#}"));
            return Ok(());
        }
    };
    let what = "write back random data, batch 32";
    let figures = measure(bench, stores, || {})?;
    report.tables.push(table(&format!("{what}: {describe}"), &figures, None));
    report.rows.push(row(what, "real file", plan::BATCH_FILE, &figures));
    Ok(())
}

type Make<'m> = dyn FnMut(u64) -> anyhow::Result<Arc<dyn Backing>> + 'm;

fn stores<'a>(bench: &Bench, make: &mut Make) -> anyhow::Result<Vec<TestStore<'a>>> {
    let pages = bench.plan.batch_pages;
    let store = |(_, layout, _)| TestStore::new(layout, make(ample_len(pages))?, pages, Content::Random);
    SUBJECTS.into_iter().map(store).collect()
}

/// The rounds of one store.
#[derive(Default)]
struct Figure {
    pages_per_s: Rounds,
    cpu_us_per_page: Rounds,
}

fn measure(
    bench: &Bench,
    mut stores: Vec<TestStore>,
    before_check: impl Fn(),
) -> anyhow::Result<Vec<Figure>> {
    let mut figures: Vec<Figure> = SUBJECTS.iter().map(|_| Figure::default()).collect();
    for round in 0..=bench.plan.batch_rounds {
        let mut order: Vec<usize> = (0..stores.len()).collect();
        order.rotate_left(round % stores.len());
        for i in order {
            let store = &mut stores[i];
            let pages = 0..store.len();
            store.put(pages.clone())?;
            // The first round touches all memory and does not count, so it uses the fast batch size for all.
            store.set_batch(if round == 0 { 32 } else { SUBJECTS[i].2 });
            let started = cpu::thread_time();
            let pass = store.write_back(pages)?;
            let cpu = cpu::thread_time() - started;
            if round > 0 {
                figures[i].pages_per_s.push(pass.pages_per_s());
                figures[i]
                    .cpu_us_per_page
                    .push(cpu.as_secs_f64() * 1e6 / pass.report.written_back_pages as f64);
            }
        }
    }
    before_check();
    stores.iter().try_for_each(TestStore::verify)?;
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
        // The limit is a number of requests. It limits pages only in a layout that writes each page with one request.
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
