//! Loading: a page brought back by a thread that may wait for nothing and ask for no memory.
//!
//! Memory that is brought back when it is touched (by a handler of faults, which runs in the thread that
//! touched it) is read here and not through [`Store::read`]: the thread may have been interrupted anywhere,
//! in the allocator or between taking a lock and giving it back. So a load brings its working memory with it,
//! a [`Loader`] made beforehand, and takes one lock only, the slot's, which the engine holds for one copy at
//! a time and never while it waits, allocates, or touches memory that is not its own. (Who reads or loads
//! into a `page` that itself is to be brought back breaks that: a raw page is copied there under the lock.)
//! It does not use the shared streams and buffers, reads nothing ahead, promotes nothing, tells nobody, and
//! its errors are plain numbers.
//!
//! The steps are those of `fold`, so that both ways read the same.

use crate::engine::counters::Counter;
use crate::engine::error::StoreError;
use crate::engine::fold::Held;
use crate::engine::store::Store;
use crate::parking::Wanted;
use crate::slot::{Content, Slot, SlotGuard};
use pagefold_backing::Buffer;
use pagefold_codec::{Executor, Stream};
use pagefold_page::{PAGE_SIZE, Page, PageIndex};
use pagefold_sys::cpu;
use std::mem::MaybeUninit;

/// Working memory of one load at a time: a stream of its own, space for compressed bytes, an aligned buffer
/// for a parked record.
///
/// Made beforehand, which allocates and warms the stream up; loading with it allocates nothing. It is of
/// one store, and serves no other.
pub struct Loader {
    pub(crate) stream: Box<dyn Stream>,
    compressed: Box<[MaybeUninit<u8>; PAGE_SIZE]>,
    /// For a parked page and what is around it.
    pub(crate) record: Buffer,
    /// A parked page, until the slot was looked at again: it may have become empty meanwhile, and then the
    /// caller's page is not to be written.
    pub(crate) staged: Box<Page>,
    /// The page being loaded, if its bytes did not verify; it is read once more before that is believed.
    pub(crate) doubted: Option<Wanted>,
}

/// What a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loaded {
    /// Nothing is held: it reads as zeroes.
    Empty,
    /// It repeats this word, in memory order; zero is possible. See [`fill`](crate::fill).
    SameFilled(u64),
    /// Its bytes were written.
    Page,
}

/// A load that failed. Plain numbers, so that making one allocates nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// What is held does not decode. The contents are lost; the page can be written anew.
    #[error("page {index} cannot be read: it does not decode")]
    Corrupt {
        /// The page.
        index: PageIndex,
    },
    /// The record of a parked page is not what was written. The contents are lost; the page can be written
    /// anew.
    #[error("page {index} is lost: its record at byte {offset} of the backing is corrupt")]
    CorruptRecord {
        /// The page.
        index: PageIndex,
        /// Where its record is.
        offset: u64,
    },
    /// A parked page could not be read back. It stays where it is.
    #[error(
        "page {index} cannot be read back from byte {offset} of the backing: {}",
        std::io::Error::from_raw_os_error(*errno)
    )]
    ReadBack {
        /// The page.
        index: PageIndex,
        /// Where its record is.
        offset: u64,
        /// The system's answer.
        errno: i32,
    },
}

impl Store {
    /// Working memory for [`Store::load`]. To be made after a backing was attached.
    pub fn loader(&self) -> Result<Loader, StoreError> {
        let Executor { stream, .. } = Executor::new(&self.codec).map_err(StoreError::Codec)?;
        // Written, so that the memory is there.
        let compressed = Box::new([MaybeUninit::new(0); PAGE_SIZE]);
        let record = self.parking.as_ref().map_or_else(|| Buffer::new(0), |parking| parking.record_buffer());
        Ok(Loader { stream, compressed, record, staged: Box::new([0xff; PAGE_SIZE]), doubted: None })
    }

    /// Whether anything is held of a page; without its lock, so it may be true no more.
    #[inline]
    pub fn is_held(&self, index: PageIndex) -> bool {
        self.held_slot(index).is_some()
    }

    fn held_slot(&self, index: PageIndex) -> Option<&Slot> {
        let is_inside = self.table.page_count().contains(index);
        let slot = if is_inside { self.table.get(index) } else { None };
        slot.filter(|slot| !slot.is_empty())
    }

    /// Brings a page back: allocates nothing, and waits for nothing but the page's slot and the medium.
    ///
    /// Writes `page` if the answer is [`Loaded::Page`] or an error, and only then; after an error its bytes
    /// are arbitrary. A page outside the store is empty. `loader` is one of this store's. `page` must be
    /// memory that can be written without a load.
    pub fn load(&self, index: PageIndex, loader: &mut Loader, page: &mut Page) -> Result<Loaded, LoadError> {
        self.pool.source().arena().mark_used();
        let Some(slot) = self.held_slot(index) else { return Ok(Loaded::Empty) };
        self.load_slot(index, slot, loader, page)
            .inspect_err(|_| self.counters.add(cpu::current(), Counter::FailedReads, 1))
    }

    fn load_slot(
        &self,
        index: PageIndex,
        slot: &Slot,
        loader: &mut Loader,
        page: &mut Page,
    ) -> Result<Loaded, LoadError> {
        loader.doubted = None;
        loop {
            let guard = slot.lock();
            match (guard.content(), &self.parking) {
                (Content::Parked(parked), Some(parking)) => {
                    let wanted = Wanted { index, generation: guard.generation(), parked };
                    if self.load_back(parking, loader, wanted, slot, guard)? {
                        *page = *loader.staged;
                        return Ok(Loaded::Page);
                    }
                }
                _ => return self.load_held(index, guard, loader, page),
            }
        }
    }

    /// The page of a slot that holds it in memory.
    fn load_held(
        &self,
        index: PageIndex,
        guard: SlotGuard,
        loader: &mut Loader,
        page: &mut Page,
    ) -> Result<Loaded, LoadError> {
        let Loader { stream, compressed, .. } = loader;
        match self.take_out(guard, compressed, page) {
            Held::Empty => Ok(Loaded::Empty),
            Held::SameFilled(fill_word) => Ok(Loaded::SameFilled(fill_word)),
            Held::Raw => Ok(Loaded::Page),
            Held::Folded(bytes) => {
                let decompress = |bytes: &[u8], page: &mut Page| stream.decompress(bytes, page);
                self.expand_with(decompress, bytes, page).map_err(|_| LoadError::Corrupt { index })?;
                Ok(Loaded::Page)
            }
        }
    }
}
