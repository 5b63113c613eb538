//! Where written-back pages lie on the backing, and which places are free.
//!
//! There are two layouts: the log, which packs compressed records into segments, and blocks, one uncompressed page
//! per 4 KiB block. Blocks are the kernel's layout, for comparison. [`Layout`] is one of them: it translates
//! locations, pins places, and frees them. A [`Packer`] fills write requests with pages.
//!
//! | module | contains |
//! |---|---|
//! | `request` | one write: its buffer and the pages in it |
//! | `packer` | the interface between a pass and a layout |
//! | `log`, `log_packer` | the log, and the packer that fills its segments |
//! | `format` | the log's bytes on the medium |
//! | `segments` | the reference counts and free lists of segments |
//! | `scan` | the records of a segment |
//! | `victim` | which segment the cleaner empties next |
//! | `blocks` | one page per block, and its packer |
//!
//! A place is freed when its page leaves it: the slot's exchange returns the location, and its user calls
//! [`Layout::release`]. A segment is free when its last reference is dropped; a pin (a reader) is a reference.
//!
//! Locks: the free list of segments and the map of blocks have a mutex each, held for a few instructions. Pinning,
//! unpinning and releasing in the log take no lock, because a signal handler pins and unpins, and releasing shares
//! their code. Nothing here reads or writes the medium, and nothing here knows the store: that is `writeback`.

mod blocks;
mod format;
mod log;
mod log_packer;
mod packer;
mod request;
mod scan;
mod segments;
mod victim;

pub(crate) use blocks::{BlockPacker, Blocks};
pub use format::MAGIC;
#[cfg(fuzzing)]
pub(crate) use format::Sequence;
pub(crate) use format::{
    DATA_START, RECORD_HEADER_LEN, RecordHeader, SUPERBLOCK_LEN, Seed, StoreId, Superblock,
};
pub(crate) use log::{CLEANER_SPARE, Log};
pub(crate) use log_packer::{Head, LogPacker};
pub(crate) use packer::{NextStep, NoSpace, PackedPage, Packer};
pub(crate) use request::{Entry, LimitCharge, Source, WriteRequest};
pub(crate) use scan::{FoundRecord, scan};
pub(crate) use segments::SegmentIndex;
pub(crate) use victim::{choose, live_max_bytes};

use crate::kept::KeptLayout;
use crate::slot::BackingLocation;
use log_packer::WRITE_LEN_MAX;
use pagefold_page::PAGE_SIZE;
use pagefold_sys::mem::Reservation;

/// How written-back pages lie on the backing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LayoutKind {
    /// Compressed records, written front to back in segments.
    #[default]
    Log,
    /// One uncompressed page per 4 KiB block, first fit: the kernel's layout.
    Blocks,
}

/// The layout of one backing: its places and which of them are free.
pub(crate) enum Layout {
    Log(Log),
    Blocks(Blocks),
}

impl Layout {
    /// The least length of a medium for this kind of layout, bytes.
    pub(crate) fn len_min(kind: LayoutKind) -> u64 {
        match kind {
            LayoutKind::Log => Log::LEN_MIN,
            LayoutKind::Blocks => PAGE_SIZE as u64,
        }
    }

    /// Whether a medium of this length begins with a superblock. If it is too small for the log, blocks fill all of it.
    pub(crate) fn has_superblock(len_bytes: u64) -> bool {
        len_bytes >= Log::LEN_MIN
    }

    /// Creates an empty layout for a medium of `len_bytes` bytes, at least [`Layout::len_min`].
    pub(crate) fn new(kind: LayoutKind, id: StoreId, len_bytes: u64) -> Self {
        match kind {
            LayoutKind::Log => Layout::Log(Log::new(id, len_bytes)),
            LayoutKind::Blocks => {
                let start = if Self::has_superblock(len_bytes) { DATA_START } else { 0 };
                Layout::Blocks(Blocks::new(start, len_bytes))
            }
        }
    }

    /// The facts by which another process makes it again.
    pub(crate) fn to_keep(&self, id: StoreId, backing_len_bytes: u64) -> KeptLayout {
        let (unit_len, unit_count, _) = self.units();
        let is_log = self.log().is_some();
        KeptLayout { is_log, id, unit_len: unit_len as u32, unit_count, backing_len_bytes }
    }

    /// Keeps the sequence numbers of segments in memory that outlives the process, and takes those that are there.
    pub(crate) fn keep_sequences(&mut self, sequences: Reservation) {
        if let Layout::Log(log) = self {
            log.segments.keep_sequences(sequences);
        }
    }

    /// Takes the place of a page that a dead process has written back, in a layout that [`Layout::recovered`] ends. False if
    /// there is no such place, or another page has it.
    pub(crate) fn claim(&self, written_back: BackingLocation) -> bool {
        match self {
            Layout::Log(log) => log.claim(written_back),
            Layout::Blocks(blocks) => blocks.claim(written_back),
        }
    }

    /// All pages are claimed: the other places are free.
    pub(crate) fn recovered(&mut self) {
        if let Layout::Log(log) = self {
            log.segments.recovered();
        }
    }

    /// Which layout it is.
    pub(crate) fn kind(&self) -> LayoutKind {
        match self {
            Layout::Log(_) => LayoutKind::Log,
            Layout::Blocks(_) => LayoutKind::Blocks,
        }
    }

    /// The log, or `None` for blocks.
    pub(crate) fn log(&self) -> Option<&Log> {
        match self {
            Layout::Log(log) => Some(log),
            Layout::Blocks(_) => None,
        }
    }

    /// The unit of allocation (segment or block) in bytes, the number of units, and the number of free ones.
    fn units(&self) -> (u64, u32, u32) {
        match self {
            Layout::Log(log) => {
                (u64::from(log.segments.segment_len()), log.segments.count(), log.segments.free_count())
            }
            Layout::Blocks(blocks) => (PAGE_SIZE as u64, blocks.count(), blocks.free_count()),
        }
    }

    /// Bytes of a segment or block.
    pub(crate) fn unit_len(&self) -> u32 {
        self.units().0 as u32
    }

    /// Bytes that pages can be written back to, free or not.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        let (unit, count, _) = self.units();
        unit * u64::from(count)
    }

    /// Bytes of free segments or blocks.
    pub(crate) fn free_bytes(&self) -> u64 {
        let (unit, _, free) = self.units();
        unit * u64::from(free)
    }

    /// Bytes that are free or would be after cleaning. Examines every segment.
    pub(crate) fn room_bytes(&self) -> u64 {
        self.free_bytes() + self.log().map_or(0, |log| victim::reclaimable_bytes(&log.segments))
    }

    /// Bytes of the longest write.
    pub(crate) fn write_len_max(&self) -> usize {
        match self {
            Layout::Log(_) => WRITE_LEN_MAX,
            Layout::Blocks(_) => PAGE_SIZE,
        }
    }

    /// Where the record or block of a written-back page begins on the medium, bytes.
    pub(crate) fn offset(&self, written_back: BackingLocation) -> u64 {
        match self {
            Layout::Log(_) => Log::offset(written_back),
            Layout::Blocks(blocks) => blocks.offset(written_back),
        }
    }

    /// Length of that record (with its header) or block, bytes.
    pub(crate) fn len_bytes(&self, written_back: BackingLocation) -> usize {
        match self {
            Layout::Log(_) => RECORD_HEADER_LEN + usize::from(written_back.len_bytes),
            Layout::Blocks(_) => PAGE_SIZE,
        }
    }

    /// Keeps the place of a written-back page from being overwritten. The caller holds the lock of the slot that
    /// points to it.
    ///
    /// Blocks are not pinned: a block may be overwritten while it is read; then its checksum does not match, and the
    /// slot has changed.
    pub(crate) fn pin(&self, written_back: BackingLocation) {
        if let Layout::Log(log) = self {
            log.segments.pin(log.segment_of(written_back));
        }
    }

    /// Ends a pin.
    pub(crate) fn unpin(&self, written_back: BackingLocation) {
        if let Layout::Log(log) = self {
            log.segments.unpin(log.segment_of(written_back));
        }
    }

    /// Frees a place whose page has left it, or was not written to it.
    pub(crate) fn release(&self, written_back: BackingLocation) {
        match self {
            Layout::Log(log) => log.release(written_back),
            Layout::Blocks(blocks) => blocks.release(written_back),
        }
    }
}
