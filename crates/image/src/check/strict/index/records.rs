//! Extent records.

use super::{Extent, Faults, Index, Strict, tail};
use crate::format::features::incompat;
use crate::format::zmap::{ExtentRecord, HEADER_BYTES, StoredLength, advise};
use crate::{Address, ImageError, rules};

/// The bits of a stored length that have a meaning.
const STORED_BITS: u32 = 0xf81f_ffff;

/// The records of an index.
struct Records {
    begin: u64,
    /// log2 of the length of a record.
    bits: u8,
}

/// Judges all records of an index and their extents; false if a fault hides some of them.
pub(super) fn check(
    index: &mut Index<'_>,
    strict: &mut Strict<'_>,
    faults: &mut Faults<'_>,
) -> Result<bool, ImageError> {
    strict.uses(incompat::WIDE_ADDRESSES, "extent records", index.at, faults);
    let bits = index.header.record_bits();
    let is_sized = bits >= 4;
    let lclusters = index.inode.size.div_ceil(1 << index.lcluster_bits);
    let count = if is_sized { index.header.record_count() } else { lclusters };
    let header_end = Address { offset: index.at.offset + HEADER_BYTES, ..index.at };
    let array = header_end.offset.next_multiple_of(1 << bits);
    if !strict.is_zero(header_end, array - header_end.offset)? {
        faults.add(&rules::INDEX_HEADER, header_end, "bytes before the records are not zero");
    }
    let mut physical = 0;
    let begin = array + if bits == 2 { 8 } else { 0 };
    if bits == 2 {
        physical = u64::from_le_bytes(strict.array(Address { offset: array, ..index.at })?);
    }
    let records = Records { begin, bits };
    let end = begin.saturating_add(count.saturating_mul(1 << bits));
    if index.header.advises(advise::INLINE) || count == 0 {
        faults.add(&rules::INDEX_RECORD, index.at, "records that are none, or with an inline extent");
        return Ok(false);
    }
    let mut next = records.record(strict, index, 0, physical, faults)?;
    if is_sized && next.logical != 0 {
        faults.add(&rules::INDEX_RECORD, index.at, "the first record does not begin at byte 0");
    }
    for number in 0..count {
        let record = next;
        let start = if is_sized { record.logical } else { number << index.lcluster_bits };
        let mut end = index.inode.size.min(start.saturating_add(1 << index.lcluster_bits));
        if number + 1 < count {
            let physical = record.physical.wrapping_add(record.stored.len_bytes().into());
            next = records.record(strict, index, number + 1, physical, faults)?;
            end = if is_sized { next.logical } else { end };
        } else if is_sized {
            end = index.inode.size;
        }
        let at = Address { offset: records.offset(number), ..index.at };
        if end <= start || end > index.inode.size {
            faults.add(&rules::INDEX_RECORD, at, format!("record {number} covers bytes {start} to {end}"));
            return Ok(false);
        }
        let is_last = number + 1 == count;
        extent(index, strict, (at, &record, end - start, is_last), faults)?;
    }
    strict.claim_metadata(index.inode, end, faults);
    Ok(true)
}

/// Judges the extent of one record.
fn extent(
    index: &mut Index<'_>,
    strict: &mut Strict<'_>,
    (at, record, len_bytes, is_last): (Address, &ExtentRecord, u64, bool),
    faults: &mut Faults<'_>,
) -> Result<(), ImageError> {
    let stored = record.stored;
    if is_last && index.header.advises(advise::FRAGMENT) {
        let high = if index.header.record_bits() == 2 { 0 } else { record.physical << 32 };
        let offset = u64::from(stored.0) | high;
        tail::check_fragment(strict, index.inode, at, offset, len_bytes, faults);
        return Ok(());
    }
    if stored.0 & !STORED_BITS != 0 || (stored.len_bytes() == 0 && stored.0 != 0) {
        faults.add(&rules::INDEX_RECORD, at, format!("a stored length of {:#x}", stored.0));
    }
    if stored.len_bytes() == 0 {
        return Ok(());
    }
    let extent = Extent {
        entry: at,
        len_bytes,
        at: Address::image(record.physical),
        stored_bytes: stored.len_bytes().into(),
        algorithm: stored.format().checked_sub(1),
        partial: stored.partial(),
        inline: false,
    };
    index.extent(strict, extent, faults)
}

impl Records {
    fn offset(&self, number: u64) -> u64 {
        self.begin + (number << self.bits)
    }

    /// Reads a record; one of 4 bytes has the address `physical`.
    fn record(
        &self,
        strict: &Strict<'_>,
        index: &Index<'_>,
        number: u64,
        physical: u64,
        faults: &mut Faults<'_>,
    ) -> Result<ExtentRecord, ImageError> {
        let at = Address { offset: self.offset(number), ..index.at };
        let mut bytes = [0; 32];
        let len = 1 << self.bits;
        strict.bytes().read_at(at, &mut bytes[..len])?;
        let [fields @ .., _, _, _, _, _, _, _, _, _, _, _, _] = bytes;
        if bytes[20..].iter().any(|byte| *byte != 0) {
            faults.add(&rules::INDEX_RECORD, at, "reserved bytes of a record are not zero");
        }
        let mut record = ExtentRecord::parse(fields);
        if self.bits == 2 {
            record = ExtentRecord { stored: StoredLength(record.stored.0), physical, logical: 0 };
        }
        Ok(record)
    }
}
