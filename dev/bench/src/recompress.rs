//! Recompression: its speed, the memory that it saves, and what codecs cost that are configured and not used.
//!
//! The peer of a pass with two workers is two threads that do nothing but the codecs' work on the same pages, from
//! buffer to buffer: no engine can be faster than that.
//!
//! `reads` measures the latency of reads beside a pass.

mod reads;

use super::engine::{CODEC, new_store};
use super::pages::PageSet;
use super::plan::{self, Plan};
use super::report::{Report, Row};
use super::stats::Rounds;
use super::table::{Table, number};
use pagefold_codec::{Codec, PerCpuStream};
use pagefold_page::{PAGE_SIZE, Page};
use pagefold_store::recompress::RecompressRequest;
use pagefold_store::{CodecSpec, MemLimit, Store, StoreConfig};
use std::ops::ControlFlow;
use std::time::Instant;

const WORKERS: usize = 2;

/// Measures one set and adds rows and a table.
pub fn measure(set: &PageSet, plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    speed(set, plan, report)?;
    reads::measure(set, plan, report)?;
    unused_codecs(set, plan, report)
}

fn zstd() -> CodecSpec {
    CodecSpec { level: Some(3), ..CodecSpec::named("zstd") }
}

fn store_with(further: [Option<CodecSpec>; 3], len_bytes: u64) -> anyhow::Result<Store> {
    let mut config = StoreConfig::new(len_bytes);
    config.codec = CodecSpec::named(CODEC);
    config.mem_limit = MemLimit::Off;
    config.further_codecs = further;
    Ok(Store::new(config)?)
}

fn speed(set: &PageSet, plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let compressed = compressed_pages(set)?;
    let (mut ours, mut bare) = (Rounds::default(), Rounds::default());
    let mut saved = Table::new(
        format!("memory before and after recompression to zstd, level 3: {}", set.name),
        &["stored pages", "before", "after", "after / before"],
    );
    for round in 0..plan.warm_up_rounds + plan.rounds {
        let store = store_with([Some(zstd()), None, None], set.bytes().len() as u64)?;
        for (i, page) in set.pages().iter().enumerate() {
            store.write((i * PAGE_SIZE) as u64, page)?;
        }
        let before = store.in_use_bytes();
        let loops_first = round % 2 == 1;
        let first = if loops_first { bare_loops(&compressed)? } else { 0.0 };
        let pass = pass(&store)?;
        let loops = if loops_first { first } else { bare_loops(&compressed)? };
        if round >= plan.warm_up_rounds {
            ours.push(pass);
            bare.push(loops);
        }
        if round + 1 == plan.warm_up_rounds + plan.rounds {
            let (pages, after) = (store.stats().mm.orig_data_size / PAGE_SIZE as u64, store.in_use_bytes());
            let share = after as f64 / before as f64;
            saved.push([pages.to_string(), before.to_string(), after.to_string(), number(share)]);
        }
    }
    let row = Row::new("recompress, two workers", set, "pages/s", "two bare loops", plan::RECOMPRESS);
    let ratio = Some(ours.over(&bare).median());
    report.rows.push(Row { ours: ours.median(), peer: Some(bare.median()), ratio, ..row });
    report.tables.push(saved);
    Ok(())
}

/// Recompresses all pages; returns pages tried per second.
fn pass(store: &Store) -> anyhow::Result<f64> {
    let request = RecompressRequest { threads: WORKERS, ..Default::default() };
    let started = Instant::now();
    let report = store.recompress(&request, &mut |_| ControlFlow::Continue(()))?;
    let tried = report.recompressed_pages + report.not_smaller_pages;
    Ok(tried as f64 / started.elapsed().as_secs_f64())
}

/// The pages of the set that are not same-filled, compressed as the store does; raw pages as they are.
fn compressed_pages(set: &PageSet) -> anyhow::Result<Vec<Vec<u8>>> {
    let mut encoder = PerCpuStream::new(&Codec::new(&CodecSpec::named(CODEC))?)?;
    set.not_same_filled()
        .into_iter()
        .map(|page| {
            let len = encoder.stream.compress(page, &mut encoder.buf[..])?;
            Ok(if len < PAGE_SIZE - PAGE_SIZE / 32 { encoder.buf[..len].to_vec() } else { page.to_vec() })
        })
        .collect()
}

/// Decompresses and compresses again each page, in two threads; returns pages per second.
fn bare_loops(compressed: &[Vec<u8>]) -> anyhow::Result<f64> {
    let started = Instant::now();
    std::thread::scope(|scope| {
        let halves = compressed.chunks(compressed.len().div_ceil(WORKERS).max(1));
        let threads: Vec<_> = halves.map(|half| scope.spawn(move || bare_loop(half))).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a measuring thread panicked")))
        })
    })?;
    Ok(compressed.len() as f64 / started.elapsed().as_secs_f64())
}

fn bare_loop(compressed: &[Vec<u8>]) -> anyhow::Result<()> {
    let mut decoder = PerCpuStream::new(&Codec::new(&CodecSpec::named(CODEC))?)?;
    let mut encoder = PerCpuStream::new(&Codec::new(&zstd())?)?;
    let mut page: Page = [0; PAGE_SIZE];
    for bytes in compressed {
        match bytes.as_slice().try_into() {
            Ok(raw) => page = raw,
            Err(_) => _ = decoder.stream.decompress(bytes, &mut page)?,
        }
        std::hint::black_box(encoder.stream.compress(&page, &mut encoder.buf[..])?);
    }
    Ok(())
}

/// Stores and loads all pages with one codec, and with four of which three are not used.
fn unused_codecs(set: &PageSet, plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let len_bytes = set.bytes().len() as u64;
    let further = [Some(zstd()), Some(CodecSpec::named("deflate")), Some(CodecSpec::named("lz4hc"))];
    let (one, four) = (new_store(len_bytes)?, store_with(further, len_bytes)?);
    let (mut with_one, mut with_four) = (Rounds::default(), Rounds::default());
    for round in 0..plan.warm_up_rounds + plan.rounds {
        let mut cases = [(&one, &mut with_one), (&four, &mut with_four)];
        if round % 2 == 1 {
            cases.reverse();
        }
        for (store, rounds) in cases {
            let ns = store_and_load(store, set)?;
            if round >= plan.warm_up_rounds {
                rounds.push(ns);
            }
        }
    }
    let row =
        Row::new("store and load, three codecs unused", set, "ns/page", "one codec", plan::UNUSED_CODECS);
    let ratio = Some(with_four.over(&with_one).median());
    report.rows.push(Row { ours: with_four.median(), peer: Some(with_one.median()), ratio, ..row });
    Ok(())
}

fn store_and_load(store: &Store, set: &PageSet) -> anyhow::Result<f64> {
    let started = Instant::now();
    for (i, page) in set.pages().iter().enumerate() {
        store.write((i * PAGE_SIZE) as u64, page)?;
    }
    let mut page = [0; PAGE_SIZE];
    for i in 0..set.len() {
        store.read((i * PAGE_SIZE) as u64, &mut page)?;
    }
    Ok(super::subject::ns_per_page(started, set.len()))
}
