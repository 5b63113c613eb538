//! The latency of reads beside a pass of recompression, against reads beside threads that run the codecs alone.
//!
//! Reads start at fixed times, 20 000 a second, whether or not the one before has ended (an open loop); a latency
//! counts from the time at which the read should have started. Both sides have the same number of threads, so that the
//! difference is what the engine adds: locks, and the exchange of objects.

use super::subject::{CODEC, rounds, store_with};
use crate::pages::PageSet;
use crate::random::{Random, SEED};
use crate::report::{Figure, Report, Side, Target};
use crate::stats::in_threads;
use pagefold_codec::{Codec, PerCpuStream};
use pagefold_page::{PAGE_SIZE, Page};
use pagefold_store::recompress::RecompressRequest;
use pagefold_store::{CodecSpec, Store};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const WORKERS: usize = 2;
/// Time between the starts of two reads.
const PERIOD: Duration = Duration::from_micros(50);
const PER_MILLE: usize = 1000;

/// Measures one set and adds the row.
pub fn measure(set: &PageSet, report: &mut Report) -> anyhow::Result<()> {
    let compressed = compressed_pages(set)?;
    let pages = report.pick(1 << 18, 1 << 11);
    let ours = Side::new("pagefold", |_| p999_of_reads(set, pages, recompress));
    let peer = Side::new("beside two bare loops", |_| {
        p999_of_reads(set, pages, |_, stop| {
            let share = || bare_loop(compressed.iter().cycle().take(pages / WORKERS), stop);
            in_threads([share; WORKERS]).map(drop)
        })
    });
    let figure = Figure("p99.9 of reads beside recompression", "ns", Target::AtMost(1.2));
    report.compare(&set.name, &[figure], rounds(report), vec![ours, peer])
}

fn zstd() -> CodecSpec {
    CodecSpec { level: Some(3), ..CodecSpec::named("zstd") }
}

/// The pages of the set that are not same-filled, compressed as the store does; raw pages as they are.
fn compressed_pages(set: &PageSet) -> anyhow::Result<Vec<Vec<u8>>> {
    let mut encoder = PerCpuStream::new(&Codec::new(&CodecSpec::named(CODEC))?)?;
    let compress = |page: &Page| {
        let len = encoder.stream.compress(page, &mut encoder.buf[..])?;
        Ok(if len < PAGE_SIZE - PAGE_SIZE / 32 { encoder.buf[..len].to_vec() } else { page.to_vec() })
    };
    set.not_same_filled().into_iter().map(compress).collect()
}

/// Fills a store with `pages` pages of the set, which is repeated. Reads pages at random while `work` runs, and returns
/// the latency that one read in a thousand exceeds, nanoseconds.
fn p999_of_reads(
    set: &PageSet,
    pages: usize,
    work: impl FnOnce(&Store, &AtomicBool) -> anyhow::Result<()> + Send,
) -> anyhow::Result<Vec<f64>> {
    let store = &store_with([Some(zstd()), None, None], (pages * PAGE_SIZE) as u64)?;
    for (i, page) in set.pages().iter().cycle().take(pages).enumerate() {
        store.write((i * PAGE_SIZE) as u64, page)?;
    }
    let [ended, stop] = &[AtomicBool::new(false), AtomicBool::new(false)];
    let mut latencies = std::thread::scope(|scope| {
        let worker = scope.spawn(move || {
            let result = work(store, stop);
            ended.store(true, Relaxed);
            result
        });
        let latencies = read_until(store, ended);
        stop.store(true, Relaxed);
        worker.join().unwrap_or_else(|_| anyhow::bail!("a measuring thread panicked"))?;
        latencies
    })?;
    latencies.sort_unstable();
    let at = latencies.len() - latencies.len() / PER_MILLE - 1;
    Ok(vec![latencies[at].as_nanos() as f64])
}

fn read_until(store: &Store, ended: &AtomicBool) -> anyhow::Result<Vec<Duration>> {
    let (mut random, mut page, mut latencies) = (Random(SEED), [0; PAGE_SIZE], Vec::new());
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

/// Decompresses each page, and compresses it as recompression does.
fn bare_loop<'a>(compressed: impl Iterator<Item = &'a Vec<u8>>, stop: &AtomicBool) -> anyhow::Result<()> {
    let mut decoder = PerCpuStream::new(&Codec::new(&CodecSpec::named(CODEC))?)?;
    let mut encoder = PerCpuStream::new(&Codec::new(&zstd())?)?;
    let mut page: Page = [0; PAGE_SIZE];
    for bytes in compressed {
        if stop.load(Relaxed) {
            break;
        }
        match bytes.as_slice().try_into() {
            Ok(raw) => page = raw,
            Err(_) => _ = decoder.stream.decompress(bytes, &mut page)?,
        }
        std::hint::black_box(encoder.stream.compress(&page, &mut encoder.buf[..])?);
    }
    Ok(())
}
