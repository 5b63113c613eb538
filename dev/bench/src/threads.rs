//! Two threads on one store, against two threads with a store each.
//!
//! Two CPUs may be siblings of one core and share caches and execution units; two threads then never reach twice the
//! throughput of one. The peer that shows the cost of sharing is therefore two threads that share no store.

use super::engine::new_store;
use super::pages::PageSet;
use super::plan::{self, Plan};
use super::report::{Report, Row};
use super::stats::Rounds;
use pagefold_page::PAGE_SIZE;
use pagefold_store::Store;
use std::sync::Barrier;
use std::time::Instant;

/// Threads of a measurement.
pub const THREADS: usize = 2;

/// Measures one set and adds the row. With a single CPU, adds a note instead.
pub fn measure(set: &PageSet, plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    if pagefold_sys::cpu::count() < THREADS {
        report.note("two threads were not measured: this machine has one CPU".into());
        return Ok(());
    }
    let len_bytes = set.bytes().len() as u64;
    let shared = new_store(len_bytes)?;
    let separate = [new_store(len_bytes)?, new_store(len_bytes)?];
    let (one, two) = ([&shared, &shared], [&separate[0], &separate[1]]);
    let (mut together, mut apart) = (Rounds::default(), Rounds::default());
    for round in 0..plan.warm_up_rounds + plan.rounds {
        let counts = round >= plan.warm_up_rounds;
        let cases = [(one, &mut together), (two, &mut apart)];
        let mut ordered: Vec<_> = cases.into_iter().collect();
        if round % 2 == 1 {
            ordered.reverse();
        }
        for (stores, rounds) in ordered {
            let pages_per_s = throughput(stores, set, 1)?;
            if counts {
                rounds.push(pages_per_s);
            }
        }
    }
    let row = Row::new("two threads, one store", set, "pages/s", "two stores", plan::THREADS);
    let ratio = Some(together.over(&apart).median());
    report.rows.push(Row { ours: together.median(), peer: Some(apart.median()), ratio, ..row });
    Ok(())
}

/// Returns the pages stored and loaded per second. Each thread stores and loads its half of the set `repeats` times, with
/// the store of its index.
pub fn throughput(stores: [&Store; THREADS], set: &PageSet, repeats: usize) -> anyhow::Result<f64> {
    let barrier = Barrier::new(THREADS);
    let pages = set.len() / THREADS;
    let seconds = std::thread::scope(|scope| {
        let work = |(thread, store)| {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                let started = Instant::now();
                for _ in 0..repeats {
                    store_and_load(store, set, thread * pages, pages)?;
                }
                Ok(started.elapsed().as_secs_f64())
            })
        };
        let threads: Vec<_> = stores.into_iter().enumerate().map(work).collect();
        let join = |t: std::thread::ScopedJoinHandle<'_, anyhow::Result<f64>>| {
            t.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a measuring thread panicked")))
        };
        threads.into_iter().map(join).collect::<anyhow::Result<Vec<f64>>>()
    })?;
    // The sum of the threads' throughputs, so that the slower thread's time does not count for both.
    Ok(seconds.iter().map(|s| 2.0 * (pages * repeats) as f64 / s).sum())
}

/// Stores `pages` pages of the set from `first` on, then loads them.
fn store_and_load(store: &Store, set: &PageSet, first: usize, pages: usize) -> anyhow::Result<()> {
    for (i, page) in set.pages()[first..first + pages].iter().enumerate() {
        store.write(((first + i) * PAGE_SIZE) as u64, page)?;
    }
    let mut page = [0; PAGE_SIZE];
    for i in first..first + pages {
        store.read((i * PAGE_SIZE) as u64, &mut page)?;
    }
    Ok(())
}
