//! A store in memory that outlives its process, against one in private memory; and the time of its recovery.

use super::pages::measure_round;
use super::subject::{Subject, config, new_store, rounds};
use crate::pages::PageSet;
use crate::report::Target::AtMost;
use crate::report::{Figure, Report, Side};
use pagefold_page::PAGE_SIZE;
use pagefold_store::Store;
use pagefold_sys::sharedmem::SharedMemory;
use std::cell::RefCell;
use std::time::Instant;

const FIGURES: [Figure; 4] = [
    Figure("kept: store one page", "ns", AtMost(1.03)),
    Figure("kept: load one page", "ns", AtMost(1.03)),
    Figure("kept: store one page, requests of 1 MiB", "ns", AtMost(1.03)),
    Figure("kept: load one page, requests of 1 MiB", "ns", AtMost(1.03)),
];
const RECOVERY: [Figure; 1] =
    [Figure("recovery of a store with 1 GiB of compressed pages", "ms", AtMost(1.0))];
/// Compressed bytes of the store that is recovered.
const RECOVERED_BYTES: u64 = 1 << 30;

/// Measures one set and adds its rows.
pub fn measure(set: &PageSet, report: &mut Report) -> anyhow::Result<()> {
    let len_bytes = set.bytes().len() as u64;
    let kept = Store::new_kept(config(len_bytes), SharedMemory::new()?)?;
    let private = new_store(len_bytes)?;
    let busy = RefCell::default();
    let side = |store| {
        let busy = &busy;
        move |round| Ok(measure_round(store, set, round, busy)?[..FIGURES.len()].to_vec())
    };
    let sides = vec![Side::new("kept", side(&kept)), Side::new("private memory", side(&private))];
    report.compare(&set.name, &FIGURES, rounds(report), sides)?;
    drop((kept, private));
    measure_recovery(set, report)
}

fn measure_recovery(set: &PageSet, report: &mut Report) -> anyhow::Result<()> {
    let wanted = report.pick(RECOVERED_BYTES, 16 << 20);
    let memory = SharedMemory::new()?;
    let len_bytes = wanted * 16;
    let store = Store::new_kept(config(len_bytes), memory.try_clone()?)?;
    for at in (0..len_bytes).step_by(PAGE_SIZE) {
        let page = (at / PAGE_SIZE as u64) as usize % (set.bytes().len() / PAGE_SIZE) * PAGE_SIZE;
        Subject::store(&store, at, &set.bytes()[page..page + PAGE_SIZE])?;
        if store.in_use_bytes() >= wanted {
            break;
        }
    }
    drop(store);
    let recover = |_| {
        let begun = Instant::now();
        let (store, recovered) = Store::recover(config(len_bytes), memory.try_clone()?, None)?;
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        anyhow::ensure!(recovered.lost_pages == 0, "{} pages were lost", recovered.lost_pages);
        drop(store);
        Ok(vec![ms])
    };
    // The time that a disk may stand still.
    let limit = Side::new("one second", |_| Ok(vec![1e3]));
    let sides = vec![Side::new("pagefold", recover), limit];
    report.compare(&set.name, &RECOVERY, [0, report.pick(3, 1)], sides)
}
