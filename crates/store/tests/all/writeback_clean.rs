//! The cleaner on nearly full logs and failing media: no page is lost, intact records stay cleanable, and no segment
//! is overwritten while it is read.

use crate::support::gate::Gated;
use crate::support::rig::*;
use pagefold_backing::layer::{ErrorControl, ErrorLayer, TraceLayer, When};
use pagefold_backing::{Backing, ByteSource, MemoryBacking};
use pagefold_store::writeback::{LayoutKind, WritebackError};
use pagefold_store::{Store, StoreError};
use std::sync::Arc;

/// Incompressible pages per segment of 256 KiB: one write of 64 + 63 * (24 + 4096) bytes.
const PER_SEGMENT: u64 = 63;

fn write_raw(store: &Store, pages: std::ops::Range<u64>) {
    pages.for_each(|i| write(store, i, &raw_page(i, 1)));
}

fn are_as_written(store: &Store, mut pages: std::ops::Range<u64>) -> bool {
    pages.all(|i| read(store, i).unwrap() == raw_page(i, 1))
}

fn discard(store: &Store, pages: impl Iterator<Item = u64>) {
    pages.for_each(|i| store.discard(i * 4096, 4096).unwrap());
}

#[test]
fn a_segment_with_writes_in_flight_is_not_marked_stuck() {
    // The medium completes nothing before the pass waits for it.
    let store = store_on(Arc::new(MemoryBacking::new(segments(6))), LayoutKind::Log, 500);
    writeback(&store).settings().set_writeback_batch_size(1024);
    write_raw(&store, 0..300);
    let full = 3 * PER_SEGMENT;
    assert_eq!(write_back(&store, 0, full - 1).error, None);
    // The fourth segment: 25 pages, of which 5 remain, and space for 37.
    assert_eq!(write_back(&store, full, full + 24).error, None);
    discard(&store, full..full + 20);
    assert_eq!(stats(&store).free_bytes, 2 * SEGMENT_LEN);
    // The pass closes it, needs another, and finds it the only one worth cleaning, while 37 of its pages are in
    // flight.
    assert_eq!(write_back(&store, full + 25, full + 84).error, Some(WritebackError::Full));
    let stats = stats(&store);
    assert_eq!(stats.bd.bd_count, full + 5 + 37);
    assert_eq!((stats.cleaned_segments, stats.free_bytes), (1, 2 * SEGMENT_LEN));
    assert!(are_as_written(&store, full + 20..300) && are_as_written(&store, 0..full));
}

/// The backing is not full because maintenance is discarding a free segment at that moment.
#[test]
fn a_segment_that_is_being_discarded_is_free() {
    let medium = Gated::new(segments(6));
    let store = store_on(medium.clone(), LayoutKind::Log, 600);
    // All segments but the two of the cleaner.
    write_raw(&store, 0..4 * PER_SEGMENT);
    assert_eq!(write_back_all(&store).error, None);
    discard(&store, 0..PER_SEGMENT);
    assert_eq!(stats(&store).free_bytes, 3 * SEGMENT_LEN);
    write_raw(&store, 300..330);
    medium.discards.close();
    std::thread::scope(|scope| {
        // In the scope, which waits for its threads.
        let _opens = medium.opens_on_failure();
        scope.spawn(|| store.run_maintenance(false));
        medium.discards.wait_for_arrival();
        assert_eq!(stats(&store).free_bytes, 3 * SEGMENT_LEN);
        let report = write_back_all(&store);
        assert_eq!((report.error, report.written_back_pages), (None, 30));
        medium.discards.open(0);
    });
    assert!(are_as_written(&store, PER_SEGMENT..4 * PER_SEGMENT) && are_as_written(&store, 300..330));
}

/// A log of eight segments, six of them written, where a third of the pages remains; and 126 pages to write back.
fn sparse_log() -> (Store, Arc<ErrorControl>, Arc<TraceLayer<ErrorLayer<MemoryBacking>>>) {
    let failing = ErrorLayer::new(MemoryBacking::new(segments(8)));
    let medium = failing.control();
    let backing = Arc::new(TraceLayer::new(failing, false));
    let store = store_on(backing.clone(), LayoutKind::Log, 600);
    write_raw(&store, 0..6 * PER_SEGMENT);
    assert_eq!(write_back_all(&store).error, None);
    discard(&store, (0..6 * PER_SEGMENT).filter(|i| i % 3 != 0));
    write_raw(&store, 400..526);
    (store, medium, backing)
}

fn sparse_log_is_intact(store: &Store) -> bool {
    let remaining = (0..6 * PER_SEGMENT).filter(|i| i % 3 == 0);
    let old = remaining.into_iter().all(|i| read(store, i).unwrap() == raw_page(i, 1));
    old && are_as_written(store, 400..526)
}

#[test]
fn a_pass_without_space_cleans() {
    let (store, _, _) = sparse_log();
    let report = write_back_all(&store);
    assert_eq!((report.written_back_pages, report.error), (126, None));
    assert!(stats(&store).cleaned_segments >= 2 && sparse_log_is_intact(&store));
    assert_all_free(&store);
}

/// A pass would clean the oldest segment first, but it is too full for maintenance, which must still clean sparse
/// ones.
#[test]
fn maintenance_cleans_sparse_segments_although_an_old_one_is_fuller() {
    const SEGMENTS: u64 = 64;
    let store = store_on(Arc::new(MemoryBacking::new(segments(SEGMENTS))), LayoutKind::Log, 64 * PER_SEGMENT);
    // So many that few segments are free, and none is worth cleaning yet.
    let full = SEGMENTS - 3;
    write_raw(&store, 0..full * PER_SEGMENT);
    assert_eq!(write_back_all(&store).error, None);
    // Six tenths of the first segment remain live, and a third of a young one.
    let young = (full - 2) * PER_SEGMENT;
    discard(&store, (38..PER_SEGMENT).chain(young + 20..young + PER_SEGMENT));
    store.run_maintenance(true);
    assert_eq!(stats(&store).cleaned_segments, 1, "{:?}", stats(&store));
    assert!(are_as_written(&store, 0..38) && are_as_written(&store, PER_SEGMENT..young + 20));
}

#[test]
fn a_segment_that_could_not_be_read_is_cleaned_later() {
    let (store, medium, _) = sparse_log();
    medium.fail_reads(When::Always, libc::EIO);
    for _ in 0..3 {
        assert_eq!(write_back_all(&store).error, Some(WritebackError::Full));
    }
    medium.clear();
    assert_eq!(write_back_all(&store).error, None);
    assert!(sparse_log_is_intact(&store));
    assert_all_free(&store);
}

#[test]
fn each_request_of_a_pass_that_cleans_fails_in_turn() {
    for errno in [libc::EIO, libc::ENOSPC] {
        for n in 1.. {
            let (store, medium, _) = sparse_log();
            medium.fail_io(When::Nth(n), errno);
            let report = write_back_all(&store);
            let failures = medium.injected();
            medium.clear();
            assert!(sparse_log_is_intact(&store), "request {n}");
            if errno == libc::EIO {
                // One failure, of the cleaner or not, does not end the pass.
                assert_eq!(report.written_back_pages + report.failed_pages, 126, "request {n}: {report:?}");
            }
            assert_eq!(write_back_all(&store).error, None, "request {n}");
            assert!(sparse_log_is_intact(&store), "request {n}");
            assert_eq!(stats(&store).bd.bd_count, 126 + 126);
            assert_all_free(&store);
            if failures == 0 {
                assert!(n > 5, "the pass made {n} requests only");
                break;
            }
        }
    }
}

#[test]
fn a_medium_that_fails_for_a_while_leaves_a_log_that_works() {
    for every in 1..5 {
        let (store, medium, _) = sparse_log();
        medium.fail_io(When::EveryNth(every), libc::EIO);
        for _ in 0..20 {
            let report = write_back_all(&store);
            assert!(matches!(report.error, None | Some(WritebackError::Full | WritebackError::Io(_))));
        }
        medium.clear();
        assert_eq!(write_back_all(&store).error, None, "every {every}");
        assert!(sparse_log_is_intact(&store));
        assert_eq!(stats(&store).bd.bd_count, 126 + 126);
        assert_all_free(&store);
    }
}

#[test]
fn corrupt_records_cost_their_pages_and_are_not_made_to_look_sound() {
    let (store, _, backing) = sparse_log();
    // One page of the first segment.
    let bad: Vec<u64> = (0..1).map(|segment| segment * PER_SEGMENT + 30).collect();
    for i in &bad {
        let (segment, k) = (i / PER_SEGMENT, i % PER_SEGMENT);
        let at = DATA_START + segment * SEGMENT_LEN + 64 + k * (24 + 4096) + 24 + 2000;
        backing.write_at(at, &[0xff; 7]).unwrap();
    }
    assert_eq!(write_back_all(&store).error, None);
    for i in (0..6 * PER_SEGMENT).filter(|i| i % 3 == 0) {
        match read(&store, i) {
            Ok(got) => assert!(got == raw_page(i, 1) && !bad.contains(&i)),
            Err(e) => assert!(bad.contains(&i) && matches!(e, StoreError::CorruptRecord { .. })),
        }
    }
    assert_eq!(stats(&store).corrupt_pages, 1);
    // Discarding the pages frees their segments.
    assert_all_free(&store);
}

#[test]
fn a_segment_is_not_overwritten_while_it_is_read() {
    let medium = Gated::new(segments(6));
    let store = store_on(medium.clone(), LayoutKind::Log, 600);
    write_raw(&store, 0..PER_SEGMENT);
    write_back(&store, 0, PER_SEGMENT - 1);
    let segment_of_7 = || {
        let mut bytes = vec![0; SEGMENT_LEN as usize];
        medium.inner.read_at(DATA_START, &mut bytes).unwrap();
        bytes
    };
    let before = segment_of_7();
    medium.reads.close_for(1);
    std::thread::scope(|s| {
        let _open = medium.opens_on_failure();
        let reader = s.spawn(|| read(&store, 7).unwrap());
        medium.reads.wait_for_arrival();
        discard_all(&store);
        // Reuse all other segments many times.
        for version in 2..40 {
            (100..180).for_each(|i| write(&store, i, &raw_page(i, version)));
            assert!(write_back_all(&store).written_back_pages > 60);
            store.run_maintenance(true);
        }
        assert!(segment_of_7() == before, "the segment was given away under its reader");
        medium.reads.open(0);
        // The page was discarded, and the reader detects it.
        assert!(reader.join().unwrap() == [0; 4096]);
    });
    assert_eq!(stats(&store).read_repeats, 1);
    (100..180).for_each(|i| write(&store, i, &raw_page(i, 99)));
    write_back_all(&store);
    assert_all_free(&store);
}
