//! Faults of the indexes of compressed files.

use super::Case;
use super::patch::{Patch, SUPERBLOCK, is_compressed, offset};
use pagefold_image::format::zmap::{EntryType, IS_BLOCKS, MapHeader, Pack, advise};
use pagefold_image::read::{Inode, Layout};

pub const CASES: &[Case] = &[
    ("index-header", "lz4", |p| {
        let header = header_of(&p.file(is_compressed));
        p.bytes[header + 7] |= 0x10;
    }),
    ("index-header", "lz4", |p| {
        let header = header_of(&p.file(is_compressed));
        p.bytes[header] = 1;
    }),
    ("index-header", "lz4", |p| {
        let header = header_of(&p.file(is_compressed));
        p.bytes[header + 4] |= 0x40;
    }),
    ("index-head", "legacy", |p| {
        let full = full_index(p, |_| true);
        p.put16(full.entry(0) + 2, 5);
    }),
    ("index-back", "legacy", |p| {
        let full = full_index(p, |full| full.find(|run| run.len >= 4).is_some());
        let run = full.find(|run| run.len >= 4).unwrap();
        // Entries behind the head: a number of blocks, then distances.
        p.put16(full.entry(run.head + 3) + 4, 2);
    }),
    ("index-forward", "legacy", |p| {
        let full = full_index(p, |full| full.find(|run| run.len >= 4).is_some());
        let run = full.find(|run| run.len >= 4).unwrap();
        let at = full.entry(run.head + 2) + 6;
        let forward = p.get16(at);
        p.put16(at, forward + 1);
    }),
    ("index-forward", "lz4hc64", break_distance_forward),
    ("index-blocks", "legacy", |p| {
        let full = full_index(p, |full| full.find(|run| run.len >= 4).is_some());
        let run = full.find(|run| run.len >= 4).unwrap();
        p.put16(full.entry(run.head + 2) + 4, 0x802);
    }),
    ("index-end", "legacy", |p| {
        let full = full_index(p, |full| full.end_marker().is_some());
        let run = full.end_marker().unwrap();
        // The marker becomes one more entry of the extent, and the distances forward lead to the end of the index.
        let marker = run.head + run.len;
        for number in run.head + 1..marker {
            let at = full.entry(number) + 6;
            let forward = p.get16(at);
            p.put16(at, forward + 1);
        }
        p.put16(full.entry(marker), 2);
        p.put16(full.entry(marker) + 2, 0);
        p.put16(full.entry(marker) + 4, run.len as u16);
        p.put16(full.entry(marker) + 6, 1);
    }),
    ("index-pack", "lz4hc64", |p| {
        let pack = pack_without_heads(p, |pack| pack.entry(0) & IS_BLOCKS != 0);
        let base = p.get32(pack + 28);
        p.put32(pack + 28, base + 1);
    }),
    ("index-entry", "legacy", |p| {
        let full = full_index(p, |_| true);
        p.bytes[full.entry(0)] |= 4;
    }),
    ("index-entry", "lz4", |p| {
        let block_bytes = p.block_bytes as u64;
        // Less than 16 entries: pairs only.
        let is_odd = |inode: &Inode| {
            let count = inode.size.div_ceil(block_bytes);
            inode.layout == Layout::CompressedCompact && count % 2 == 1 && count < 16
        };
        let inode = p.file(is_odd);
        let count = inode.size.div_ceil(block_bytes) as usize;
        let last = header_of(&inode) + 8 + count / 2 * 8;
        p.bytes[last + 2] = 1;
    }),
    ("index-record", "records512", |p| {
        let record = first_record(p);
        p.bytes[record + 2] |= 0x20;
    }),
    ("extent-limit", "lz4big", |p| p.put16(SUPERBLOCK + 128 + 4, 1)),
    ("inline-cluster", "tails", |p| {
        let bytes = p.bytes.clone();
        let is_inline =
            |inode: &Inode| is_compressed(inode) && parse(&bytes, header_of(inode)).advises(advise::INLINE);
        let header = header_of(&p.file(is_inline));
        p.put16(header + 2, 0);
    }),
    ("interlaced", "records512", make_interlaced),
    ("fragment-range", "fragments", |p| {
        let bytes = p.bytes.clone();
        let is_fragment = |inode: &Inode| {
            is_compressed(inode) && parse(&bytes, header_of(inode)).whole_fragment().is_some()
        };
        let header = header_of(&p.file(is_fragment));
        p.bytes[header + 5] = 1;
    }),
];

/// Makes a distance forward in a compact index wrong, which only the strict check notices.
pub fn break_distance_forward(p: &mut Patch) {
    let pack = pack_without_heads(p, |_| true);
    // The last entry is the 14 bits before the address.
    p.bytes[pack + 26] ^= 4;
}

fn header_of(inode: &Inode) -> usize {
    offset(inode.tail).next_multiple_of(8)
}

fn parse(bytes: &[u8], header: usize) -> MapHeader {
    MapHeader::parse(bytes[header..header + 8].try_into().unwrap())
}

/// An index of the full form.
struct Full {
    header: usize,
    /// The entries' kinds and first blocks.
    kinds: Vec<EntryType>,
}

/// A head and the entries of its extent.
#[derive(Clone, Copy)]
struct Run {
    head: usize,
    len: usize,
}

impl Full {
    fn entry(&self, number: usize) -> usize {
        self.header + 16 + number * 8
    }

    fn runs(&self) -> Vec<Run> {
        let is_head = |number: &usize| self.kinds[*number] != EntryType::NonHead;
        let heads: Vec<usize> = (0..self.kinds.len()).filter(is_head).chain([self.kinds.len()]).collect();
        heads.windows(2).map(|pair| Run { head: pair[0], len: pair[1] - pair[0] }).collect()
    }

    /// The first compressed run, not the last one, that is right.
    fn find(&self, is_right: impl Fn(&Run) -> bool) -> Option<Run> {
        let runs = self.runs();
        let (_, before) = runs.split_last()?;
        before
            .iter()
            .rev()
            .skip(1)
            .find(|run| self.kinds[run.head] == EntryType::Head1 && is_right(run))
            .copied()
    }

    /// The run before an entry that marks the end, if there is one.
    fn end_marker(&self) -> Option<Run> {
        let runs = self.runs();
        let [.., run, last] = runs.as_slice() else { return None };
        let is_marker = last.len == 1 && self.kinds[last.head] == EntryType::Plain && run.len > 1;
        is_marker.then_some(*run)
    }
}

/// A file with an index of the full form that is right.
fn full_index(p: &Patch, is_right: impl Fn(&Full) -> bool) -> Full {
    let read = |inode: &Inode| {
        let header = header_of(inode);
        let is_index =
            inode.layout == Layout::CompressedFull && parse(&p.bytes, header).whole_fragment().is_none();
        let count = inode.size.div_ceil(p.block_bytes as u64) as usize;
        let kind = |number| EntryType::from_bits(p.get16(header + 16 + number * 8));
        is_index.then(|| Full { header, kinds: (0..count).map(kind).collect() })
    };
    let inode = p.file(|inode| read(inode).is_some_and(|full| is_right(&full)));
    read(&inode).unwrap()
}

/// The offset of a pack of 16 that is not the first and has no head.
fn pack_without_heads(p: &Patch, is_right: impl Fn(&Pack) -> bool) -> usize {
    let find = |inode: &Inode| {
        let (begin, count) = (header_of(inode) + 8, inode.size.div_ceil(p.block_bytes as u64) as usize);
        let before = ((32 - begin % 32) / 4) & 7;
        let is_compact = inode.layout == Layout::CompressedCompact;
        if !is_compact || !parse(&p.bytes, begin - 8).advises(advise::COMPACTED_2B) || before >= count {
            return None;
        }
        let is_empty = |at: &usize| {
            let pack = Pack::sixteen(p.bytes[*at..at + 32].try_into().unwrap());
            let mut kinds = (0..16).map(|i| EntryType::from_bits(pack.entry(i) >> 12));
            kinds.all(|kind| kind == EntryType::NonHead) && is_right(&pack)
        };
        (1..(count - before) / 16).map(|n| begin + before * 4 + n * 32).find(is_empty)
    };
    let inode = p.file(|inode| find(inode).is_some());
    find(&inode).unwrap()
}

/// The first record of 16 bytes or more of a file.
fn first_record(p: &Patch) -> usize {
    let inode = p.file(|inode| is_compressed(inode) && parse(&p.bytes, header_of(inode)).record_bits() == 4);
    (header_of(&inode) + 8).next_multiple_of(16)
}

/// Moves the last extent of a file to a plain cluster of two blocks or more, and makes the file interlaced.
fn make_interlaced(p: &mut Patch) {
    let first = first_record(p);
    let inode = p.file(|inode| is_compressed(inode) && parse(&p.bytes, header_of(inode)).record_bits() == 4);
    let header = header_of(&inode);
    let count = parse(&p.bytes, header).record_count() as usize;
    let last = first + 16 * (count - 1);
    let len = inode.size as usize - p.get32(last + 12) as usize;
    let blocks = len.div_ceil(p.block_bytes).max(2);
    let start = p.append_blocks(blocks) as usize * p.block_bytes;
    p.put32(last, (blocks * p.block_bytes) as u32);
    p.put32(last + 4, start as u32);
    p.bytes[header + 4] |= advise::INTERLACED as u8;
    let stored: u32 = (0..count).map(|number| p.get32(first + 16 * number) & 0x1f_ffff).sum();
    p.put32(offset(inode.address) + 0x10, stored.div_ceil(p.block_bytes as u32));
}
