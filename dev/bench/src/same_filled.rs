//! Same-filled pages: how much faster they are than compressed pages, and what the check for them costs other pages.
//!
//! All source pages fit in the CPU's caches: the check takes a few nanoseconds, and a cache miss on the first word is
//! not a cost of the check, because without the check the codec would have it.

use super::engine::new_store;
use super::pages::PageSet;
use super::plan::{self, HOT_PAGES, Plan, SEED};
use super::report::{Report, Row};
use super::stats::{Random, Rounds};
use pagefold_codec::same_filled;
use pagefold_page::{PAGE_SIZE, Page};
use pagefold_store::Store;
use pagefold_sys::cpu;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Measures one set and adds the rows.
pub fn measure(set: &PageSet, plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let compressed = set.not_same_filled();
    if compressed.len() < HOT_PAGES {
        report.note(format!("page set '{}': too few pages that are not same-filled", set.name));
        return Ok(());
    }
    let store = new_store((HOT_PAGES * PAGE_SIZE) as u64)?;
    let mut times = Times::default();
    // The first round touches memory and does not count.
    for round in 0..=plan.rounds {
        let one = measure_round(&store, &compressed, plan)?;
        if round > 0 {
            times.add(&one);
        }
    }
    report.rows.extend(times.rows(set));
    Ok(())
}

/// Nanoseconds per page in one round.
struct Round {
    /// Store and load of a same-filled page.
    same: [f64; 2],
    /// Store and load of the median compressed page.
    compressed: [f64; 2],
    /// The check alone: the last word differs, a word in the middle differs, real pages.
    check: [f64; 3],
    /// The whole store of the same pages.
    whole: [f64; 3],
}

fn measure_round(store: &Store, compressed: &[&Page], plan: &Plan) -> anyhow::Result<Round> {
    let mut random = Random(SEED);
    let zero: Vec<Page> = vec![[0; PAGE_SIZE]; HOT_PAGES];
    let words: Vec<Page> = (0..HOT_PAGES).map(|_| repeated(random.next())).collect();
    let same: Vec<Page> = zero.iter().zip(&words).flat_map(|(z, w)| [*z, *w]).take(HOT_PAGES).collect();
    let last = with_bit_inverted(&words, PAGE_SIZE - 8);
    let middle = with_bit_inverted(&words, PAGE_SIZE / 2);
    let real = sample(compressed);

    // As for compressed pages, each slot already contains a page of the same kind.
    let same = [time_store(store, &same, plan)?, time_load(store, plan)?];
    let compressed = median_compressed(store, compressed, plan)?;
    let check = [time_check(&last, plan), time_check(&middle, plan), time_check(&real, plan)];
    let whole =
        [time_store(store, &last, plan)?, time_store(store, &middle, plan)?, time_store(store, &real, plan)?];
    Ok(Round { same, compressed, check, whole })
}

fn repeated(word: u64) -> Page {
    let mut page = [0; PAGE_SIZE];
    page.as_chunks_mut().0.fill(word.to_ne_bytes());
    page
}

/// Copies pages and inverts one bit of the byte at `at`.
fn with_bit_inverted(pages: &[Page], at: usize) -> Vec<Page> {
    let mut pages = pages.to_vec();
    pages.iter_mut().for_each(|page| page[at] ^= 1);
    pages
}

/// Picks [`HOT_PAGES`] pages, evenly distributed over all.
fn sample(pages: &[&Page]) -> Vec<Page> {
    (0..HOT_PAGES).map(|i| *pages[i * pages.len() / HOT_PAGES]).collect()
}

fn time_store(store: &Store, pages: &[Page], plan: &Plan) -> anyhow::Result<f64> {
    for (i, page) in pages.iter().enumerate() {
        store.write((i * PAGE_SIZE) as u64, page)?;
    }
    let started = cpu::thread_time();
    for _ in 0..plan.hot_repeats {
        for (i, page) in pages.iter().enumerate() {
            store.write((i * PAGE_SIZE) as u64, page)?;
        }
    }
    Ok(ns_per_page(started, plan.hot_repeats * pages.len()))
}

fn time_load(store: &Store, plan: &Plan) -> anyhow::Result<f64> {
    let mut page = [0; PAGE_SIZE];
    let started = cpu::thread_time();
    for _ in 0..plan.hot_repeats {
        for i in 0..HOT_PAGES {
            store.read((i * PAGE_SIZE) as u64, &mut page)?;
            black_box(&page);
        }
    }
    Ok(ns_per_page(started, plan.hot_repeats * HOT_PAGES))
}

fn time_check(pages: &[Page], plan: &Plan) -> f64 {
    let started = cpu::thread_time();
    for _ in 0..plan.hot_repeats {
        for page in pages {
            black_box(same_filled(black_box(page)));
        }
    }
    ns_per_page(started, plan.hot_repeats * pages.len())
}

/// Returns the medians of the times to store and to load a compressed page.
///
/// Each page is timed separately: the median of a few repetitions, minus the time to read the clock.
fn median_compressed(store: &Store, compressed: &[&Page], plan: &Plan) -> anyhow::Result<[f64; 2]> {
    let clock = (0..1000).map(|_| elapsed(|| Ok(()))).collect::<anyhow::Result<Rounds>>()?.median();
    let pages = sample(compressed);
    let mut loaded = [0; PAGE_SIZE];
    let (mut stores, mut loads) = (Rounds::default(), Rounds::default());
    let repeats = plan.hot_repeats.min(9);
    for (i, page) in pages.iter().enumerate() {
        let at = (i * PAGE_SIZE) as u64;
        store.write(at, page)?;
        let store_ns = (0..repeats).map(|_| elapsed(|| Ok(store.write(at, page)?)));
        stores.push(store_ns.collect::<anyhow::Result<Rounds>>()?.median() - clock);
        let load_ns = (0..repeats).map(|_| elapsed(|| Ok(store.read(at, &mut loaded)?)));
        loads.push(load_ns.collect::<anyhow::Result<Rounds>>()?.median() - clock);
    }
    Ok([stores.median(), loads.median()])
}

fn ns_per_page(started: Duration, pages: usize) -> f64 {
    (cpu::thread_time() - started).as_nanos() as f64 / pages as f64
}

fn elapsed(mut work: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let started = Instant::now();
    work()?;
    Ok(started.elapsed().as_nanos() as f64)
}

/// The rounds of each field of [`Round`].
#[derive(Default)]
struct Times {
    same: [Rounds; 2],
    compressed: [Rounds; 2],
    check: [Rounds; 3],
    whole: [Rounds; 3],
}

impl Times {
    fn add(&mut self, one: &Round) {
        let add = |to: &mut [Rounds], from: &[f64]| to.iter_mut().zip(from).for_each(|(t, f)| t.push(*f));
        add(&mut self.same, &one.same);
        add(&mut self.compressed, &one.compressed);
        add(&mut self.check, &one.check);
        add(&mut self.whole, &one.whole);
    }

    fn rows(&self, set: &PageSet) -> Vec<Row> {
        let quotient = |ours: &Rounds, peer: &Rounds, ratio: Rounds, row: Row| Row {
            ours: ours.median(),
            peer: Some(peer.median()),
            ratio: Some(ratio.median()),
            ..row
        };
        let faster = |i: usize, what, target| {
            let row = Row::new(what, set, "ns", "median compressed page", target);
            quotient(&self.same[i], &self.compressed[i], self.compressed[i].over(&self.same[i]), row)
        };
        let share = |i: usize, what, target| {
            let row = Row::new(what, set, "ns", "whole store", target);
            quotient(&self.check[i], &self.whole[i], self.check[i].over(&self.whole[i]), row)
        };
        vec![
            faster(0, "same-filled page: store", plan::SAME_STORE),
            faster(1, "same-filled page: load", plan::SAME_LOAD),
            share(0, "same-filled check, last word differs", plan::CHECK_LAST),
            share(1, "same-filled check, middle word differs", plan::CHECK_MIDDLE),
            share(2, "same-filled check, real pages", plan::CHECK_REAL),
        ]
    }
}
