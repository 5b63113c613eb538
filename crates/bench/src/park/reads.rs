//! Reads of pages in memory, while other pages are parked on the other CPU.
//!
//! The peer is a thread on the other CPU that copies memory, which shares caches and
//! memory's bandwidth but nothing of the store. Pages that are read lie among those
//! that are parked, in the same size classes, so that freeing one moves the other; the
//! medium is memory, so that parking never rests. A read counts only while the
//! other thread is at work.

use super::Bench;
use super::bed::{Bed, roomy_len};
use super::content::Content;
use super::{medium, plan};
use crate::plan::SEED;
use crate::report::{Report, Row};
use crate::stats::{Random, Rounds};
use crate::table::{Table, number};
use anyhow::Context;
use pagefold_page::PAGE_SIZE;
use pagefold_store::Store;
use pagefold_store::parking::LayoutKind;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Lengths that are copied in turn.
const COPIED_LENS: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Memory that is copied from and to, each: more than caches hold.
const COPIED_FROM: usize = 64 << 20;
/// What is told of the reads' times.
const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];

/// What runs on the other CPU.
const BESIDE: [&str; 3] = ["parking", "copying memory", "nothing"];

/// Measures and adds the row.
pub fn measure(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    let allowed = sched_getaffinity(None).context("asking which CPUs may be used")?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let [cpu, other_cpu, ..] = cpus[..] else {
        report.note("reads beside parking were not measured: they need two CPUs".into());
        return Ok(());
    };
    let content = Content::real(&bench.sets);
    let kept = bench.plan.read_pages;
    let pages = kept + bench.plan.read_parked_pages;
    let mut bed = Bed::new(LayoutKind::Log, medium::memory(roomy_len(pages))?, pages, content)?;
    put_mixed(&mut bed, kept, pages)?;
    let mut copying = Copying::new();
    let mut figures: [Figure; 3] = Default::default();
    for round in 0..=bench.plan.read_rounds {
        let mut order = [0, 1, 2];
        order.rotate_left(round % 3);
        for i in order {
            let mut times_ns: Vec<u32> = Vec::with_capacity(2 * bench.plan.reads);
            while times_ns.len() < bench.plan.reads {
                let reads = Reads { pages: kept, most: bench.plan.reads, cpu, other_cpu };
                match i {
                    0 => {
                        // What was parked is in memory again, and new.
                        bed.put(kept..pages)?;
                        reads.beside(bed.store(), &mut times_ns, |_| bed.park(kept..pages).map(drop))?;
                    }
                    1 => reads.beside(bed.store(), &mut times_ns, |stop| copying.run(stop))?,
                    _ => reads.beside(bed.store(), &mut times_ns, idle)?,
                }
            }
            if round > 0 {
                figures[i].add(&mut times_ns);
            }
        }
    }
    bed.verify()?;
    let comparable = bench.sets.iter().all(|set| set.comparable);
    tell(report, &figures, comparable);
    Ok(())
}

/// Writes the pages that stay in memory among the others, so that they share frames.
fn put_mixed(bed: &mut Bed, kept: u64, pages: u64) -> anyhow::Result<()> {
    let others_per_kept = (pages - kept) / kept;
    let mixed = (0..kept).flat_map(|page| {
        let first = kept + page * others_per_kept;
        std::iter::once(page).chain(first..first + others_per_kept)
    });
    bed.put(mixed)
}

/// Reads of random pages, of the first so many.
struct Reads {
    pages: u64,
    most: usize,
    cpu: usize,
    other_cpu: usize,
}

impl Reads {
    /// Reads while `work` runs on the other CPU, until it ends or there are enough; then tells it to.
    fn beside(
        &self,
        store: &Store,
        times_ns: &mut Vec<u32>,
        work: impl FnOnce(&AtomicBool) -> anyhow::Result<()> + Send,
    ) -> anyhow::Result<()> {
        let (begun, ended, stop) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let pinned = pin(self.other_cpu);
                begun.store(true, Relaxed);
                let done = pinned.and_then(|()| work(&stop));
                ended.store(true, Relaxed);
                done
            });
            let reader = scope.spawn(|| {
                pin(self.cpu)?;
                while !begun.load(Relaxed) {
                    std::hint::spin_loop();
                }
                let done = self.read(store, times_ns, &ended);
                stop.store(true, Relaxed);
                done
            });
            let panicked = || Err(anyhow::anyhow!("a measuring thread panicked"));
            let read = reader.join().unwrap_or_else(|_| panicked());
            // Whatever became of the reader, the worker is not to work for ever.
            stop.store(true, Relaxed);
            worker.join().unwrap_or_else(|_| panicked()).and(read)
        })
    }

    fn read(&self, store: &Store, times_ns: &mut Vec<u32>, ended: &AtomicBool) -> anyhow::Result<()> {
        let mut random = Random(SEED ^ times_ns.len() as u64);
        let mut page = [0; PAGE_SIZE];
        for _ in 0..self.most {
            let at = random.below(self.pages) * PAGE_SIZE as u64;
            let started = Instant::now();
            store.read(at, &mut page)?;
            let took = started.elapsed();
            black_box(&page);
            if ended.load(Relaxed) {
                break;
            }
            times_ns.push(u32::try_from(took.as_nanos()).unwrap_or(u32::MAX));
        }
        Ok(())
    }
}

/// Keeps the calling thread on one CPU.
fn pin(cpu: usize) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("keeping a thread on CPU {cpu}"))
}

/// Copies memory until told to stop.
struct Copying {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Copying {
    fn new() -> Self {
        Copying { from: vec![1; COPIED_FROM], to: vec![2; COPIED_FROM] }
    }

    fn run(&mut self, stop: &AtomicBool) -> anyhow::Result<()> {
        let mut at = 0;
        for len in COPIED_LENS.into_iter().cycle() {
            if stop.load(Relaxed) {
                break;
            }
            at = if at + len > COPIED_FROM { 0 } else { at };
            self.to[at..at + len].copy_from_slice(&self.from[at..at + len]);
            black_box(&self.to[at]);
            at += len;
        }
        Ok(())
    }
}

/// Leaves the other CPU alone until told to stop.
fn idle(stop: &AtomicBool) -> anyhow::Result<()> {
    while !stop.load(Relaxed) {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Quantiles of each round, nanoseconds.
#[derive(Default)]
struct Figure([Rounds; QUANTILES.len()]);

impl Figure {
    fn add(&mut self, times_ns: &mut [u32]) {
        times_ns.sort_unstable();
        for (rounds, (_, share)) in self.0.iter_mut().zip(QUANTILES) {
            let at = (share * (times_ns.len() - 1) as f64) as usize;
            rounds.push(f64::from(times_ns[at]));
        }
    }
}

fn tell(report: &mut Report, figures: &[Figure; 3], comparable: bool) {
    let [parking, copying, _] = figures;
    let columns = ["4 KiB read from memory, ns", "p50", "p99", "p99.9", "p99 against copying"];
    let mut table = Table::new("reads beside work on the other CPU, real pages", &columns);
    for (name, figure) in BESIDE.iter().zip(figures) {
        let [p50, p99, p999] = figure.0.each_ref().map(|rounds| number(rounds.median()));
        let against = format!("{:.3}", figure.0[1].over(&copying.0[1]).median());
        table.push([format!("beside {name}"), p50, p99, p999, against]);
    }
    report.tables.push(table);
    let row =
        Row::of_all("read from memory while parking, p99", comparable, "ns", "copying memory", plan::READS);
    report.rows.push(Row {
        ours: parking.0[1].median(),
        peer: Some(copying.0[1].median()),
        ratio: Some(parking.0[1].over(&copying.0[1]).median()),
        ..row
    });
}
