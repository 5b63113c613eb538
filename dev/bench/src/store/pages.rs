//! Store, load, ratio and memory of one page set: pagefold against the kernel's zram.

use super::subject::{Subject, new_store, rounds};
use crate::pages::{LARGE_PAGES, PageSet};
use crate::report::Target::{AtLeast, AtMost};
use crate::report::{Figure, Report, Side};
use crate::stats::{Clock, Rounds};
use crate::zram::Zram;
use pagefold_page::{AlignedBytes, PAGE_SIZE};
use std::cell::RefCell;

/// Bytes of a large request: 1 MiB.
const LARGE_LEN: usize = LARGE_PAGES * PAGE_SIZE;
/// Shift of the pages along the slots each time that they are stored, in pages: an overwrite then usually replaces a
/// page with one of another compressed length, as in real use. A multiple of [`LARGE_PAGES`].
const SHIFT_PAGES: usize = 37 * LARGE_PAGES;
/// Wall time / CPU time above which the report notes that the machine was busy.
const BUSY: f64 = 1.05;

const FIGURES: [Figure; 6] = [
    Figure("store one page", "ns", AtMost(0.90)),
    Figure("load one page", "ns", AtMost(0.75)),
    Figure("store one page, requests of 1 MiB", "ns", AtMost(0.90)),
    Figure("load one page, requests of 1 MiB", "ns", AtMost(0.75)),
    Figure("ratio, original / memory used", "x", AtLeast(1.03)),
    Figure("ratio, original / memory with slots", "x", AtLeast(1.03)),
];

/// Measures one set and adds its rows. Without zram, adds a note and measures pagefold alone.
pub fn measure(set: &PageSet, report: &mut Report) -> anyhow::Result<()> {
    let len_bytes = set.bytes().len() as u64;
    let (engine, zram) = (new_store(len_bytes)?, Zram::open(len_bytes));
    let busy = RefCell::default();
    let ours = Side::new("pagefold", |round| measure_round(&engine, set, round, &busy));
    let peer = match &zram {
        Ok(zram) => Side::new("kernel zram", |round| measure_round(zram, set, round, &busy)),
        Err(e) => {
            report.note(format!("not compared with the kernel: {e:#}"));
            Side::missing("kernel zram")
        }
    };
    report.compare(&set.name, &FIGURES, rounds(report), vec![ours, peer])?;
    let busy = busy.into_inner().median();
    if busy > BUSY {
        report.note(format!("the machine was busy: {busy:.1} times the CPU time passed"));
    }
    Ok(())
}

/// Stores and loads the set in requests of both sizes, and compares what was loaded. Returns the values of [`FIGURES`].
pub fn measure_round(
    subject: &dyn Subject,
    set: &PageSet,
    round: usize,
    busy: &RefCell<Rounds>,
) -> anyhow::Result<Vec<f64>> {
    let mut values = Vec::new();
    for (i, request_len) in [PAGE_SIZE, LARGE_LEN].into_iter().enumerate() {
        let shift = (2 * round + i + 1) * SHIFT_PAGES % set.len();
        let requests = || (0..set.bytes().len()).step_by(request_len);
        let mut buf = AlignedBytes::new(request_len, 0);
        let mut timed = |work: &mut dyn FnMut(usize) -> anyhow::Result<()>| {
            let clock = Clock::of_thread();
            requests().try_for_each(work)?;
            let [wall_ns, cpu_ns] = clock.stop(set.len());
            busy.borrow_mut().push(wall_ns / cpu_ns);
            values.push(cpu_ns);
            anyhow::Ok(())
        };
        timed(&mut |at| subject.store(at as u64, set.shifted(at, request_len, shift)))?;
        timed(&mut |at| subject.load(at as u64, &mut buf))?;
        for at in requests() {
            subject.load(at as u64, &mut buf)?;
            let is_equal = *buf == *set.shifted(at, request_len, shift);
            anyhow::ensure!(
                is_equal,
                "other bytes were loaded than were stored, near page {}",
                at / PAGE_SIZE
            );
        }
    }
    let memory = subject.memory()?;
    values.extend([memory.used, memory.with_slots].map(|bytes| memory.original as f64 / bytes as f64));
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::subject::Memory;
    use pagefold_store::Store;

    #[test]
    fn shifts_keep_large_requests_whole() {
        assert!(SHIFT_PAGES.is_multiple_of(LARGE_PAGES));
    }

    #[test]
    fn a_store_that_returns_other_pages_is_detected() {
        let set = PageSet::read(None, LARGE_PAGES).unwrap();
        let store = new_store(set.bytes().len() as u64).unwrap();
        let values = measure_round(&store, &set, 0, &RefCell::default()).unwrap();
        assert!(values.len() == FIGURES.len() && values.iter().all(|value| *value > 0.0), "{values:?}");

        struct Forgetful(Store);
        impl Subject for Forgetful {
            fn store(&self, at: u64, bytes: &[u8]) -> anyhow::Result<()> {
                if at == 0 { Ok(()) } else { Subject::store(&self.0, at, bytes) }
            }
            fn load(&self, at: u64, bytes: &mut [u8]) -> anyhow::Result<()> {
                Subject::load(&self.0, at, bytes)
            }
            fn memory(&self) -> anyhow::Result<Memory> {
                Subject::memory(&self.0)
            }
        }
        let forgetful = Forgetful(new_store(set.bytes().len() as u64).unwrap());
        assert!(measure_round(&forgetful, &set, 0, &RefCell::default()).is_err());
    }
}
