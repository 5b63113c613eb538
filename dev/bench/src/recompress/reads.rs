//! The latency of reads beside a pass of recompression, against reads beside threads that run the codecs alone.
//!
//! Reads start at fixed times, 20 000 a second, whether or not the one before has ended (an open loop); a latency
//! counts from the time at which the read should have started. Both sides have the same number of threads, so that the
//! difference is what the engine adds: locks, and the exchange of objects.

use super::{PageSet, Plan, Report, Rounds, Row, WORKERS, bare_loop, compressed_pages, store_with, zstd};
use crate::plan;
use crate::stats::Random;
use pagefold_page::PAGE_SIZE;
use pagefold_store::Store;
use pagefold_store::recompress::RecompressRequest;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Time between the starts of two reads.
const PERIOD: Duration = Duration::from_micros(50);
const PER_MILLE: usize = 1000;

/// Measures one set and adds the row.
pub(super) fn measure(set: &PageSet, plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let compressed = compressed_pages(set)?;
    let (mut ours, mut bare) = (Rounds::default(), Rounds::default());
    for round in 0..plan.warm_up_rounds + plan.rounds {
        let mut p999 = [0.0; 2];
        let order = if round % 2 == 1 { [1, 0] } else { [0, 1] };
        for side in order {
            let store = filled(set, plan.recompress_pages)?;
            p999[side] = match side {
                0 => p999_ns_of_reads_during(&store, |stop| recompress(&store, stop))?,
                _ => p999_ns_of_reads_during(&store, |stop| loops(&compressed, plan.recompress_pages, stop))?,
            };
        }
        if round >= plan.warm_up_rounds {
            ours.push(p999[0]);
            bare.push(p999[1]);
        }
    }
    let against = "beside two bare loops";
    let row = Row::new("p99.9 of reads beside recompression", set, "ns", against, plan::READS_BESIDE);
    let ratio = Some(ours.over(&bare).median());
    report.rows.push(Row { ours: ours.median(), peer: Some(bare.median()), ratio, ..row });
    Ok(())
}

/// A store with `pages` pages of the set, which is repeated.
fn filled(set: &PageSet, pages: usize) -> anyhow::Result<Store> {
    let store = store_with([Some(zstd()), None, None], (pages * PAGE_SIZE) as u64)?;
    for (i, page) in set.pages().iter().cycle().take(pages).enumerate() {
        store.write((i * PAGE_SIZE) as u64, page)?;
    }
    Ok(store)
}

/// Reads pages at random while `work` runs; returns the latency that one read in a thousand exceeds, nanoseconds.
fn p999_ns_of_reads_during(
    store: &Store,
    work: impl FnOnce(&AtomicBool) -> anyhow::Result<()> + Send,
) -> anyhow::Result<f64> {
    let ended = AtomicBool::new(false);
    let stop = AtomicBool::new(false);
    let (ended, stop) = (&ended, &stop);
    std::thread::scope(|scope| {
        let worker = scope.spawn(move || {
            let result = work(stop);
            ended.store(true, Relaxed);
            result
        });
        let latencies = read_until(store, ended);
        stop.store(true, Relaxed);
        worker.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a measuring thread panicked")))?;
        let mut latencies = latencies?;
        latencies.sort_unstable();
        let at = latencies.len() - latencies.len() / PER_MILLE - 1;
        Ok(latencies[at].as_nanos() as f64)
    })
}

fn read_until(store: &Store, ended: &AtomicBool) -> anyhow::Result<Vec<Duration>> {
    let (mut random, mut page, mut latencies) = (Random(plan::SEED), [0; PAGE_SIZE], Vec::new());
    let pages = store.len_bytes() / PAGE_SIZE as u64;
    let start = Instant::now();
    while !ended.load(Relaxed) || latencies.is_empty() {
        let intended = start + PERIOD * latencies.len() as u32;
        while Instant::now() < intended {
            std::hint::spin_loop();
        }
        store.read(random.below(pages) * PAGE_SIZE as u64, &mut page)?;
        latencies.push(intended.elapsed());
    }
    Ok(latencies)
}

fn recompress(store: &Store, stop: &AtomicBool) -> anyhow::Result<()> {
    let request = RecompressRequest { threads: WORKERS, ..Default::default() };
    store.recompress(&request, &mut |_| match stop.load(Relaxed) {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    })?;
    Ok(())
}

/// Runs the codecs on `pages` pages in all, in two threads.
fn loops(compressed: &[Vec<u8>], pages: usize, stop: &AtomicBool) -> anyhow::Result<()> {
    std::thread::scope(|scope| {
        let work = move || {
            for part in compressed.chunks(256).cycle().take(pages / WORKERS / 256) {
                if stop.load(Relaxed) {
                    break;
                }
                bare_loop(part)?;
            }
            Ok(())
        };
        let other = scope.spawn(work);
        work()?;
        other.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a measuring thread panicked")))
    })
}
