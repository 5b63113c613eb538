//! One ring serves a store for its life, and is replaced only if it has fallen back to slower I/O or is too small.
//! Known mistake that this test excludes: a ring is set up, and the buffers registered with it, for each pass of a
//! few pages.

use crate::support::rig::*;
use pagefold_backing::{
    Backing, BackingError, Buffers, ByteSource, Completion, MemoryBacking, Queue, Request,
};
use pagefold_store::writeback::{LayoutKind, Selection, Which, WritebackError};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// A medium in memory that counts its queues.
struct Counted {
    inner: MemoryBacking,
    made: AtomicUsize,
    alive: AtomicUsize,
    /// The greatest depth that was requested.
    depth: AtomicUsize,
    /// How many queues were alive when buffers were registered again.
    registered_again_with: AtomicUsize,
    refuses: AtomicBool,
    degrades: AtomicBool,
}

impl Counted {
    fn new() -> Arc<Self> {
        let (made, alive, depth, registered_again_with, refuses, degrades) = Default::default();
        let inner = MemoryBacking::new(segments(12));
        Arc::new(Counted { inner, made, alive, depth, registered_again_with, refuses, degrades })
    }

    fn made(&self) -> usize {
        self.made.load(SeqCst)
    }
}

impl ByteSource for Counted {
    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BackingError> {
        self.inner.read_at(offset, buf)
    }

    fn describe(&self) -> String {
        "counted memory".to_string()
    }
}

impl Backing for Counted {
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), BackingError> {
        self.inner.write_at(offset, data)
    }

    fn flush(&self) -> Result<(), BackingError> {
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), BackingError> {
        self.inner.discard(offset, len_bytes)
    }

    fn queue<'a>(&'a self, depth: usize, buffers: &'a Buffers) -> Result<Box<dyn Queue + 'a>, BackingError> {
        if self.refuses.load(SeqCst) {
            return Err(BackingError::Io {
                operation: "queue",
                offset: 0,
                len_bytes: 0,
                errno: libc::ENOMEM,
            });
        }
        self.made.fetch_add(1, SeqCst);
        self.alive.fetch_add(1, SeqCst);
        self.depth.fetch_max(depth, SeqCst);
        Ok(Box::new(CountedQueue { medium: self, queue: self.inner.queue(depth, buffers)? }))
    }
}

struct CountedQueue<'a> {
    medium: &'a Counted,
    queue: Box<dyn Queue + 'a>,
}

impl Queue for CountedQueue<'_> {
    fn submit(&mut self, request: Request) -> Result<(), Completion> {
        self.queue.submit(request)
    }

    fn complete(&mut self, min: usize, done: &mut Vec<Completion>) -> usize {
        self.queue.complete(min, done)
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    fn is_degraded(&self) -> bool {
        self.medium.degrades.load(SeqCst)
    }

    fn register_again(&mut self) {
        self.medium.registered_again_with.store(self.medium.alive.load(SeqCst), SeqCst);
    }
}

impl Drop for CountedQueue<'_> {
    fn drop(&mut self) {
        assert_eq!(self.in_flight(), 0, "a queue that is given up has nothing in flight");
        self.medium.alive.fetch_sub(1, SeqCst);
    }
}

#[test]
fn one_ring_serves_all_passes_and_the_cleaner_and_ends_with_the_store() {
    for layout in LAYOUTS {
        let medium = Counted::new();
        let store = store_on(medium.clone(), layout, 560);
        assert_eq!(medium.made(), 0, "a disk that never writes back has no ring");
        (0..560).for_each(|index| write(&store, index, &raw_page(index, 0)));
        for round in 0..6 {
            (0..560).step_by(2).for_each(|index| write(&store, index, &raw_page(index, round)));
            assert_eq!(write_back_all(&store).error, None);
            (1..560).step_by(2).for_each(|index| assert!(read(&store, index).unwrap() == raw_page(index, 0)));
            // Each segment is half empty then, so the cleaner has work.
            (0..560).step_by(2).for_each(|index| store.discard(index * 4096, 4096).unwrap());
            store.run_maintenance(true);
        }
        assert_eq!(stats(&store).cleaned_segments > 0, layout == LayoutKind::Log);
        assert_eq!((medium.made(), medium.alive.load(SeqCst)), (1, 1));
        drop(store);
        assert_eq!(medium.alive.load(SeqCst), 0);
    }
}

#[test]
fn a_closed_ring_is_gone_at_once_and_the_next_pass_creates_another() {
    let medium = Counted::new();
    let store = store_on(medium.clone(), LayoutKind::Log, 64);
    for rings in 1..3 {
        (0..64).for_each(|index| write(&store, index, &raw_page(index, rings as u64)));
        assert_eq!(write_back_all(&store).error, None);
        store.writeback().unwrap().close_ring();
        assert_eq!((medium.made(), medium.alive.load(SeqCst)), (rings, 0));
    }
}

#[test]
fn a_degraded_ring_is_replaced_and_kept_if_there_is_no_other() {
    for layout in LAYOUTS {
        let medium = Counted::new();
        let store = store_on(medium.clone(), layout, 64);
        let write_back = |version| {
            (0..64).for_each(|index| write(&store, index, &raw_page(index, version)));
            store.write_back(&Selection::of(Which::All), &mut |_| ControlFlow::Continue(()))
        };
        medium.refuses.store(true, SeqCst);
        assert!(matches!(write_back(1), Err(WritebackError::Io(e)) if e.errno() == libc::ENOMEM));
        store.run_maintenance(true);
        medium.refuses.store(false, SeqCst);
        assert_eq!(write_back(2).unwrap().written_back_pages, 64);
        assert_eq!(medium.made(), 1);

        medium.degrades.store(true, SeqCst);
        medium.refuses.store(true, SeqCst);
        assert_eq!(write_back(3).unwrap().written_back_pages, 64, "the old one still serves");
        medium.refuses.store(false, SeqCst);
        assert_eq!(write_back(4).unwrap().written_back_pages, 64);
        assert_eq!(medium.made(), 2, "another took its place");
        assert_eq!(
            medium.registered_again_with.load(SeqCst),
            1,
            "it registers its buffers when the old one is gone"
        );
        medium.degrades.store(false, SeqCst);

        let settings = writeback(&store).settings();
        assert!(settings.set_writeback_batch_size(512));
        assert_eq!(write_back(5).unwrap().written_back_pages, 64);
        assert!(settings.set_writeback_batch_size(1));
        assert_eq!(write_back(6).unwrap().written_back_pages, 64);
        assert_eq!(
            (medium.made(), medium.depth.load(SeqCst)),
            (3, 512),
            "a larger one serves smaller batches"
        );
        assert_eq!(medium.alive.load(SeqCst), 1);
        (0..64).for_each(|index| assert!(read(&store, index).unwrap() == raw_page(index, 6)));
    }
}

#[test]
fn a_pass_whose_caller_panics_leaves_a_ring_for_the_next() {
    let medium = Counted::new();
    let store = store_on(medium.clone(), LayoutKind::Log, 300);
    (0..300).for_each(|index| write(&store, index, &raw_page(index, 1)));
    let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        store.write_back(&Selection::of(Which::All), &mut |progress| match progress.written_back_pages {
            0 => ControlFlow::Continue(()),
            _ => panic!("the caller's own"),
        })
    }));
    assert!(panics.is_err());
    assert_eq!(write_back_all(&store).error, None);
    assert_eq!((stats(&store).bd.bd_count, medium.made()), (300, 1));
    (0..300).for_each(|index| assert!(read(&store, index).unwrap() == raw_page(index, 1)));
}
