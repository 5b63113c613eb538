//! The slow twin of the index reader: lists all extents of a valid index, entry by entry from the first one on.
//!
//! It does not use the distances in non-head entries: it finds heads by their type, and adds up the block addresses of
//! packs from the front.

use pagefold_image::Address;
use pagefold_image::read::{Algorithm, Cluster, Extent, IndexForm, Mapping, ZContext};

fn u16_at(b: &[u8], at: u64) -> u16 {
    u16::from_le_bytes(b[at as usize..][..2].try_into().unwrap())
}

fn u32_at(b: &[u8], at: u64) -> u32 {
    u32::from_le_bytes(b[at as usize..][..4].try_into().unwrap())
}

fn u64_at(b: &[u8], at: u64) -> u64 {
    u64::from_le_bytes(b[at as usize..][..8].try_into().unwrap())
}

const NONHEAD: u16 = 2;

/// An entry: its type, the offset or distance, the block, and whether it is a prefix.
#[derive(Debug, Clone, Copy)]
struct Raw {
    kind: u16,
    low: u16,
    block: u64,
    partial: bool,
}

impl Raw {
    fn blocks(&self) -> Option<u64> {
        (self.kind == NONHEAD && self.low & 0x800 != 0).then_some(u64::from(self.low & 0x7ff))
    }
}

pub fn all_extents(b: &[u8], context: &ZContext, form: IndexForm, tail: Address, size: u64) -> Vec<Extent> {
    let h = tail.offset.div_ceil(8) * 8;
    let advise = u16_at(b, h + 4);
    if b[h as usize + 7] & 0x80 != 0 {
        let offset = u64_at(b, h) & (u64::MAX >> 1);
        return vec![Extent { start: 0, len_bytes: size, mapping: Mapping::Fragment { offset } }];
    }
    if form == IndexForm::Full && context.extent_records && advise & 1 != 0 {
        return records(b, context, h, size);
    }
    let lcluster = 1 << (context.block_bits + (b[h as usize + 7] & 0xf));
    let count = size.div_ceil(lcluster);
    let (raw, end) = match form {
        IndexForm::Full => full(b, h, count),
        IndexForm::Compact => compact(b, h, count, context.block_bits, advise),
    };
    let mut heads = Vec::new();
    for (k, entry) in raw.iter().enumerate() {
        if entry.kind != NONHEAD {
            heads.push((k as u64 * lcluster + u64::from(entry.low), *entry, raw.get(k + 1)));
        }
    }
    heads.retain(|head| head.0 < size);
    let mut extents = Vec::new();
    for (i, (start, entry, next)) in heads.iter().enumerate() {
        let last = i + 1 == heads.len();
        let len_bytes = if last { size } else { heads[i + 1].0 } - start;
        let block_bytes = 1 << context.block_bits;
        let big = advise & if entry.kind == 1 { 2 } else { 4 } != 0;
        let blocks = next.and_then(|next| next.blocks()).filter(|_| big).unwrap_or(1);
        let mut at = Address::image(entry.block * block_bytes);
        let mut stored = blocks * block_bytes;
        let inline = last && advise & 8 != 0;
        if inline {
            (at, stored) = (Address { offset: end, ..tail }, u64::from(u16_at(b, h + 2)));
        }
        let algorithms = b[h as usize + 6];
        let mapping = if last && advise & 0x20 != 0 {
            let high = if form == IndexForm::Full { entry.block << 32 } else { 0 };
            Mapping::Fragment { offset: u64::from(u32_at(b, h)) | high }
        } else if entry.kind == 0 && advise & 0x10 != 0 && !inline {
            Mapping::Interlaced { at, len_bytes: block_bytes as u32 }
        } else if entry.kind == 0 {
            Mapping::Plain(at)
        } else {
            let algorithm = algorithm(if entry.kind == 1 { algorithms & 0xf } else { algorithms >> 4 });
            let prefix_only = entry.partial || !context.zero_padding;
            let zero_padded = context.zero_padding && !inline;
            Mapping::Compressed(Cluster { at, len_bytes: stored as u32, algorithm, prefix_only, zero_padded })
        };
        extents.push(Extent { start: *start, len_bytes, mapping });
    }
    extents
}

fn algorithm(number: u8) -> Algorithm {
    [Algorithm::Lz4, Algorithm::MicroLzma, Algorithm::Deflate, Algorithm::Zstd][usize::from(number)]
}

fn full(b: &[u8], h: u64, count: u64) -> (Vec<Raw>, u64) {
    let mut all = Vec::new();
    for k in 0..count {
        let at = h + 16 + 8 * k;
        let kind = u16_at(b, at) & 3;
        let low = u16_at(b, at + if kind == NONHEAD { 4 } else { 2 });
        all.push(Raw { kind, low, block: u32_at(b, at + 4).into(), partial: u16_at(b, at) & 0x8000 != 0 });
    }
    (all, h + 16 + 8 * count)
}

fn compact(b: &[u8], h: u64, count: u64, lcluster_bits: u8, advise: u16) -> (Vec<Raw>, u64) {
    let mut at = h + 8;
    let mut all = Vec::new();
    while (all.len() as u64) < count {
        // Packs of 16 entries begin at multiples of 32 bytes, and only if at least 16 entries are left.
        let sixteen = advise & 1 != 0 && at.is_multiple_of(32) && count - all.len() as u64 >= 16;
        let (entries, entry_bits, len) = if sixteen { (16, 14, 32) } else { (2, 16, 8) };
        pack(&b[at as usize..][..len], entries, entry_bits, lcluster_bits, advise & 2 != 0, &mut all);
        at += len as u64;
    }
    all.truncate(count as usize);
    (all, at)
}

fn pack(b: &[u8], entries: usize, entry_bits: usize, lcluster_bits: u8, big: bool, all: &mut Vec<Raw>) {
    let bit = |i: usize| u16::from(b[i / 8] >> (i % 8) & 1);
    let low_bits = lcluster_bits.max(12);
    let first = all.len();
    for i in 0..entries {
        let value = (0..entry_bits).fold(0, |value, n| value | bit(i * entry_bits + n) << n);
        let (kind, low) = (value >> low_bits, value & ((1 << low_bits) - 1));
        all.push(Raw { kind, low, block: 0, partial: false });
    }
    let mut block = u64::from(u32_at(b, b.len() as u64 - 4));
    for i in first..all.len() {
        if big {
            // The pack has the address of its first cluster. A number of blocks in its first entry belongs to the
            // cluster before.
            if i == first
                && let Some(blocks) = all[i].blocks()
            {
                block += blocks;
            }
            if all[i].kind != NONHEAD {
                all[i].block = block;
                block += all.get(i + 1).and_then(Raw::blocks).unwrap_or(1);
            }
        } else if all[i].kind != NONHEAD {
            // The pack has the address of the last cluster before it.
            block += 1;
            all[i].block = block;
        }
    }
}

fn records(b: &[u8], context: &ZContext, h: u64, size: u64) -> Vec<Extent> {
    let advise = u16_at(b, h + 4);
    let record = 4_u64 << ((advise >> 1) & 3);
    let lcluster = 1 << (context.block_bits + (b[h as usize + 7] & 0xf));
    let mut at = (h + 8).div_ceil(record) * record;
    let count = match record {
        4 | 8 => size.div_ceil(lcluster),
        _ => u64::from(u32_at(b, h)) | u64::from(u16_at(b, h + 6)) << 32,
    };
    let mut running = 0;
    if record == 4 {
        running = u64_at(b, at);
        at += 8;
    }
    let mut rows = Vec::new();
    for i in 0..count {
        let plen = u32_at(b, at);
        let physical = match record {
            4 => running,
            8 => u32_at(b, at + 4).into(),
            _ => u64_at(b, at + 4),
        };
        let start = match record {
            4 | 8 => i * lcluster,
            16 => u32_at(b, at + 12).into(),
            _ => u64_at(b, at + 12),
        };
        running += u64::from(plen & 0x1f_ffff);
        rows.push((start, plen, physical));
        at += record;
    }
    let mut extents = Vec::new();
    for (i, &(start, plen, physical)) in rows.iter().enumerate() {
        let len_bytes = rows.get(i + 1).map_or(size, |next| next.0) - start;
        let last = i + 1 == rows.len();
        let (len, at) = (plen & 0x1f_ffff, Address::image(physical));
        let block_bytes = 1_u64 << context.block_bits;
        let aligned = physical % block_bytes == 0 && u64::from(len) % block_bytes == 0;
        let mapping = if last && advise & 0x20 != 0 {
            Mapping::Fragment { offset: u64::from(plen) | if record == 4 { 0 } else { physical << 32 } }
        } else if len == 0 {
            Mapping::Hole
        } else if plen >> 28 == 0 && advise & 0x10 != 0 && aligned {
            Mapping::Interlaced { at, len_bytes: block_bytes as u32 }
        } else if plen >> 28 == 0 {
            Mapping::Plain(at)
        } else {
            let prefix_only = plen >> 27 & 1 != 0 || !context.zero_padding;
            let zero_padded = context.zero_padding;
            let algorithm = algorithm((plen >> 28) as u8 - 1);
            Mapping::Compressed(Cluster { at, len_bytes: len, algorithm, prefix_only, zero_padded })
        };
        extents.push(Extent { start, len_bytes, mapping });
    }
    extents
}
