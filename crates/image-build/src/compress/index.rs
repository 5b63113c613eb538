//! The index of a compressed file: from a list of extents to the bytes after the inode.
//!
//! Both the extents and the index of a long file may be larger than memory, so one pass over the extents writes the index
//! piece by piece. Its length depends on that of the file alone.
//!
//! The form is that of "Compressed indexes" in `docs/formats/erofs.md`, layout 3: packs of two entries up to a multiple
//! of 32 bytes, then packs of sixteen, then packs of two. It needs clusters that follow each other in the image, except
//! where a pack begins, as the segments of the packed file do.
//!
//! The full form, layout 1, has eight bytes for each block. It is used for files that refer to clusters of others, for extents
//! that are the beginning of a cluster, and for a last extent after the first 4 GiB of the packed file.

use super::extents::{ExtentTable, Placed};
use super::stored::Stored;
use crate::options::BLOCK_BYTES;
use pagefold_image::format::zmap::{
    BLOCKS_MASK, EntryType, FULL_ENTRIES_OFFSET, FULL_ENTRY_BYTES, FullEntry, HEADER_BYTES, IS_BLOCKS, Pack,
    advise,
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

/// A file, as its index describes it.
pub struct Index<'a> {
    /// The extents; the first begins at byte 0.
    pub extents: &'a ExtentTable,
    /// Length of the file, bytes; not 0.
    pub len_bytes: u64,
    /// Whether extents refer to clusters of other files, or of other places in the file.
    pub has_references: bool,
    /// Whether clusters may have more than a block.
    pub big: bool,
    /// Position of the last extent in the packed file, if that is [`Stored::Fragment`].
    pub fragment: Option<u64>,
    /// Whether the index has the full form without a need.
    pub is_always_full: bool,
}

impl Index<'_> {
    /// Whether the index has the full form.
    pub fn is_full(&self) -> bool {
        self.is_always_full
            || self.has_references
            || self.extents.has_prefix()
            || self.fragment.is_some_and(|offset| offset > u32::MAX.into())
    }

    /// The advice of the header that belongs to the index.
    pub fn advice(&self) -> u16 {
        let big = if self.big { advise::BIG_CLUSTER_1 | advise::BIG_CLUSTER_2 } else { 0 };
        let last = match self.extents.all().last().map(|extent| extent.stored) {
            Some(Stored::Inline { .. }) => advise::INLINE,
            Some(Stored::Fragment) => advise::FRAGMENT,
            _ => 0,
        };
        big | last | if self.is_full() { 0 } else { advise::COMPACTED_2B }
    }

    /// Bytes that [`write`](Self::write) passes on.
    pub fn encoded_bytes(&self, start: u64) -> u64 {
        let count = self.lclusters();
        if self.is_full() {
            return FULL_ENTRIES_OFFSET - HEADER_BYTES + count * FULL_ENTRY_BYTES;
        }
        let Packs { twos, sixteens } = Packs::of(count, start);
        let last_twos = count.saturating_sub(twos + 16 * sixteens);
        twos.min(count).div_ceil(2) * 8 + sixteens * 32 + last_twos.div_ceil(2) * 8
    }

    /// Passes what follows the header to `put`, piece after piece; `start` is the offset of the header's end in the image, of
    /// which only the remainder by 32 counts.
    pub fn write(&self, start: u64, put: &mut dyn FnMut(&[u8])) {
        match self.is_full() {
            true => self.write_full(put),
            false => self.write_compact(start, put),
        }
    }

    fn lclusters(&self) -> u64 {
        self.len_bytes.div_ceil(BLOCK)
    }

    fn write_full(&self, put: &mut dyn FnMut(&[u8])) {
        put(&[0; (FULL_ENTRIES_OFFSET - HEADER_BYTES) as usize]);
        let mut heads = Heads::new(self);
        loop {
            let (head, next) = (heads.head, heads.next_lcluster());
            let is_fragment = heads.number + 1 == self.extents.all().count();
            let high = self.fragment.filter(|_| is_fragment).map(|offset| offset >> 32);
            let entry =
                |kind| FullEntry { kind, partial: false, lcluster_offset: 0, block: 0, back: 0, forward: 0 };
            let first = FullEntry {
                partial: head.is_prefix,
                lcluster_offset: head.offset,
                block: high.unwrap_or(head.block) as u32,
                ..entry(head.kind)
            };
            put(&first.encode());
            for i in head.lcluster + 1..next {
                let back = match i - head.lcluster {
                    1 if self.big => IS_BLOCKS | (head.blocks & BLOCKS_MASK),
                    back => back.min(DISTANCE_MAX) as u16,
                };
                let forward = (next - i).min(DISTANCE_MAX) as u16;
                put(&FullEntry { back, forward, ..entry(EntryType::NonHead) }.encode());
            }
            if !heads.step() {
                return;
            }
        }
    }

    fn write_compact(&self, start: u64, put: &mut dyn FnMut(&[u8])) {
        let count = self.lclusters();
        let Packs { twos, sixteens } = Packs::of(count, start);
        let mut packer = Packer { heads: Heads::new(self), count, big: self.big };
        let mut next = 0;
        while next < count {
            let entries = match next >= twos && next < twos + 16 * sixteens {
                true => 16,
                false => 2,
            };
            packer.pack(next, entries, put);
            next += entries;
        }
    }

    /// The head of an extent.
    fn head(&self, number: usize) -> Head {
        let extent = self.extents.all().get(number);
        let kind = match extent.stored {
            Stored::Plain | Stored::Inline { compressed: false } => EntryType::Plain,
            _ => EntryType::Head1,
        };
        let (lcluster, offset) = (extent.start / BLOCK, (extent.start % BLOCK) as u16);
        let Placed { block, is_prefix, .. } = extent;
        Head { lcluster, offset, kind, block, blocks: self.blocks(extent.stored), is_prefix }
    }

    /// The blocks of an extent's cluster, as entries count them.
    fn blocks(&self, stored: Stored) -> u16 {
        match stored {
            Stored::Compressed { blocks } => blocks,
            Stored::Plain | Stored::Inline { .. } => 1,
            // It has no block; an index without numbers of blocks counts one for each head.
            Stored::Fragment => u16::from(!self.big),
        }
    }

    /// The mark of the end after the last extent's head: it is needed if the last extent begins before the last logical
    /// cluster and does not fill it.
    fn end_mark(&self, last: &Head) -> Option<Head> {
        let (offset, lcluster) = ((self.len_bytes % BLOCK) as u16, self.lclusters() - 1);
        let block = last.block + u64::from(last.blocks);
        let mark = Head { lcluster, offset, kind: EntryType::Plain, block, blocks: 1, is_prefix: false };
        (offset != 0 && last.lcluster < lcluster).then_some(mark)
    }
}

/// How the entries of the compact form are divided into packs.
struct Packs {
    /// Entries in packs of two before the packs of sixteen; a multiple of two.
    twos: u64,
    /// Packs of sixteen. Behind them are packs of two.
    sixteens: u64,
}

impl Packs {
    fn of(count: u64, start: u64) -> Self {
        let twos = ((32 - start % 32) / 4) & 7;
        Packs { twos, sixteens: count.saturating_sub(twos) / 16 }
    }
}

/// The heads of the extents and the mark of the end, in order.
struct Heads<'i> {
    index: &'i Index<'i>,
    /// The number of the head, and the head.
    number: usize,
    head: Head,
    next: Option<Head>,
}

impl<'i> Heads<'i> {
    /// Begins with the first extent, which there is.
    fn new(index: &'i Index<'i>) -> Self {
        let mut heads = Heads { index, number: 0, head: index.head(0), next: None };
        heads.next = heads.find_next();
        heads
    }

    fn find_next(&self) -> Option<Head> {
        match self.number + 1 {
            next if next < self.index.extents.all().count() => Some(self.index.head(next)),
            next if next == self.index.extents.all().count() => self.index.end_mark(&self.head),
            _ => None,
        }
    }

    /// Goes to the next head; false if there is none.
    fn step(&mut self) -> bool {
        let Some(next) = self.next else { return false };
        (self.number, self.head) = (self.number + 1, next);
        self.next = self.find_next();
        true
    }

    /// Goes to the head of logical cluster `i`, which is that of the present head or after it.
    fn seek(&mut self, i: u64) -> Head {
        while self.next.is_some_and(|next| next.lcluster <= i) {
            self.step();
        }
        self.head
    }

    /// The logical cluster of the next head, or the end of the file.
    fn next_lcluster(&self) -> u64 {
        self.next.map_or(self.index.lclusters(), |next| next.lcluster)
    }
}

/// Writes pack after pack.
struct Packer<'i> {
    heads: Heads<'i>,
    count: u64,
    big: bool,
}

impl Packer<'_> {
    /// Passes on the pack of entries `first..first + entries`, 2 or 16; those after the end of the file are zero.
    fn pack(&mut self, first: u64, entries: u64, put: &mut dyn FnMut(&[u8])) {
        let base = self.base(first, entries);
        let last = first + entries - 1;
        let mut codes = [0; 16];
        for (code, i) in codes.iter_mut().zip(first..=last) {
            *code = self.entry(i, i == last);
        }
        match entries {
            2 => put(&Pack::encode_two([codes[0], codes[1]], base)),
            _ => put(&Pack::encode_sixteen(codes, base)),
        }
    }

    /// Encodes entry `i`.
    fn entry(&mut self, i: u64, is_last_of_pack: bool) -> u16 {
        if i >= self.count {
            return 0;
        }
        let head = self.heads.seek(i);
        if head.lcluster == i {
            return head.offset | (head.kind.bits() << 12);
        }
        let back = i - head.lcluster;
        let low = match (self.big && back == 1, is_last_of_pack) {
            (true, _) => IS_BLOCKS | (head.blocks & BLOCKS_MASK),
            (false, true) => (self.heads.next_lcluster() - i).min(DISTANCE_MAX) as u16,
            (false, false) => back.min(DISTANCE_MAX) as u16,
        };
        low | (EntryType::NonHead.bits() << 12)
    }

    /// The block address to which the heads of a pack are relative.
    fn base(&mut self, first: u64, entries: u64) -> u32 {
        let head = self.heads.seek(first);
        // No two heads are in one logical cluster, so the first one in the pack is this or the next.
        let mut near = [Some(head), self.heads.next].into_iter().flatten();
        let inside = near.find(|h| (first..first + entries).contains(&h.lcluster));
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Spill;
    use pagefold_image::Nid;
    use pagefold_image::format::zmap::MapHeader;
    use pagefold_image::read::zmap::{IndexForm, ZContext, ZMap};
    use pagefold_image::read::{Algorithm, Mapping, SliceBytes};

    /// An end of a file after the first 4 GiB of the packed file needs the full form.
    #[test]
    fn fragments_at_any_position_come_back() {
        for (fragment, big) in [(5, true), (u32::MAX.into(), false), (1 << 32, true), ((9 << 32) + 77, false)]
        {
            let blocks = if big { 3 } else { 1 };
            let placed = |start, block, stored| Placed { start, block, stored, is_prefix: false };
            let after = 100 + u64::from(blocks);
            let extents = [
                placed(0, 100, Stored::Compressed { blocks }),
                placed(30_001, after, Stored::Compressed { blocks: 1 }),
                placed(40_000, after + 1, Stored::Plain),
                placed(44_096, after + 2, Stored::Fragment),
            ];
            let (len_bytes, fragment) = (60_000, Some(fragment));
            let mut table = ExtentTable::default();
            extents.iter().for_each(|extent| table.push(extent).unwrap());
            let index = Index {
                extents: &table,
                len_bytes,
                has_references: false,
                big,
                fragment,
                is_always_full: false,
            };
            let fragment = fragment.unwrap_or(0);
            assert_eq!(index.is_full(), fragment > u32::MAX.into());
            let start = 64;
            let mut image = vec![0; start as usize];
            let header = MapHeader::of_clusters(index.advice(), Algorithm::Zstd as u8, 0);
            image.extend(header.with_fragment(fragment).encode());
            index.write(start + 8, &mut |bytes| image.extend(bytes));
            assert_eq!(image.len() as u64 - start - 8, index.encoded_bytes(start + 8));
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
            let (bytes, at) = (SliceBytes::image(&image), pagefold_image::Address::image(start));
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

    /// The length is known before the index is written, and a table in a file gives the index that one in memory gives.
    #[test]
    fn indexes_have_the_announced_length_wherever_extents_are() {
        let spill = Spill::in_directory(&std::env::temp_dir(), 0).unwrap();
        for (count, big) in (1..80).chain([30_000]).flat_map(|count| [(count, false), (count, true)]) {
            // Extents of one to nine blocks.
            let (mut extents, mut start, mut block) = (Vec::new(), 0, 50);
            for n in 0..count {
                let blocks = if big { 1 + (n % 3) as u16 } else { 1 };
                let stored = if n % 4 == 3 { Stored::Plain } else { Stored::Compressed { blocks } };
                extents.push(Placed { start, block, stored, is_prefix: false });
                start += BLOCK * (2 + n * n % 8) - n % 2;
                block += if n % 4 == 3 { 1 } else { u64::from(blocks) };
            }
            let [mut in_memory, mut spilled] = [ExtentTable::default(), ExtentTable::new(&spill)];
            for table in [&mut in_memory, &mut spilled] {
                extents.iter().for_each(|extent| table.push(extent).unwrap());
            }
            for (has_references, at) in [(true, 0), (false, 0), (false, 8), (false, 16), (false, 24)] {
                let encoded = [&in_memory, &spilled].map(|extents| {
                    let len_bytes = start + 77;
                    let index = Index {
                        extents,
                        len_bytes,
                        has_references,
                        big,
                        fragment: None,
                        is_always_full: false,
                    };
                    let mut bytes = Vec::new();
                    index.write(at, &mut |piece| bytes.extend_from_slice(piece));
                    assert_eq!(bytes.len() as u64, index.encoded_bytes(at), "{count}, {at}");
                    bytes
                });
                assert!(encoded[0] == encoded[1], "{count}, {at}");
            }
        }
        assert!(spill.is_file());
    }
}
