//! Derives extents from the entries of logical clusters, of the full or the compact form.
//!
//! An extent begins at the position in its head entry and ends where the next extent begins. So a lookup goes back to
//! the head along the distances in the entries, then forward over each entry to the next head. The forward distances
//! that some entries have are not used: an extent is short, its entries lie next to each other, and walking over them
//! checks them. Each step back reduces the number of the logical cluster. Both walks are bounded by the number of
//! logical clusters of the longest extent.

use super::compact::Packs;
use super::entry::{Entry, Head, HeadKind};
use super::full;
use super::header::IndexHeader;
use super::index_reader::IndexReader;
use super::mapping::Stored;
use crate::format::zmap::{FULL_ENTRIES_OFFSET, FULL_ENTRY_BYTES, advise};
use crate::read::extent::MAX_DECODED_BYTES;
use crate::read::{Bytes, Extent};
use crate::{Address, ImageError, Result};

/// The form of the entries.
#[derive(Debug, Clone, Copy)]
pub(super) enum Entries {
    Full,
    Compact(Packs),
}

impl Entries {
    /// Offset of the end of the entries.
    pub(super) fn end(&self, map: &IndexHeader) -> Result<u64> {
        let end = match self {
            Entries::Compact(packs) => packs.end(),
            // At most 2^54 entries: the file has less than 2^63 bytes, a block 512 or more.
            Entries::Full => {
                map.at.offset.checked_add(FULL_ENTRIES_OFFSET + FULL_ENTRY_BYTES * map.lclusters())
            }
        };
        end.ok_or_else(|| map.corrupt(map.at, "an index beyond all addresses"))
    }
}

/// The head of an extent, and its position.
#[derive(Debug, Clone, Copy)]
struct Found {
    lcluster: u64,
    head: Head,
    /// Position of the extent in the file, bytes.
    start: u64,
}

/// A lookup in an index of entries.
pub(super) struct Lclusters<'a> {
    map: &'a IndexHeader,
    entries: Entries,
    index: IndexReader<'a>,
    /// Number of logical clusters.
    count: u64,
    index_end: u64,
}

impl<'a> Lclusters<'a> {
    pub(super) fn new(map: &'a IndexHeader, entries: Entries, bytes: &'a dyn Bytes) -> Result<Self> {
        let index_end = entries.end(map)?;
        Ok(Lclusters {
            map,
            entries,
            index: IndexReader::new(bytes, map.at, index_end),
            count: map.lclusters(),
            index_end,
        })
    }

    /// Finds the extent that contains byte `offset`. Not for a last extent that is inline or a fragment: see
    /// [`Self::tail`].
    pub(super) fn extent_at(&mut self, offset: u64) -> Result<Extent> {
        let found = self.head_of(offset)?;
        let (end, blocks) = self.end_of(&found)?;
        if end <= offset {
            return Err(self.corrupt(found.lcluster, "an extent that entries after its end point back to"));
        }
        let block = self.block(found.lcluster)?;
        let stored = Stored {
            entry: self.address(found.lcluster),
            at: Address::image(u64::from(block) << self.map.context.block_bits),
            len_bytes: u64::from(blocks) << self.map.context.block_bits,
            algorithm: self.algorithm(&found.head),
            partial: found.head.partial,
            inline: false,
        };
        self.map.stored(found.start, end - found.start, stored)
    }

    /// Finds the last extent, if it is inline or a fragment.
    pub(super) fn tail(&mut self) -> Result<Extent> {
        let found = self.head_of(self.map.size - 1)?;
        let len_bytes = self.map.size - found.start;
        let header = self.map.header;
        let entry = self.address(found.lcluster);
        if header.advises(advise::FRAGMENT) {
            // Only entries of the full form have the high half of the position.
            let high = match self.entries {
                Entries::Full => self.block(found.lcluster)?,
                Entries::Compact(_) => 0,
            };
            let offset = u64::from(header.fragment_offset()) | u64::from(high) << 32;
            return self.map.fragment(entry, found.start, len_bytes, offset);
        }
        let stored_bytes = u64::from(header.inline_bytes());
        let block_bytes = 1_u64 << self.map.context.block_bits;
        if self.index_end % block_bytes + stored_bytes > block_bytes {
            return Err(self.corrupt(found.lcluster, "an inline extent that crosses a block"));
        }
        let stored = Stored {
            entry,
            at: self.map.address(self.index_end),
            len_bytes: stored_bytes,
            algorithm: self.algorithm(&found.head),
            partial: found.head.partial,
            inline: true,
        };
        self.map.stored(found.start, len_bytes, stored)
    }

    /// Finds the head of the extent that contains byte `offset`.
    fn head_of(&mut self, offset: u64) -> Result<Found> {
        let within = offset & ((1 << self.map.lcluster_bits) - 1);
        let mut lcluster = offset >> self.map.lcluster_bits;
        if let Entry::Head(head) = self.entry(lcluster)?
            && u64::from(head.lcluster_offset) > within
        {
            // The byte belongs to the extent before. There is one: `entry` refuses a first head that is not at byte 0.
            lcluster -= 1;
        }
        for _ in 0..self.longest_lclusters() {
            let back = match self.entry(lcluster)? {
                Entry::Head(head) => {
                    let start = (lcluster << self.map.lcluster_bits) + u64::from(head.lcluster_offset);
                    return Ok(Found { lcluster, head, start });
                }
                Entry::Blocks(_) => 1,
                Entry::Inside { back } => back.into(),
            };
            if back == 0 || back > lcluster {
                return Err(self.corrupt(lcluster, "a distance to an extent's beginning that leads nowhere"));
            }
            lcluster -= back;
        }
        Err(self.corrupt(lcluster, "too many steps back to an extent's beginning"))
    }

    /// Finds the end of the extent, bytes, and the number of blocks of its cluster.
    fn end_of(&mut self, found: &Found) -> Result<(u64, u16)> {
        let bits = self.map.lcluster_bits;
        let mut blocks = 1;
        for lcluster in found.lcluster + 1..self.count {
            match self.entry(lcluster)? {
                Entry::Head(head) => {
                    // A plain entry at or after the end of the file may mark the end.
                    let next = (lcluster << bits) + u64::from(head.lcluster_offset);
                    return Ok((next.min(self.map.size), blocks));
                }
                Entry::Inside { .. } => {}
                Entry::Blocks(n) => {
                    let big = self.map.header.advises(found.head.kind.big_advice());
                    if !big || lcluster != found.lcluster + 1 || n == 0 {
                        return Err(self.corrupt(lcluster, "a misplaced or invalid number of blocks"));
                    }
                    blocks = n;
                }
            }
            let so_far = ((lcluster + 1) << bits).min(self.map.size) - found.start;
            if so_far > MAX_DECODED_BYTES {
                return Err(self.corrupt(found.lcluster, "an extent of more than 12 MiB"));
            }
        }
        Ok((self.map.size, blocks))
    }

    fn entry(&mut self, lcluster: u64) -> Result<Entry> {
        let entry = match self.entries {
            Entries::Compact(packs) => packs.entry(self.map, &mut self.index, lcluster)?,
            Entries::Full => full::entry(self.map, &mut self.index, lcluster)?,
        };
        if let Entry::Head(head) = entry
            && (head.lcluster_offset >> self.map.lcluster_bits > 0
                || (lcluster == 0 && head.lcluster_offset > 0))
        {
            return Err(self.corrupt(lcluster, "an extent that begins outside of its logical cluster"));
        }
        Ok(entry)
    }

    fn block(&mut self, lcluster: u64) -> Result<u32> {
        match self.entries {
            Entries::Compact(packs) => packs.block(self.map, &mut self.index, lcluster),
            Entries::Full => full::block(self.map, &mut self.index, lcluster),
        }
    }

    fn algorithm(&self, head: &Head) -> Option<u8> {
        match head.kind {
            HeadKind::Plain => None,
            HeadKind::First => Some(self.map.header.algorithm_1()),
            HeadKind::Second => Some(self.map.header.algorithm_2()),
        }
    }

    /// Number of logical clusters that the longest extent touches.
    fn longest_lclusters(&self) -> u64 {
        (MAX_DECODED_BYTES >> self.map.lcluster_bits) + 2
    }

    fn address(&self, lcluster: u64) -> Address {
        self.map.address(match self.entries {
            Entries::Compact(packs) => packs.pack_offset(lcluster),
            Entries::Full => full::entry_offset(self.map, lcluster),
        })
    }

    fn corrupt(&self, lcluster: u64, what: &str) -> ImageError {
        self.map.corrupt(self.address(lcluster), what)
    }
}
