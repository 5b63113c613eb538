//! Reads and writes of any byte range, cut into pages.
//!
//! Each page is read and replaced atomically; a range of several pages is not. A write to a part of a page reads the
//! page, changes the part, and publishes the result only if the slot's generation is unchanged; otherwise it starts
//! again, so no concurrent write is lost.

use crate::engine::store::Store;
use crate::error::StoreError;
use crate::pages::Counter;
use crate::slot::{Content, Slot};
use crate::writeback::Reader;
use pagefold_codec::fill;
use pagefold_page::{PAGE_SIZE, Page, PageIndex, Span, spans};
use pagefold_sys::cpu;

/// Memory that a write may take beyond its bytes, bytes: frames that objects share with others, and a part of the slot
/// table.
const WRITE_OVERHEAD_BYTES: u64 = 64 << 10;
/// The most slots that one call of [`Store::extent`] examines.
const EXTENT_PAGES_MAX: usize = 1 << 16;

impl Store {
    /// Fills `buf` from byte `offset`. Pages that were never written read as zeroes.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        self.check_range(offset, buf.len() as u64)?;
        let mut reader = Reader::default();
        let result = self.read_spans(offset, buf, &mut reader);
        if let Some(writeback) = &self.writeback {
            writeback.end_reader(reader);
        }
        result
    }

    fn read_spans(&self, offset: u64, buf: &mut [u8], reader: &mut Reader) -> Result<(), StoreError> {
        for span in spans(offset, buf.len()) {
            reader.pages_ahead = (buf.len() - span.at - span.len) / PAGE_SIZE;
            self.read_span(&span, reader, &mut buf[span.at..span.at + span.len])
                .inspect_err(|_| self.pages.counters.add(cpu::current(), Counter::FailedReads, 1))?;
        }
        Ok(())
    }

    /// Returns whether the range has a page that is written back, or still in a saved disk, so that a read waits for the
    /// medium.
    ///
    /// Takes no lock: the pages may change at once. It examines each page of the range.
    pub fn waits_for_medium(&self, offset: u64, len_bytes: u64) -> bool {
        let is_restoring = self.is_restoring();
        let is_in_memory = self.writeback.is_none() && !is_restoring;
        if is_in_memory || len_bytes == 0 || self.check_range(offset, len_bytes).is_err() {
            return false;
        }
        let pages = PageIndex::containing(offset).0..=PageIndex::containing(offset + len_bytes - 1).0;
        let is_elsewhere = |slot: &Slot| {
            let seen = slot.snapshot();
            seen.is_written_back() || is_restoring && seen.is_empty()
        };
        pages
            .into_iter()
            .any(|index| self.pages.table.get(PageIndex(index)).map_or(is_restoring, is_elsewhere))
    }

    /// Returns whether a write of so many bytes would wait for writeback to free memory: it may need more than there is
    /// below the limit, and there is a writeback thread.
    ///
    /// Takes no lock: the memory in use may change at once. The answer assumes that the pages do not compress.
    pub fn waits_for_room(&self, len_bytes: u64) -> bool {
        let Some(writeback) = &self.writeback else { return false };
        let arena = self.pages.pool.source().arena();
        let needed_bytes = len_bytes.saturating_add(WRITE_OVERHEAD_BYTES);
        arena.in_use_bytes().saturating_add(needed_bytes) > arena.limit_bytes()
            && writeback.policy().throttle().is_running()
    }

    /// Stores `data` at byte `offset`.
    ///
    /// On an error the page that it names and the pages after it keep their old contents.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), StoreError> {
        self.check_range(offset, data.len() as u64)?;
        for span in spans(offset, data.len()) {
            let part = &data[span.at..span.at + span.len];
            match part.try_into() {
                Ok(page) => self.write_page(span.index, page),
                Err(_) => self.modify(&span, |bytes| bytes.copy_from_slice(part)),
            }
            .inspect_err(|_| self.pages.counters.add(cpu::current(), Counter::FailedWrites, 1))?;
        }
        Ok(())
    }

    /// Stores a page that repeats `fill_word` (in memory order), without reading the page's bytes.
    ///
    /// The slot's contents and the counters are those that [`Store::write`] of the whole page would produce.
    pub fn write_same_filled(&self, index: PageIndex, fill_word: u64) -> Result<(), StoreError> {
        let offset = index.0.saturating_mul(PAGE_SIZE as u64);
        if !self.same_filled_enabled() {
            let mut page = [0; PAGE_SIZE];
            fill(&mut page, fill_word);
            return self.write(offset, &page);
        }
        self.check_range(offset, PAGE_SIZE as u64)?;
        let cpu = cpu::current();
        let slot =
            self.slot(index).inspect_err(|_| self.pages.counters.add(cpu, Counter::FailedWrites, 1))?;
        self.publish(cpu, index, slot, Content::SameFilled(fill_word));
        Ok(())
    }

    /// Empties the whole pages in the range; parts of pages at its ends stay as they are. Fails only during a restore, if there
    /// is no memory for slots.
    pub fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), StoreError> {
        self.check_range(offset, len_bytes)?;
        let first = offset.div_ceil(PAGE_SIZE as u64);
        // A partial last page of the store counts as whole if the range reaches the end of the store.
        let end = match offset + len_bytes == self.len_bytes {
            true => self.pages.table.page_count().0,
            false => (offset + len_bytes) / PAGE_SIZE as u64,
        };
        self.clear(first, end)
    }

    /// Makes the range read as zeroes: empties whole pages and overwrites parts of pages.
    pub fn write_zeroes(&self, offset: u64, len_bytes: u64) -> Result<(), StoreError> {
        self.discard(offset, len_bytes)?;
        let end = offset + len_bytes;
        let page = PAGE_SIZE as u64;
        let head_end = offset.next_multiple_of(page).min(end);
        let tail_start = (end / page * page).max(head_end);
        let tail_end = if end == self.len_bytes { tail_start } else { end };
        for (from, to) in [(offset, head_end), (tail_start, tail_end)] {
            for span in spans(from, (to - from) as usize) {
                self.zero_part(&span)
                    .inspect_err(|_| self.pages.counters.add(cpu::current(), Counter::FailedWrites, 1))?;
            }
        }
        Ok(())
    }

    /// Returns how many bytes from `offset` on, at most `len_bytes`, are all empty (true) or all stored (false).
    ///
    /// A hint for programs that copy a store: the pages may change at once. It examines at most 65 536 existing
    /// slots, so the result may be shorter than the actual run. For `len_bytes` 0 it returns 0 empty bytes.
    pub fn extent(&self, offset: u64, len_bytes: u64) -> Result<(u64, bool), StoreError> {
        self.check_range(offset, len_bytes)?;
        if len_bytes == 0 {
            return Ok((0, true));
        }
        if self.is_restoring() {
            // An empty slot does not say that the page reads as zeroes.
            return Ok((len_bytes, false));
        }
        let first = PageIndex::containing(offset);
        let is_empty = |index| self.pages.table.get(index).is_none_or(|slot| slot.is_empty());
        let empty = is_empty(first);
        let end = (offset + len_bytes).div_ceil(PAGE_SIZE as u64);
        let mut index = first;
        for _ in 0..EXTENT_PAGES_MAX {
            index = PageIndex(index.0 + 1);
            if empty {
                index = self.pages.table.next_allocated(index, end);
            }
            if index.0 >= end || is_empty(index) != empty {
                break;
            }
        }
        let run = index.0.saturating_mul(PAGE_SIZE as u64).saturating_sub(offset);
        Ok((run.min(len_bytes), empty))
    }

    #[inline]
    fn check_range(&self, offset: u64, len_bytes: u64) -> Result<(), StoreError> {
        self.pages.pool.source().arena().mark_used();
        match offset.checked_add(len_bytes) {
            Some(end) if end <= self.len_bytes => Ok(()),
            _ => {
                self.pages.counters.add(cpu::current(), Counter::InvalidIo, 1);
                Err(StoreError::OutOfRange { offset, len_bytes, store_len_bytes: self.len_bytes })
            }
        }
    }

    fn read_span(&self, span: &Span, reader: &mut Reader, out: &mut [u8]) -> Result<(), StoreError> {
        reader.cpu = cpu::current();
        let slot = loop {
            match self.pages.table.get(span.index).filter(|slot| !slot.is_empty()) {
                Some(slot) => break slot,
                None if self.is_restoring() => {
                    if self.read_unfetched(span, reader.cpu, out)? {
                        return Ok(());
                    }
                }
                // The restore may have ended since the slot was looked at, with the page in it.
                None if self.has_contents(span.index) => {}
                None => {
                    out.fill(0);
                    return Ok(());
                }
            }
        };
        if let Ok(page) = <&mut Page>::try_from(&mut *out) {
            self.read_page(reader, span.index, slot, page)?;
            return Ok(());
        }
        let mut page = [0; PAGE_SIZE];
        self.read_page(reader, span.index, slot, &mut page)?;
        out.copy_from_slice(&page[span.start..span.start + span.len]);
        Ok(())
    }

    fn has_contents(&self, index: PageIndex) -> bool {
        self.pages.table.get(index).is_some_and(|slot| !slot.is_empty())
    }

    /// Reads a page that is still in a saved disk. Returns false if the restore has ended meanwhile.
    #[cold]
    fn read_unfetched(&self, span: &Span, cpu: usize, out: &mut [u8]) -> Result<bool, StoreError> {
        let mut page = [0; PAGE_SIZE];
        let is_read = self.fetch_page(cpu, span.index, &mut page)?;
        out.copy_from_slice(&page[span.start..span.start + span.len]);
        Ok(is_read)
    }

    fn write_page(&self, index: PageIndex, page: &Page) -> Result<(), StoreError> {
        let cpu = cpu::current();
        let slot = self.slot(index)?;
        match self.fold(cpu, index, page) {
            Ok(new) => self.publish(cpu, index, slot, new),
            Err(refused) => drop(self.store_without_frames(cpu, index, slot, page, None, refused)?),
        }
        Ok(())
    }

    /// Changes a part of a page, atomically with respect to concurrent writes.
    fn modify(&self, span: &Span, change: impl Fn(&mut [u8])) -> Result<(), StoreError> {
        let cpu = cpu::current();
        let slot = self.slot(span.index)?;
        let mut page = [0; PAGE_SIZE];
        loop {
            let mut reader = Reader::default();
            reader.cpu = cpu;
            let seen = self.read_page(&mut reader, span.index, slot, &mut page);
            if let Some(writeback) = &self.writeback {
                writeback.end_reader(reader);
            }
            let seen = seen?;
            change(&mut page[span.start..span.start + span.len]);
            let is_stored = match self.fold(cpu, span.index, &page) {
                Ok(new) => self.publish_if_unchanged(cpu, span.index, slot, Some(seen), new),
                Err(refused) => {
                    self.store_without_frames(cpu, span.index, slot, &page, Some(seen), refused)?
                }
            };
            if is_stored {
                return Ok(());
            }
        }
    }

    fn zero_part(&self, span: &Span) -> Result<(), StoreError> {
        // In this order: when a restore has ended, its pages are in their slots.
        match self.is_restoring() || self.has_contents(span.index) {
            true => self.modify(span, |bytes| bytes.fill(0)),
            false => Ok(()),
        }
    }

    /// Empties the slots of pages `first..end`, skipping chunks that were never allocated.
    fn clear(&self, first: u64, end: u64) -> Result<(), StoreError> {
        let cpu = cpu::current();
        // Before the loop: pages that it finds empty may be fetched behind it, and the restore may end.
        let source = self.source_to_discard(PageIndex(first))?;
        self.pages.counters.add(cpu, Counter::NotifyFree, end.saturating_sub(first) as i64);
        let mut index = PageIndex(first);
        loop {
            index = self.pages.table.next_allocated(index, end);
            if index.0 >= end {
                break;
            }
            if let Some(slot) = self.pages.table.get(index).filter(|slot| !slot.is_empty()) {
                self.empty_page(cpu, index, slot);
            }
            index = PageIndex(index.0 + 1);
        }
        // Last, because it may need the memory that is free then.
        match source {
            Some(source) => self.discard_unfetched(&*source, cpu, PageIndex(first)..PageIndex(end)),
            None => Ok(()),
        }
    }
}
