//! Writers, readers, passes, upkeep and compaction at once on a small backing: each page a reader sees is whole, of
//! the index it asked for, and no older than what it saw before.

use crate::support::Random;
use crate::support::rig::*;
use pagefold_backing::layer::{DelayLayer, DelayOptions, SystemClock};
use pagefold_backing::{Backing, MemoryBacking};
use pagefold_page::PageIndex;
use pagefold_store::Store;
use pagefold_store::parking::{LayoutKind, ParkError, Selection};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

const PAGES: u64 = 600;
const WRITERS: u64 = 2;
const STEPS_MIN: u64 = 6000;
const STEPS_MAX: u64 = 1_000_000;
/// Where a part of a page is changed.
const PART: usize = 1200;

/// A page in its state: so often written as a whole, and a part of it so often since.
fn page(index: u64, version: u64, part: u64) -> [u8; 4096] {
    let mut page = if (index + version).is_multiple_of(4) {
        raw_page(index, version)
    } else {
        soft_page(index, version)
    };
    page[PART..PART + 8].copy_from_slice(&part.to_le_bytes());
    page
}

/// What a page says it is, having checked that it is that in every byte; nothing if it is zero.
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

/// Whether passes, readers and the cleaner have done their share.
fn is_enough(store: &Store) -> bool {
    let stats = stats(store);
    let has_cleaned = parking(store).layout() == LayoutKind::Blocks || stats.cleaned_segments > 20;
    stats.bd.bd_writes > 4000 && stats.bd.bd_reads > 4000 && stats.promoted_pages > 500 && has_cleaned
}

/// Each page has one writer, so its states come one after the other.
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

fn park_pages(store: &Store, seed: u64, writers_left: &AtomicU64) {
    let mut random = Random(seed);
    while writers_left.load(SeqCst) > 0 {
        let (a, b) = (random.below(PAGES), random.below(PAGES));
        let selection = Selection::pages(PageIndex(a.min(b)), PageIndex(a.max(b))).unwrap();
        let report = store.park(&selection, &mut |_| ControlFlow::Continue(())).unwrap();
        assert!(matches!(report.error, None | Some(ParkError::Full)), "{report:?}");
        assert_eq!(report.failed_pages, 0);
        let batch = [1, 32, 256][random.below(3) as usize];
        parking(store).settings().set_writeback_batch_size(batch);
    }
}

fn stress(layout: LayoutKind, backing: Arc<dyn Backing>) {
    let store = store_on(backing, layout, PAGES);
    parking(&store).settings().set_promote(true);
    let (store, writers_left) = (&store, &AtomicU64::new(WRITERS));
    std::thread::scope(|s| {
        for writer in 0..WRITERS {
            s.spawn(move || {
                // Counted down even if it fails, so that the others end.
                let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    write_pages(store, writer, 11 + writer)
                }));
                writers_left.fetch_sub(1, SeqCst);
                done.unwrap();
            });
            s.spawn(move || read_pages(store, 21 + writer, writers_left));
            s.spawn(move || park_pages(store, 31 + writer, writers_left));
        }
        s.spawn(move || {
            while writers_left.load(SeqCst) > 0 {
                store.tend(true);
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
    stress(LayoutKind::Log, Arc::new(MemoryBacking::new(segments(7))));
    stress(LayoutKind::Blocks, Arc::new(MemoryBacking::new(segments(6) + 100 * 4096)));
}

#[test]
fn on_a_medium_that_answers_late_and_out_of_order() {
    for layout in LAYOUTS {
        let (delay, jitter) = (Duration::from_micros(20), Duration::from_micros(200));
        let options = DelayOptions { delay, jitter, depth: 8, ..DelayOptions::default() };
        let clock = Arc::new(SystemClock::default());
        stress(layout, Arc::new(DelayLayer::new(MemoryBacking::new(segments(7)), options, clock)));
    }
}
