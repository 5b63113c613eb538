//! Writes at the memory limit that need no more memory than what they replace, and those for which memory becomes free
//! at that moment.

use crate::support::rig::{raw_page, read, segments, soft_page, write};
use pagefold_backing::MemoryBacking;
use pagefold_backing::layer::{ErrorLayer, When};
use pagefold_page::PAGE_SIZE;
use pagefold_pool::{Arena, Frame, FrameSource, Frames, Purpose, REPLACEMENT_FRAMES_MAX, SourceError, Take};
use pagefold_store::writeback::{LayoutKind, WritebackConfig};
use pagefold_store::{MemLimit, Store, StoreConfig, StoreError, WritebackThread};
use std::sync::{Arc, Mutex};
use std::thread;

const PAGE: u64 = PAGE_SIZE as u64;
/// Raw objects end at the end of a frame, so that the next page needs two.
const FRAMES: u64 = 64;
const LIMIT: u64 = FRAMES * PAGE;
/// Raw pages that fit.
const FITS: u64 = LIMIT / (PAGE + 8);

fn config() -> StoreConfig {
    StoreConfig { mem_limit: MemLimit::Bytes(LIMIT), ..StoreConfig::new(4096 * PAGE) }
}

fn full_store() -> Store {
    let store = Store::new(config()).unwrap();
    (0..FITS).for_each(|index| write(&store, index, &raw_page(index, 0)));
    assert!(is_refused(&store, FITS));
    store
}

fn is_refused(store: &Store, index: u64) -> bool {
    match store.write(index * PAGE, &raw_page(index, 0)) {
        Ok(()) => false,
        Err(StoreError::NoMemory { source: SourceError::Limit { .. }, .. }) => true,
        Err(error) => panic!("{error}"),
    }
}

fn used_max(store: &Store) -> u64 {
    store.stats().mm.mem_used_max
}

#[test]
fn an_overwrite_that_needs_no_more_is_stored_and_takes_nothing_beyond_the_limit() {
    let store = full_store();
    for version in 1..4 {
        for index in 0..FITS {
            write(&store, index, &raw_page(index, version));
            store.write(index * PAGE + 100, b"a part of a page").unwrap();
        }
        for index in 0..FITS {
            let mut page = raw_page(index, version);
            page[100..][..16].copy_from_slice(b"a part of a page");
            assert!(read(&store, index).unwrap() == page, "page {index}, version {version}");
        }
    }
    assert!(used_max(&store) <= LIMIT, "{} of {LIMIT}", used_max(&store));
    let mm = store.stats().mm;
    assert_eq!((mm.orig_data_size, mm.compr_data_size, mm.huge_pages), (FITS * PAGE, FITS * PAGE, FITS));
    assert!(is_refused(&store, FITS), "a new page needs memory");
    assert_eq!(store.stats().io.failed_writes, 2);
}

/// Also below pages that the store has already, and below a single page.
#[test]
fn overwrites_are_stored_after_the_limit_was_lowered_and_take_nothing() {
    let store = full_store();
    let before = store.in_use_bytes();
    for (version, frames) in [(1, FRAMES / 2), (2, 1), (3, 0)] {
        store.set_mem_limit(MemLimit::Bytes(frames * PAGE));
        (0..FITS).for_each(|index| write(&store, index, &raw_page(index, version)));
        (0..FITS).for_each(|index| assert!(read(&store, index).unwrap() == raw_page(index, version)));
        assert_eq!(store.in_use_bytes(), before);
        assert!(is_refused(&store, FITS));
    }
    assert_eq!(used_max(&store), before);
}

/// Each page that becomes shorter gives memory back, although all of it was in use.
#[test]
fn overwrites_with_shorter_pages_make_room_for_others() {
    let store = full_store();
    (0..FITS).for_each(|index| write(&store, index, &soft_page(index, 1)));
    (0..FITS).for_each(|index| assert!(read(&store, index).unwrap() == soft_page(index, 1)));
    assert!(used_max(&store) <= LIMIT + REPLACEMENT_FRAMES_MAX * PAGE, "{}", used_max(&store));
    let more = (FITS..).take_while(|index| !is_refused(&store, *index)).count() as u64;
    assert!(more > FITS / 3, "{more} more pages fit after {FITS} became a third as long");
}

/// Pages of all lengths: what is stored is right, and the limit is exceeded by the stated amount at most.
#[test]
fn threads_that_overwrite_at_the_limit_exceed_it_by_no_more_than_recompression() {
    const THREADS: u64 = 3;
    let store = full_store();
    let part = |index: u64, round: u64| {
        let mut page = raw_page(index, round);
        page[PAGE_SIZE - ((index * 31 + round * 977) % 3000) as usize..].fill(7);
        page
    };
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let store = &store;
            scope.spawn(move || {
                for round in 0..40 {
                    for index in (thread..FITS).step_by(THREADS as usize) {
                        // Longer pages may be refused: they keep the old contents.
                        let before = read(store, index).unwrap();
                        let stored = store.write(index * PAGE, &part(index, round)).is_ok();
                        let expected = if stored { part(index, round) } else { before };
                        assert!(read(store, index).unwrap() == expected, "page {index}, round {round}");
                    }
                }
            });
        }
        scope.spawn(|| (0..200).for_each(|_| drop(store.compact().to_string())));
    });
    assert!(used_max(&store) <= LIMIT + REPLACEMENT_FRAMES_MAX * PAGE, "{}", used_max(&store));
}

/// With writeback a write waits for it first. It overwrites the page only when writeback cannot free memory.
#[test]
fn with_a_failing_backing_overwrites_are_stored_and_new_pages_refused() {
    let failing = Arc::new(ErrorLayer::new(MemoryBacking::new(segments(6))));
    let control = failing.control();
    let mut store = Store::new(config()).unwrap();
    store.attach(WritebackConfig { backing: failing, layout: LayoutKind::Log }).unwrap();
    control.fail_writes(When::Always, libc::EIO);
    let store = Arc::new(store);
    let writeback_thread = WritebackThread::start(store.clone()).unwrap();
    (0..FITS).for_each(|index| write(&store, index, &raw_page(index, 0)));
    assert!(is_refused(&store, FITS));
    (0..FITS).for_each(|index| write(&store, index, &raw_page(index, 1)));
    assert!(is_refused(&store, FITS));
    (0..FITS).for_each(|index| assert!(read(&store, index).unwrap() == raw_page(index, 1), "page {index}"));
    assert!(used_max(&store) <= LIMIT);
    assert!(store.writeback().unwrap().policy().throttled().writes > 0, "writes waited");
    drop(writeback_thread);
}

type Hook = Mutex<Option<Box<dyn FnOnce() + Send>>>;

/// Runs a hook after the first charge that fails: what another thread does at that moment.
struct Hooked {
    inner: Arena,
    hook: Hook,
}

// SAFETY: all frames come from the inner source.
unsafe impl FrameSource for Hooked {
    fn try_take(&self, purpose: Purpose, count: usize) -> Take {
        self.inner.try_take(purpose, count)
    }

    fn charge(&self, purpose: Purpose, count: usize) -> Result<(), SourceError> {
        let result = self.inner.charge(purpose, count);
        if result.is_err() {
            let hook = self.hook.lock().unwrap().take();
            if let Some(hook) = hook {
                hook();
            }
        }
        result
    }

    fn refund(&self, purpose: Purpose, count: usize) {
        self.inner.refund(purpose, count);
    }

    fn obtain(&self, count: usize) -> Result<Frames, SourceError> {
        self.inner.obtain(count)
    }

    fn release(&self, frame: Frame, purpose: Purpose) {
        self.inner.release(frame, purpose);
    }

    fn shrink(&self) {
        self.inner.shrink();
    }

    fn arena(&self) -> &Arena {
        self.inner.arena()
    }
}

/// A store whose first write that finds no memory is interrupted by `meanwhile`.
fn interrupted(
    pages: impl Iterator<Item = [u8; PAGE_SIZE]>,
    meanwhile: impl FnOnce(&Store) + Send + 'static,
) -> (Arc<Store>, u64) {
    let source = Arc::new(Hooked { inner: Arena::new(64 << 20).unwrap(), hook: Mutex::new(None) });
    let store = Arc::new(Store::with_source(config(), source.clone()).unwrap());
    let stored = (0..).zip(pages).take_while(|(index, page)| store.write(index * PAGE, page).is_ok());
    let fits = stored.count() as u64;
    let other = Arc::downgrade(&store);
    *source.hook.lock().unwrap() = Some(Box::new(move || meanwhile(&other.upgrade().unwrap())));
    (store, fits)
}

#[test]
fn a_write_is_stored_when_another_thread_frees_the_memory_at_that_moment() {
    let (store, _) = interrupted((0..).map(|index| raw_page(index, 0)), |store| {
        store.discard(0, 20 * PAGE).unwrap();
        store.compact();
    });
    write(&store, 300, &raw_page(300, 0));
    write(&store, 301, &raw_page(301, 0));
}

/// The room of one short object is no frame, but enough for another.
#[test]
fn a_write_is_stored_when_an_object_of_its_size_is_freed_at_that_moment() {
    // All have one size class.
    let page = soft_page(7, 0);
    let (store, fits) = interrupted(std::iter::repeat(page), |store| {
        store.discard(0, PAGE).unwrap();
        store.compact();
    });
    write(&store, fits + 1, &page);
    assert!(store.write((fits + 2) * PAGE, &page).is_err());
}
