//! Changes to pages while their write, or their read-back, is in flight. Known mistakes that these tests exclude: a
//! slot that was changed during its write takes the result nevertheless; a completion that arrives after the end of
//! the pass; statistics that wait for a pass.

use crate::support::PlainBytes;
use crate::support::gate::Gated;
use crate::support::rig::*;
use pagefold_backing::layer::{DelayLayer, DelayOptions, ManualClock, StatsLayer};
use pagefold_backing::{ByteSource, MemoryBacking};
use pagefold_store::Store;
use pagefold_store::writeback::{LayoutKind, Selection, Which, WritebackError, WritebackReport};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

const PAGES: u64 = 8;
const LEN: usize = PAGES as usize * 4096;

/// A change to page 3 during the write.
struct Event {
    name: &'static str,
    /// Whether the contents differ afterwards, so that the result of the write is discarded.
    changes: bool,
    run: fn(&Store, &mut PlainBytes),
}

fn put(store: &Store, model: &mut PlainBytes, offset: u64, data: &[u8]) {
    store.write(offset, data).unwrap();
    model.write(offset, data);
}

fn drop_range(store: &Store, model: &mut PlainBytes, offset: u64, len: u64) {
    store.discard(offset, len).unwrap();
    model.discard(offset, len);
}

const AT: u64 = 3 * 4096;

const EVENTS: [Event; 13] = [
    Event { name: "nothing", changes: false, run: |_, _| {} },
    Event { name: "read", changes: false, run: |store, _| assert!(read(store, 3).is_ok()) },
    Event { name: "mark idle", changes: false, run: |store, _| store.mark_idle(0) },
    Event { name: "compact", changes: false, run: |store, _| assert!(store.compact() < u64::MAX) },
    Event { name: "maintenance", changes: false, run: |store, _| store.run_maintenance(true) },
    Event { name: "write", changes: true, run: |store, model| put(store, model, AT, &raw_page(3, 2)) },
    Event {
        name: "write the same",
        changes: true,
        run: |store, model| put(store, model, AT, &raw_page(3, 1)),
    },
    Event {
        name: "write twice",
        changes: true,
        run: |store, model| {
            put(store, model, AT, &raw_page(3, 2));
            put(store, model, AT, &soft_page(3, 3));
        },
    },
    Event { name: "write a part", changes: true, run: |store, model| put(store, model, AT + 100, &[7; 90]) },
    Event { name: "write same-filled", changes: true, run: |store, model| put(store, model, AT, &[9; 4096]) },
    Event {
        name: "write zeroes",
        changes: true,
        run: |store, model| {
            store.write_zeroes(AT, 4096).unwrap();
            model.write_zeroes(AT, 4096);
        },
    },
    Event { name: "discard", changes: true, run: |store, model| drop_range(store, model, AT, 4096) },
    Event {
        name: "discard and write",
        changes: true,
        run: |store, model| {
            drop_range(store, model, AT, 4096);
            put(store, model, AT, &raw_page(3, 1));
        },
    },
];

struct Rig {
    store: Store,
    medium: Arc<Gated>,
    model: PlainBytes,
}

impl Rig {
    fn new(layout: LayoutKind) -> Self {
        let medium = Gated::new(segments(8));
        let store = store_on(medium.clone(), layout, PAGES);
        let mut model = PlainBytes(vec![0; LEN]);
        for i in 0..PAGES {
            put(&store, &mut model, i * 4096, &if i % 2 == 0 { soft_page(i, 1) } else { raw_page(i, 1) });
        }
        Rig { store, medium, model }
    }

    fn check(&self, what: &str) {
        let mut all = vec![0; LEN];
        self.store.read(0, &mut all).unwrap();
        assert!(all == self.model.0, "{what}");
    }
}

/// Runs a pass over all pages, and the event while its first request is in flight; then the request completes with
/// `errno`.
fn run(layout: LayoutKind, event: &Event, errno: i32, second_waits: bool) {
    let what = format!("{layout:?}, {}, {errno}, {second_waits}", event.name);
    let mut rig = Rig::new(layout);
    let settings = writeback(&rig.store).settings();
    settings.writeback_limit.store(100);
    settings.writeback_limit_enabled.store(true);
    rig.medium.writes.close();
    let (first, second): (WritebackReport, Option<WritebackReport>) = std::thread::scope(|s| {
        let _open = rig.medium.opens_on_failure();
        let first = s.spawn(|| write_back_all(&rig.store));
        rig.medium.writes.wait_for_arrival();
        (event.run)(&rig.store, &mut rig.model);
        // The second pass finds all pages under writeback; it may run before the first has ended, or after.
        let second = second_waits.then(|| s.spawn(|| write_back_all(&rig.store)));
        rig.medium.writes.open(errno);
        (first.join().unwrap(), second.map(|thread| thread.join().unwrap()))
    });
    let (written_back, changed, failed) = match (errno, event.changes) {
        (0, false) => (PAGES, 0, 0),
        (0, true) => (PAGES - 1, 1, 0),
        (_, _) => (0, 0, PAGES),
    };
    assert_eq!(
        (first.written_back_pages, first.changed_pages, first.failed_pages),
        (written_back, changed, failed),
        "{what}"
    );
    let stats_now = stats(&rig.store);
    let second_written_back = second.as_ref().map_or(0, |report| report.written_back_pages);
    assert_eq!(stats_now.bd.bd_count, written_back + second_written_back, "{what}");
    let left = writeback(&rig.store).settings().writeback_limit.load();
    assert_eq!(
        left,
        100 - written_back - changed - second_written_back,
        "{what}: a write that was void was paid for"
    );
    rig.check(&what);
    // No mark is left: all objects can be written back now.
    rig.medium.writes.open(0);
    write_back_all(&rig.store);
    let mm = rig.store.stats().mm;
    assert_eq!((mm.compr_data_size, mm.huge_pages), (0, 0), "{what}");
    rig.check(&what);
    assert_all_free(&rig.store);
}

#[test]
fn slots_changed_while_their_write_is_in_flight() {
    for layout in LAYOUTS {
        for event in &EVENTS {
            for errno in [0, libc::EIO] {
                for second_waits in [false, true] {
                    run(layout, event, errno, second_waits);
                }
            }
        }
    }
}

#[test]
fn slots_changed_while_they_are_read_back() {
    for layout in LAYOUTS {
        for event in &EVENTS {
            for (errno, promotes) in [(0, false), (0, true), (libc::EIO, false)] {
                let what = format!("{layout:?}, {}, {errno}, {promotes}", event.name);
                let mut rig = Rig::new(layout);
                write_back(&rig.store, 3, 3);
                writeback(&rig.store).settings().promote.store(promotes);
                assert!(read(&rig.store, 3).is_ok());
                rig.medium.reads.close();
                let before = rig.model.0[AT as usize..][..4096].to_vec();
                let got = std::thread::scope(|s| {
                    let _open = rig.medium.opens_on_failure();
                    let reader = s.spawn(|| read(&rig.store, 3));
                    rig.medium.reads.wait_for_arrival();
                    // A read, or a partial write, would wait at the gate with the other.
                    if !matches!(event.name, "read" | "write a part") {
                        (event.run)(&rig.store, &mut rig.model);
                    }
                    rig.medium.reads.open(errno);
                    reader.join().unwrap()
                });
                let after = &rig.model.0[AT as usize..][..4096];
                match got {
                    Ok(page) => assert!(page[..] == before || page[..] == *after, "{what}"),
                    // An error is correct only if the page is still there.
                    Err(_) => assert!(errno != 0 && before == after, "{what}"),
                }
                rig.medium.reads.open(0);
                rig.check(&what);
                let promoted = stats(&rig.store).promoted_pages;
                assert!(promoted <= u64::from(promotes), "{what}");
                assert_eq!(stats(&rig.store).corrupt_pages, 0);
                write_back_all(&rig.store);
                rig.check(&what);
                assert_all_free(&rig.store);
            }
        }
    }
}

#[test]
fn all_pages_discarded_during_a_pass() {
    for layout in LAYOUTS {
        for errno in [0, libc::EIO] {
            let rig = Rig::new(layout);
            rig.medium.writes.close();
            std::thread::scope(|s| {
                let _open = rig.medium.opens_on_failure();
                let pass = s.spawn(|| write_back_all(&rig.store));
                rig.medium.writes.wait_for_arrival();
                discard_all(&rig.store);
                rig.medium.writes.open(errno);
                assert_eq!(pass.join().unwrap().written_back_pages, 0);
            });
            assert_all_free(&rig.store);
            let mut all = vec![1; LEN];
            rig.store.read(0, &mut all).unwrap();
            assert!(all.iter().all(|b| *b == 0));
        }
    }
}

/// Calls `ask` in a separate thread, so that a deadlock fails the test instead of hanging it.
fn returns_in_time<T: Send>(what: &str, ask: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|s| {
        let (sender, receiver) = channel();
        s.spawn(move || sender.send(ask()));
        let answer = receiver.recv_timeout(Duration::from_secs(30));
        answer.unwrap_or_else(|_| {
            eprintln!("{what}: no answer while a request is in flight");
            std::process::abort()
        })
    })
}

fn all_operations_return(store: &Store, model: &mut PlainBytes) {
    let writeback_stats = returns_in_time("writeback stats", || stats(store));
    assert_eq!(writeback_stats.bd.bd_count, 0);
    assert_eq!(returns_in_time("stats", || store.stats()).mm.orig_data_size, LEN as u64);
    returns_in_time("class stats", || store.class_stats());
    returns_in_time("settings", || writeback(store).settings().set_writeback_batch_size(64));
    returns_in_time("condition", || writeback(store).condition());
    returns_in_time("read", || assert!(read(store, 2).is_ok()));
    returns_in_time("extent", || store.extent(0, LEN as u64).unwrap());
    returns_in_time("maintenance", || store.run_maintenance(true));
    returns_in_time("compact", || assert!(store.compact() < u64::MAX));
    returns_in_time("mark idle", || store.mark_idle(0));
    returns_in_time("write", || put(store, &mut *model, 5 * 4096 + 9, b"meanwhile"));
    returns_in_time("discard", || drop_range(store, model, 6 * 4096, 4096));
}

#[test]
fn all_operations_return_while_a_pass_waits_for_the_medium() {
    for layout in LAYOUTS {
        let mut rig = Rig::new(layout);
        rig.medium.writes.close();
        let report = std::thread::scope(|s| {
            let _open = rig.medium.opens_on_failure();
            let pass = s.spawn(|| write_back_all(&rig.store));
            rig.medium.writes.wait_for_arrival();
            all_operations_return(&rig.store, &mut rig.model);
            rig.medium.writes.open(0);
            pass.join().unwrap()
        });
        assert_eq!((report.written_back_pages, report.changed_pages), (PAGES - 2, 2));
        rig.check("after");
    }
}

#[test]
fn reads_do_not_wait_for_a_read_that_hangs() {
    for layout in LAYOUTS {
        let mut rig = Rig::new(layout);
        write_back(&rig.store, 3, 3);
        rig.medium.reads.close();
        std::thread::scope(|s| {
            let _open = rig.medium.opens_on_failure();
            let reader = s.spawn(|| read(&rig.store, 3).unwrap());
            rig.medium.reads.wait_for_arrival();
            let (store, model) = (&rig.store, &mut rig.model);
            returns_in_time("stats", || stats(store));
            returns_in_time("maintenance", || store.run_maintenance(true));
            assert!(returns_in_time("read", || read(store, 2).unwrap()) == soft_page(2, 1));
            returns_in_time("a pass", || write_back(store, 0, 1));
            returns_in_time("overwrite", || put(store, &mut *model, AT, &raw_page(3, 9)));
            rig.medium.reads.open(0);
            let got = reader.join().unwrap();
            assert!(got == raw_page(3, 1) || got == raw_page(3, 9));
        });
        rig.check("after");
    }
}

#[test]
fn a_stopped_pass_completes_its_submitted_writes() {
    for layout in LAYOUTS {
        for stop_at in 1..5 {
            // A slow device, so that much is in flight when the pass is stopped.
            let clock = Arc::new(ManualClock::default());
            let slow = DelayLayer::new(MemoryBacking::new(segments(40)), DelayOptions::default(), clock);
            let counted = Arc::new(StatsLayer::new(slow));
            let medium = counted.control();
            let store = store_on(counted, layout, 2000);
            (0..2000).for_each(|i| write(&store, i, &raw_page(i, 1)));
            writeback(&store).settings().writeback_limit.store(5000);
            writeback(&store).settings().writeback_limit_enabled.store(true);
            let mut calls = 0;
            let stop = &mut |_: &_| {
                calls += 1;
                if calls >= stop_at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            let report = store.write_back(&Selection::of(Which::All), stop).unwrap();
            assert_eq!(report.error, Some(WritebackError::Stopped));
            let bounds = if stop_at == 1 { 0..1 } else { 1..2000 };
            assert!(bounds.contains(&report.written_back_pages), "{layout:?}: {}", report.written_back_pages);
            assert_eq!(writeback(&store).settings().writeback_limit.load(), 5000 - report.written_back_pages);
            let written = medium.stats().writes.bytes - (1 << 20);
            assert_eq!(written, report.written_bytes, "all of it was written before the pass ended");
            assert!((0..2000).all(|i| read(&store, i).unwrap() == raw_page(i, 1)));
            assert_eq!(write_back_all(&store).error, None);
            assert_eq!(stats(&store).bd.bd_count, 2000);
            assert_all_free(&store);
        }
    }
}

#[test]
fn a_store_that_is_dropped_leaves_nothing_in_flight() {
    let medium = Gated::new(segments(40));
    let store = store_on(medium.clone(), LayoutKind::Blocks, 2000);
    (0..2000).for_each(|i| write(&store, i, &raw_page(i, 1)));
    let mut calls = 0;
    let stop = &mut |_: &_| {
        calls += 1;
        if calls == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let report = store.write_back(&Selection::of(Which::All), stop).unwrap();
    drop(store);
    let mut bytes = vec![0; segments(40)];
    medium.inner.read_at(0, &mut bytes).unwrap();
    let blocks = bytes[DATA_START as usize..].chunks(4096).take_while(|block| block.iter().any(|b| *b != 0));
    assert_eq!(blocks.count() as u64, report.written_back_pages);
    assert_eq!(Arc::strong_count(&medium), 1);
}

#[test]
fn a_progress_callback_may_use_the_store() {
    for layout in LAYOUTS {
        let store = store_on(Arc::new(MemoryBacking::new(segments(40))), layout, 2000);
        (0..2000).for_each(|i| write(&store, i, &raw_page(i, 1)));
        let mut version = 1;
        let mut changes = 0;
        let busy = &mut |_: &_| {
            version += 1;
            // Pages in flight, behind the pass, and ahead of it.
            for i in (0..2000).step_by(100).chain(500..512) {
                write(&store, i, &raw_page(i, version));
                assert!(read(&store, i).unwrap() == raw_page(i, version));
                changes += 1;
            }
            store.discard(1999 * 4096, 4096).unwrap();
            store.run_maintenance(true);
            store.mark_idle(0);
            store.compact();
            assert!(stats(&store).bd.bd_count <= 2000);
            ControlFlow::Continue(())
        };
        let report = store.write_back(&Selection::of(Which::All), busy).unwrap();
        assert_eq!(report.error, None);
        assert!(changes > 0 && report.written_back_pages > 1800);
        for i in 0..1999 {
            let written_last = i % 100 == 0 || (500..512).contains(&i);
            let expected = raw_page(i, if written_last { version } else { 1 });
            assert!(read(&store, i).unwrap() == expected, "{layout:?}: page {i}");
        }
        assert!(read(&store, 1999).unwrap() == [0; 4096]);
        assert_all_free(&store);
    }
}

#[test]
fn read_ahead_is_skipped_when_a_pass_has_all_buffers() {
    let medium = Gated::new(segments(60));
    let store = store_on(medium.clone(), LayoutKind::Log, 3000);
    assert!(writeback(&store).settings().set_writeback_batch_size(1024));
    (0..3000).for_each(|i| write(&store, i, &raw_page(i, 1)));
    write_back(&store, 0, 199);
    medium.writes.close();
    std::thread::scope(|s| {
        let _open = medium.opens_on_failure();
        // 4 MiB in writes of 256 KiB: all buffers.
        let pass = s.spawn(|| write_back(&store, 200, 2999));
        medium.writes.wait_for_arrival();
        // Requested pages are still read, one by one.
        assert!((0..200).all(|i| read(&store, i).unwrap() == raw_page(i, 1)));
        let now = stats(&store);
        assert_eq!((now.read_ahead_hits, now.reads, now.bd.bd_reads), (0, 200, 200));
        medium.writes.open(0);
        assert_eq!(pass.join().unwrap().written_back_pages, 2800);
    });
    assert!((0..200).all(|i| read(&store, i).unwrap() == raw_page(i, 1)));
    assert!(stats(&store).read_ahead_hits > 100, "with buffers to spare it reads ahead");
}

/// Pages are in flight when the caller's function panics. They can be written back later like all others.
#[test]
fn a_pass_whose_caller_panics_leaves_no_page_marked() {
    const PAGES: u64 = 1500;
    for layout in LAYOUTS {
        for nth in 1..4 {
            let store = store_on(Arc::new(MemoryBacking::new(segments(32))), layout, PAGES);
            (0..PAGES).for_each(|i| write(&store, i, &raw_page(i, 1)));
            let mut calls = 0;
            let pass = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                store.write_back(&Selection::of(Which::All), &mut |_| {
                    calls += 1;
                    if calls == nth { panic!("as the test wants") } else { ControlFlow::Continue(()) }
                })
            }));
            assert!(pass.is_err() && calls == nth);
            let report = write_back_all(&store);
            assert_eq!((report.error, report.failed_pages), (None, 0));
            assert_eq!(stats(&store).bd.bd_count, PAGES, "{layout:?}, call {nth}");
            (0..PAGES).for_each(|i| assert!(read(&store, i).unwrap() == raw_page(i, 1), "page {i}"));
        }
    }
}
