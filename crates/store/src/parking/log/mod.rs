//! The log: compressed records in segments, written front to back.
//!
//! Parking is sequential whatever the history, because free space comes in whole
//! segments: one without a live record is free at once, and a cleaner empties sparse
//! ones. There is no index: a slot knows where its record is, and a record which slot
//! it belongs to.
//!
//! | module | what |
//! |---|---|
//! | `format` | bytes on the medium |
//! | `segments` | which are free, which may be reused |
//! | `packer` | filling writes |
//! | `scan` | the records of a segment |
//! | `victim` | which segment to clean next |

mod format;
mod packer;
mod scan;
mod segments;
mod victim;

pub use format::MAGIC;
pub(crate) use format::{
    DATA_START, RECORD_HEADER_LEN, RecordHeader, SUPERBLOCK_LEN, Seed, Sequence, StoreId, Superblock,
    record_len,
};
pub(crate) use packer::{Head, LogPacker, WRITE_LEN_MAX};
pub(crate) use scan::{Found, scan};
pub(crate) use segments::{SegmentIndex, Segments};
pub(crate) use victim::{choose, gain_bytes, live_max_bytes};

use crate::slot::Parked;

/// Bytes of a segment.
const SEGMENT_LEN: u32 = 1 << 20;
/// Bytes of a segment of a small backing.
const SEGMENT_LEN_SMALL: u32 = WRITE_LEN_MAX as u32;
/// A backing with fewer segments than this gets small ones.
const SEGMENTS_FEW: u64 = 64;
/// The fewest segments that a log can work with.
const SEGMENTS_MIN: u64 = 6;
/// Free segments that are kept for the cleaner: it must be able to write before it has freed anything.
pub(crate) const CLEANER_SPARE: u32 = 2;

/// The log of a store.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) id: StoreId,
    pub(crate) segments: Segments,
}

impl Log {
    /// The smallest backing that a log can be on, bytes.
    pub(crate) const LEN_MIN: u64 = DATA_START + SEGMENTS_MIN * SEGMENT_LEN_SMALL as u64;

    /// An empty log on a medium of so many bytes, at least [`Log::LEN_MIN`].
    pub(crate) fn new(id: StoreId, len_bytes: u64) -> Self {
        let room = len_bytes.saturating_sub(DATA_START);
        let segment_len = match room / u64::from(SEGMENT_LEN) < SEGMENTS_FEW {
            true => SEGMENT_LEN_SMALL,
            false => SEGMENT_LEN,
        };
        let count = (room / u64::from(segment_len)).min(u64::from(u32::MAX)) as u32;
        Log { id, segments: Segments::new(segment_len, count) }
    }

    /// Where a record begins, bytes.
    pub(crate) fn offset(parked: Parked) -> u64 {
        parked.location * 8
    }

    /// The segment of a record.
    pub(crate) fn segment_of(&self, parked: Parked) -> SegmentIndex {
        self.segments.containing(Self::offset(parked))
    }

    /// What the checksum of a record begins with. The caller keeps its segment from being written anew.
    pub(crate) fn seed_of(&self, parked: Parked) -> Seed {
        Seed::new(self.id, self.segments.sequence(self.segment_of(parked)))
    }

    /// A record is live no more, or never came to be.
    pub(crate) fn release(&self, parked: Parked) {
        self.segments.drop_record(self.segment_of(parked), record_len(parked.len_bytes.into()) as u32);
    }
}
