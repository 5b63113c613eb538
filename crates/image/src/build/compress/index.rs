//! The index of a compressed file: from a list of extents to the bytes behind the inode.
//!
//! The form is that of "Compressed indexes" in `docs/formats/erofs.md`, layout 3: packs of two entries up to a multiple
//! of 32 bytes, then packs of sixteen, then packs of two. It needs clusters that follow each other in the image, except
//! where a pack begins, as the segments of the packed file do.
//!
//! The full form, layout 1, has eight bytes for each block. It is used for files that refer to clusters of others, for extents
//! that are the beginning of a cluster, and for a last extent behind the first 4 GiB of the packed file.

use super::extent::Stored;
use crate::build::options::BLOCK_BYTES;
use crate::format::zmap::{
    BLOCKS_MASK, EntryType, FULL_ENTRIES_OFFSET, FullEntry, HEADER_BYTES, IS_BLOCKS, Pack, advise,
};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Greatest distance that an entry stores.
const DISTANCE_MAX: u64 = (IS_BLOCKS - 1) as u64;

/// The beginning of an extent, or the mark of the file's end.
#[derive(Debug, Clone, Copy)]
struct Head {
    /// Logical cluster in which the extent begins.
    lcluster: u64,
    /// Offset in it, bytes.
    offset: u16,
    kind: EntryType,
    /// First block of the cluster.
    block: u64,
    /// Blocks of the cluster.
    blocks: u16,
    /// Whether the cluster decodes to more than the extent.
    is_prefix: bool,
}

/// An extent whose place in the image is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// First byte in the file.
    pub start: u64,
    /// First block of its cluster. Without a cluster, the block behind those of the extents before.
    pub block: u64,
    /// Its storage.
    pub stored: Stored,
    /// Whether it is only the beginning of what its cluster decodes to, or its cluster takes more bytes than it has.
    pub is_prefix: bool,
}

/// A file, as its index describes it.
pub struct Index<'a> {
    /// The extents; the first begins at byte 0.
    pub extents: &'a [Placed],
    /// Length of the file, bytes; not 0.
    pub len_bytes: u64,
    /// Whether extents refer to clusters of other files, or of other places in the file.
    pub has_references: bool,
    /// Whether clusters may have more than a block.
    pub big: bool,
    /// Position of the last extent in the packed file, if that is [`Stored::Fragment`].
    pub fragment: Option<u64>,
}

impl Index<'_> {
    /// Whether the index needs the full form.
    pub fn is_full(&self) -> bool {
        self.has_references
            || self.extents.iter().any(|extent| extent.is_prefix)
            || self.fragment.is_some_and(|offset| offset > u32::MAX.into())
    }

    /// The advice of the header that belongs to the index.
    pub fn advice(&self) -> u16 {
        let big = if self.big { advise::BIG_CLUSTER_1 | advise::BIG_CLUSTER_2 } else { 0 };
        let last = match self.extents.last().map(|extent| extent.stored) {
            Some(Stored::Inline { .. }) => advise::INLINE,
            Some(Stored::Fragment) => advise::FRAGMENT,
            _ => 0,
        };
        big | last | if self.is_full() { 0 } else { advise::COMPACTED_2B }
    }

    /// Encodes what follows the header; `start` is the offset of the header's end in the image, of which only the
    /// remainder by 32 counts.
    pub fn encode(&self, start: u64) -> Vec<u8> {
        let count = self.len_bytes.div_ceil(BLOCK);
        let heads = self.heads(count);
        match self.is_full() {
            true => self.encode_full(&heads, count),
            false => self.encode_compact(&heads, count, start),
        }
    }

    fn encode_full(&self, heads: &[Head], count: u64) -> Vec<u8> {
        let mut out = vec![0; (FULL_ENTRIES_OFFSET - HEADER_BYTES) as usize];
        for (number, head) in heads.iter().enumerate() {
            let next = heads.get(number + 1).map_or(count, |next| next.lcluster);
            let is_fragment = number + 1 == self.extents.len();
            let high = self.fragment.filter(|_| is_fragment).map(|offset| offset >> 32);
            let entry =
                |kind| FullEntry { kind, partial: false, lcluster_offset: 0, block: 0, back: 0, forward: 0 };
            let first = FullEntry {
                partial: head.is_prefix,
                lcluster_offset: head.offset,
                block: high.unwrap_or(head.block) as u32,
                ..entry(head.kind)
            };
            out.extend(first.encode());
            for i in head.lcluster + 1..next {
                let back = match i - head.lcluster {
                    1 if self.big => IS_BLOCKS | (head.blocks & BLOCKS_MASK),
                    back => back.min(DISTANCE_MAX) as u16,
                };
                let forward = (next - i).min(DISTANCE_MAX) as u16;
                out.extend(FullEntry { back, forward, ..entry(EntryType::NonHead) }.encode());
            }
        }
        out
    }

    fn encode_compact(&self, heads: &[Head], count: u64, start: u64) -> Vec<u8> {
        let mut packer = Packer { heads, at: 0, count, big: self.big, out: Vec::new() };
        let first_twos = ((32 - start % 32) / 4) & 7;
        let sixteens = count.saturating_sub(first_twos) / 16;
        let mut next = 0;
        while next < count {
            let entries = match next >= first_twos && next < first_twos + 16 * sixteens {
                true => 16,
                false => 2,
            };
            packer.pack(next, entries);
            next += entries;
        }
        packer.out
    }

    /// The extents' heads, and the mark of the end: it is needed if the last extent begins before the last logical
    /// cluster and does not fill it.
    fn heads(&self, count: u64) -> Vec<Head> {
        let mut heads: Vec<Head> = Vec::with_capacity(self.extents.len() + 1);
        let mut end_block = 1;
        for extent in self.extents {
            let (kind, blocks) = match extent.stored {
                Stored::Compressed { blocks } => (EntryType::Head1, blocks),
                Stored::Plain | Stored::Inline { compressed: false } => (EntryType::Plain, 1),
                Stored::Inline { compressed: true } => (EntryType::Head1, 1),
                // It has no block; an index without numbers of blocks counts one for each head.
                Stored::Fragment => (EntryType::Head1, u16::from(!self.big)),
            };
            let (lcluster, offset) = (extent.start / BLOCK, (extent.start % BLOCK) as u16);
            let (block, is_prefix) = (extent.block, extent.is_prefix);
            heads.push(Head { lcluster, offset, kind, block, blocks, is_prefix });
            end_block = block + u64::from(blocks);
        }
        let end = (self.len_bytes % BLOCK) as u16;
        if end != 0 && heads.last().is_some_and(|last| last.lcluster < count - 1) {
            let (lcluster, kind, block) = (count - 1, EntryType::Plain, end_block);
            heads.push(Head { lcluster, offset: end, kind, block, blocks: 1, is_prefix: false });
        }
        heads
    }
}

/// Writes pack after pack.
struct Packer<'a> {
    heads: &'a [Head],
    /// The head of the entry that was written last; entries only go forward.
    at: usize,
    count: u64,
    big: bool,
    out: Vec<u8>,
}

impl Packer<'_> {
    /// Appends the pack of entries `first..first + entries`; those behind the end of the file are zero.
    fn pack(&mut self, first: u64, entries: u64) {
        let base = self.base(first, entries);
        let last = first + entries - 1;
        let codes: Vec<u16> = (first..=last).map(|i| self.entry(i, i == last)).collect();
        match <&[u16; 2]>::try_from(codes.as_slice()) {
            Ok(two) => self.out.extend(Pack::encode_two(*two, base)),
            Err(_) => {
                let sixteen = std::array::from_fn(|i| codes.get(i).copied().unwrap_or(0));
                self.out.extend(Pack::encode_sixteen(sixteen, base));
            }
        }
    }

    /// Encodes entry `i`.
    fn entry(&mut self, i: u64, is_last_of_pack: bool) -> u16 {
        if i >= self.count {
            return 0;
        }
        let head = self.seek(i);
        if head.lcluster == i {
            return head.offset | (head.kind.bits() << 12);
        }
        let back = i - head.lcluster;
        let low = match (self.big && back == 1, is_last_of_pack) {
            (true, _) => IS_BLOCKS | (head.blocks & BLOCKS_MASK),
            (false, true) => (self.next_head() - i).min(DISTANCE_MAX) as u16,
            (false, false) => back.min(DISTANCE_MAX) as u16,
        };
        low | (EntryType::NonHead.bits() << 12)
    }

    /// The block address to which the heads of a pack are relative.
    fn base(&mut self, first: u64, entries: u64) -> u32 {
        let head = self.seek(first);
        let inside = self.heads[self.at..].iter().find(|h| (first..first + entries).contains(&h.lcluster));
        let base = match (self.big, inside) {
            // The number of blocks stands in the first entry, and its head in the pack before.
            (true, _) if head.lcluster + 1 == first => head.block,
            (true, Some(inside)) => inside.block,
            (true, None) => head.block + u64::from(head.blocks),
            // Entries count from the head before the pack.
            (false, Some(inside)) => inside.block.wrapping_sub(1),
            (false, None) => head.block,
        };
        base as u32
    }

    /// Goes to the head of logical cluster `i`.
    fn seek(&mut self, i: u64) -> Head {
        while self.heads.get(self.at + 1).is_some_and(|next| next.lcluster <= i) {
            self.at += 1;
        }
        self.heads[self.at]
    }

    /// The logical cluster of the next head, or the end of the file.
    fn next_head(&self) -> u64 {
        self.heads.get(self.at + 1).map_or(self.count, |next| next.lcluster)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Nid;
    use crate::format::zmap::MapHeader;
    use crate::read::zmap::{IndexForm, ZContext, ZMap};
    use crate::read::{Algorithm, Mapping, SliceBytes};

    /// An end of a file behind the first 4 GiB of the packed file needs the full form.
    #[test]
    fn fragments_at_any_position_come_back() {
        for (fragment, big) in [(5, true), (u32::MAX.into(), false), (1 << 32, true), ((9 << 32) + 77, false)]
        {
            let blocks = if big { 3 } else { 1 };
            let placed = |start, block, stored| Placed { start, block, stored, is_prefix: false };
            let behind = 100 + u64::from(blocks);
            let extents = [
                placed(0, 100, Stored::Compressed { blocks }),
                placed(30_001, behind, Stored::Compressed { blocks: 1 }),
                placed(40_000, behind + 1, Stored::Plain),
                placed(44_096, behind + 2, Stored::Fragment),
            ];
            let (len_bytes, fragment) = (60_000, Some(fragment));
            let index = Index { extents: &extents, len_bytes, has_references: false, big, fragment };
            let fragment = fragment.unwrap_or(0);
            assert_eq!(index.is_full(), fragment > u32::MAX.into());
            let start = 64;
            let mut image = vec![0; start as usize];
            let header = MapHeader::of_clusters(index.advice(), Algorithm::Zstd as u8, 0);
            image.extend(header.with_fragment(fragment).encode());
            image.extend(index.encode(start + 8));
            let context = ZContext {
                block_bits: 12,
                zero_padding: true,
                extent_records: false,
                fragments: true,
                algorithms: 1 << Algorithm::Zstd as u8,
                max_cluster_bytes: 1 << 20,
                nid_for_errors: Nid(1),
            };
            let form = if index.is_full() { IndexForm::Full } else { IndexForm::Compact };
            let (bytes, at) = (SliceBytes(&image), crate::Address::image(start));
            let map = ZMap::open(&bytes, &context, form, at, 60_000).unwrap();
            let (mut starts, mut offset) = (Vec::new(), 0);
            while offset < 60_000 {
                let extent = map.extent_at(&bytes, offset).unwrap();
                starts.push(extent.start);
                if let Mapping::Fragment { offset } = extent.mapping {
                    assert_eq!(offset, fragment);
                } else if let Mapping::Compressed(cluster) = extent.mapping {
                    let block = if extent.start == 0 { 100 } else { 100 + u64::from(blocks) };
                    assert_eq!(cluster.at.offset, block * BLOCK);
                }
                offset = extent.end();
            }
            assert_eq!(starts, [0, 30_001, 40_000, 44_096]);
        }
    }
}
