//! Working memory for bringing pages in, made before the first fault.

use crate::ahead::WINDOW_MAX;
use crossbeam_utils::CachePadded;
use pagefold_page::{PAGE_SIZE, Page};
use pagefold_store::{Loader, Store, StoreError};
use pagefold_sys::futex;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

/// Bytes of pages on their way to the range, aligned as the kernel copies best.
#[repr(C, align(4096))]
pub(crate) struct Pages(pub(crate) [Page; WINDOW_MAX]);

/// What one thread needs to bring pages in.
pub(crate) struct Scratch {
    pub(crate) loader: Loader,
    pub(crate) pages: Box<Pages>,
}

struct Place {
    is_taken: AtomicBool,
    scratch: UnsafeCell<Scratch>,
}

// SAFETY: the scratch is reached only through a `ScratchGuard`, of which there is one at a time: `is_taken` is set to
// true by one thread alone before it makes one (acquire), and false when it is dropped (release).
unsafe impl Sync for Place {}

/// A fixed number of them, for any number of threads.
///
/// Not a mutex each: a thread that finds all taken must sleep until any is free, inside a signal handler.
pub(crate) struct Scratches {
    places: Box<[CachePadded<Place>]>,
    /// Advances when one is put back while somebody waits.
    put_back: AtomicU32,
    waiting: AtomicU32,
}

/// A scratch in use; put back when dropped.
pub(crate) struct ScratchGuard<'a> {
    owner: &'a Scratches,
    place: &'a Place,
}

impl Scratches {
    pub(crate) fn new(store: &Store, count: usize) -> Result<Self, StoreError> {
        let place = |_| {
            // Not zeroes, which might be memory that was never touched.
            let pages = Box::new(Pages([[1; PAGE_SIZE]; WINDOW_MAX]));
            let scratch = Scratch { loader: store.loader()?, pages };
            Ok(CachePadded::new(Place {
                is_taken: AtomicBool::new(false),
                scratch: UnsafeCell::new(scratch),
            }))
        };
        let places = (0..count.max(1)).map(place).collect::<Result<_, StoreError>>()?;
        Ok(Scratches { places, put_back: AtomicU32::new(0), waiting: AtomicU32::new(0) })
    }

    /// Takes one, that of CPU `cpu` if it is free; sleeps while all are taken.
    pub(crate) fn take(&self, cpu: usize) -> ScratchGuard<'_> {
        loop {
            let ticket = self.put_back.load(Acquire);
            if let Some(guard) = self.try_take(cpu) {
                return guard;
            }
            self.waiting.fetch_add(1, SeqCst);
            // Once more: one may have been put back before it was known that somebody waits.
            let found = self.try_take(cpu);
            if found.is_none() {
                futex::wait(&self.put_back, ticket);
            }
            self.waiting.fetch_sub(1, SeqCst);
            if let Some(guard) = found {
                return guard;
            }
        }
    }

    fn try_take(&self, cpu: usize) -> Option<ScratchGuard<'_>> {
        let count = self.places.len();
        let free = |i: usize| {
            let place: &Place = &self.places[(cpu + i) % count];
            let is_free = !place.is_taken.load(Relaxed) && !place.is_taken.swap(true, SeqCst);
            // Made only if it is free: dropping a guard puts the scratch back.
            is_free.then(|| ScratchGuard { owner: self, place })
        };
        (0..count).find_map(free)
    }
}

impl Drop for ScratchGuard<'_> {
    fn drop(&mut self) {
        self.place.is_taken.store(false, SeqCst);
        if self.owner.waiting.load(SeqCst) > 0 {
            self.owner.put_back.fetch_add(1, SeqCst);
            futex::wake(&self.owner.put_back, 1);
        }
    }
}

impl Deref for ScratchGuard<'_> {
    type Target = Scratch;

    fn deref(&self) -> &Scratch {
        // SAFETY: the guard is the only one of this place (see `Place`), and borrowed for as long.
        unsafe { &*self.place.scratch.get() }
    }
}

impl DerefMut for ScratchGuard<'_> {
    fn deref_mut(&mut self) -> &mut Scratch {
        // SAFETY: the guard is the only one of this place (see `Place`), and borrowed exclusively for as long.
        unsafe { &mut *self.place.scratch.get() }
    }
}
