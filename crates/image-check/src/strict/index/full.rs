//! Entries of the full form.

use super::entry::Entry;
use super::extents::Index;
use crate::strict::context::Strict;
use pagefold_image::format::zmap::{
    BLOCKS_MASK, EntryType, FULL_ENTRIES_OFFSET, FULL_ENTRY_BYTES, IS_BLOCKS, RawFullEntry,
};
use pagefold_image::{Address, Result};

/// The bits of a head's first word that have a meaning, and of another entry's.
const HEAD_BITS: u16 = 0x8003;
const OTHER_BITS: u16 = 0x3;

/// Reads the entry of logical cluster `number`.
pub(super) fn entry(strict: &Strict<'_>, index: &Index<'_>, number: u64) -> Result<Entry> {
    let offset = index.at.offset + FULL_ENTRIES_OFFSET + number * FULL_ENTRY_BYTES;
    let at = Address { offset, ..index.at };
    let raw = RawFullEntry::parse(&strict.array(at)?);
    let (advise, block) = (raw.advise.get(), raw.block.get());
    let kind = EntryType::from_bits(advise);
    let mut entry = Entry::new(at, kind);
    if kind != EntryType::NonHead {
        entry.offset = raw.lcluster_offset.get().into();
        entry.partial = advise & !HEAD_BITS == 0 && advise & 0x8000 != 0;
        entry.has_unused_bits = advise & !HEAD_BITS != 0;
        entry.block = block;
        return Ok(entry);
    }
    let (back, forward) = (block as u16, (block >> 16) as u16);
    entry.has_unused_bits = advise & !OTHER_BITS != 0;
    entry.offset = raw.lcluster_offset.get().into();
    entry.forward = Some(forward);
    match back & IS_BLOCKS {
        0 => entry.back = Some(back),
        _ => entry.blocks = Some(back & BLOCKS_MASK),
    }
    Ok(entry)
}
