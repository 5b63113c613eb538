//! A working set twice the memory limit, with automatic writeback.
//!
//! The peer is the same engine with one page per block, first fit: once with promotion (the default), and once without,
//! as in the kernel. Promotion means that a written-back page that is read twice returns to memory. The memory of the
//! whole set is measured first; half of it is the limit. All stores have the same limit, medium, pages and choice of
//! pages.

use super::Bench;
use super::clients::{Tally, Workload};
use super::content::Content;
use super::medium::{DelayMode, MediumClock};
use super::plan::{self, CLIENTS, THETA};
use super::test_store::ample_len;
use crate::engine::new_store;
use crate::plan::SEED;
use crate::report::{Report, Row};
use crate::stats::Rounds;
use crate::table::{Table, number};
use crate::zipf::Zipf;
use pagefold_page::{PAGE_SIZE, size::Human};
use pagefold_store::writeback::{LayoutKind, WritebackConfig, WritebackStats};
use pagefold_store::{MemLimit, Store, WritebackThread};
use std::sync::Arc;
use std::time::Duration;

/// The compared stores: name, layout, and whether promotion is on.
const SUBJECTS: [(&str, LayoutKind, bool); 3] = [
    ("log", LayoutKind::Log, true),
    ("blocks", LayoutKind::Blocks, true),
    ("blocks, no promotion", LayoutKind::Blocks, false),
];

const COLUMNS: [&str; 12] = [
    "clients, layout",
    "ops/s",
    "us/op",
    "missed per op",
    "medium reads per op",
    "promoted per op",
    "written back per op",
    "medium bytes written per op",
    "medium writes per op",
    "writes that waited",
    "client time waiting for memory",
    "refused",
];

/// Measures with each length of requests, and adds a table and rows for each.
pub fn measure(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    let content = Content::real(&bench.sets);
    plan::REQUEST_PAGES
        .into_iter()
        .try_for_each(|run_pages| with_requests(bench, &content, run_pages, report))
}

/// Measures with each number of clients, with requests of `run_pages` pages, and adds rows and a table.
fn with_requests(
    bench: &Bench,
    content: &Content,
    run_pages: usize,
    report: &mut Report,
) -> anyhow::Result<()> {
    let pages = bench.plan.zipf_pages;
    let zipf = Zipf::new(u32::try_from(pages)? / run_pages as u32, THETA, SEED);
    let limit_bytes = memory_of_all(bench, content, &zipf, run_pages)? / 2;
    let subjects: Vec<_> = SUBJECTS
        .iter()
        .map(|(_, layout, promote)| {
            let workload = Workload::new(content, &zipf, run_pages);
            Subject::new(bench, *layout, *promote, limit_bytes, workload)
        })
        .collect::<anyhow::Result<_>>()?;
    let request = Human((run_pages * PAGE_SIZE) as u64);
    let title = format!(
        "working set twice the memory limit: {pages} pages of all sets, limit {}, requests of {request}, \
         Zipf {THETA}, {} % reads, medium {}",
        Human(limit_bytes),
        plan::READ_PERCENT,
        bench.modelled.describe()
    );
    let mut table = Table::new(title, &COLUMNS);
    for clients in CLIENTS {
        let figures = rounds(bench, &subjects, clients)?;
        for ((name, _, _), figure) in SUBJECTS.iter().zip(&figures) {
            figure.push_row(&mut table, clients, name);
        }
        let ends = if clients == 1 { "" } else { "s" };
        rows(bench, report, &format!("{clients} client{ends}, {request}"), &figures);
    }
    report.tables.push(table);
    subjects.iter().try_for_each(Subject::verify)
}

/// Returns the memory that all pages take, bytes.
fn memory_of_all(bench: &Bench, content: &Content, zipf: &Zipf, run_pages: usize) -> anyhow::Result<u64> {
    let store = new_store(bench.plan.zipf_pages * PAGE_SIZE as u64)?;
    Workload::new(content, zipf, run_pages).fill(&store)?;
    Ok(store.stats().mm.mem_used_total)
}

/// A store with automatic writeback, and the workload of its clients.
struct Subject<'a> {
    store: Arc<Store>,
    clock: Arc<MediumClock>,
    workload: Workload<'a>,
}

impl<'a> Subject<'a> {
    fn new(
        bench: &Bench,
        layout: LayoutKind,
        promote: bool,
        limit_bytes: u64,
        workload: Workload<'a>,
    ) -> anyhow::Result<Self> {
        let pages = bench.plan.zipf_pages;
        let mut store = new_store(pages * PAGE_SIZE as u64)?;
        let (backing, clock) = bench.modelled.make(ample_len(pages))?;
        store.attach(WritebackConfig { backing, layout })?;
        store.set_mem_limit(MemLimit::Bytes(limit_bytes));
        if let Some(writeback) = store.writeback() {
            writeback.settings().set_promote(promote);
        }
        let subject = Subject { store: Arc::new(store), clock, workload };
        subject.clock.set_mode(DelayMode::Asleep);
        let writeback_thread = WritebackThread::start(subject.store.clone())?;
        subject.workload.fill(&subject.store)?;
        drop(writeback_thread);
        Ok(subject)
    }

    fn stats(&self) -> WritebackStats {
        self.store.writeback().map(|writeback| writeback.stats()).unwrap_or_default()
    }

    /// Runs a round. Returns the operations of the clients, and writeback's counters before and after.
    fn round(&self, bench: &Bench, clients: usize) -> anyhow::Result<(Tally, [WritebackStats; 2])> {
        // The writeback thread runs only during the store's own round, so that stores do not disturb each other.
        let writeback_thread = WritebackThread::start(self.store.clone())?;
        let mut snapshots = Vec::new();
        let [settle, count] =
            [bench.plan.zipf_settle_ms, bench.plan.zipf_measure_ms].map(Duration::from_millis);
        let tally =
            self.workload.run(&self.store, clients, settle, count, || snapshots.push(self.stats()))?;
        drop(writeback_thread);
        match snapshots[..] {
            [before, after] => Ok((tally, [before, after])),
            _ => anyhow::bail!("a round must have two snapshots of the counters"),
        }
    }

    fn verify(&self) -> anyhow::Result<()> {
        self.clock.set_mode(DelayMode::Off);
        self.workload.verify(&self.store)?;
        let stats = self.stats();
        let failed = stats.unreadable_pages + stats.corrupt_pages;
        anyhow::ensure!(failed == 0, "{failed} pages were unreadable or corrupt");
        Ok(())
    }
}

/// The rounds of one store with one number of clients. The unit is per operation, unless a field says otherwise.
#[derive(Default)]
struct Figure {
    /// Per second.
    ops_per_s: Rounds,
    misses: Rounds,
    medium_reads: Rounds,
    promoted: Rounds,
    written_back: Rounds,
    written_bytes: Rounds,
    medium_writes: Rounds,
    /// Writes that waited for memory / all writes.
    waits: Rounds,
    /// Time that clients waited for memory / time of all clients.
    waited: Rounds,
    /// Refused writes, in all rounds.
    refused: u64,
}

impl Figure {
    fn add(&mut self, clients: usize, tally: &Tally, [before, after]: [WritebackStats; 2]) {
        let per_op =
            |count: fn(&WritebackStats) -> u64| (count(&after) - count(&before)) as f64 / tally.ops as f64;
        self.ops_per_s.push(tally.ops_per_s());
        self.misses.push(per_op(|s| s.bd.bd_reads));
        self.medium_reads.push(per_op(|s| s.reads));
        self.promoted.push(per_op(|s| s.promoted_pages));
        self.written_back.push(per_op(|s| s.bd.bd_writes));
        self.written_bytes.push(per_op(|s| s.written_bytes + s.cleaned_bytes));
        self.medium_writes.push(per_op(|s| s.writes));
        self.waits.push(tally.waits as f64 / tally.writes as f64);
        self.waited.push(tally.waited.as_secs_f64() / tally.time.as_secs_f64() / clients as f64);
        self.refused += tally.refused;
    }

    fn push_row(&self, table: &mut Table, clients: usize, name: &str) {
        let per_op = |rounds: &Rounds| format!("{:.4}", rounds.median());
        table.push([
            format!("{clients}, {name}"),
            number(self.ops_per_s.median()),
            number(1e6 / self.ops_per_s.median()),
            per_op(&self.misses),
            per_op(&self.medium_reads),
            per_op(&self.promoted),
            per_op(&self.written_back),
            number(self.written_bytes.median()),
            per_op(&self.medium_writes),
            format!("{:.2} %", 100.0 * self.waits.median()),
            format!("{:.1} %", 100.0 * self.waited.median()),
            self.refused.to_string(),
        ]);
    }
}

fn rounds(bench: &Bench, subjects: &[Subject], clients: usize) -> anyhow::Result<Vec<Figure>> {
    let mut figures: Vec<Figure> = subjects.iter().map(|_| Figure::default()).collect();
    for round in 0..bench.plan.zipf_rounds {
        let mut order: Vec<usize> = (0..subjects.len()).collect();
        order.rotate_left(round % subjects.len());
        for i in order {
            let (tally, snapshots) = subjects[i].round(bench, clients)?;
            figures[i].add(clients, &tally, snapshots);
        }
    }
    Ok(figures)
}

fn rows(bench: &Bench, report: &mut Report, set: &str, figures: &[Figure]) {
    let comparable = bench.sets.iter().all(|set| set.comparable);
    let ours = &figures[0].ops_per_s;
    let against = ["blocks, promotion on", "blocks, promotion off (kernel)"];
    for (against, peer) in against.into_iter().zip(&figures[1..]) {
        let row = Row::of_all("set twice the limit, log", comparable, "ops/s", against, plan::ZIPF);
        report.rows.push(Row {
            set: set.into(),
            ours: ours.median(),
            peer: Some(peer.ops_per_s.median()),
            ratio: Some(ours.over(&peer.ops_per_s).median()),
            ..row
        });
    }
}
