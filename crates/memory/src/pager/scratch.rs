//! Working memory for bringing pages in, allocated before the first fault.

use crate::error::RangeError;
use crate::readahead::WINDOW_MAX;
use crossbeam_utils::CachePadded;
use pagefold_page::{PAGE_SIZE, Page};
use pagefold_store::{Loader, Store, StoreError};
use pagefold_sys::futex;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use std::sync::{Mutex, PoisonError};

/// Pages on their way to the range, aligned as the kernel copies best.
#[repr(C, align(4096))]
pub(crate) struct Pages(pub(crate) [Page; WINDOW_MAX]);

/// The working memory that one thread needs to bring pages in.
pub(crate) struct Scratch {
    pub(crate) loader: Loader,
    pub(crate) pages: Box<Pages>,
}

struct ScratchSlot {
    is_taken: AtomicBool,
    scratch: UnsafeCell<Scratch>,
}

// SAFETY: the scratch is reached only through a `ScratchGuard`, of which there is one at a time: one thread alone sets
// `is_taken` to true before it makes the guard (acquire), and false when the guard is dropped (release).
unsafe impl Sync for ScratchSlot {}

/// A fixed number of scratches, for any number of threads.
///
/// The slots are not mutexes: a thread that finds all of them taken must sleep until any is free, inside a signal
/// handler.
pub(crate) struct ScratchPool {
    slots: Box<[CachePadded<ScratchSlot>]>,
    /// Advances when a scratch is released while a thread waits.
    release_epoch: AtomicU32,
    waiters: AtomicU32,
}

/// A scratch in use. Dropping it releases the scratch.
pub(crate) struct ScratchGuard<'a> {
    owner: &'a ScratchPool,
    slot: &'a ScratchSlot,
}

impl ScratchPool {
    pub(crate) fn new(store: &Store, count: usize) -> Result<Self, StoreError> {
        let slot = |_| {
            // Filled with ones: zeroes might be memory that is not allocated yet.
            let pages = Box::new(Pages([[1; PAGE_SIZE]; WINDOW_MAX]));
            let scratch = Scratch { loader: store.loader()?, pages };
            Ok(CachePadded::new(ScratchSlot {
                is_taken: AtomicBool::new(false),
                scratch: UnsafeCell::new(scratch),
            }))
        };
        let slots = (0..count.max(1)).map(slot).collect::<Result<_, StoreError>>()?;
        Ok(ScratchPool { slots, release_epoch: AtomicU32::new(0), waiters: AtomicU32::new(0) })
    }

    /// Takes a scratch, preferably that of CPU `cpu`. Sleeps while all are taken.
    pub(crate) fn take(&self, cpu: usize) -> ScratchGuard<'_> {
        loop {
            let ticket = self.release_epoch.load(Acquire);
            if let Some(guard) = self.try_take(cpu) {
                return guard;
            }
            self.waiters.fetch_add(1, SeqCst);
            // A release may have missed our registration as a waiter: check again before sleeping.
            let found = self.try_take(cpu);
            if found.is_none() {
                futex::wait(&self.release_epoch, ticket);
            }
            self.waiters.fetch_sub(1, SeqCst);
            if let Some(guard) = found {
                return guard;
            }
        }
    }

    fn try_take(&self, cpu: usize) -> Option<ScratchGuard<'_>> {
        let count = self.slots.len();
        let free = |i: usize| {
            let slot: &ScratchSlot = &self.slots[(cpu + i) % count];
            let is_free = !slot.is_taken.load(Relaxed) && !slot.is_taken.swap(true, SeqCst);
            // Only for a free slot: dropping a guard releases the scratch.
            is_free.then(|| ScratchGuard { owner: self, slot })
        };
        (0..count).find_map(free)
    }
}

impl Drop for ScratchGuard<'_> {
    fn drop(&mut self) {
        self.slot.is_taken.store(false, SeqCst);
        if self.owner.waiters.load(SeqCst) > 0 {
            self.owner.release_epoch.fetch_add(1, SeqCst);
            futex::wake(&self.owner.release_epoch, 1);
        }
    }
}

impl Deref for ScratchGuard<'_> {
    type Target = Scratch;

    fn deref(&self) -> &Scratch {
        // SAFETY: the guard is the only one of this slot (see `ScratchSlot`), and borrowed for as long.
        unsafe { &*self.slot.scratch.get() }
    }
}

impl DerefMut for ScratchGuard<'_> {
    fn deref_mut(&mut self) -> &mut Scratch {
        // SAFETY: the guard is the only one of this slot (see `ScratchSlot`), and borrowed exclusively for as long.
        unsafe { &mut *self.slot.scratch.get() }
    }
}

/// The working memory of one copy.
pub(super) struct CopyScratch {
    pub(super) loader: Loader,
    pub(super) page: Box<Page>,
}

/// The working memory of copies that ended, for the next ones: as much as the CPUs can use at once.
pub(super) struct CopyScratches {
    free: Mutex<Vec<CopyScratch>>,
    max: usize,
}

impl CopyScratches {
    pub(super) fn new() -> Self {
        CopyScratches { free: Mutex::default(), max: pagefold_sys::cpu::count() }
    }

    pub(super) fn take(&self, store: &Store) -> Result<CopyScratch, RangeError> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        free.map_or_else(
            || {
                let loader = store.loader().map_err(|_| RangeError::NoWorkingMemory)?;
                Ok(CopyScratch { loader, page: Box::new([0; PAGE_SIZE]) })
            },
            Ok,
        )
    }

    pub(super) fn put(&self, scratch: CopyScratch) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < self.max {
            free.push(scratch);
        }
    }
}
