//! Writes indexes of every form from a list of extents, together with the extents that a reader must find in them.

use pagefold_image::read::{Algorithm, Cluster, Extent, IndexForm, Mapping, ZContext};
use pagefold_image::{Address, Nid};
use proptest::prelude::*;

/// A description of an extent. Values that the form of the index cannot express are changed to ones that it can.
#[derive(Debug, Clone, Copy)]
pub struct Piece {
    /// Logical clusters to the next extent.
    pub gap: u64,
    /// Offset of its first byte in its logical cluster, modulo the cluster's size.
    pub within: u32,
    /// 0 for plain, 1 and 3 for compressed.
    pub kind: u16,
    pub blocks: u64,
    pub block: u32,
    pub partial: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Tail {
    None,
    Inline(u16),
    Fragment(u64),
}

#[derive(Debug, Clone)]
pub struct Spec {
    pub form: IndexForm,
    pub block_bits: u8,
    pub lcluster_bits: u8,
    pub big: [bool; 2],
    pub short: bool,
    pub padded: bool,
    pub interlaced: bool,
    pub marker: bool,
    /// The end of the inode, an offset in the image.
    pub offset: u64,
    pub algorithms: [u8; 2],
    pub tail: Tail,
    pub pieces: Vec<Piece>,
    /// Offset of the end of the last extent in its last logical cluster, modulo the cluster's size.
    pub end: u32,
}

/// An index, the context for opening it, and its extents.
#[derive(Debug, Clone)]
pub struct Built {
    pub data: Vec<u8>,
    pub context: ZContext,
    pub form: IndexForm,
    pub tail: Address,
    pub size: u64,
    pub extents: Vec<Extent>,
}

pub fn context(block_bits: u8, zero_padding: bool) -> ZContext {
    ZContext {
        block_bits,
        zero_padding,
        extent_records: false,
        fragments: true,
        algorithms: 0xf,
        max_cluster_bytes: 1 << 20,
        nid_for_errors: Nid(42),
    }
}

pub fn algorithm(number: u8) -> Algorithm {
    [Algorithm::Lz4, Algorithm::MicroLzma, Algorithm::Deflate, Algorithm::Zstd][usize::from(number & 3)]
}

/// An entry of an index, independent of the form.
#[derive(Debug, Clone, Copy)]
enum Slot {
    Head { kind: u16, within: u32, block: u32, partial: bool },
    Blocks { blocks: u64, on: u64 },
    Inside { back: u64, on: u64 },
}

impl Spec {
    fn lcluster(&self) -> u64 {
        1 << self.lcluster_bits
    }

    fn is_big(&self, kind: u16) -> bool {
        self.big[usize::from(kind != 1)]
    }

    /// The start of each piece: its logical cluster, and the offset in that.
    fn begins(&self) -> Vec<(u64, u64)> {
        let mut lcluster = 0;
        let mut all = Vec::new();
        for (i, piece) in self.pieces.iter().enumerate() {
            let within = if i == 0 { 0 } else { u64::from(piece.within) % self.lcluster() };
            all.push((lcluster, within));
            lcluster += piece.gap;
        }
        all
    }

    /// The file's size. The file ends after the first byte of the last extent, in the last logical cluster of its gap.
    fn size(&self) -> u64 {
        let (lcluster, within) = *self.begins().last().unwrap();
        let gap = self.pieces.last().unwrap().gap;
        let least = if gap == 1 { within } else { 0 };
        (lcluster + gap - 1) * self.lcluster() + least + 1 + u64::from(self.end) % (self.lcluster() - least)
    }

    pub fn build(&self) -> Built {
        let (begins, size) = (self.begins(), self.size());
        let count = size.div_ceil(self.lcluster());
        let block_bytes = 1_u64 << self.block_bits;
        let at = self.offset.next_multiple_of(8);
        let (index_at, index_end) = match self.form {
            IndexForm::Full => (at + 16, at + 16 + 8 * count),
            IndexForm::Compact => (at + 8, self.packs(at + 8, count).last().map_or(at + 8, |p| p.0 + p.1)),
        };
        // Bytes of an inline extent that still fit the block, at least one.
        let room = block_bytes - index_end % block_bytes;
        let inline_bytes = match self.tail {
            Tail::Inline(n) => u64::from(n) % room.min(65535) + 1,
            _ => 0,
        };

        let (mut slots, mut extents) = (Vec::new(), Vec::new());
        let mut next_block = self.pieces[0].block % (1 << 20) + 1;
        for (i, piece) in self.pieces.iter().enumerate() {
            let last = i + 1 == self.pieces.len();
            let (lcluster, within) = begins[i];
            let start = lcluster * self.lcluster() + within;
            let end = begins.get(i + 1).map_or(size, |next| next.0 * self.lcluster() + next.1);
            let on = begins.get(i + 1).map_or(count - lcluster, |next| next.0 - lcluster);
            let inline = last && inline_bytes > 0;
            // The entry for the number of blocks has precedence over an end marker.
            let mark = last && self.marker && on > 1 && !size.is_multiple_of(self.lcluster());
            let blocks_of = |kind| match self.is_big(kind) && on > 1 + u64::from(mark) {
                true => piece.blocks.clamp(1, (block_bytes.min(512) * 2047).min(1 << 20) / block_bytes),
                false => 1,
            };
            let mut kind = piece.kind;
            let stored = if inline { inline_bytes } else { blocks_of(kind) * block_bytes };
            if kind == 0 && (end - start > stored || (self.interlaced && !inline && stored > block_bytes)) {
                kind = 1;
            }
            let blocks = blocks_of(kind);
            let mut block = piece.block;
            if self.form == IndexForm::Compact {
                block = next_block;
                next_block += blocks as u32;
            }
            let partial = piece.partial && self.form == IndexForm::Full;
            let mut mapping =
                self.mapping(kind, u64::from(block) * block_bytes, blocks * block_bytes, partial);
            if inline {
                mapping = self.inline(kind, index_end, inline_bytes, partial);
            }
            if let Tail::Fragment(mut offset) = self.tail
                && last
            {
                match self.form {
                    IndexForm::Full => block = (offset >> 32) as u32,
                    IndexForm::Compact => offset &= 0xffff_ffff,
                }
                mapping = Mapping::Fragment { offset };
            }
            extents.push(Extent { start, len_bytes: end - start, mapping });
            slots.push(Slot::Head { kind, within: within as u32, block, partial });
            for back in 1..on - u64::from(mark) {
                let on = (on - back).min(2047);
                slots.push(match back == 1 && self.is_big(kind) {
                    true => Slot::Blocks { blocks, on },
                    false => Slot::Inside { back: back.min(2047), on },
                });
            }
            if mark {
                let within = (size % self.lcluster()) as u32;
                slots.push(Slot::Head { kind: 0, within, block: 0, partial: false });
            }
        }
        assert_eq!(slots.len() as u64, count);

        let mut data = vec![0; (index_end + inline_bytes) as usize];
        self.write_header(&mut data[at as usize..], inline_bytes as u16);
        match self.form {
            IndexForm::Full => write_full(&mut data[index_at as usize..], &slots),
            IndexForm::Compact => self.write_packs(&mut data, index_at, &slots),
        }
        let tail = Address::image(self.offset);
        Built { data, context: context(self.block_bits, self.padded), form: self.form, tail, size, extents }
    }

    fn mapping(&self, kind: u16, at: u64, len_bytes: u64, partial: bool) -> Mapping {
        let at = Address::image(at);
        match kind {
            0 if self.interlaced => Mapping::Interlaced { at, len_bytes: 1 << self.block_bits },
            0 => Mapping::Plain(at),
            _ => Mapping::Compressed(Cluster {
                at,
                len_bytes: len_bytes as u32,
                algorithm: algorithm(self.algorithms[usize::from(kind != 1)]),
                prefix_only: partial || !self.padded,
                zero_padded: self.padded,
            }),
        }
    }

    fn inline(&self, kind: u16, at: u64, len_bytes: u64, partial: bool) -> Mapping {
        match self.mapping(kind, at, len_bytes, partial) {
            Mapping::Compressed(cluster) => Mapping::Compressed(Cluster { zero_padded: false, ..cluster }),
            _ => Mapping::Plain(Address::image(at)),
        }
    }

    fn write_header(&self, out: &mut [u8], inline_bytes: u16) {
        let mut advise = u16::from(self.big[0]) << 1 | u16::from(self.big[1]) << 2;
        advise |= u16::from(self.short && self.form == IndexForm::Compact) | u16::from(self.interlaced) << 4;
        match self.tail {
            Tail::None => {}
            Tail::Inline(_) => {
                advise |= 8;
                out[2..4].copy_from_slice(&inline_bytes.to_le_bytes());
            }
            Tail::Fragment(offset) => {
                advise |= 0x20;
                out[..4].copy_from_slice(&(offset as u32).to_le_bytes());
            }
        }
        out[4..6].copy_from_slice(&advise.to_le_bytes());
        out[6] = self.algorithms[0] | self.algorithms[1] << 4;
        out[7] = self.lcluster_bits - self.block_bits;
    }

    /// The address, length and number of entries of each pack.
    fn packs(&self, mut at: u64, count: u64) -> Vec<(u64, u64, u64)> {
        let mut packs = Vec::new();
        let mut left = count;
        while left > 0 {
            let (len, entries) = match self.short && at.is_multiple_of(32) && left >= 16 {
                true => (32, 16),
                false => (8, 2),
            };
            packs.push((at, len, entries));
            at += len;
            left = left.saturating_sub(entries);
        }
        packs
    }

    fn write_packs(&self, data: &mut [u8], at: u64, slots: &[Slot]) {
        let low_bits = self.lcluster_bits.max(12);
        let (mut k, mut head_before) = (0, 0);
        for (at, len, entries) in self.packs(at, slots.len() as u64) {
            let out = &mut data[at as usize..][..len as usize];
            let here = &slots[k..slots.len().min(k + entries as usize)];
            let heads = here.iter().filter_map(|slot| match slot {
                Slot::Head { block, .. } => Some(*block),
                _ => None,
            });
            let heads: Vec<u32> = heads.collect();
            let first = heads.first().copied().unwrap_or(7);
            let base = match (self.big[0], here[0]) {
                (true, Slot::Blocks { .. }) => head_before,
                (true, _) => first,
                (false, _) => first.saturating_sub(1),
            };
            out[len as usize - 4..].copy_from_slice(&base.to_le_bytes());
            let entry_bits = if entries == 2 { 16 } else { 14 };
            for (i, slot) in here.iter().enumerate() {
                let last = i as u64 == entries - 1;
                let (kind, low) = match *slot {
                    Slot::Head { kind, within, .. } => (kind, within as u16),
                    Slot::Blocks { blocks, .. } => (2, 0x800 | blocks as u16),
                    Slot::Inside { on, .. } if last => (2, on as u16),
                    Slot::Inside { back, .. } => (2, back as u16),
                };
                let value = kind << low_bits | low;
                for n in 0..entry_bits {
                    let bit = i * entry_bits + n;
                    out[bit / 8] |= ((value >> n & 1) as u8) << (bit % 8);
                }
            }
            head_before = heads.last().copied().unwrap_or(head_before);
            k += entries as usize;
        }
    }
}

fn write_full(out: &mut [u8], slots: &[Slot]) {
    for (slot, out) in slots.iter().zip(out.chunks_mut(8)) {
        let words: [u16; 4] = match *slot {
            Slot::Head { kind, within, block, partial } => {
                [kind | u16::from(partial) << 15, within as u16, block as u16, (block >> 16) as u16]
            }
            Slot::Blocks { blocks, on } => [2, 0, 0x800 | blocks as u16, on as u16],
            Slot::Inside { back, on } => [2, 0, back as u16, on as u16],
        };
        for (word, out) in words.iter().zip(out.chunks_mut(2)) {
            out.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// An index of extent records of `4 << bits` bytes. A piece has the length of `gap` logical clusters minus `within`
/// bytes; in the two shorter forms, each piece has one logical cluster.
pub fn records(spec: &Spec, bits: u8) -> Built {
    let mut sized: Vec<(u64, Piece)> = Vec::new();
    let mut start = 0;
    for piece in &spec.pieces {
        let lcluster = spec.lcluster();
        let len = match bits {
            0 | 1 => lcluster,
            _ => (piece.gap * lcluster - u64::from(piece.within) % lcluster).max(1),
        };
        sized.push((start, *piece));
        start += len;
    }
    let last_start = sized.last().unwrap().0;
    let size = last_start + 1 + u64::from(spec.end) % (start - last_start);
    let record = 4_u64 << bits;
    let at = spec.offset.next_multiple_of(8);
    let mut array = (at + 8).next_multiple_of(record);
    let mut running = u64::from(sized[0].1.block) << 9;
    let mut data = vec![0; array as usize];
    if bits == 0 {
        data.extend_from_slice(&running.to_le_bytes());
        array += 8;
    }
    let mut extents = Vec::new();
    for (i, &(start, piece)) in sized.iter().enumerate() {
        let end = sized.get(i + 1).map_or(size, |next| next.0);
        let len_bytes = end - start;
        let last = i + 1 == sized.len();
        let mut stored = (piece.blocks * 4096 + u64::from(piece.within)).min(1 << 20) as u32;
        let mut kind = piece.kind;
        if kind == 0 {
            stored = len_bytes as u32;
            let aligned = stored.is_multiple_of(1 << spec.block_bits);
            if stored > 1 << 20 || (spec.interlaced && aligned) {
                kind = 1;
                stored = 1 << 20;
            }
        }
        let number = spec.algorithms[usize::from(kind != 1)];
        let mut physical = match bits {
            0 => running,
            1 => u64::from(piece.block),
            _ => u64::from(piece.block) << 20 | u64::from(piece.within),
        };
        let mut mapping = match kind {
            0 => Mapping::Plain(Address::image(physical)),
            _ => spec.mapping(kind, physical, stored.into(), piece.partial),
        };
        let mut word = stored | u32::from(piece.partial) << 27;
        word |= if kind == 0 { 0 } else { u32::from(number + 1) << 28 };
        if piece.within % 7 == 0 {
            (word, mapping) = (0, Mapping::Hole);
        }
        running += u64::from(word & 0x1f_ffff);
        if let Tail::Fragment(offset) = spec.tail
            && last
        {
            word = offset as u32;
            physical = offset >> 32;
            mapping = Mapping::Fragment { offset: if bits == 0 { offset & 0xffff_ffff } else { offset } };
        }
        extents.push(Extent { start, len_bytes, mapping });
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&word.to_le_bytes());
        bytes[4..12].copy_from_slice(&physical.to_le_bytes());
        bytes[12..20].copy_from_slice(&start.to_le_bytes());
        data.extend_from_slice(&bytes[..record as usize]);
    }
    assert_eq!(data.len() as u64, array + record * sized.len() as u64);
    let fragment = u16::from(matches!(spec.tail, Tail::Fragment(_))) << 5;
    let advise = 1 | u16::from(bits) << 1 | fragment | u16::from(spec.interlaced) << 4;
    let header = &mut data[at as usize..][..8];
    header[4..6].copy_from_slice(&advise.to_le_bytes());
    match bits {
        0 | 1 => header[7] = spec.lcluster_bits - spec.block_bits,
        _ => header[..4].copy_from_slice(&(sized.len() as u32).to_le_bytes()),
    }
    let context = ZContext { extent_records: true, ..context(spec.block_bits, spec.padded) };
    let tail = Address::image(spec.offset);
    Built { data, context, form: IndexForm::Full, tail, size, extents }
}

fn piece(longest: u64) -> impl Strategy<Value = Piece> {
    let gap = prop_oneof![4 => 1..=3_u64, 4 => 1..=40_u64, 1 => 1..=longest, 1 => longest - 2..=longest];
    let within = prop_oneof![2 => Just(0_u32), 3 => any::<u32>().prop_map(|n| n % (1 << 16))];
    let kind = prop_oneof![Just(0_u16), Just(1), Just(3)];
    (gap, within, kind, 1..=256_u64, any::<u32>(), any::<bool>()).prop_map(
        |(gap, within, kind, blocks, block, partial)| Piece { gap, within, kind, blocks, block, partial },
    )
}

/// Generates specifications with all block sizes, logical cluster sizes, forms and tails.
pub fn spec() -> impl Strategy<Value = Spec> {
    let sizes = (any::<bool>(), 9..=12_u8, 0..=4_u8).prop_map(|(full, block_bits, shift)| {
        let form = if full { IndexForm::Full } else { IndexForm::Compact };
        (form, block_bits, block_bits + if full { shift } else { 0 })
    });
    let tail = prop_oneof![
        Just(Tail::None),
        any::<u16>().prop_map(Tail::Inline),
        (0..1_u64 << 60).prop_map(Tail::Fragment)
    ];
    sizes.prop_flat_map(move |(form, block_bits, lcluster_bits)| {
        let longest = ((12 << 20) >> lcluster_bits) - 1;
        let pieces = proptest::collection::vec(piece(longest), 1..20);
        let bits = any::<[bool; 6]>();
        (pieces, tail.clone(), bits, 64..5000_u64, [0..4_u8, 0..4], any::<u32>()).prop_map(
            move |(pieces, tail, bits, offset, algorithms, end)| Spec {
                form,
                block_bits,
                lcluster_bits,
                big: if form == IndexForm::Compact { [bits[0]; 2] } else { [bits[0], bits[5]] },
                short: bits[1],
                padded: bits[2],
                interlaced: bits[3],
                marker: bits[4],
                offset,
                algorithms,
                tail,
                pieces,
                end,
            },
        )
    })
}
