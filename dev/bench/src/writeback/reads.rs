//! Latency of reads of pages in memory while another CPU writes back other pages.
//!
//! The reader and the worker are pinned to a CPU each. The peer of writeback is a worker that copies memory: it shares
//! caches and memory bandwidth with the reader, but not the store. The pages that are read and the pages that are
//! written back share frames of the same size classes, so that freeing one moves another; the medium is memory, so that
//! writeback never waits. Only reads count that end while the worker is working.

use super::Bench;
use super::content::Content;
use super::test_store::{TestStore, ample_len};
use super::{medium, plan};
use crate::plan::SEED;
use crate::report::{Report, Row};
use crate::stats::{Random, Rounds};
use crate::table::{Table, number};
use anyhow::Context;
use pagefold_page::PAGE_SIZE;
use pagefold_store::Store;
use pagefold_store::writeback::LayoutKind;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Lengths of the copies, cyclically.
const COPY_LENS: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Length of the source and of the destination of the copies, larger than the CPU's caches.
const COPY_BUFFER_LEN: usize = 64 << 20;
/// The reported quantiles of the reads' times.
const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];

/// The work on the other CPU.
const OTHER_WORK: [&str; 3] = ["writeback", "copying memory", "no work"];

/// Measures, and adds a table and a row. With a single CPU, adds a note instead.
pub fn measure(bench: &Bench, report: &mut Report) -> anyhow::Result<()> {
    let allowed = sched_getaffinity(None).context("reading the CPU affinity")?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let [cpu, other_cpu, ..] = cpus[..] else {
        report.note("reads during writeback were not measured: they need two CPUs".into());
        return Ok(());
    };
    let content = Content::real(&bench.sets);
    let resident = bench.plan.read_pages;
    let pages = resident + bench.plan.read_written_back_pages;
    let mut store = TestStore::new(LayoutKind::Log, medium::memory(ample_len(pages))?, pages, content)?;
    put_mixed(&mut store, resident, pages)?;
    let mut copying = CopyWork::new();
    let mut figures: [Figure; 3] = Default::default();
    for round in 0..=bench.plan.read_rounds {
        let mut order = [0, 1, 2];
        order.rotate_left(round % 3);
        for i in order {
            let mut times_ns: Vec<u32> = Vec::with_capacity(2 * bench.plan.reads);
            while times_ns.len() < bench.plan.reads {
                let reads = Reads { pages: resident, max_reads: bench.plan.reads, cpu, other_cpu };
                match i {
                    0 => {
                        // Writes the pages that were written back again, so that they are in memory.
                        store.put(resident..pages)?;
                        reads.run_during(store.inner(), &mut times_ns, |_| {
                            store.write_back(resident..pages).map(drop)
                        })?;
                    }
                    1 => reads.run_during(store.inner(), &mut times_ns, |stop| copying.run(stop))?,
                    _ => reads.run_during(store.inner(), &mut times_ns, idle)?,
                }
            }
            if round > 0 {
                figures[i].add(&mut times_ns);
            }
        }
    }
    store.verify()?;
    let comparable = bench.sets.iter().all(|set| set.comparable);
    add_results(report, &figures, comparable);
    Ok(())
}

/// Writes the pages that stay in memory interleaved with the others, so that they share frames.
fn put_mixed(store: &mut TestStore, resident: u64, pages: u64) -> anyhow::Result<()> {
    let others_per_resident = (pages - resident) / resident;
    let mixed = (0..resident).flat_map(|page| {
        let first = resident + page * others_per_resident;
        std::iter::once(page).chain(first..first + others_per_resident)
    });
    store.put(mixed)
}

/// Parameters of the reader: reads random pages among the first `pages`, at most `max_reads` times.
struct Reads {
    pages: u64,
    max_reads: usize,
    cpu: usize,
    other_cpu: usize,
}

impl Reads {
    /// Reads while `work` runs on the other CPU, until `work` ends or there are enough reads. Sets the flag that `work`
    /// receives when it should stop.
    fn run_during(
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
            // Stop the worker even if the reader failed or panicked.
            stop.store(true, Relaxed);
            worker.join().unwrap_or_else(|_| panicked()).and(read)
        })
    }

    fn read(&self, store: &Store, times_ns: &mut Vec<u32>, ended: &AtomicBool) -> anyhow::Result<()> {
        let mut random = Random(SEED ^ times_ns.len() as u64);
        let mut page = [0; PAGE_SIZE];
        for _ in 0..self.max_reads {
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

/// Pins the calling thread to one CPU.
fn pin(cpu: usize) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("pinning a thread to CPU {cpu}"))
}

/// The worker that copies memory.
struct CopyWork {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl CopyWork {
    fn new() -> Self {
        CopyWork { from: vec![1; COPY_BUFFER_LEN], to: vec![2; COPY_BUFFER_LEN] }
    }

    fn run(&mut self, stop: &AtomicBool) -> anyhow::Result<()> {
        let mut at = 0;
        for len in COPY_LENS.into_iter().cycle() {
            if stop.load(Relaxed) {
                break;
            }
            at = if at + len > COPY_BUFFER_LEN { 0 } else { at };
            self.to[at..at + len].copy_from_slice(&self.from[at..at + len]);
            black_box(&self.to[at]);
            at += len;
        }
        Ok(())
    }
}

/// The worker that leaves the other CPU idle until `stop` is set.
fn idle(stop: &AtomicBool) -> anyhow::Result<()> {
    while !stop.load(Relaxed) {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The quantiles of each round, nanoseconds.
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

fn add_results(report: &mut Report, figures: &[Figure; 3], comparable: bool) {
    let [writeback, copying, _] = figures;
    let columns = ["4 KiB read from memory, ns", "p50", "p99", "p99.9", "p99 against copying"];
    let mut table = Table::new("reads during work on the other CPU, real pages", &columns);
    for (name, figure) in OTHER_WORK.iter().zip(figures) {
        let [p50, p99, p999] = figure.0.each_ref().map(|rounds| number(rounds.median()));
        let against = format!("{:.3}", figure.0[1].over(&copying.0[1]).median());
        table.push([format!("during {name}"), p50, p99, p999, against]);
    }
    report.tables.push(table);
    let row =
        Row::of_all("read from memory while writeback, p99", comparable, "ns", "copying memory", plan::READS);
    report.rows.push(Row {
        ours: writeback.0[1].median(),
        peer: Some(copying.0[1].median()),
        ratio: Some(writeback.0[1].over(&copying.0[1]).median()),
        ..row
    });
}
