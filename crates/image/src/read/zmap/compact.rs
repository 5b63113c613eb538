//! Entries of the compact form: 2 or 4 bytes each, in packs that share a block address.
//!
//! The address of a head is the pack's address plus the blocks of the clusters before it in the pack. The last entry
//! of a pack has the distance to the next head instead of the one back to its head, which follows from the entry
//! before it.

use super::entry::{Entry, Head, HeadKind};
use super::header::IndexHeader;
use super::index_reader::IndexReader;
use crate::format::zmap::{BLOCKS_MASK, EntryType, HEADER_BYTES, IS_BLOCKS, Pack, advise};
use crate::{ImageError, Result};

/// The order of packs: some of 2 entries up to a multiple of 32 bytes, then some of 16 entries, and the rest of 2
/// again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Packs {
    /// First byte of the first pack.
    begin: u64,
    /// Entries before the packs of 16.
    before: u64,
    /// Entries in packs of 16.
    middle: u64,
    /// All entries.
    entries: u64,
}

/// The position of an entry.
#[derive(Debug, Clone, Copy)]
struct Position {
    /// Offset of the pack.
    pack: u64,
    /// Number of entries of the pack.
    entries: u64,
    /// Index of the entry in the pack.
    i: u32,
}

impl Packs {
    pub(super) fn open(map: &IndexHeader) -> Result<Self> {
        let header = map.header;
        let fault = |what| Err(map.corrupt(map.at, what));
        if header.advises(advise::BIG_CLUSTER_1) != header.advises(advise::BIG_CLUSTER_2) {
            return fault("a compact index that mixes clusters of one and of many blocks");
        }
        if header.lcluster_shift() != 0 {
            // Existing readers disagree about the number of entries of such an index.
            let features = "compact indexes of logical clusters larger than a block".into();
            return Err(ImageError::Unsupported { features });
        }
        let short = header.advises(advise::COMPACTED_2B);
        if map.lcluster_bits > if short { 12 } else { 14 } {
            return fault("a compact index of logical clusters too large for it");
        }
        let Some(begin) = map.at.offset.checked_add(HEADER_BYTES) else {
            return fault("an index beyond all addresses");
        };
        let entries = map.lclusters();
        let before = (32 - begin % 32) / 4 % 8;
        let (before, middle) = match short && before < entries {
            true => (before, (entries - before) / 16 * 16),
            false => (entries, 0),
        };
        Ok(Packs { begin, before, middle, entries })
    }

    /// Offset of the end of the last pack; `None` on overflow.
    pub(super) fn end(&self) -> Option<u64> {
        // `before` is even unless there are no other entries. A pack of 2 with one entry has its full length.
        let long_entries = (self.entries - self.middle).next_multiple_of(2);
        self.begin.checked_add(4 * long_entries + 2 * self.middle)
    }

    fn position(&self, lcluster: u64) -> Position {
        let two = |base: u64, k: u64| Position { pack: base + k / 2 * 8, entries: 2, i: (k % 2) as u32 };
        let middle_at = self.begin + 4 * self.before;
        match lcluster.checked_sub(self.before) {
            None => two(self.begin, lcluster),
            Some(k) if k < self.middle => {
                Position { pack: middle_at + k / 16 * 32, entries: 16, i: (k % 16) as u32 }
            }
            Some(k) => two(middle_at + 2 * self.middle, k - self.middle),
        }
    }

    /// Offset of the pack of logical cluster `lcluster`, for messages.
    pub(super) fn pack_offset(&self, lcluster: u64) -> u64 {
        self.position(lcluster).pack
    }

    fn read(&self, index: &mut IndexReader<'_>, lcluster: u64) -> Result<(Pack, u32)> {
        let position = self.position(lcluster);
        let pack = match position.entries {
            2 => Pack::two(index.array(position.pack)?),
            _ => Pack::sixteen(index.array(position.pack)?),
        };
        Ok((pack, position.i))
    }

    /// Reads the entry of logical cluster `lcluster`.
    pub(super) fn entry(
        &self,
        map: &IndexHeader,
        index: &mut IndexReader<'_>,
        lcluster: u64,
    ) -> Result<Entry> {
        let (pack, i) = self.read(index, lcluster)?;
        let entry = decode(map, &pack, i);
        if matches!(entry, Entry::Inside { .. }) && i > 0 && i == pack.entries - 1 {
            let back = match decode(map, &pack, i - 1) {
                Entry::Head(_) => 1,
                Entry::Blocks(_) => 2,
                // 0 is an error of the entry before, which the caller reports.
                Entry::Inside { back: 0 } => 0,
                Entry::Inside { back } => back + 1,
            };
            return Ok(Entry::Inside { back });
        }
        Ok(entry)
    }

    /// Computes the block address of the head at logical cluster `lcluster`.
    pub(super) fn block(&self, map: &IndexHeader, index: &mut IndexReader<'_>, lcluster: u64) -> Result<u32> {
        let (pack, i) = self.read(index, lcluster)?;
        let blocks = match map.header.advises(advise::BIG_CLUSTER_1) {
            false => Some(heads_to(map, &pack, i)),
            true => blocks_before(map, &pack, i),
        };
        let block = blocks.and_then(|blocks| pack.base.checked_add(blocks));
        block.ok_or_else(|| {
            map.corrupt(map.address(self.pack_offset(lcluster)), "a pack without valid addresses")
        })
    }
}

/// Decodes the bits of entry `i`. For the last entry of a pack, `back` may be the distance forward.
fn decode(map: &IndexHeader, pack: &Pack, i: u32) -> Entry {
    let low_bits = map.lcluster_bits.max(12);
    let raw = pack.entry(i);
    let low = raw & ((1 << low_bits) - 1);
    match HeadKind::of(EntryType::from_bits(raw >> low_bits)) {
        Some(kind) => Entry::Head(Head { kind, lcluster_offset: low.into(), partial: false }),
        None if low & IS_BLOCKS != 0 => Entry::Blocks(low & BLOCKS_MASK),
        None => Entry::Inside { back: low },
    }
}

/// For clusters of one block: counts the heads of the pack up to and including entry `i`.
fn heads_to(map: &IndexHeader, pack: &Pack, i: u32) -> u32 {
    let mut heads = 1;
    let mut before = i64::from(i);
    while before > 0 {
        before -= 1;
        match decode(map, pack, before as u32) {
            Entry::Head(_) => {}
            Entry::Inside { back } => before -= i64::from(back),
            Entry::Blocks(_) => {}
        }
        if before >= 0 {
            heads += 1;
        }
    }
    heads
}

/// For clusters of several blocks: counts the blocks between the pack's address and the cluster of the head at entry
/// `i`.
fn blocks_before(map: &IndexHeader, pack: &Pack, i: u32) -> Option<u32> {
    let mut blocks = 0;
    let mut before = i64::from(i);
    while before > 0 {
        before -= 1;
        match decode(map, pack, before as u32) {
            Entry::Head(_) => blocks += 1,
            // The head is the entry before this one.
            Entry::Blocks(n) => {
                blocks += u32::from(n);
                before -= 1;
            }
            // Go to the entry after the head, which has the number of blocks. A distance of 1 would be that entry
            // itself.
            Entry::Inside { back: 0 | 1 } => return None,
            Entry::Inside { back } => before -= i64::from(back) - 2,
        }
    }
    Some(blocks)
}
