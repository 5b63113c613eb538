//! Loading a page from a signal handler: without allocation, and without waiting for another thread's locks.
//!
//! A fault handler runs in the thread that touched the memory. That thread may have been interrupted anywhere: in the
//! allocator, or with a lock held. So [`Store::load`] does not use [`Store::read`]'s shared streams and buffers but a
//! [`Loader`] allocated beforehand, and takes one lock only, the slot's. Other threads hold that lock for one copy at
//! a time, and never while they wait, allocate, or access memory that may fault. (A caller that reads or loads into a
//! `page` that itself has to be loaded breaks this rule: a raw page is copied there under the lock, except by
//! [`Store::load_without_lock`].) A load reads
//! nothing ahead, promotes nothing, reports no failure to a log, and returns errors that are plain numbers.
//!
//! The steps are those of `read`, with which it shares [`Store::copy_from_slot`] and [`Store::finish_read`].

use crate::engine::read::SlotCopy;
use crate::engine::store::Store;
use crate::error::StoreError;
use crate::pages::{Counter, OwnStreams};
use crate::slot::{Content, Slot, SlotGuard};
use crate::writeback::{FetchError, PageVersion, Writeback};
use pagefold_backing::Buffer;
use pagefold_page::{PAGE_SIZE, Page, PageIndex};
use pagefold_sys::cpu;
use std::mem::MaybeUninit;

/// Working memory for one load at a time: a stream of each codec, space for compressed bytes, and an aligned buffer for
/// a written-back record.
///
/// Creating it allocates and warms up the stream; loading with it allocates nothing. It can be used with the store
/// that created it only.
pub struct Loader {
    streams: OwnStreams,
    compressed: Box<[MaybeUninit<u8>; PAGE_SIZE]>,
    /// The blocks around a written-back page.
    record: Buffer,
    /// A written-back page until the slot is checked again: the page may have been changed in the meantime, and then
    /// the caller's page must not be written. Or a page that does not compress until the slot is unlocked.
    staged: Box<Page>,
    /// The page being loaded, if its bytes did not verify once; it is read again before it is reported as corrupt.
    unverified: Option<PageVersion>,
}

/// The result of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loaded {
    /// The page is not stored: it reads as zeroes.
    Empty,
    /// It repeats this word, in memory order; zero is possible. See [`fill`](crate::fill).
    SameFilled(u64),
    /// Its bytes were written to `page`.
    Page,
}

/// Where a page that does not compress is copied under the slot's lock.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RawCopy {
    /// To the caller's page.
    Direct,
    /// To the loader's page, and to the caller's without the lock.
    Staged,
}

/// A failed load. It consists of plain numbers, so making one allocates nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The stored bytes do not decode. The contents are lost; the page can be written again.
    #[error("page {index} cannot be read: it does not decode")]
    Corrupt {
        /// The page.
        index: PageIndex,
    },
    /// The record of a written-back page does not verify. The contents are lost; the page can be written again.
    #[error("page {index} is lost: its record at byte {offset} of the backing is corrupt")]
    CorruptRecord {
        /// The page.
        index: PageIndex,
        /// Where its record begins, bytes.
        offset: u64,
    },
    /// A written-back page could not be read back. It stays on the backing, and a later load may succeed.
    #[error(
        "page {index} cannot be read back from byte {offset} of the backing: {}",
        std::io::Error::from_raw_os_error(*errno)
    )]
    ReadBack {
        /// The page.
        index: PageIndex,
        /// Where its record begins, bytes.
        offset: u64,
        /// The system's error number.
        errno: i32,
    },
}

impl Store {
    /// Creates working memory for [`Store::load`]. Call it after [`Store::attach`].
    pub fn loader(&self) -> Result<Loader, StoreError> {
        let streams = self.pages.codecs.own_streams().map_err(StoreError::Codec)?;
        // Filled, so that the kernel backs the memory now.
        let compressed = Box::new([MaybeUninit::new(0); PAGE_SIZE]);
        let record =
            self.writeback.as_ref().map_or_else(|| Buffer::new(0), |writeback| writeback.record_buffer());
        Ok(Loader { streams, compressed, record, staged: Box::new([0xff; PAGE_SIZE]), unverified: None })
    }

    /// Whether a page is stored. Takes no lock, so the result may be outdated.
    pub fn is_stored(&self, index: PageIndex) -> bool {
        self.stored_slot(index).is_some()
    }

    fn stored_slot(&self, index: PageIndex) -> Option<&Slot> {
        let is_inside = self.pages.table.page_count().contains(index);
        let slot = if is_inside { self.pages.table.get(index) } else { None };
        slot.filter(|slot| !slot.is_empty())
    }

    /// Loads a page: allocates nothing, and waits for nothing but the page's slot and the medium.
    ///
    /// Writes to `page` only if the result is [`Loaded::Page`] or an error; after an error its bytes are arbitrary. A
    /// page outside the store is empty. `loader` must be one of this store's, and `page` must be memory that can be
    /// written without a load.
    pub fn load(&self, index: PageIndex, loader: &mut Loader, page: &mut Page) -> Result<Loaded, LoadError> {
        self.load_to(index, loader, page, RawCopy::Direct)
    }

    /// Like [`Store::load`], but no lock is held while `page` is written: an access to it may itself need a load, or wait for
    /// other threads that use the store.
    pub fn load_without_lock(
        &self,
        index: PageIndex,
        loader: &mut Loader,
        page: &mut Page,
    ) -> Result<Loaded, LoadError> {
        self.load_to(index, loader, page, RawCopy::Staged)
    }

    fn load_to(
        &self,
        index: PageIndex,
        loader: &mut Loader,
        page: &mut Page,
        raw_copy: RawCopy,
    ) -> Result<Loaded, LoadError> {
        self.pages.pool.source().arena().mark_used();
        let Some(slot) = self.stored_slot(index) else { return Ok(Loaded::Empty) };
        self.load_slot(index, slot, loader, page, raw_copy)
            .inspect_err(|_| self.pages.counters.add(cpu::current(), Counter::FailedReads, 1))
    }

    fn load_slot(
        &self,
        index: PageIndex,
        slot: &Slot,
        loader: &mut Loader,
        page: &mut Page,
        raw_copy: RawCopy,
    ) -> Result<Loaded, LoadError> {
        loader.unverified = None;
        loop {
            let guard = slot.lock();
            match (guard.content(), &self.writeback) {
                (Content::WrittenBack(written_back), Some(writeback)) => {
                    let version = PageVersion { index, generation: guard.generation(), written_back };
                    if self.load_back(writeback, loader, version, slot, guard)? {
                        *page = *loader.staged;
                        return Ok(Loaded::Page);
                    }
                }
                _ => return self.load_in_memory(index, guard, loader, page, raw_copy),
            }
        }
    }

    /// Reads a written-back page into the loader's staging page: allocates nothing, and waits for the slot and the
    /// medium only. Returns false if the page was changed in the meantime: the caller retries.
    fn load_back(
        &self,
        writeback: &Writeback,
        loader: &mut Loader,
        version: PageVersion,
        slot: &Slot,
        mut guard: SlotGuard,
    ) -> Result<bool, LoadError> {
        guard.touch(self.pages.clock.now());
        writeback.layout.pin(version.written_back);
        drop(guard);
        let Loader { streams, record, staged, unverified, .. } = loader;
        let priority = version.written_back.priority;
        let expanded = writeback.fetch_signal_safe(version, record).and_then(|bytes| {
            let decompress = |bytes: &[u8], page: &mut Page| streams.decompress(priority, bytes, page);
            let expanded = self.pages.expand_with(decompress, bytes, staged);
            expanded.map(|()| None).map_err(|_| FetchError::Corrupt)
        });
        let (index, offset) = (version.index, writeback.layout.offset(version.written_back));
        self.finish_read(writeback, unverified, version, slot, expanded).map_err(|error| match error {
            FetchError::Io(source) => LoadError::ReadBack { index, offset, errno: source.errno() },
            FetchError::Corrupt => LoadError::CorruptRecord { index, offset },
        })
    }

    /// Loads a page that is in memory.
    fn load_in_memory(
        &self,
        index: PageIndex,
        guard: SlotGuard,
        loader: &mut Loader,
        page: &mut Page,
        raw_copy: RawCopy,
    ) -> Result<Loaded, LoadError> {
        let Loader { streams, compressed, staged, .. } = loader;
        let raw_page = match raw_copy {
            RawCopy::Direct => &mut *page,
            RawCopy::Staged => &mut **staged,
        };
        match self.copy_from_slot(guard, compressed, raw_page) {
            SlotCopy::Empty => Ok(Loaded::Empty),
            SlotCopy::SameFilled(fill_word) => Ok(Loaded::SameFilled(fill_word)),
            // Regions have no memory that outlives their process.
            SlotCopy::Lost => Err(LoadError::Corrupt { index }),
            SlotCopy::Raw => {
                if raw_copy == RawCopy::Staged {
                    *page = **staged;
                }
                Ok(Loaded::Page)
            }
            SlotCopy::Folded(bytes, priority) => {
                let decompress = |bytes: &[u8], page: &mut Page| streams.decompress(priority, bytes, page);
                self.pages.expand_with(decompress, bytes, page).map_err(|_| LoadError::Corrupt { index })?;
                Ok(Loaded::Page)
            }
        }
    }
}
