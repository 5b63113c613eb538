//! Extent records.

use super::extents::Index;
use super::tail;
use crate::strict::context::Strict;
use crate::strict::extent::Extent;
use pagefold_image::format::features::incompat;
use pagefold_image::format::zmap::{ExtentRecord, HEADER_BYTES, StoredLength, advise};
use pagefold_image::{Address, Result, rules};

/// The bits of a stored length that have a meaning.
const STORED_BITS: u32 = 0xf81f_ffff;

/// The records of an index.
struct Records {
    begin: u64,
    /// log2 of the length of a record.
    bits: u8,
    /// Whether records have an offset in the file. Otherwise each extent is one logical cluster.
    is_sized: bool,
    count: u64,
    /// The address of the first cluster, for records without addresses.
    physical: u64,
}

/// Judges all records of an index and their extents; false if a fault hides some of them.
pub(super) fn check(index: &mut Index<'_>, strict: &mut Strict<'_>) -> Result<bool> {
    strict.uses(incompat::WIDE_ADDRESSES, "extent records", index.at);
    let records = Records::open(index, strict)?;
    if index.header.advises(advise::INLINE) || records.count == 0 {
        strict.fault(&rules::INDEX_RECORD, index.at, "no records, or records with an inline extent");
        return Ok(false);
    }
    let mut next = records.record(strict, index, 0, records.physical)?;
    if records.is_sized && next.logical != 0 {
        strict.fault(&rules::INDEX_RECORD, index.at, "the first record does not begin at byte 0");
    }
    for number in 0..records.count {
        let (record, is_last) = (next, number + 1 == records.count);
        if !is_last {
            let physical = record.physical.wrapping_add(record.stored.len_bytes().into());
            next = records.record(strict, index, number + 1, physical)?;
        }
        let (size, lcluster) = (index.inode.size, 1u64 << index.lcluster_bits);
        let (start, end) = match records.is_sized {
            true => (record.logical, if is_last { size } else { next.logical }),
            false => (number * lcluster, size.min((number * lcluster).saturating_add(lcluster))),
        };
        let at = Address { offset: records.offset(number), ..index.at };
        if end <= start || end > size {
            strict.fault(&rules::INDEX_RECORD, at, format!("record {number} covers bytes {start} to {end}"));
            return Ok(false);
        }
        extent(index, strict, (at, &record, end - start, is_last))?;
    }
    let end = records.begin.saturating_add(records.count.saturating_mul(1 << records.bits));
    index.inode.claim(strict, end);
    Ok(true)
}

/// Judges the extent of one record.
fn extent(
    index: &mut Index<'_>,
    strict: &mut Strict<'_>,
    (at, record, len_bytes, is_last): (Address, &ExtentRecord, u64, bool),
) -> Result<()> {
    let stored = record.stored;
    if is_last && index.header.advises(advise::FRAGMENT) {
        let high = if index.header.record_bits() == 2 { 0 } else { record.physical << 32 };
        let offset = u64::from(stored.0) | high;
        tail::check_fragment(strict, index.inode, at, offset, len_bytes);
        return Ok(());
    }
    if stored.0 & !STORED_BITS != 0 || (stored.len_bytes() == 0 && stored.0 != 0) {
        strict.fault(&rules::INDEX_RECORD, at, format!("a stored length of {:#x}", stored.0));
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
        is_last,
        inline: false,
    };
    index.extent(strict, extent)
}

impl Records {
    /// Finds the records after the header, and judges the bytes between.
    fn open(index: &Index<'_>, strict: &Strict<'_>) -> Result<Self> {
        let bits = index.header.record_bits();
        let (is_sized, has_addresses) = (bits >= 4, bits > 2);
        let lclusters = index.inode.size.div_ceil(1 << index.lcluster_bits);
        let count = if is_sized { index.header.record_count() } else { lclusters };
        let header_end = Address { offset: index.at.offset + HEADER_BYTES, ..index.at };
        let array = header_end.offset.next_multiple_of(1 << bits);
        if !strict.is_zero(header_end, array - header_end.offset)? {
            strict.fault(&rules::INDEX_HEADER, header_end, "bytes before the records are not zero");
        }
        let (begin, physical) = match has_addresses {
            true => (array, 0),
            false => {
                let at = Address { offset: array, ..index.at };
                (array + 8, u64::from_le_bytes(strict.array(at)?))
            }
        };
        Ok(Records { begin, bits, is_sized, count, physical })
    }

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
    ) -> Result<ExtentRecord> {
        let at = Address { offset: self.offset(number), ..index.at };
        let mut bytes = [0; 32];
        let len = 1 << self.bits;
        strict.bytes().read_at(at, &mut bytes[..len])?;
        let [fields @ .., _, _, _, _, _, _, _, _, _, _, _, _] = bytes;
        if bytes[20..].iter().any(|byte| *byte != 0) {
            strict.fault(&rules::INDEX_RECORD, at, "reserved bytes of a record are not zero");
        }
        let mut record = ExtentRecord::parse(fields);
        if self.bits == 2 {
            record = ExtentRecord { stored: StoredLength(record.stored.0), physical, logical: 0 };
        }
        Ok(record)
    }
}
