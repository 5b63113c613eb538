//! The table of slots by page index, allocated in chunks when first written.
//!
//! A chunk of 256 slots is one frame from the pool's frame source. So an empty device of any size uses no memory, and
//! a write that needs a new chunk takes it from the same reserve as its object. The directory has four bytes per
//! chunk, the number of its frame plus one, in memory that is reserved and not touched. Both mean the same to another
//! process that maps the memory.
//!
//! Chunks are published by one compare-and-exchange and are freed only with the store, so looking up a slot takes no
//! lock.

use crate::slot::Slot;
use pagefold_page::{PageCount, PageIndex};
use pagefold_pool::{
    Arena, FRAME_LEN, Frame, FrameSource, Frames, Purpose, PutError, Recovery, SourceError, Take,
};
use pagefold_sys::mem::Reservation;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// Slots per chunk.
const CHUNK_LEN: u64 = (FRAME_LEN / size_of::<Slot>()) as u64;
/// The entry of a chunk that is not allocated.
const NONE: u32 = 0;

/// The table of a store's slots.
///
/// The memory of the chunks belongs to the arena, which must outlive the table.
pub(crate) struct SlotTable {
    directory: Reservation,
    /// The same in memory that outlives the process. It is only written: reading what was never written would take memory
    /// there.
    kept: Option<Reservation>,
    chunk_count: usize,
    page_count: PageCount,
    /// The arena's first frame.
    frames: *mut u8,
}

// SAFETY: the address of the frames never changes; chunks are shared as slots, which are atomics.
unsafe impl Send for SlotTable {}
// SAFETY: as above.
unsafe impl Sync for SlotTable {}

impl SlotTable {
    /// Creates a table of empty slots, in frames of `arena`.
    pub(crate) fn new(page_count: PageCount, arena: &Arena) -> Result<Self, SourceError> {
        Self::over(page_count, arena, None)
    }

    /// Bytes of the directory of a table.
    pub(crate) fn directory_bytes(page_count: PageCount) -> usize {
        page_count.0.div_ceil(CHUNK_LEN) as usize * size_of::<AtomicU32>()
    }

    /// A table whose directory is also in `kept`, of [`SlotTable::directory_bytes`], in memory that outlives the process. It
    /// contains zeroes, or is that of another process. Then [`SlotTable::claim`] comes before any other use.
    pub(crate) fn over(
        page_count: PageCount,
        arena: &Arena,
        kept: Option<Reservation>,
    ) -> Result<Self, SourceError> {
        let len_bytes = Self::directory_bytes(page_count);
        assert!(kept.as_ref().is_none_or(|kept| kept.len_bytes() >= len_bytes));
        let directory = Reservation::new(len_bytes)?;
        let chunk_count = page_count.0.div_ceil(CHUNK_LEN) as usize;
        Ok(SlotTable { directory, kept, chunk_count, page_count, frames: arena.first_frame() })
    }

    /// Claims the frames of all chunks that another process has allocated, whose entries lie in `used`, parts of the kept
    /// directory in bytes. False if they cannot be frames of a table.
    pub(crate) fn claim(&self, used: impl Iterator<Item = Range<usize>>, recovery: &mut Recovery) -> bool {
        let Some(kept) = &self.kept else { return true };
        let kept = self.entries(kept);
        let mut claimed = |index: usize| match kept[index].load(Ordering::Relaxed) {
            NONE => true,
            entry => {
                self.chunks()[index].store(entry, Ordering::Release);
                recovery.claim_slots(entry - 1).is_some()
            }
        };
        let index = |at: usize| (at / size_of::<AtomicU32>()).min(self.chunk_count);
        used.map(|used| index(used.start)..index(used.end)).all(|mut used| used.all(&mut claimed))
    }

    /// The slot that lies so many bytes behind the first frame, if a slot lies there. Searches all chunks.
    pub(crate) fn slot_at(&self, offset: u64) -> Option<&Slot> {
        let entry = (offset / FRAME_LEN as u64 + 1) as u32;
        let chunk = self.chunks().iter().position(|chunk| chunk.load(Ordering::Relaxed) == entry)? as u64;
        let within = offset % FRAME_LEN as u64;
        let index = chunk * CHUNK_LEN + within / size_of::<Slot>() as u64;
        let is_slot = within.is_multiple_of(size_of::<Slot>() as u64) && index < self.page_count.0;
        if is_slot { self.get(PageIndex(index)) } else { None }
    }

    /// The directory: the number of a frame plus one for each chunk, [`NONE`] for one that is not allocated.
    #[inline]
    fn chunks(&self) -> &[AtomicU32] {
        self.entries(&self.directory)
    }

    /// The entries in one of the two directories.
    #[inline]
    fn entries(&self, directory: &Reservation) -> &[AtomicU32] {
        // SAFETY: both reservations have room for `chunk_count` numbers, are page-aligned, live as long as `self`,
        // and are only accessed through this function.
        unsafe { std::slice::from_raw_parts(directory.base().as_ptr().cast(), self.chunk_count) }
    }

    pub(crate) fn page_count(&self) -> PageCount {
        self.page_count
    }

    /// Returns the slot of a page below `page_count`, or `None` if its chunk is not allocated.
    #[inline]
    pub(crate) fn get(&self, index: PageIndex) -> Option<&Slot> {
        let entry = self.chunks()[(index.0 / CHUNK_LEN) as usize].load(Ordering::Acquire);
        let offset = (entry.checked_sub(1)? as usize) * FRAME_LEN;
        // SAFETY: an entry was published by `ensure` for a frame of the arena with CHUNK_LEN initialised slots
        // that live as long as the arena, hence as long as this table; or `claim` has found it in the arena, and bytes of
        // any value are slots.
        let chunk = unsafe { self.frames.add(offset) }.cast::<Slot>();
        // SAFETY: the index is below CHUNK_LEN, and all accesses to slots are atomic.
        Some(unsafe { &*chunk.add((index.0 % CHUNK_LEN) as usize) })
    }

    /// Returns the slot of a page. Allocates its chunk, if necessary, from `backed` or else from `source`.
    pub(crate) fn ensure(
        &self,
        index: PageIndex,
        source: &dyn FrameSource,
        backed: &mut Frames,
    ) -> Result<&Slot, PutError> {
        if let Some(slot) = self.get(index) {
            return Ok(slot);
        }
        let not_ready = PutError::NotReady { frames: 1 };
        let taken = match backed.pop() {
            Some(frame) => Some(frame),
            None => match source.try_take(Purpose::Slots, 1) {
                Take::Frames(mut frames) => frames.pop(),
                Take::NotReady => None,
                Take::Failed(source) => return Err(PutError::NoMemory { frames: 1, source }),
            },
        };
        let frame = taken.ok_or(not_ready.clone())?;
        Self::empty_chunk(&frame, source);
        let at = (index.0 / CHUNK_LEN) as usize;
        let fresh = frame.id().number() + 1;
        // Where the process dies, the chunk must be known before a slot in it is used.
        let decisive = &self.entries(self.kept.as_ref().unwrap_or(&self.directory))[at];
        // Release publishes the zeroes; acquire synchronises with the thread that published another chunk first.
        let entry = match decisive.compare_exchange(NONE, fresh, Ordering::AcqRel, Ordering::Acquire) {
            // The table owns the frame from now on.
            Ok(_) => {
                source.arena().take_id(frame);
                fresh
            }
            Err(other) => {
                source.release(frame, Purpose::Slots);
                other
            }
        };
        self.chunks()[at].store(entry, Ordering::Release);
        // The counterpart is in `Saving::begin`, which looks for chunks after it has said that changes are to be noted.
        fence(Ordering::SeqCst);
        self.get(index).ok_or(not_ready)
    }

    /// Makes a frame a chunk of empty slots.
    fn empty_chunk(frame: &Frame, source: &dyn FrameSource) {
        let bytes = source.arena().frame_ptr(frame.id());
        // SAFETY: the frame is ours, FRAME_LEN bytes long, and not published yet, so no other thread accesses it. All
        // bits zero is an empty slot (`slot`), and a frame is aligned to more than a slot needs.
        unsafe { std::ptr::write_bytes(bytes, 0, FRAME_LEN) };
    }

    /// Returns the first page at or after `index` whose chunk is allocated. If that is not before `end`, returns some page
    /// that is not before `end`, or `page_count`: a short request must not search a table of many chunks to its end.
    pub(crate) fn next_allocated(&self, index: PageIndex, end: u64) -> PageIndex {
        let end = end.min(self.page_count.0);
        if index.0 >= end || self.get(index).is_some() {
            return index;
        }
        let chunks = (index.0 / CHUNK_LEN) as usize + 1..end.div_ceil(CHUNK_LEN) as usize;
        let first = chunks.start;
        let empty = self.chunks()[chunks].iter().take_while(|c| c.load(Ordering::Acquire) == NONE).count();
        PageIndex(((first + empty) as u64 * CHUNK_LEN).min(self.page_count.0))
    }

    /// Touches the directory, so that no later write has to wait for the kernel to back it.
    pub(crate) fn touch(&self) {
        // Refused only without memory, and then the first write may wait.
        self.kept.iter().for_each(|kept| _ = kept.populate(0, kept.len_bytes()));
        for entry in self.chunks() {
            // Writes the value that is there already: this makes the kernel back the page and does not disturb
            // concurrent writers.
            let _ = entry.compare_exchange(NONE, NONE, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_ends_at_the_end_of_the_request() {
        let pages = 100 * CHUNK_LEN + 7;
        let arena = Arena::new(1 << 20).unwrap();
        let table = SlotTable::new(PageCount(pages), &arena).unwrap();
        let next = |index, end| table.next_allocated(PageIndex(index), end).0;
        // Without a chunk, the search passes only those that begin before the end.
        assert_eq!(next(0, 1), CHUNK_LEN);
        assert_eq!(next(0, CHUNK_LEN), CHUNK_LEN);
        assert_eq!(next(5, CHUNK_LEN + 1), 2 * CHUNK_LEN);
        assert_eq!(next(9, 9), 9);
        assert_eq!(next(0, u64::MAX), pages);
        assert_eq!(next(pages - 1, pages), pages);
        assert_eq!(next(pages, u64::MAX), pages);
    }
}
