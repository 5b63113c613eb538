//! Entries of the full form: 8 bytes each, and each says everything about itself.

use super::ZMap;
use super::lclusters::{Entry, Head, HeadKind};
use super::window::Window;
use crate::ImageError;
use crate::format::zmap::{BLOCKS_MASK, FULL_ENTRIES_OFFSET, FULL_ENTRY_BYTES, FullEntry, IS_BLOCKS};

/// Where the entry of logical cluster `lcluster` is, bytes in the index's space. The end of the index has
/// been compared with the end of all numbers.
pub(super) fn entry_offset(map: &ZMap, lcluster: u64) -> u64 {
    map.at.offset + FULL_ENTRIES_OFFSET + FULL_ENTRY_BYTES * lcluster
}

fn read(map: &ZMap, window: &mut Window<'_>, lcluster: u64) -> Result<FullEntry, ImageError> {
    Ok(FullEntry::parse(window.array(entry_offset(map, lcluster))?))
}

/// The entry of logical cluster `lcluster`.
pub(super) fn entry(map: &ZMap, window: &mut Window<'_>, lcluster: u64) -> Result<Entry, ImageError> {
    let raw = read(map, window, lcluster)?;
    Ok(match HeadKind::of(raw.kind) {
        Some(kind) => {
            Entry::Head(Head { kind, lcluster_offset: raw.lcluster_offset.into(), partial: raw.partial })
        }
        None if raw.back & IS_BLOCKS != 0 => Entry::Blocks(raw.back & BLOCKS_MASK),
        None => Entry::Inside { back: raw.back },
    })
}

/// The block address of the head at logical cluster `lcluster`.
pub(super) fn block(map: &ZMap, window: &mut Window<'_>, lcluster: u64) -> Result<u32, ImageError> {
    Ok(read(map, window, lcluster)?.block)
}
