//! Writeback: moves pages from memory to a backing, and reads them back.
//!
//! A pass walks the slots that a [`Selection`] names, copies each page into a write request, and submits full
//! requests to the ring. A layout decides where pages lie: in the log, or in one block per page. The page is charged
//! to `writeback_limit` before it is copied, and the charge is refunded if the page was not written.
//!
//! A slot is locked to copy its page and to apply the result, never across I/O. The slot takes the new location only
//! if its page was not changed in the meantime, which its mark and its generation show. Whatever fails, the page
//! stays where it was.
//!
//! # Threads and locks
//!
//! Passes run in the thread of the caller (`Store::write_back`) or in the writeback thread (`policy`). A pass or the
//! cleaner holds the lock of `Writer`, so one runs at a time and owns the ring; under it, slots are locked one at a
//! time. Readers (`fetch`) run in their callers' threads, concurrently with passes, and take no lock of a pass: a
//! reader pins the place under the slot's lock, and a pinned place is not overwritten.
//!
//! # Limits and failures
//!
//! A pass ends when `writeback_limit` is used up, or when the backing is full and cleaning frees no segment. The
//! pages of a failed write stay in memory, and the pass continues; after ENOSPC it ends at its next page. Buffers of
//! write requests come from a region of 4 MiB and are returned at the end of the pass.
//!
//! | module | contains |
//! |---|---|
//! | `selection` | which pages |
//! | `pass`, `settle` | copying pages to write requests, and applying the results of writes |
//! | `control` | the ring and its write requests, idle or in flight |
//! | `clean` | the cleaner of the log |
//! | `fetch`, `read_ahead` | reading the bytes of written-back pages, for the store's read path; runs that were read ahead |
//! | `maintenance` | periodic work: the clock of access times, discards, a little cleaning |
//! | `sweep` | the store as `policy` uses it |
//! | `settings`, `stats` | settings and counters |
//!
//! It uses a store's pages in memory (`pages`) and does not know the public `Store`. When automatic writeback runs is
//! decided by `policy`.

mod clean;
mod control;
mod fetch;
mod maintenance;
mod pass;
mod read_ahead;
mod selection;
mod settings;
mod settle;
mod stats;
mod sweep;

pub use crate::error::{AttachError, SelectionError, WritebackError};
pub use crate::layout::{LayoutKind, MAGIC};
pub use crate::policy::{Condition, Policy, Throttled};
pub use crate::report::{Progress, WritebackReport};
pub use selection::{Selection, Which};
pub use settings::{BATCH_MAX, Settings};
pub use stats::{BdStat, WritebackStats};

pub(crate) use fetch::{FetchError, PageVersion, Reader};
pub(crate) use stats::add;
pub(crate) use sweep::Sweeper;

use crate::error::StoreError;
use crate::layout::{DATA_START, Head, Layout, SUPERBLOCK_LEN, StoreId, Superblock};
use crate::pages::Pages;
use crate::slot::{BackingLocation, Content, SlotGuard};
use control::Control;
use pagefold_backing::{Backing, BackingError, Buffer, Buffers};
use pagefold_page::PageCount;
use pagefold_sys::cpu;
use parking_lot::Mutex;
use read_ahead::ReadAhead;
use stats::{WritebackCounters, subtract};
use std::sync::{Arc, OnceLock};

/// The backing of a store and its layout.
pub struct WritebackConfig {
    /// The medium. Its former contents are lost.
    pub backing: Arc<dyn Backing>,
    /// How pages lie on it.
    pub layout: LayoutKind,
}

/// Memory for the buffers of writeback and read-back, bytes.
const BUFFERS_BYTES: usize = 4 << 20;

/// The state needed to write to the backing: the ring, and the positions in the log. Its lock serialises passes and
/// the cleaner.
struct Writer {
    control: Control,
    /// The position of passes.
    write_head: Option<Head>,
    /// The position of the cleaner.
    clean_head: Option<Head>,
}

/// The writeback of one store.
pub struct Writeback {
    backing: Arc<dyn Backing>,
    pub(crate) layout: Layout,
    buffers: Buffers,
    settings: Settings,
    policy: Policy,
    pub(crate) counters: WritebackCounters,
    /// Locked for the length of a pass.
    writer: Mutex<Writer>,
    ahead: Mutex<ReadAhead>,
    on_failure: OnceLock<Box<OnFailure>>,
}

/// A function that is called with the error of a written-back page that could not be read back.
pub type OnFailure = dyn Fn(&StoreError) + Send + Sync;

impl Writeback {
    /// Prepares a backing: clears its first MiB and writes a superblock, if there is room for both. Its former contents
    /// are lost.
    pub(crate) fn attach(config: WritebackConfig, pages: &Pages) -> Result<Self, AttachError> {
        let WritebackConfig { backing, layout } = config;
        let len_bytes = backing.len_bytes();
        let min_bytes = Layout::len_min(layout);
        if len_bytes < min_bytes {
            return Err(AttachError::TooSmall { len_bytes, min_bytes });
        }
        let id = new_id()?;
        let mut layout = Layout::new(layout, id, len_bytes);
        if let Some(kept) = &pages.kept {
            layout.keep_sequences(kept.note_layout(layout.to_keep(id, len_bytes))?);
        }
        let writeback = Self::over(backing, layout)?;
        if Layout::has_superblock(len_bytes) {
            writeback.write_superblock(id, pages.table.page_count())?;
        }
        Ok(writeback)
    }

    /// The backing of a process that has died, without any page: [`Layout::claim`] finds those that are there, and
    /// [`Layout::recovered`] follows.
    pub(crate) fn recover(backing: Arc<dyn Backing>, pages: &Pages) -> Result<Self, AttachError> {
        let kept = pages.kept.as_ref().and_then(|kept| Some((kept, kept.layout()?)));
        let Some((kept, was)) = kept else { return Err(AttachError::OtherBacking) };
        let kind = if was.is_log { LayoutKind::Log } else { LayoutKind::Blocks };
        let len_bytes = backing.len_bytes();
        if len_bytes != was.backing_len_bytes || len_bytes < Layout::len_min(kind) {
            return Err(AttachError::OtherBacking);
        }
        let mut layout = Layout::new(kind, was.id, len_bytes);
        if layout.to_keep(was.id, len_bytes) != was {
            return Err(AttachError::OtherBacking);
        }
        layout.keep_sequences(kept.sequences(&was)?);
        Ok(Self::over(backing, layout)?)
    }

    fn over(backing: Arc<dyn Backing>, layout: Layout) -> Result<Self, BackingError> {
        let buffers = Buffers::new(BUFFERS_BYTES)?;
        let control = Control::new(backing.clone(), buffers.clone(), layout.write_len_max());
        Ok(Writeback {
            backing,
            layout,
            buffers,
            settings: Settings::default(),
            policy: Policy::default(),
            counters: WritebackCounters::default(),
            writer: Mutex::new(Writer { control, write_head: None, clean_head: None }),
            ahead: Mutex::default(),
            on_failure: OnceLock::new(),
        })
    }

    fn write_superblock(&self, id: StoreId, pages: PageCount) -> Result<(), AttachError> {
        let is_log = self.layout.kind() == LayoutKind::Log;
        let segment_len = self.layout.unit_len();
        let superblock = Superblock { id, is_log, segment_len, page_count: pages.0 };
        let mut head = Buffer::new(DATA_START as usize);
        head[..SUPERBLOCK_LEN].copy_from_slice(&superblock.encode());
        self.backing.write_at(0, &head)?;
        Ok(self.backing.flush()?)
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The settings and the condition of automatic writeback.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The condition of automatic writeback.
    pub fn condition(&self) -> Condition {
        self.policy.condition()
    }

    /// Sets a function that reports each page that could not be read back, for a log. Only the first call has an
    /// effect. The function is called by the reading thread, which holds no lock.
    pub fn on_failure(&self, report: impl Fn(&StoreError) + Send + Sync + 'static) {
        let _ = self.on_failure.set(Box::new(report));
    }

    pub(crate) fn report_failure(&self, error: &StoreError) {
        if let Some(report) = self.on_failure.get() {
            report(error);
        }
    }

    /// A short description of the medium.
    pub fn describe(&self) -> String {
        self.backing.describe()
    }

    /// How pages lie on the backing.
    pub fn layout(&self) -> LayoutKind {
        self.layout.kind()
    }

    /// A snapshot of the counters. Takes no pass's lock.
    pub fn stats(&self) -> WritebackStats {
        self.counters.snapshot(self.layout.capacity_bytes(), self.layout.free_bytes())
    }

    fn backing(&self) -> &dyn Backing {
        &*self.backing
    }

    fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// Counts a page that is written back now.
    pub(crate) fn count_written_back(&self, written_back: BackingLocation) {
        add(&self.counters.written_back, 1);
        add(&self.counters.written_back_bytes, written_back.len_bytes.into());
    }

    /// Frees the place of a page that is no longer written back, and updates the counters.
    pub(crate) fn release(&self, written_back: BackingLocation) {
        subtract(&self.counters.written_back, 1);
        subtract(&self.counters.written_back_bytes, written_back.len_bytes.into());
        self.layout.release(written_back);
    }

    /// Replaces the slot's location `from` by an object in memory. If the page is no longer written back at `from`,
    /// frees the object.
    pub(crate) fn promote(&self, pages: &Pages, from: BackingLocation, guard: SlotGuard, object: Content) {
        match guard.promote(from, object, &pages.intents) {
            true => {
                pages.account(cpu::current(), Content::WrittenBack(from), object);
                self.release(from);
                add(&self.counters.promoted_pages, 1);
            }
            false => pages.free(object),
        }
    }

    /// Closes the ring unless a pass runs; the next pass creates another one. A process that exits with an open ring
    /// keeps the file of its medium open for a moment longer, because the kernel tears a ring down later than it closes
    /// files.
    pub fn close_ring(&self) {
        if let Some(mut writer) = self.writer.try_lock() {
            writer.control.close_ring();
        }
    }
}

/// Finds the intact records in a segment's bytes, as the cleaner does; returns offset, slot and page bytes of each.
/// Only the fuzz target of the log calls it.
#[cfg(fuzzing)]
pub fn scan_segment(segment: &[u8], id: [u8; 16], sequence: u64) -> Vec<(usize, u64, &[u8])> {
    let found = crate::layout::scan(segment, id, crate::layout::Sequence(sequence));
    found.iter().map(|f| (f.at, f.header.slot, f.payload(segment))).collect()
}

fn new_id() -> Result<StoreId, AttachError> {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&pagefold_sys::entropy::random_u64()?.to_le_bytes());
    id[8..].copy_from_slice(&pagefold_sys::entropy::random_u64()?.to_le_bytes());
    Ok(id)
}
