//! Recompression of one page.
//!
//! The page's object is copied out under the slot's lock. It is decompressed, compressed by the new codec and put into
//! the pool with no lock held. Then the slot's lock is taken again, and the slot takes the new object if it still
//! contains the page that was copied and nobody accessed it in the meantime. Until then the slot has the old object, so
//! a failure at any step changes nothing.

use crate::pages::{OwnStreams, Pages, RAW_LEN_MIN};
use crate::slot::{AccessTime, Content, Generation, Slot, SlotGuard};
use pagefold_codec::{CodecError, PerCpuStream};
use pagefold_page::{PAGE_SIZE, Page, PageIndex};
use pagefold_pool::{Handle, is_smaller_class};
use pagefold_sys::cpu;
use std::mem::MaybeUninit;

/// The codec to use, and the length that its results must stay below.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    /// Its priority.
    pub(super) priority: u8,
    /// Results of this length and more are not kept, bytes.
    pub(super) len_limit_bytes: usize,
    /// Frames of objects up to which the pass may take more, beyond the limit too.
    pub(super) frames_max: u64,
}

/// The result for one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PageResult {
    /// It has a smaller object.
    Smaller {
        /// Length of the old object, bytes.
        old_len_bytes: usize,
        /// Length of the new one, bytes.
        new_len_bytes: usize,
    },
    /// It would not become smaller, or not as small as the request wants.
    NotSmaller,
    /// It was changed, moved or accessed in the meantime, or was no longer one to try.
    Changed,
    /// There was no memory for the new object beside the old one.
    NoMemory,
    /// It does not decompress, or the codec failed.
    Failed,
}

/// The working memory of one worker.
pub(super) struct Worker {
    decoders: OwnStreams,
    encoder: PerCpuStream,
    compressed: Box<[MaybeUninit<u8>; PAGE_SIZE]>,
    page: Box<Page>,
}

/// The state of a page when its object was copied out.
struct SeenPage {
    generation: Generation,
    last_access: AccessTime,
    was_idle: bool,
    object: Option<PageCopy>,
}

impl SeenPage {
    fn of(guard: &SlotGuard) -> Self {
        SeenPage {
            generation: guard.generation(),
            last_access: guard.last_access(),
            was_idle: guard.is_idle(),
            object: PageCopy::of(guard.content()),
        }
    }

    /// Whether the page was neither changed nor accessed, and has an object of the same codec. Access times have ticks
    /// of a quarter of a second: an access within the tick of the previous one shows only by the idle mark.
    fn is_unchanged(&self, guard: &SlotGuard) -> bool {
        guard.generation() == self.generation
            && guard.last_access() == self.last_access
            && guard.is_idle() == self.was_idle
            && PageCopy::of(guard.content()) == self.object
    }

    /// Leaves the object as it is, with its idle mark cleared. Records that the codec of priority `tried` does not make
    /// it smaller, if there is one. Does nothing if the page is another one now.
    fn keep_object(&self, slot: &Slot, tried: Option<u8>) -> PageResult {
        let mut guard = slot.lock();
        if !self.is_unchanged(&guard) {
            return PageResult::Changed;
        }
        guard.set_idle(false);
        if let Some(priority) = tried {
            guard.set_tried(priority);
        }
        PageResult::NotSmaller
    }
}

/// An object that was copied out of a slot: its length, 4096 if raw, and the priority of its codec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PageCopy {
    len_bytes: usize,
    priority: u8,
}

impl PageCopy {
    /// The object of `content`; `None` if the page is not one in memory.
    fn of(content: Content) -> Option<Self> {
        match content {
            Content::Folded { len_bytes, priority, .. } => {
                Some(PageCopy { len_bytes: usize::from(len_bytes), priority })
            }
            Content::Raw { .. } => Some(PageCopy { len_bytes: PAGE_SIZE, priority: 0 }),
            Content::Empty | Content::SameFilled(_) | Content::WrittenBack(_) | Content::Lost => None,
        }
    }
}

impl Worker {
    /// Allocates the working memory for a pass with the codec of `priority`; `None` if the store has no such codec.
    pub(super) fn new(pages: &Pages, priority: u8) -> Result<Option<Self>, CodecError> {
        let Some(target) = pages.codecs.get(priority) else { return Ok(None) };
        Ok(Some(Worker {
            decoders: pages.codecs.own_streams()?,
            encoder: PerCpuStream::new(&target.codec)?,
            compressed: Box::new([MaybeUninit::uninit(); PAGE_SIZE]),
            page: Box::new([0; PAGE_SIZE]),
        }))
    }

    /// Recompresses one page.
    pub(super) fn recompress(
        &mut self,
        pages: &Pages,
        index: PageIndex,
        slot: &Slot,
        to: Target,
    ) -> PageResult {
        let Worker { decoders, encoder, compressed, page } = self;
        let guard = slot.lock();
        let before = SeenPage::of(&guard);
        let Some((bytes, copied)) = copy_out(pages, guard, to.priority, &mut compressed[..]) else {
            return PageResult::Changed;
        };
        let decompress = |bytes: &[u8], page: &mut Page| decoders.decompress(copied.priority, bytes, page);
        if pages.expand_with(decompress, bytes, page).is_err() {
            return PageResult::Failed;
        }
        let Ok(len) = encoder.stream.compress(&page[..], &mut encoder.buf[..]) else {
            return PageResult::Failed;
        };
        let is_smaller = len < RAW_LEN_MIN && is_smaller_class(len, copied.len_bytes);
        if !is_smaller || len >= to.len_limit_bytes {
            // A result above the threshold may be kept by a later request.
            let tried = (!is_smaller).then_some(to.priority);
            return before.keep_object(slot, tried);
        }
        let Some(handle) = pages.put_replacement(index, &encoder.buf[..len], to.frames_max) else {
            return PageResult::NoMemory;
        };
        let new = Content::Folded { handle: handle.to_bits(), len_bytes: len as u16, priority: to.priority };
        let old = {
            // Unlocked before an object is freed, which takes the lock of its class.
            let guard = slot.lock();
            if before.is_unchanged(&guard) {
                guard.recompress(before.generation, new, &pages.intents)
            } else {
                None
            }
        };
        match old {
            Some(old) => {
                pages.account(cpu::current(), old, new);
                pages.free(old);
                PageResult::Smaller { old_len_bytes: copied.len_bytes, new_len_bytes: len }
            }
            None => {
                pages.free(new);
                PageResult::Changed
            }
        }
    }
}

/// Copies the object of a locked slot to the beginning of `dst`, and unlocks the slot. Returns the bytes and what they
/// are, or `None` if the page is not one to try with the codec of `priority`.
fn copy_out<'a>(
    pages: &Pages,
    guard: SlotGuard,
    priority: u8,
    dst: &'a mut [MaybeUninit<u8>],
) -> Option<(&'a [u8], PageCopy)> {
    let content = guard.content();
    let copied = PageCopy::of(content)?;
    let (Content::Folded { handle, .. } | Content::Raw { handle }) = content else { return None };
    let is_open = copied.priority < priority && !guard.is_tried(priority) && !guard.is_under_writeback();
    if !is_open {
        return None;
    }
    // SAFETY: the slot is locked and contains the handle, so no thread frees the object, and `relocate` refuses to
    // move it. The object has `len_bytes` bytes: the slot's length, or a page if it is raw.
    let bytes = unsafe { pages.pool.copy_out(Handle::from_bits(handle), &mut dst[..copied.len_bytes]) };
    drop(guard);
    Some((bytes, copied))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot::Intents;

    #[test]
    fn an_access_and_a_change_both_void_a_candidate() {
        let (now, later) = (AccessTime::from_ticks(7), AccessTime::from_ticks(8));
        let slot = Slot::new();
        slot.lock().publish(Content::Folded { handle: 7, len_bytes: 100, priority: 0 }, &Intents::NONE);
        slot.lock().touch(now);
        let before = SeenPage::of(&slot.lock());
        assert!(before.is_unchanged(&slot.lock()));
        slot.lock().touch(later);
        assert!(!before.is_unchanged(&slot.lock()));
        // In the same tick an access shows by the idle mark, which it clears.
        slot.lock().set_idle(true);
        let before = SeenPage::of(&slot.lock());
        slot.lock().touch(later);
        assert!(!before.is_unchanged(&slot.lock()));
        let before = SeenPage::of(&slot.lock());
        slot.lock().publish(Content::Folded { handle: 7, len_bytes: 100, priority: 0 }, &Intents::NONE);
        assert!(!before.is_unchanged(&slot.lock()));
    }
    #[test]
    fn a_result_that_is_not_kept_says_nothing_about_a_page_that_changed() {
        let slot = Slot::new();
        slot.lock().publish(Content::Folded { handle: 7, len_bytes: 100, priority: 0 }, &Intents::NONE);
        let before = SeenPage::of(&slot.lock());
        slot.lock().publish(Content::Folded { handle: 8, len_bytes: 200, priority: 0 }, &Intents::NONE);
        assert_eq!(before.keep_object(&slot, Some(1)), PageResult::Changed);
        assert!(!slot.lock().is_tried(1));
        let before = SeenPage::of(&slot.lock());
        assert_eq!(before.keep_object(&slot, None), PageResult::NotSmaller);
        assert!(!slot.lock().is_tried(1));
        assert_eq!(before.keep_object(&slot, Some(1)), PageResult::NotSmaller);
        assert!(slot.lock().is_tried(1));
    }
}
