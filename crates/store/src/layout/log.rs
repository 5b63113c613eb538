//! The log: compressed records in segments, written front to back.
//!
//! Writes are sequential, because space is freed in whole segments: a segment without live records is free at once,
//! and the cleaner empties sparse ones. The log has no index: a slot contains the location of its record, and a
//! record contains the index of its slot.

use crate::layout::format::{DATA_START, Seed, StoreId, record_len};
use crate::layout::log_packer::WRITE_LEN_MAX;
use crate::layout::segments::{SegmentIndex, Segments};
use crate::slot::BackingLocation;

/// Bytes of a segment.
const SEGMENT_LEN: u32 = 1 << 20;
/// Bytes of a segment of a small backing.
const SEGMENT_LEN_SMALL: u32 = WRITE_LEN_MAX as u32;
/// A backing with fewer segments of full size than this uses small ones.
const SEGMENTS_FEW: u64 = 64;
/// The fewest segments that a log can work with.
const SEGMENTS_MIN: u64 = 6;
/// Free segments reserved for the cleaner, which must be able to write before it has freed a segment.
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

    /// Creates an empty log on a medium of `len_bytes` bytes, at least [`Log::LEN_MIN`].
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
    pub(crate) fn offset(written_back: BackingLocation) -> u64 {
        written_back.location * 8
    }

    /// The segment of a record.
    pub(crate) fn segment_of(&self, written_back: BackingLocation) -> SegmentIndex {
        self.segments.containing(Self::offset(written_back))
    }

    /// The seed of a record's checksum. The caller has pinned its segment.
    pub(crate) fn seed_of(&self, written_back: BackingLocation) -> Seed {
        Seed::new(self.id, self.segments.sequence(self.segment_of(written_back)))
    }

    /// Takes the place of a record that a dead process has written. False if it cannot be one.
    pub(crate) fn claim(&self, written_back: BackingLocation) -> bool {
        let len = record_len(written_back.len_bytes.into()) as u64;
        let segment_len = u64::from(self.segments.segment_len());
        let Some(at) = written_back.location.checked_mul(8).and_then(|at| at.checked_sub(DATA_START)) else {
            return false;
        };
        let is_inside =
            at / segment_len < u64::from(self.segments.count()) && at % segment_len + len <= segment_len;
        if is_inside {
            self.segments.add_record(self.segment_of(written_back), len as u32);
        }
        is_inside
    }

    /// Drops a record that is no longer live, or was not written.
    pub(crate) fn release(&self, written_back: BackingLocation) {
        self.segments
            .drop_record(self.segment_of(written_back), record_len(written_back.len_bytes.into()) as u32);
    }
}
