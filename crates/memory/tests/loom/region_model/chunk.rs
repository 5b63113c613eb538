//! The chunk of the model that the kernel fills by itself: both of its pages. A bit of each page table entry says
//! whether the page is unregistered; then an access to a page without memory gets a page of zeroes and no fault.
//!
//! The kernel changes the entries of a chunk under one lock. Here they change one after the other, which allows more
//! orders of steps.

use super::{Page, RegionModel};
use crate::region_model::{NONE, ZERO};
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicU32, Ordering::*};
use loom::thread;

/// Flag of a page table entry: unregistered.
pub(super) const UNREGISTERED: u64 = 1 << 33;

/// Marks of the chunk, as those of the production table.
const MARKED: u32 = 1;
const KERNEL_FILLED: u32 = 2;

/// The state of the chunk.
pub(super) struct Chunk {
    marks: AtomicU32,
    registering: Mutex<()>,
    /// How often the chunk may be unregistered: then the budget has no room for it.
    room: AtomicU32,
}

impl Chunk {
    pub(super) fn new(room: u32) -> Self {
        Chunk { marks: AtomicU32::new(0), registering: Mutex::new(()), room: AtomicU32::new(room) }
    }
}

impl Page {
    /// An access of the program to a page that may be unregistered: the kernel fills it with zeroes. Returns the page
    /// table entry.
    pub(super) fn access(&self) -> u64 {
        match self.range.compare_exchange(UNREGISTERED, UNREGISTERED | ZERO, Relaxed, Relaxed) {
            Ok(_) => UNREGISTERED | ZERO,
            Err(seen) => seen,
        }
    }
}

impl RegionModel {
    /// Returns whether the model has chunks that the kernel fills.
    pub(super) fn is_late(&self) -> bool {
        self.chunk.is_some()
    }

    /// `Pager::unregister_around`.
    pub(super) fn unregister_around(&self) -> bool {
        let Some(chunk) = &self.chunk else { return false };
        if chunk.marks.load(Acquire) & MARKED != 0 {
            thread::yield_now();
            return true;
        }
        if !self.mark_unregistered(chunk) {
            return false;
        }
        for page in &self.pages {
            let entry = page.range.fetch_or(UNREGISTERED, Relaxed);
            assert_eq!(entry, NONE, "a page in use is unregistered");
        }
        chunk.marks.fetch_or(KERNEL_FILLED, Release);
        true
    }

    /// `Pager::mark_unregistered`.
    fn mark_unregistered(&self, chunk: &Chunk) -> bool {
        if chunk.room.load(Relaxed) == 0 || chunk.marks.fetch_or(MARKED, AcqRel) & MARKED != 0 {
            return false;
        }
        // `charge_spare`.
        let charged = chunk.room.fetch_update(Relaxed, Relaxed, |room| room.checked_sub(1)).is_ok();
        let changed = match charged {
            true => self.pages.iter().take_while(|page| page.word.unregister()).count(),
            false => 0,
        };
        if changed == self.pages.len() {
            return true;
        }
        self.pages[..changed].iter().for_each(|page| assert!(!page.word.register(false)));
        chunk.marks.fetch_and(!(MARKED | KERNEL_FILLED), Release);
        false
    }

    /// `Pager::register_chunk`. Returns whether it registered the chunk.
    pub fn register_chunk(&self) -> bool {
        let Some(chunk) = &self.chunk else { return false };
        let _registering = chunk.registering.lock().unwrap();
        if chunk.marks.load(Acquire) & KERNEL_FILLED == 0 {
            return false;
        }
        for page in &self.pages {
            page.range.fetch_and(!UNREGISTERED, Relaxed);
        }
        // `populated_pages`, then the words.
        let populated = [0, 1].map(|i: usize| self.pages[i].mapped() != NONE);
        let words = self.pages.iter().zip(populated);
        words.for_each(|(page, is_populated)| assert!(page.word.register(is_populated) || !is_populated));
        chunk.marks.fetch_and(!(MARKED | KERNEL_FILLED), Release);
        true
    }

    /// `Pager::register_around`.
    pub(super) fn register_around(&self) {
        if !self.register_chunk() {
            thread::yield_now();
        }
    }

    /// `Pager::discard` of both pages: `drop_chunk`, or else `drop_pages`. Returns false if a page is pinned.
    pub fn discard_chunk(&self) -> bool {
        if let Some(chunk) = &self.chunk {
            let _registering = chunk.registering.lock().unwrap();
            if chunk.marks.load(Acquire) & KERNEL_FILLED != 0 {
                if self.pages.iter().any(|page| page.word.pins() > 0) {
                    return false;
                }
                for page in &self.pages {
                    page.range.fetch_and(UNREGISTERED, Relaxed);
                }
                return true;
            }
        }
        (0..self.pages.len()).all(|page| self.discard(page))
    }

    /// `Pager::pin_unregistered`.
    pub(super) fn pin_unregistered(&self, page: usize) -> bool {
        let Some(chunk) = &self.chunk else { return false };
        let _registering = chunk.registering.lock().unwrap();
        let is_pinned =
            chunk.marks.load(Acquire) & KERNEL_FILLED != 0 && self.pages[page].word.pin_unregistered();
        if is_pinned {
            assert_ne!(self.pages[page].access(), NONE, "registered while the lock is held");
        }
        is_pinned
    }

    /// Checks that no mark and no unregistered page of the chunk is left behind, after it was registered.
    pub fn check_registered(&self) {
        self.register_chunk();
        let Some(chunk) = &self.chunk else { return };
        assert_eq!(chunk.marks.load(Acquire), 0);
        for page in &self.pages {
            assert!(!page.word.is_unregistered());
            assert_eq!(page.range.fetch_add(0, Relaxed) & UNREGISTERED, 0);
        }
    }
}
