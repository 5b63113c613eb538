//! Concurrent writers, readers, passes, maintenance and compaction on a small backing: each page that a reader sees
//! is complete, has the requested index, and is no older than the version that it saw before.

use crate::support::Random;
use crate::support::rig::*;
use pagefold_backing::Backing;
use pagefold_page::PageIndex;
use pagefold_store::Store;
use pagefold_store::writeback::{LayoutKind, Selection, WritebackError};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const PAGES: u64 = 600;
const WRITERS: u64 = 2;
const STEPS_MIN: u64 = 6000;
const STEPS_MAX: u64 = 1_000_000;
/// The offset at which partial writes change a page.
const PART: usize = 1200;

/// The page after `version` whole writes and `part` partial writes since.
fn page(index: u64, version: u64, part: u64) -> [u8; 4096] {
    let mut page = if (index + version).is_multiple_of(4) {
        raw_page(index, version)
    } else {
        soft_page(index, version)
    };
    page[PART..PART + 8].copy_from_slice(&part.to_le_bytes());
    page
}

/// Returns the version and part of a page after checking each byte; (0, 0) if it is zero.
fn state(index: u64, got: &[u8]) -> (u64, u64) {
    let number = |at: usize| u64::from_le_bytes(got[at..at + 8].try_into().unwrap());
    let (version, part) = (number(8), number(PART));
    if version == 0 {
        assert!(got.iter().all(|b| *b == 0), "page {index} is neither zero nor a page");
    } else {
        assert!(got == page(index, version, part), "page {index}, version {version}");
    }
    (version, part)
}

/// Whether passes, readers and the cleaner have done enough work.
fn is_enough(store: &Store) -> bool {
    let stats = stats(store);
    let has_cleaned = writeback(store).layout() == LayoutKind::Blocks || stats.cleaned_segments > 20;
    stats.bd.bd_writes > 4000 && stats.bd.bd_reads > 4000 && stats.promoted_pages > 500 && has_cleaned
}

/// Writes pages. Each page has one writer, so its states are consecutive.
fn write_pages(store: &Store, writer: u64, seed: u64) {
    let mut random = Random(seed);
    let mut states = vec![(0u64, 0u64); PAGES as usize];
    for step in 0..STEPS_MAX {
        if step >= STEPS_MIN && is_enough(store) {
            break;
        }
        let index = random.below(PAGES / WRITERS) * WRITERS + writer;
        let (version, part) = &mut states[index as usize];
        match random.below(10) {
            0 if *version > 0 => store.discard(index * 4096, 4096).unwrap(),
            1..4 if *version > 0 && read(store, index).unwrap()[8..16] != [0; 8] => {
                *part += 1;
                store.write(index * 4096 + PART as u64, &part.to_le_bytes()).unwrap();
            }
            _ => {
                (*version, *part) = (*version + 1, 0);
                write(store, index, &page(index, *version, 0));
            }
        }
    }
}

fn read_pages(store: &Store, seed: u64, writers_left: &AtomicU64) {
    let mut random = Random(seed);
    let mut seen = vec![(0u64, 0u64); PAGES as usize];
    let mut bytes = vec![0; 8 * 4096];
    while writers_left.load(SeqCst) > 0 {
        let first = random.below(PAGES);
        let count = (random.below(8) + 1).min(PAGES - first) as usize;
        store.read(first * 4096, &mut bytes[..count * 4096]).unwrap();
        for (index, got) in (first..).zip(bytes[..count * 4096].chunks(4096)) {
            let now = state(index, got);
            let before = &mut seen[index as usize];
            assert!(now.0 == 0 || now >= *before, "page {index} went back from {before:?} to {now:?}");
            *before = now.max(*before);
        }
    }
}

fn write_back_pages(store: &Store, seed: u64, writers_left: &AtomicU64) {
    let mut random = Random(seed);
    while writers_left.load(SeqCst) > 0 {
        let (a, b) = (random.below(PAGES), random.below(PAGES));
        let selection = Selection::pages(PageIndex(a.min(b)), PageIndex(a.max(b))).unwrap();
        let report = store.write_back(&selection, &mut |_| ControlFlow::Continue(())).unwrap();
        assert!(matches!(report.error, None | Some(WritebackError::Full)), "{report:?}");
        assert_eq!(report.failed_pages, 0);
        let batch = [1, 32, 256][random.below(3) as usize];
        writeback(store).settings().set_writeback_batch_size(batch);
    }
}

fn stress(layout: LayoutKind, backing: Arc<dyn Backing>) {
    let store = store_on(backing, layout, PAGES);
    writeback(&store).settings().promote.store(true);
    let (store, writers_left) = (&store, &AtomicU64::new(WRITERS));
    std::thread::scope(|s| {
        for writer in 0..WRITERS {
            s.spawn(move || {
                // Counted down even if the writer panics, so that the other threads end.
                let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    write_pages(store, writer, 11 + writer)
                }));
                writers_left.fetch_sub(1, SeqCst);
                done.unwrap();
            });
            s.spawn(move || read_pages(store, 21 + writer, writers_left));
            s.spawn(move || write_back_pages(store, 31 + writer, writers_left));
        }
        s.spawn(move || {
            while writers_left.load(SeqCst) > 0 {
                store.run_maintenance(true);
                store.compact();
                std::thread::yield_now();
            }
        });
    });
    let now = stats(store);
    assert_eq!((now.corrupt_pages, now.unreadable_pages, now.failed_pages), (0, 0, 0));
    assert!(is_enough(store), "{now:?}");
    (0..PAGES).for_each(|i| assert!(state(i, &read(store, i).unwrap()) >= (0, 0)));
    assert_all_free(store);
}

#[test]
fn on_a_medium_that_answers_at_once() {
    on_prompt_media(stress);
}

#[test]
fn on_a_medium_that_answers_late_and_out_of_order() {
    on_late_media(stress);
}
