//! No write is refused while there is memory for it: raw pages at tiny and odd limits, several writers, small
//! reserves and backings, readers that pin segments.
//!
//! A raw object uses 4104 bytes and so two frames at some borders; compressible pages would not test that.

use crate::support::gate::Gated;
use crate::support::rig::{raw_page, read, segments, stats, store_on, write, write_back, write_back_all};
use pagefold_backing::MemoryBacking;
use pagefold_page::PAGE_SIZE;
use pagefold_store::writeback::{LayoutKind, WritebackConfig};
use pagefold_store::{MemLimit, SourceError, Store, StoreConfig, StoreError, WritebackThread};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Far longer than any of these tests needs: a write that never ends fails the test instead of hanging it.
const HANG: Duration = Duration::from_secs(120);

/// Runs `work` in a thread; fails if it does not end in time.
fn within_time(work: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let worker = thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    match ended.recv_timeout(HANG) {
        Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => worker.join().unwrap(),
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("a write has not been answered for {HANG:?}"),
    }
}

fn config(pages: u64, limit_bytes: u64) -> StoreConfig {
    let mem_limit = MemLimit::Bytes(limit_bytes);
    StoreConfig { mem_limit, ..StoreConfig::new(pages * PAGE_SIZE as u64) }
}

/// Writes incompressible pages from several threads, each with separate pages, and reads every page back.
fn write_from_threads(store: &Arc<Store>, threads: u64, pages: u64, rounds: u64) {
    thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                for round in 0..rounds {
                    for index in (thread..pages).step_by(threads as usize) {
                        let result = store.write(index * PAGE_SIZE as u64, &raw_page(index, round));
                        result.unwrap_or_else(|e| panic!("round {round}, page {index}: {e}"));
                    }
                    for index in (thread..pages).step_by(threads as usize) {
                        assert!(read(store, index).unwrap() == raw_page(index, round), "page {index}");
                    }
                }
            });
        }
    });
}

#[test]
fn a_small_reserve_refuses_no_write_below_the_limit() {
    let config = StoreConfig { reserve_bytes: Some(64 << 10), ..config(4000, 64 << 20) };
    let store = Arc::new(Store::new(config).unwrap());
    for _ in 0..5 {
        write_from_threads(&store, 4, 4000, 1);
        store.discard(0, store.len_bytes()).unwrap();
    }
}

/// The rule by which all other tests here judge a refusal: it is right only if the next page does not fit.
#[test]
fn a_limit_holds_as_many_raw_pages_as_fit_and_refuses_the_next() {
    for frames in [1, 2, 3, 7, 64, 513, 514, 515, 1027] {
        let limit_bytes = frames * PAGE_SIZE as u64;
        let store = Store::new(config(2000, limit_bytes)).unwrap();
        let fits = limit_bytes / (PAGE_SIZE as u64 + 8);
        (0..fits).for_each(|index| write(&store, index, &raw_page(index, 0)));
        let refused = store.write(fits * PAGE_SIZE as u64, &raw_page(fits, 0)).unwrap_err();
        let StoreError::NoMemory { source: SourceError::Limit { .. }, .. } = refused else {
            panic!("{refused}")
        };
        (0..fits).for_each(|index| assert!(read(&store, index).unwrap() == raw_page(index, 0)));
    }
}

/// Memory in holes and partly filled frames is freed before a write is refused.
#[test]
fn holes_are_closed_before_a_write_is_refused() {
    let store = Store::new(config(4000, 1000 * PAGE_SIZE as u64)).unwrap();
    let fits = 1000 * PAGE_SIZE as u64 / (PAGE_SIZE as u64 + 8);
    (0..fits).for_each(|index| write(&store, index, &raw_page(index, 0)));
    // So few that freeing alone leaves them: a class may have some holes.
    store.discard(10 * PAGE_SIZE as u64, 2 * PAGE_SIZE as u64).unwrap();
    assert_eq!(store.class_stats().iter().map(|class| class.holes).sum::<u64>(), 2);
    // A compressible page belongs to another class, which needs a frame.
    let mut soft = raw_page(3000, 0);
    soft[1000..].fill(0);
    write(&store, 3000, &soft);
    assert!(read(&store, 3000).unwrap() == soft);
}

/// For every limit, at least as many pages fit with writeback as without: pages are read back right, and no write is
/// refused while the backing has room. [`a_writer_that_finds_no_room_anywhere_is_refused`] has the limits reached.
#[test]
fn writers_at_any_limit_are_served_by_writeback() {
    for frames in [2, 3, 4, 5, 9, 16, 100, 513, 514, 515] {
        within_time(move || {
            let pages = (2 * frames).max(64);
            let mut store = Store::new(config(pages, frames * PAGE_SIZE as u64)).unwrap();
            let backing = Arc::new(MemoryBacking::new(segments(16 + pages / 16)));
            store.attach(WritebackConfig { backing, layout: LayoutKind::Log }).unwrap();
            let store = Arc::new(store);
            let writeback_thread = WritebackThread::start(store.clone()).unwrap();
            for threads in [1, 3] {
                write_from_threads(&store, threads, pages, 2);
            }
            drop(writeback_thread);
        });
    }
}

/// At a multiple of 513 frames the last one is full to its last byte, and the next raw page needs two; with one frame
/// more there is one, which must not be taken for room. The writer is refused when memory and backing are full, and not
/// before.
#[test]
fn a_writer_that_finds_no_room_anywhere_is_refused() {
    const SEGMENTS: u64 = 16;
    // Two segments are reserved for the cleaner, and two may be open.
    const WRITTEN_BACK_MIN: u64 = 63 * (SEGMENTS - 4);
    for frames in [513, 514, 515, 1027] {
        within_time(move || {
            let pages = 3 * frames + 63 * SEGMENTS;
            let mut store = Store::new(config(pages, frames * PAGE_SIZE as u64)).unwrap();
            let backing = Arc::new(MemoryBacking::new(segments(SEGMENTS)));
            store.attach(WritebackConfig { backing, layout: LayoutKind::Log }).unwrap();
            let store = Arc::new(store);
            let writeback_thread = WritebackThread::start(store.clone()).unwrap();
            let write = |index: u64| store.write(index * PAGE_SIZE as u64, &raw_page(index, 0));
            let Some(refused) = (0..pages).find(|index| write(*index).is_err()) else {
                panic!("{pages} pages fit {frames} frames and {SEGMENTS} segments")
            };
            let fit_memory = frames * PAGE_SIZE as u64 / (PAGE_SIZE as u64 + 8);
            assert!(refused >= fit_memory + WRITTEN_BACK_MIN, "{refused} at {frames} frames");
            (0..refused)
                .for_each(|index| assert!(read(&store, index).unwrap() == raw_page(index, 0), "{index}"));
            drop(writeback_thread);
        });
    }
}

/// A reader pins a segment without live records. It is the oldest and the emptiest segment, but cannot be freed;
/// others can be, by cleaning.
#[test]
fn the_cleaner_skips_a_segment_kept_by_a_reader_only() {
    const SEGMENTS: u64 = 12;
    // Records of raw pages in a segment of 256 KiB.
    const PER_SEGMENT: u64 = 63;
    let medium = Gated::new(segments(SEGMENTS));
    let _opens = medium.opens_on_failure();
    let pages = PER_SEGMENT * SEGMENTS;
    let store = Arc::new(store_on(medium.clone(), LayoutKind::Log, pages));
    // All segments but the cleaner's two and one.
    let written_back = PER_SEGMENT * (SEGMENTS - 3);
    (0..written_back).for_each(|index| write(&store, index, &raw_page(index, 0)));
    assert_eq!(write_back_all(&store).error, None);
    medium.reads.close_for(1);
    thread::scope(|scope| {
        let reader = scope.spawn(|| read(&store, 5));
        medium.reads.wait_for_arrival();
        // The first segment is empty but for the reader; the others are sparse.
        store.discard(0, PER_SEGMENT * PAGE_SIZE as u64).unwrap();
        (PER_SEGMENT..written_back).filter(|index| index % 4 > 0).for_each(|index| {
            store.discard(index * PAGE_SIZE as u64, PAGE_SIZE as u64).unwrap();
        });
        // More than the one segment that is free.
        let more = 3 * PER_SEGMENT;
        (written_back..written_back + more).for_each(|index| write(&store, index, &raw_page(index, 1)));
        let report = write_back_all(&store);
        medium.reads.open(0);
        assert_eq!((report.error, report.written_back_pages), (None, more));
        // It was discarded while it was read.
        let got = reader.join().unwrap().unwrap();
        assert!(got == raw_page(5, 0) || got == [0; PAGE_SIZE]);
    });
    for index in (PER_SEGMENT..pages).filter(|i| *i >= written_back || i % 4 == 0) {
        let version = u64::from(index >= written_back);
        assert!(read(&store, index).unwrap() == raw_page(index, version), "page {index}");
    }
}

/// Readers pin the segments that the cleaner chooses first: emptied, they are not free, and their live records use up
/// the segments reserved for the cleaner. There is space as soon as the readers unpin.
#[test]
fn the_cleaner_waits_for_readers_of_segments_that_it_has_emptied() {
    const SEGMENTS: u64 = 14;
    // Records of raw pages that were written back one by one, each padded to 8 KiB, in a segment of 256 KiB.
    const PER_SEGMENT: u64 = 31;
    const READERS: u64 = 10;
    // One in each segment, of those that stay.
    let read_page = |i: u64| (i * PER_SEGMENT).next_multiple_of(4);
    let medium = Gated::new(segments(SEGMENTS));
    let _opens = medium.opens_on_failure();
    let pages = 32 * SEGMENTS;
    let store = Arc::new(store_on(medium.clone(), LayoutKind::Log, pages));
    let mut written_back = 0;
    while stats(&store).free_bytes > 3 * (256 << 10) {
        write(&store, written_back, &raw_page(written_back, 0));
        write_back(&store, written_back, written_back);
        written_back += 1;
    }
    medium.reads.close_for(READERS as usize);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|i| {
                scope.spawn({
                    let store = &store;
                    move || read(store, read_page(i))
                })
            })
            .collect();
        medium.reads.wait_for_arrivals(READERS as usize);
        // A quarter of each segment.
        (0..written_back).filter(|index| index % 4 == 3).for_each(|index| {
            store.discard(index * PAGE_SIZE as u64, PAGE_SIZE as u64).unwrap();
        });
        // More pages than fit into the one free segment.
        let more = pages - written_back;
        (0..more).for_each(|i| write(&store, written_back + i, &raw_page(written_back + i, 1)));
        // No memory is left either for live records that do not fit into another segment.
        store.set_mem_limit(MemLimit::Bytes(4096));
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(500));
            medium.reads.open(0);
        });
        let report = write_back_all(&store);
        assert_eq!((report.error, report.written_back_pages), (None, more));
        readers.into_iter().enumerate().for_each(|(i, reader)| {
            assert!(reader.join().unwrap().unwrap() == raw_page(read_page(i as u64), 0));
        });
    });
    for index in (0..pages).filter(|i| i % 4 < 3 || *i >= written_back) {
        assert!(
            read(&store, index).unwrap() == raw_page(index, u64::from(index >= written_back)),
            "page {index}"
        );
    }
}

#[test]
fn writes_wait_for_room_near_the_limit_while_there_is_a_writeback_thread() {
    let mut store = Store::new(config(1024, 2 << 20)).unwrap();
    let backing = Arc::new(MemoryBacking::new(segments(16)));
    store.attach(WritebackConfig { backing, layout: LayoutKind::Log }).unwrap();
    let store = Arc::new(store);
    assert!(!store.waits_for_room(2 << 20), "there is no writeback thread");
    let thread = WritebackThread::start(store.clone()).unwrap();
    assert!(
        !store.waits_for_room(1 << 20) && store.waits_for_room(2 << 20) && store.waits_for_room(u64::MAX)
    );
    // Below the high mark, so that nothing is written back.
    (0..256).for_each(|index| write(&store, index, &raw_page(index, 0)));
    assert!(!store.waits_for_room(512 << 10) && store.waits_for_room(1 << 20));
    drop(thread);
    assert!(!store.waits_for_room(2 << 20), "without the thread a write is refused at once");
    let without = Store::new(config(1024, 2 << 20)).unwrap();
    assert!(!without.waits_for_room(2 << 20));
}
