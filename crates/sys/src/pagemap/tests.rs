//! Compares scans with a model of the written pages, and with the page map's own bits, read page by page.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::mem::Reservation;
use crate::uffd::{Uffd, UffdOptions};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;

const PAGE: usize = 4096;
/// More pages than one page table has entries, so that scans cross from one table to the next.
const PAGES: usize = 600;

struct Watched {
    uffd: Uffd,
    range: Reservation,
    pagemap: Pagemap,
}

/// A range with asynchronous write protection; `None` if the kernel does not support that.
fn watched(test: &str) -> Option<Watched> {
    let uffd = match Uffd::open(&UffdOptions { async_wp: true, ..UffdOptions::default() }) {
        Ok(uffd) => uffd,
        Err(e) => {
            pagefold_testkit::skipped!("{test}: {e}");
            return None;
        }
    };
    let range = Reservation::new(PAGES * PAGE).unwrap();
    let pagemap = Pagemap::open().unwrap();
    assert!(pagemap.is_supported(), "asynchronous protection and scans came with the same kernel");
    uffd.register(range.base().addr().get(), range.len_bytes(), true, true).unwrap();
    Some(Watched { uffd, range, pagemap })
}

impl Watched {
    fn at(&self, page: usize) -> usize {
        self.range.base().addr().get() + page * PAGE
    }

    /// Writes to a page that is present.
    fn write(&self, page: usize) {
        assert!(page < PAGES);
        // SAFETY: the byte is inside the reservation, which only this test uses.
        unsafe { self.range.base().as_ptr().add(page * PAGE + 8).write_volatile(1) }
    }

    fn fill(&self, page: usize) {
        // SAFETY: the kernel writes only to registered ranges, and this context has registered only the reservation
        // that only this test uses; the source is a whole page.
        let done = unsafe { self.uffd.copy(self.at(page), [1u8; PAGE].as_ptr(), PAGE, true) };
        assert_eq!(done.errno, 0);
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

    fn written(&self, room: usize, protect: bool) -> BTreeSet<usize> {
        self.pages(room, |start, len, runs| self.pagemap.written(start, len, protect, runs).unwrap())
    }

    fn present(&self, room: usize) -> BTreeSet<usize> {
        self.pages(room, |start, len, runs| self.pagemap.present(start, len, runs).unwrap())
    }

    /// The present pages, and those of them that are not protected, by the bits of each page's entry.
    fn entries(&self) -> (BTreeSet<usize>, BTreeSet<usize>) {
        const PROTECTED: u64 = 1 << 57;
        const PRESENT: u64 = 1 << 63;
        let mut bytes = vec![0; PAGES * 8];
        self.pagemap.file.read_exact_at(&mut bytes, (self.at(0) / PAGE * 8) as u64).unwrap();
        let entry = |page: usize| u64::from_ne_bytes(bytes[page * 8..page * 8 + 8].try_into().unwrap());
        assert!(
            (0..PAGES).all(|page| entry(page) & PRESENT != 0 || entry(page) & PROTECTED == 0),
            "a missing page has a protection marker"
        );
        let present: BTreeSet<_> = (0..PAGES).filter(|page| entry(*page) & PRESENT != 0).collect();
        let written = present.iter().copied().filter(|page| entry(*page) & PROTECTED == 0).collect();
        (present, written)
    }
}

#[test]
fn written_pages_are_returned_until_they_are_protected() {
    let Some(watched) = watched("written_pages_are_returned_until_they_are_protected") else { return };
    [0, 1, 2, 5, 599].into_iter().for_each(|page| watched.fill(page));
    let all = BTreeSet::from([0, 1, 2, 5, 599]);
    assert_eq!(watched.written(16, false), all);
    assert_eq!(watched.written(16, true), all);
    assert_eq!(watched.written(16, true), BTreeSet::new());
    [1, 5].into_iter().for_each(|page| watched.write(page));
    assert_eq!(watched.written(16, false), BTreeSet::from([1, 5]));
    assert_eq!(watched.present(16), all);
    let mut one = [Run::default(); 4];
    let scan = watched.pagemap.present(watched.at(0), 4 * PAGE, &mut one).unwrap();
    assert_eq!(scan, Scan { runs: 1, end: watched.at(4) });
    assert_eq!((one[0].start(), one[0].len_bytes()), (watched.at(0), 3 * PAGE));
}

#[test]
fn missing_pages_can_be_filled_after_a_protecting_scan() {
    let Some(watched) = watched("missing_pages_can_be_filled_after_a_protecting_scan") else { return };
    watched.fill(1);
    assert_eq!(watched.written(4, true), BTreeSet::from([1]));
    // SAFETY: only this test uses the reservation.
    let done = unsafe { watched.uffd.zero(watched.at(0), PAGE, true) };
    assert_eq!(done.errno, 0);
    assert_eq!(watched.written(4, false), BTreeSet::from([0]));
}

#[test]
fn a_scan_without_room_for_runs_protects_nothing() {
    let Some(watched) = watched("a_scan_without_room_for_runs_protects_nothing") else { return };
    watched.fill(0);
    let scan = watched.pagemap.written(watched.at(0), PAGE, true, &mut []).unwrap();
    assert_eq!(scan, Scan { runs: 0, end: watched.at(0) });
    assert_eq!(watched.written(4, true), BTreeSet::from([0]));
}

#[test]
fn memory_without_asynchronous_protection_is_refused() {
    let pagemap = Pagemap::open().unwrap();
    if !pagemap.is_supported() {
        pagefold_testkit::skipped!("memory_without_asynchronous_protection_is_refused: no PAGEMAP_SCAN");
        return;
    }
    let plain = Reservation::new(4 * PAGE).unwrap();
    let refused = pagemap.written(plain.base().addr().get(), 4 * PAGE, false, &mut [Run::default()]);
    assert_eq!(refused, Err(Errno(libc::EPERM)));
}

#[derive(Debug, Clone)]
enum Step {
    Fill(usize),
    Write(usize),
    Discard(usize),
    Protect { room: usize },
}

fn step() -> impl Strategy<Value = Step> {
    // Pages of the whole range, and often the first ones, so that steps meet on the same page.
    let page = prop_oneof![0..PAGES, 0..24usize];
    prop_oneof![
        8 => page.clone().prop_map(Step::Fill),
        4 => page.clone().prop_map(Step::Write),
        2 => page.prop_map(Step::Discard),
        1 => (1..5usize).prop_map(|room| Step::Protect { room }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn scans_agree_with_a_model_and_with_the_entries(
        steps in prop::collection::vec(step(), 1..120),
        room in 1..9usize,
    ) {
        let Some(watched) = watched("scans_agree_with_a_model_and_with_the_entries") else { return Ok(()) };
        let (mut present, mut written) = (BTreeSet::new(), BTreeSet::new());
        for step in steps {
            match step {
                Step::Fill(page) => if present.insert(page) {
                    watched.fill(page);
                    written.insert(page);
                },
                Step::Write(page) => if present.contains(&page) {
                    watched.write(page);
                    written.insert(page);
                },
                Step::Discard(page) => {
                    watched.discard(page);
                    present.remove(&page);
                    written.remove(&page);
                }
                Step::Protect { room } => {
                    prop_assert_eq!(&watched.written(room, true), &written);
                    written.clear();
                }
            }
        }
        prop_assert_eq!(&watched.written(room, false), &written);
        prop_assert_eq!(&watched.present(room), &present);
        prop_assert_eq!(watched.entries(), (present, written));
    }
}
