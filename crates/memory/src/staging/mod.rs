//! The staging area: where pages are between the region and the store, and where memory waits to be used again.
//!
//! It is a range of frames of 4096 bytes, cut into *trays* of 64. A tray is always in one place:
//!
//! - *empty*: no frame has memory;
//! - with a thread that moves pages out, which fills it and puts it in the queue;
//! - *queued*: pages wait in it, oldest tray first, to be touched again or folded;
//! - *stocked*: nothing waits in it, but frames still have memory, which a fault can fill and move to the region;
//! - with a thread that uses up the stock.
//!
//! Empty and stocked trays are sets of bits that are taken from without a lock, because faults take from the stock
//! inside a signal handler; only those who move pages out use the queue, which has a lock.

mod bits;

use crate::page::Frame;
use bits::Bits;
use pagefold_page::{PAGE_SIZE, PageIndex};
use pagefold_sys::SysError;
use pagefold_sys::mem::Reservation;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Frames of a tray.
pub(crate) const TRAY_FRAMES: usize = 64;
/// Most trays: a frame's number has 16 bits.
const TRAYS_MAX: usize = 1023;
/// Frames wanted that are remembered.
const WANTED_MAX: u32 = 4096;

/// A tray by number. Who has the value has the tray.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tray(u16);

/// What a tray holds.
struct Held {
    /// The page that is or was in each frame.
    pages: [AtomicU64; TRAY_FRAMES],
    /// Frames that have memory.
    backed: AtomicU64,
    /// Frames filled, from the first on.
    filled: AtomicU32,
}

/// The staging area of a region.
pub(crate) struct Staging {
    memory: Reservation,
    held: Box<[Held]>,
    empty: Bits,
    stocked: Bits,
    /// Frames of stocked trays that have memory.
    stock: AtomicU32,
    queue: Mutex<VecDeque<Tray>>,
    queued: AtomicU32,
    /// Frames that faults would have used, had there been any in the stock.
    wanted: AtomicU32,
}

impl Staging {
    /// An area of `trays` trays, at most 1023.
    pub(crate) fn new(trays: usize) -> Result<Self, SysError> {
        let trays = trays.clamp(2, TRAYS_MAX);
        let memory = Reservation::new(trays * TRAY_FRAMES * PAGE_SIZE)?;
        // SAFETY: only the pager touches it, which does nothing in a child (`Pager::mark`) and is not dropped there.
        unsafe { memory.keep_from_children() }?;
        let held = || Held {
            pages: [const { AtomicU64::new(0) }; TRAY_FRAMES],
            backed: AtomicU64::new(0),
            filled: AtomicU32::new(0),
        };
        Ok(Staging {
            memory,
            held: (0..trays).map(|_| held()).collect(),
            empty: Bits::full(trays),
            stocked: Bits::empty(trays),
            stock: AtomicU32::new(0),
            queue: Mutex::new(VecDeque::with_capacity(trays)),
            queued: AtomicU32::new(0),
            wanted: AtomicU32::new(0),
        })
    }

    pub(crate) fn memory(&self) -> &Reservation {
        &self.memory
    }

    pub(crate) fn tray_count(&self) -> usize {
        self.held.len()
    }

    /// Where a frame's bytes are.
    pub(crate) fn address(&self, frame: Frame) -> *mut u8 {
        assert!(usize::from(frame.0) < self.held.len() * TRAY_FRAMES);
        self.memory.base().as_ptr().wrapping_add(usize::from(frame.0) * PAGE_SIZE)
    }

    /// The frame at a place of a tray.
    pub(crate) fn frame(&self, tray: &Tray, at: usize) -> Frame {
        Frame(tray.0 * TRAY_FRAMES as u16 + at as u16)
    }

    fn held(&self, tray: &Tray) -> &Held {
        &self.held[usize::from(tray.0)]
    }

    /// Whether there is a tray that can be filled, at this moment.
    pub(crate) fn has_trays(&self) -> bool {
        !self.empty.is_empty() || !self.stocked.is_empty()
    }

    /// An empty tray, if there is one.
    pub(crate) fn take_empty(&self) -> Option<Tray> {
        self.empty.take().map(Tray)
    }

    /// Gives back a tray whose frames have no memory.
    pub(crate) fn give_empty(&self, tray: Tray) {
        debug_assert_eq!(self.backed(&tray), 0);
        self.empty.give(tray.0);
    }

    /// A page now waits in the next frame of a tray that is being filled.
    pub(crate) fn put(&self, tray: &Tray, page: PageIndex) {
        let held = self.held(tray);
        let at = held.filled.load(Relaxed);
        held.pages[at as usize].store(page.0, Relaxed);
        held.backed.fetch_or(1 << at, Relaxed);
        held.filled.store(at + 1, Release);
    }

    /// Frames of a tray that are filled.
    pub(crate) fn filled(&self, tray: &Tray) -> usize {
        self.held(tray).filled.load(Acquire) as usize
    }

    /// The page that waits, or waited, in a filled frame.
    pub(crate) fn page(&self, tray: &Tray, at: usize) -> PageIndex {
        PageIndex(self.held(tray).pages[at].load(Relaxed))
    }

    /// The frames of a tray that have memory, a bit each.
    pub(crate) fn backed(&self, tray: &Tray) -> u64 {
        self.held(tray).backed.load(Acquire)
    }

    /// Frames of a tray have memory, though nothing waits there. Returns how many had none before.
    pub(crate) fn note_backed(&self, tray: &Tray, frames: Range<usize>) -> u32 {
        let bits = frames.fold(0, |bits, at| bits | 1 << at);
        let before = self.held(tray).backed.fetch_or(bits, AcqRel);
        (bits & !before).count_ones()
    }

    /// A frame's memory was moved to the region.
    pub(crate) fn note_moved(&self, frame: Frame) {
        let held = &self.held[usize::from(frame.0) / TRAY_FRAMES];
        held.backed.fetch_and(!(1 << (usize::from(frame.0) % TRAY_FRAMES)), AcqRel);
    }

    /// A filled tray goes to the end of the queue.
    pub(crate) fn enqueue(&self, tray: Tray) {
        self.queue.lock().push_back(tray);
        self.queued.fetch_add(1, Relaxed);
    }

    /// The tray that has waited longest.
    pub(crate) fn dequeue(&self) -> Option<Tray> {
        let tray = self.queue.lock().pop_front()?;
        self.queued.fetch_sub(1, Relaxed);
        Some(tray)
    }

    /// Trays in the queue.
    pub(crate) fn queued(&self) -> usize {
        self.queued.load(Relaxed) as usize
    }

    /// Nothing waits in the tray any more.
    pub(crate) fn reset(&self, tray: &Tray) {
        self.held(tray).filled.store(0, Relaxed);
    }

    /// Notes that none of a tray's frames has memory.
    pub(crate) fn set_unbacked(&self, tray: &Tray) {
        self.held(tray).backed.store(0, Release);
    }

    /// Puts a tray whose frames have memory in the stock.
    pub(crate) fn give_stock(&self, tray: Tray) {
        self.stock.fetch_add(self.backed(&tray).count_ones(), AcqRel);
        self.stocked.give(tray.0);
    }

    /// A tray of the stock, if there is one.
    pub(crate) fn take_stock(&self) -> Option<Tray> {
        let tray = Tray(self.stocked.take()?);
        self.stock.fetch_sub(self.backed(&tray).count_ones(), AcqRel);
        Some(tray)
    }

    /// Notes that so many frames of the stock would have been of use.
    pub(crate) fn want(&self, frames: u32) {
        if self.wanted.load(Relaxed) < WANTED_MAX {
            self.wanted.fetch_add(frames, Relaxed);
        }
    }

    /// Whether more frames are wanted than were stocked since. `frames` are stocked now if so.
    pub(crate) fn is_wanted(&self, frames: u32) -> bool {
        let take = |wanted: u32| (wanted > 0).then(|| wanted.saturating_sub(frames));
        self.wanted.fetch_update(Relaxed, Relaxed, take).is_ok()
    }

    /// Frames with memory in the stock.
    pub(crate) fn stock(&self) -> u32 {
        self.stock.load(Relaxed)
    }
}

/// The longest run of set bits: where it begins and how long it is.
pub(crate) fn longest_run(bits: u64) -> (usize, usize) {
    let (mut best, mut at) = ((0, 0), 0);
    while at < 64 {
        let rest = bits >> at;
        at += rest.trailing_zeros().min(64 - at as u32) as usize;
        if at >= 64 {
            break;
        }
        let len = (!(bits >> at)).trailing_zeros().min(64 - at as u32) as usize;
        if len > best.1 {
            best = (at, len);
        }
        at += len;
    }
    best
}

#[cfg(test)]
mod tests;
