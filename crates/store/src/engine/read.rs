//! Reading one page, from memory or from the backing.
//!
//! [`Store::read_page`] locks the slot. A page in memory is copied out under the slot's lock
//! ([`Store::copy_from_slot`]) and decompressed after unlocking. A page on the backing takes five steps
//! ([`Store::read_back`]):
//!
//! - its place is pinned under the slot's lock, so that it is not overwritten;
//! - `writeback::fetch` reads and verifies its bytes with no lock held;
//! - they are decompressed;
//! - the slot is checked again ([`Store::finish_read`]): if the page was rewritten in the meantime, the read is
//!   repeated, and a failure counts only if the slot still points to the place that was read;
//! - a page that was read twice within the promotion window goes back to memory.
//!
//! All of this runs in the thread of the caller. `load` takes the same steps in a signal handler, with its own
//! working memory.

use crate::engine::store::Store;
use crate::error::StoreError;
use crate::slot::{AccessTime, Content, Generation, Slot, SlotGuard};
use crate::writeback::{FetchError, LayoutKind, PageVersion, Reader, Writeback, add};
use pagefold_codec::fill;
use pagefold_page::{PAGE_SIZE, Page, PageIndex};
use pagefold_pool::{Frames, Handle};
use std::mem::MaybeUninit;

/// The contents copied out of a slot.
pub(crate) enum SlotCopy<'a> {
    /// The page is empty and reads as zeroes.
    Empty,
    /// The page repeats this word.
    SameFilled(u64),
    /// The page itself, copied to the caller's page.
    Raw,
    /// Compressed bytes, and the priority of their codec.
    Folded(&'a [u8], u8),
    /// The contents are lost.
    Lost,
}

impl Store {
    /// Reads a slot's page and returns the generation that was read.
    pub(crate) fn read_page(
        &self,
        reader: &mut Reader,
        index: PageIndex,
        slot: &Slot,
        page: &mut Page,
    ) -> Result<Generation, StoreError> {
        loop {
            let guard = slot.lock();
            let generation = guard.generation();
            match (guard.content(), &self.writeback) {
                (Content::WrittenBack(written_back), Some(writeback)) => {
                    let version = PageVersion { index, generation, written_back };
                    if self.read_back(writeback, reader, version, slot, guard, page)? {
                        return Ok(generation);
                    }
                }
                (Content::Empty, _) if self.is_restoring() => {
                    drop(guard);
                    if self.fetch_page(reader.cpu, index, page)? {
                        return Ok(generation);
                    }
                }
                _ => {
                    self.read_in_memory(reader.cpu, index, guard, page)?;
                    return Ok(generation);
                }
            }
        }
    }

    /// Reads a page that is in memory.
    fn read_in_memory(
        &self,
        cpu: usize,
        index: PageIndex,
        guard: SlotGuard,
        page: &mut Page,
    ) -> Result<(), StoreError> {
        let mut compressed = [MaybeUninit::uninit(); PAGE_SIZE];
        match self.copy_from_slot(guard, &mut compressed, page) {
            SlotCopy::Empty => page.fill(0),
            SlotCopy::SameFilled(fill_word) => fill(page, fill_word),
            SlotCopy::Raw => {}
            SlotCopy::Lost => return Err(StoreError::Lost { index }),
            SlotCopy::Folded(bytes, priority) => {
                self.pages
                    .expand(cpu, priority, bytes, page)
                    .map_err(|source| StoreError::Corrupt { index, source })?;
            }
        }
        Ok(())
    }

    /// Copies the contents of a slot in memory, and unlocks it: decompression follows without the lock.
    pub(crate) fn copy_from_slot<'a>(
        &self,
        mut guard: SlotGuard,
        compressed: &'a mut [MaybeUninit<u8>; PAGE_SIZE],
        page: &mut Page,
    ) -> SlotCopy<'a> {
        if self.access_times {
            guard.touch(self.pages.clock.now());
        }
        match guard.content() {
            // A store without a backing has no written-back pages.
            Content::Empty | Content::WrittenBack(_) => SlotCopy::Empty,
            Content::SameFilled(fill_word) => SlotCopy::SameFilled(fill_word),
            Content::Lost => SlotCopy::Lost,
            Content::Raw { handle } => {
                // SAFETY: the slot is locked and contains the handle, so no thread frees the object, and `relocate`
                // refuses to move it. A raw object has PAGE_SIZE bytes.
                unsafe { self.pages.pool.copy_over(Handle::from_bits(handle), page) };
                SlotCopy::Raw
            }
            Content::Folded { handle, len_bytes, priority } => {
                let compressed = &mut compressed[..usize::from(len_bytes)];
                // SAFETY: as for raw pages; the slot's length is that of the object.
                let bytes = unsafe { self.pages.pool.copy_out(Handle::from_bits(handle), compressed) };
                SlotCopy::Folded(bytes, priority)
            }
        }
    }

    /// Reads a page that was written back when `guard` was taken. Returns false if the page was changed in the
    /// meantime: the caller retries.
    fn read_back(
        &self,
        writeback: &Writeback,
        reader: &mut Reader,
        version: PageVersion,
        slot: &Slot,
        mut guard: SlotGuard,
        page: &mut Page,
    ) -> Result<bool, StoreError> {
        let now = self.pages.clock.now();
        let promotes = guard.touch(now).is_some_and(|last| self.should_promote(writeback, last, now));
        // Under the slot's lock: while the slot points to the place, the place is in use.
        writeback.layout.pin(version.written_back);
        drop(guard);
        let cpu = reader.cpu;
        let expanded = writeback.fetch(version, reader, |bytes| {
            let priority = version.written_back.priority;
            self.pages.expand(cpu, priority, bytes, page).map_err(|_| FetchError::Corrupt)?;
            Ok(if promotes { self.make_object(writeback, cpu, version, bytes, page) } else { None })
        });
        let expanded = expanded.and_then(|decoded| decoded);
        self.finish_read(writeback, &mut reader.unverified, version, slot, expanded).map_err(|error| {
            let (index, offset) = (version.index, writeback.layout.offset(version.written_back));
            let error = match error {
                FetchError::Io(source) => StoreError::ReadBack { index, offset, source },
                FetchError::Corrupt => StoreError::CorruptRecord { index, offset },
            };
            writeback.report_failure(&error);
            error
        })
    }

    /// Whether a page is promoted: it was read twice within the window, and memory is below the high mark.
    fn should_promote(&self, writeback: &Writeback, last: AccessTime, now: AccessTime) -> bool {
        let settings = writeback.settings();
        let is_soon = last.age_s(now) <= u64::from(settings.promote_window_s.load());
        let (high, _) = writeback.policy().marks_percent();
        let mark = u128::from(self.mem_limit_bytes()) * u128::from(high) / 100;
        settings.promote.load() && is_soon && u128::from(self.in_use_bytes()) < mark
    }

    /// Makes an object, in no slot yet, from a page that was read back. Returns `None` without waiting if no memory
    /// is ready.
    fn make_object(
        &self,
        writeback: &Writeback,
        cpu: usize,
        version: PageVersion,
        bytes: &[u8],
        page: &Page,
    ) -> Option<Content> {
        match writeback.layout() {
            LayoutKind::Log => self.pages.try_store_record(version.index, version.written_back, bytes),
            LayoutKind::Blocks => {
                self.pages.try_store(cpu, version.index, page, &mut Frames::none()).ok()?.ok()
            }
        }
    }

    /// Ends a read of a pinned place: checks the slot again, promotes the page to the object in `expanded`, if any,
    /// and unpins the place. Returns false if the read must be repeated.
    pub(crate) fn finish_read(
        &self,
        writeback: &Writeback,
        unverified: &mut Option<PageVersion>,
        version: PageVersion,
        slot: &Slot,
        expanded: Result<Option<Content>, FetchError>,
    ) -> Result<bool, FetchError> {
        if matches!(expanded, Err(FetchError::Corrupt)) && unverified.replace(version) != Some(version) {
            writeback.layout.unpin(version.written_back);
            add(&writeback.counters.read_repeats, 1);
            return Ok(false);
        }
        let outcome = self.revalidate(writeback, version, slot, expanded);
        writeback.layout.unpin(version.written_back);
        outcome
    }

    fn revalidate(
        &self,
        writeback: &Writeback,
        version: PageVersion,
        slot: &Slot,
        expanded: Result<Option<Content>, FetchError>,
    ) -> Result<bool, FetchError> {
        let guard = slot.lock();
        let is_same = guard.generation() == version.generation;
        let is_there = is_same && guard.content() == Content::WrittenBack(version.written_back);
        match expanded {
            Ok(object) => {
                match object {
                    Some(object) => writeback.promote(&self.pages, version.written_back, guard, object),
                    None => drop(guard),
                }
                if is_same {
                    add(&writeback.counters.page_reads, 1);
                    return Ok(true);
                }
            }
            Err(error) if is_there => {
                match &error {
                    FetchError::Io(_) => add(&writeback.counters.unreadable_pages, 1),
                    FetchError::Corrupt => add(&writeback.counters.corrupt_pages, 1),
                }
                return Err(error);
            }
            Err(_) => {}
        }
        add(&writeback.counters.read_repeats, 1);
        Ok(false)
    }
}
