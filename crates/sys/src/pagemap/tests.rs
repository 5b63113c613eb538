//! Compares scans with a model of the present pages, and with the page map's own bits, read page by page.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::mem::Reservation;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;

const PAGE: usize = 4096;
/// More pages than one page table has entries, so that scans cross from one table to the next.
const PAGES: usize = 600;

struct Scanned {
    range: Reservation,
    pagemap: Pagemap,
}

/// A range; `None` if the kernel has no PAGEMAP_SCAN.
fn scanned(test: &str) -> Option<Scanned> {
    let (range, pagemap) = (Reservation::new(PAGES * PAGE).unwrap(), Pagemap::open().unwrap());
    if !pagemap.is_supported() {
        pagefold_testkit::skipped!("{test}: no PAGEMAP_SCAN");
        return None;
    }
    Some(Scanned { range, pagemap })
}

impl Scanned {
    fn at(&self, page: usize) -> usize {
        self.range.base().addr().get() + page * PAGE
    }

    fn fill(&self, page: usize) {
        assert!(page < PAGES);
        // SAFETY: the byte is inside the reservation, which only this test uses.
        unsafe { self.range.base().as_ptr().add(page * PAGE + 8).write_volatile(1) }
    }

    fn discard(&self, page: usize) {
        // SAFETY: no reference into the reservation exists.
        unsafe { self.range.discard(page * PAGE, PAGE) }.unwrap();
    }

    /// All pages that scans with a list of `room` runs find in the range.
    fn pages(&self, room: usize, scan: impl Fn(usize, usize, &mut [Run]) -> Scan) -> BTreeSet<usize> {
        let mut runs = vec![Run::default(); room];
        let mut pages = BTreeSet::new();
        let mut from = self.at(0);
        while from < self.at(PAGES) {
            let scan = scan(from, self.at(PAGES) - from, &mut runs);
            assert!(scan.end > from && (scan.end == self.at(PAGES) || scan.runs == room), "{scan:?}");
            for run in &runs[..scan.runs] {
                assert!(run.start() >= from && run.start() + run.len_bytes() <= scan.end);
                let first = (run.start() - self.at(0)) / PAGE;
                pages.extend(first..first + run.len_bytes() / PAGE);
            }
            from = scan.end;
        }
        pages
    }

    fn populated(&self, room: usize) -> BTreeSet<usize> {
        self.pages(room, |start, len, runs| self.pagemap.populated(start, len, runs).unwrap())
    }

    /// The present pages, by the bits of each page's entry.
    fn entries(&self) -> BTreeSet<usize> {
        const PRESENT: u64 = 1 << 63;
        let mut bytes = vec![0; PAGES * 8];
        self.pagemap.file.read_exact_at(&mut bytes, (self.at(0) / PAGE * 8) as u64).unwrap();
        let entry = |page: usize| u64::from_ne_bytes(bytes[page * 8..page * 8 + 8].try_into().unwrap());
        (0..PAGES).filter(|page| entry(*page) & PRESENT != 0).collect()
    }
}

#[test]
fn adjacent_pages_are_one_run() {
    let Some(scanned) = scanned("adjacent_pages_are_one_run") else { return };
    [0, 1, 2, 5, 599].into_iter().for_each(|page| scanned.fill(page));
    assert_eq!(scanned.populated(16), BTreeSet::from([0, 1, 2, 5, 599]));
    let mut one = [Run::default(); 4];
    let scan = scanned.pagemap.populated(scanned.at(0), 4 * PAGE, &mut one).unwrap();
    assert_eq!(scan, Scan { runs: 1, end: scanned.at(4) });
    assert_eq!((one[0].start(), one[0].len_bytes()), (scanned.at(0), 3 * PAGE));
    let scan = scanned.pagemap.populated(scanned.at(0), PAGE, &mut []).unwrap();
    assert_eq!(scan, Scan { runs: 0, end: scanned.at(0) });
}

#[derive(Debug, Clone)]
enum Step {
    Fill(usize),
    Discard(usize),
}

fn step() -> impl Strategy<Value = Step> {
    // Pages of the whole range, and often the first ones, so that steps meet on the same page.
    let page = prop_oneof![0..PAGES, 0..24usize];
    prop_oneof![4 => page.clone().prop_map(Step::Fill), 1 => page.prop_map(Step::Discard)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn scans_agree_with_a_model_and_with_the_entries(
        steps in prop::collection::vec(step(), 1..120),
        room in 1..9usize,
    ) {
        let Some(scanned) = scanned("scans_agree_with_a_model_and_with_the_entries") else { return Ok(()) };
        let mut present = BTreeSet::new();
        for step in steps {
            match step {
                Step::Fill(page) => {
                    scanned.fill(page);
                    present.insert(page);
                }
                Step::Discard(page) => {
                    scanned.discard(page);
                    present.remove(&page);
                }
            }
        }
        prop_assert_eq!(&scanned.populated(room), &present);
        prop_assert_eq!(scanned.entries(), present);
    }
}
