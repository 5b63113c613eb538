//! Two threads on one store, against two threads with a store each.
//!
//! Two CPUs may be siblings of one core and share caches and execution units; two threads then never reach twice the
//! throughput of one. The peer that shows the cost of sharing is therefore two threads that share no store.

use super::subject::{new_store, rounds};
use crate::pages::PageSet;
use crate::report::{Figure, Report, Side, Target};
use crate::stats::{Clock, in_threads};
use pagefold_page::PAGE_SIZE;
use pagefold_store::Store;
use std::sync::Barrier;

const THREADS: usize = 2;

/// Measures one set and adds the row. With a single CPU, adds a note instead.
pub fn measure(set: &PageSet, report: &mut Report) -> anyhow::Result<()> {
    if pagefold_sys::cpu::count() < THREADS {
        report.note("two threads were not measured: this machine has one CPU".into());
        return Ok(());
    }
    let len_bytes = set.bytes().len() as u64;
    let [shared, one, two] = [new_store(len_bytes)?, new_store(len_bytes)?, new_store(len_bytes)?];
    let ours = Side::new("pagefold", |_| throughput([&shared, &shared], set));
    let peer = Side::new("two stores", |_| throughput([&one, &two], set));
    let figure = Figure("two threads, one store", "pages/s", Target::AtLeast(0.95));
    report.compare(&set.name, &[figure], rounds(report), vec![ours, peer])
}

/// Returns the pages stored and loaded per second. Each thread stores and loads its half of the set, with the store of
/// its index.
fn throughput(stores: [&Store; THREADS], set: &PageSet) -> anyhow::Result<Vec<f64>> {
    let barrier = Barrier::new(THREADS);
    let pages = set.len() / THREADS;
    let works = stores.into_iter().enumerate().map(|(thread, store)| {
        let (barrier, first) = (&barrier, thread * pages);
        move || {
            barrier.wait();
            let clock = Clock::of_thread();
            let mut page = [0; PAGE_SIZE];
            for i in first..first + pages {
                store.write((i * PAGE_SIZE) as u64, &set.pages()[i])?;
            }
            for i in first..first + pages {
                store.read((i * PAGE_SIZE) as u64, &mut page)?;
            }
            let [ns, _] = clock.stop(2 * pages);
            Ok(1e9 / ns)
        }
    });
    // The sum of the threads' throughputs, so that the slower thread's time does not count for both.
    Ok(vec![in_threads(works)?.iter().sum()])
}
