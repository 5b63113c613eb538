//! Loads concurrently with writers, passes, maintenance and compaction on a small backing: each loaded page is
//! complete, has the requested index, and is no older than the version that the thread saw before.

use crate::support::Random;
use crate::support::rig::*;
use pagefold_backing::Backing;
use pagefold_page::PageIndex;
use pagefold_store::writeback::{LayoutKind, Selection, WritebackError};
use pagefold_store::{Loaded, Store};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const PAGES: u64 = 600;
const WRITERS: u64 = 2;
const LOADERS: u64 = 3;
const STEPS_MIN: u64 = 6000;
const STEPS_MAX: u64 = 1_000_000;

/// The fill word of a same-filled page.
fn fill_word(index: u64, version: u64) -> u64 {
    version << 32 | index
}

/// A page of this version: same-filled, raw, or compressed.
fn page(index: u64, version: u64) -> [u8; 4096] {
    match (index + version) % 6 {
        0 => {
            let mut page = [0; 4096];
            pagefold_store::fill(&mut page, fill_word(index, version));
            page
        }
        1 => raw_page(index, version),
        _ => soft_page(index, version),
    }
}

/// Returns the version of a loaded page after checking each byte; 0 if the page is empty.
fn version(index: u64, loaded: Loaded, page_: &[u8; 4096]) -> u64 {
    match loaded {
        Loaded::Empty => 0,
        Loaded::SameFilled(word) => {
            assert_eq!(word, fill_word(index, word >> 32));
            assert_eq!((index + (word >> 32)) % 6, 0, "page {index} was not same-filled");
            word >> 32
        }
        Loaded::Page => {
            let version = u64::from_le_bytes(page_[8..16].try_into().unwrap());
            assert!(*page_ == page(index, version), "page {index}, version {version}");
            version
        }
    }
}

fn is_enough(store: &Store) -> bool {
    let stats = stats(store);
    let has_cleaned = writeback(store).layout() == LayoutKind::Blocks || stats.cleaned_segments > 20;
    stats.bd.bd_writes > 4000 && stats.bd.bd_reads > 4000 && has_cleaned
}

/// Writes pages. Each page has one writer, so its versions are consecutive.
fn write_pages(store: &Store, writer: u64) {
    let mut random = Random(11 + writer);
    let mut versions = vec![0; PAGES as usize];
    for step in 0..STEPS_MAX {
        if step >= STEPS_MIN && is_enough(store) {
            break;
        }
        let index = random.below(PAGES / WRITERS) * WRITERS + writer;
        let version = &mut versions[index as usize];
        match random.below(10) {
            0 => store.discard(index * 4096, 4096).unwrap(),
            // Reads promote pages to memory.
            1..3 => drop(read(store, index).unwrap()),
            _ => {
                *version += 1;
                write(store, index, &page(index, *version));
            }
        }
    }
}

fn load_pages(store: &Store, seed: u64, writers_left: &AtomicU64) {
    let (mut random, mut loader) = (Random(seed), store.loader().unwrap());
    let mut seen = vec![0; PAGES as usize];
    while writers_left.load(SeqCst) > 0 {
        let index = random.below(PAGES);
        let mut page = [0xee; 4096];
        store.prefetch_slot(PageIndex(index));
        store.prefetch_object(PageIndex(index));
        let loaded = store.load(PageIndex(index), &mut loader, &mut page).unwrap();
        let now = version(index, loaded, &page);
        let before = &mut seen[index as usize];
        assert!(now == 0 || now >= *before, "page {index} went back from {before} to {now}");
        *before = now.max(*before);
    }
}

fn write_back_pages(store: &Store, seed: u64, writers_left: &AtomicU64) {
    let mut random = Random(seed);
    while writers_left.load(SeqCst) > 0 {
        let (a, b) = (random.below(PAGES), random.below(PAGES));
        let selection = Selection::pages(PageIndex(a.min(b)), PageIndex(a.max(b))).unwrap();
        let report = store.write_back(&selection, &mut |_| ControlFlow::Continue(())).unwrap();
        assert!(matches!(report.error, None | Some(WritebackError::Full)), "{report:?}");
        writeback(store).settings().set_writeback_batch_size([1, 32, 256][random.below(3) as usize]);
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
                let done = catch_unwind(AssertUnwindSafe(|| write_pages(store, writer)));
                writers_left.fetch_sub(1, SeqCst);
                done.unwrap();
            });
        }
        (0..LOADERS).for_each(|i| drop(s.spawn(move || load_pages(store, 21 + i, writers_left))));
        s.spawn(move || write_back_pages(store, 31, writers_left));
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
