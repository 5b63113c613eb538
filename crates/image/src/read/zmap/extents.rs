//! Extent records: one per extent instead of one entry per logical cluster, with addresses in bytes.
//!
//! Records of 4 and 8 bytes are for extents of equal length, that of a logical cluster. Records of 16 and 32 bytes
//! have the position in the file, ascending, and are found by binary search. Records of 4 bytes have only stored
//! lengths, which must be summed up, so a lookup takes time in proportion to the position; the number of such records
//! is limited for that reason.

use super::header::IndexHeader;
use super::index_reader::IndexReader;
use super::mapping::Stored;
use crate::format::zmap::{ExtentRecord, HEADER_BYTES, StoredLength, advise};
use crate::read::{Bytes, Extent, Mapping};
use crate::{Address, ImageError, Result};

/// Records of 4 bytes that are summed up at most: 64 MiB of them, enough for 64 GiB of 4 KiB extents.
const MAX_SUMMED: u64 = 1 << 24;

/// The sum of the stored lengths of records of 4 bytes up to some record. A reader of a file has one, for that index
/// only.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cursor {
    record: u64,
    before_bytes: u64,
}

impl Cursor {
    /// Number of records that were summed up since the cursor was at `before`.
    pub(crate) fn summed_since(&self, before: &Cursor) -> u64 {
        self.record.checked_sub(before.record).unwrap_or(self.record)
    }
}

/// The array of records.
#[derive(Debug, Clone, Copy)]
pub(super) struct Records {
    /// First byte of the first record.
    begin: u64,
    /// log2 of the size of a record.
    bits: u8,
    /// Number of records; 0 only if the file is empty.
    count: u64,
    /// Stored position of the first extent, if records do not have positions.
    physical: u64,
}

impl Records {
    pub(super) fn open(map: &IndexHeader, bytes: &dyn Bytes) -> Result<Self> {
        let fault = |what| Err(map.corrupt(map.at, what));
        if map.header.advises(advise::INLINE) {
            return fault("extent records with an inline extent");
        }
        let bits = map.header.record_bits();
        let sized = bits >= 4;
        let count = if sized { map.header.record_count() } else { map.lclusters() };
        if bits == 2 && count > MAX_SUMMED {
            let features = format!("more than {MAX_SUMMED} extent records of 4 bytes");
            return Err(ImageError::Unsupported { features });
        }
        if count == 0 && map.size > 0 {
            return fault("no extents in a file that has contents");
        }
        let array =
            map.at.offset.checked_add(HEADER_BYTES).and_then(|at| at.checked_next_multiple_of(1 << bits));
        let begin = array.and_then(|at| at.checked_add(if bits == 2 { 8 } else { 0 }));
        // At most 2^54 records of 8 bytes, or 2^47 of 32.
        let end = begin.and_then(|begin| begin.checked_add(count << bits));
        let (Some(array), Some(begin), Some(_)) = (array, begin, end) else {
            return fault("an index beyond all addresses");
        };
        let mut physical = [0; 8];
        if bits == 2 && count > 0 {
            bytes.read_at(map.address(array), &mut physical)?;
        }
        Ok(Records { begin, bits, count, physical: u64::from_le_bytes(physical) })
    }

    /// Offset of the end of the last record.
    pub(super) fn end(&self) -> u64 {
        self.begin + (self.count << self.bits)
    }

    /// Finds the extent that contains byte `offset`.
    pub(super) fn extent_at(
        &self,
        map: &IndexHeader,
        bytes: &dyn Bytes,
        offset: u64,
        cursor: &mut Cursor,
    ) -> Result<Extent> {
        let end = self.end();
        let mut search =
            Search { records: *self, map, index: IndexReader::new(bytes, map.address(self.begin), end) };
        let (i, start, end) = match self.bits {
            2 | 3 => {
                let lcluster = offset >> map.lcluster_bits;
                let start = lcluster << map.lcluster_bits;
                (lcluster, start, map.size.min(start + (1 << map.lcluster_bits)))
            }
            _ => search.binary_search(offset)?,
        };
        let record = match self.bits {
            2 => search.sum(i, cursor)?,
            _ => search.record(i)?,
        };
        search.extent(i, record, start, end - start)
    }
}

/// One lookup.
struct Search<'a> {
    records: Records,
    map: &'a IndexHeader,
    index: IndexReader<'a>,
}

impl Search<'_> {
    /// Finds the record whose extent contains byte `offset`. Returns its index, and the extent's beginning and end.
    fn binary_search(&mut self, offset: u64) -> Result<(u64, u64, u64)> {
        // Invariant: record `low` begins at `start <= offset`, record `high` begins at `end > offset`.
        let (mut low, mut start) = (0, self.logical(0)?);
        let (mut high, mut end) = (self.records.count, self.map.size);
        if start != 0 {
            return Err(self.corrupt(0, "a first extent that does not begin at the first byte"));
        }
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            let logical = self.logical(middle)?;
            if logical <= start || logical >= end {
                return Err(self.corrupt(middle, "extents that do not ascend"));
            }
            match logical <= offset {
                true => (low, start) = (middle, logical),
                false => (high, end) = (middle, logical),
            }
        }
        Ok((low, start, end))
    }

    fn extent(&mut self, i: u64, record: ExtentRecord, start: u64, len_bytes: u64) -> Result<Extent> {
        let entry = self.address(i);
        let stored = record.stored;
        if i + 1 == self.records.count && self.map.header.advises(advise::FRAGMENT) {
            // Records of 4 bytes have no high word.
            let high = if self.records.bits == 2 { 0 } else { record.physical << 32 };
            return self.map.fragment(entry, start, len_bytes, u64::from(stored.0) | high);
        }
        if stored.len_bytes() == 0 {
            return Ok(Extent { start, len_bytes, mapping: Mapping::Hole });
        }
        let stored = Stored {
            entry,
            at: Address::image(record.physical),
            len_bytes: stored.len_bytes().into(),
            algorithm: stored.format().checked_sub(1),
            partial: stored.partial(),
            inline: false,
        };
        self.map.stored(start, len_bytes, stored)
    }

    /// Reads record `i` of an index whose records have more than 4 bytes.
    fn record(&mut self, i: u64) -> Result<ExtentRecord> {
        let at = self.offset(i);
        let mut bytes = [0; 20];
        match self.records.bits {
            3 => bytes[..8].copy_from_slice(&self.index.array::<8>(at)?),
            4 => bytes[..16].copy_from_slice(&self.index.array::<16>(at)?),
            _ => bytes.copy_from_slice(&self.index.array::<32>(at)?[..20]),
        }
        Ok(ExtentRecord::parse(bytes))
    }

    /// Reads record `i` of 4 bytes. Its stored position is the sum of the lengths before it.
    fn sum(&mut self, i: u64, cursor: &mut Cursor) -> Result<ExtentRecord> {
        if cursor.record > i {
            *cursor = Cursor::default();
        }
        while cursor.record < i {
            let len_bytes = self.stored(cursor.record)?.len_bytes();
            // At most 2^24 times 2^21, unless the cursor belongs to another index.
            cursor.before_bytes = cursor.before_bytes.saturating_add(len_bytes.into());
            cursor.record += 1;
        }
        let physical = self.records.physical.checked_add(cursor.before_bytes);
        let physical = physical.ok_or_else(|| self.corrupt(i, "a cluster beyond all addresses"))?;
        Ok(ExtentRecord { stored: self.stored(i)?, physical, logical: 0 })
    }

    fn stored(&mut self, i: u64) -> Result<StoredLength> {
        let at = self.offset(i);
        Ok(StoredLength(u32::from_le_bytes(self.index.array(at)?)))
    }

    /// Position of record `i` in the file, bytes; records of 16 bytes have the low half only.
    fn logical(&mut self, i: u64) -> Result<u64> {
        Ok(self.record(i)?.logical)
    }

    fn offset(&self, i: u64) -> u64 {
        self.records.begin + (i << self.records.bits)
    }

    fn address(&self, i: u64) -> Address {
        self.map.address(self.offset(i))
    }

    fn corrupt(&self, i: u64, what: &str) -> ImageError {
        self.map.corrupt(self.address(i), what)
    }
}
