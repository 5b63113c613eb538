//! Two threads on one store, beside two threads that share nothing.
//!
//! Two CPUs may be one core's siblings and share caches and execution units, so that two
//! threads never reach twice the throughput of one. What a shared store costs is
//! therefore measured against two threads with a store each.

use super::engine::new_store;
use super::pages::PageSet;
use super::plan::{self, Plan};
use super::report::{Report, Row};
use super::stats::Rounds;
use pagefold_page::PAGE_SIZE;
use pagefold_store::Store;
use std::sync::Barrier;
use std::time::Instant;

const THREADS: usize = 2;

/// Measures with one set and adds the row.
pub fn measure(set: &PageSet, plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    if pagefold_sys::cpu::count() < THREADS {
        report.note("two threads were not measured: this machine has one CPU".into());
        return Ok(());
    }
    let len_bytes = set.bytes().len() as u64;
    let shared = new_store(len_bytes)?;
    let own = [new_store(len_bytes)?, new_store(len_bytes)?];
    let (one, two) = ([&shared, &shared], [&own[0], &own[1]]);
    let (mut together, mut apart) = (Rounds::default(), Rounds::default());
    for round in 0..plan.warm_up_rounds + plan.rounds {
        let counts = round >= plan.warm_up_rounds;
        let cases = [(one, &mut together), (two, &mut apart)];
        let mut ordered: Vec<_> = cases.into_iter().collect();
        if round % 2 == 1 {
            ordered.reverse();
        }
        for (stores, rounds) in ordered {
            let pages_per_s = throughput(stores, set)?;
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

/// Pages stored and loaded per second by threads that each work on their half of the set.
fn throughput(stores: [&Store; THREADS], set: &PageSet) -> anyhow::Result<f64> {
    let barrier = Barrier::new(THREADS);
    let pages = set.len() / THREADS;
    let seconds = std::thread::scope(|scope| {
        let work = |(thread, store)| {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                let started = Instant::now();
                store_and_load(store, set, thread * pages, pages)?;
                Ok(started.elapsed().as_secs_f64())
            })
        };
        let threads: Vec<_> = stores.into_iter().enumerate().map(work).collect();
        let join = |t: std::thread::ScopedJoinHandle<'_, anyhow::Result<f64>>| {
            t.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a measuring thread panicked")))
        };
        threads.into_iter().map(join).collect::<anyhow::Result<Vec<f64>>>()
    })?;
    // Each thread's own throughput, added: the last one to end does not count for both.
    Ok(seconds.iter().map(|s| 2.0 * pages as f64 / s).sum())
}

/// Stores the pages of a part of the set, then loads them.
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
