//! Entries of the full form: 8 bytes each, and independent of each other.

use super::entry::{Entry, Head, HeadKind};
use super::header::IndexHeader;
use super::index_reader::IndexReader;
use crate::Result;
use crate::format::zmap::{BLOCKS_MASK, FULL_ENTRIES_OFFSET, FULL_ENTRY_BYTES, FullEntry, IS_BLOCKS};

/// Offset of the entry of logical cluster `lcluster` in the index's address space, bytes. It does not overflow,
/// because the end of the index has been checked.
pub(super) fn entry_offset(map: &IndexHeader, lcluster: u64) -> u64 {
    map.at.offset + FULL_ENTRIES_OFFSET + FULL_ENTRY_BYTES * lcluster
}

fn read(map: &IndexHeader, index: &mut IndexReader<'_>, lcluster: u64) -> Result<FullEntry> {
    Ok(FullEntry::parse(index.array(entry_offset(map, lcluster))?))
}

/// Reads the entry of logical cluster `lcluster`.
pub(super) fn entry(map: &IndexHeader, index: &mut IndexReader<'_>, lcluster: u64) -> Result<Entry> {
    let raw = read(map, index, lcluster)?;
    Ok(match HeadKind::of(raw.kind) {
        Some(kind) => {
            Entry::Head(Head { kind, lcluster_offset: raw.lcluster_offset.into(), partial: raw.partial })
        }
        None if raw.back & IS_BLOCKS != 0 => Entry::Blocks(raw.back & BLOCKS_MASK),
        None => Entry::Inside { back: raw.back },
    })
}

/// Reads the block address of the head at logical cluster `lcluster`.
pub(super) fn block(map: &IndexHeader, index: &mut IndexReader<'_>, lcluster: u64) -> Result<u32> {
    Ok(read(map, index, lcluster)?.block)
}
