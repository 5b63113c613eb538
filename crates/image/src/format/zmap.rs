//! The index of a compressed inode: the header, and the three forms of entries.
//!
//! A header of 8 bytes is followed by one of: an entry of 8 bytes per logical cluster (full), packs of 2 or 16 entries
//! (compact), or a record per extent. See "Compressed indexes" in `docs/formats/erofs.md`.

use super::le::{Le16, Le32, on_disk};

/// Bytes of the header; it begins at a multiple of this.
pub const HEADER_BYTES: u64 = 8;
/// Offset of the first entry of the full form from the header, bytes.
pub const FULL_ENTRIES_OFFSET: u64 = 16;
/// Bytes of an entry of the full form.
pub const FULL_ENTRY_BYTES: u64 = 8;

/// Bits of the header's advice.
pub mod advise {
    /// Compact form: packs of 16 entries are used where they fit.
    pub const COMPACTED_2B: u16 = 0x01;
    /// Full layout: what follows are extent records. The same bit as [`COMPACTED_2B`].
    pub const EXTENTS: u16 = 0x01;
    /// First-algorithm clusters may have more than one block.
    pub const BIG_CLUSTER_1: u16 = 0x02;
    /// Second-algorithm and plain clusters may have more than one block.
    pub const BIG_CLUSTER_2: u16 = 0x04;
    /// The last extent lies in the metadata, after the index.
    pub const INLINE: u16 = 0x08;
    /// Plain blocks are rotated.
    pub const INTERLACED: u16 = 0x10;
    /// The last extent lies in the packed file.
    pub const FRAGMENT: u16 = 0x20;
}

/// The header of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapHeader {
    raw: u64,
}

impl MapHeader {
    /// Parses the header.
    pub fn parse(bytes: [u8; 8]) -> Self {
        MapHeader { raw: u64::from_le_bytes(bytes) }
    }

    /// Makes the header of an index of logical clusters: its advice, the number of its only algorithm, and the length
    /// of the last extent if that is inline.
    pub fn of_clusters(advise: u16, algorithm: u8, inline_bytes: u16) -> Self {
        let raw = u64::from(inline_bytes) << 16 | u64::from(advise) << 32 | u64::from(algorithm & 0xf) << 48;
        MapHeader { raw }
    }

    /// Makes the header of an index whose last extent lies at this position of the packed file. The compact form has its
    /// low 32 bits only.
    pub fn with_fragment(self, offset: u64) -> Self {
        MapHeader { raw: self.raw & !0xffff_ffff | offset & 0xffff_ffff }
    }

    /// Makes the header of a file that is a fragment as a whole, at this position of the packed file. It is the index.
    pub fn of_whole_fragment(offset: u64) -> Self {
        MapHeader { raw: offset | 1 << 63 }
    }

    /// Makes the header of an index of `count` extent records of `1 << record_bits` bytes, 16 or 32.
    pub fn of_records(record_bits: u8, count: u64) -> Self {
        let advise = advise::EXTENTS | u16::from(record_bits - 2) << 1;
        MapHeader { raw: count & 0xffff_ffff | u64::from(advise) << 32 | (count >> 32) << 48 }
    }

    /// Encodes the header; the inverse of [`parse`](Self::parse).
    pub fn encode(&self) -> [u8; 8] {
        self.raw.to_le_bytes()
    }

    /// The bits of [`advise`]; of extent records, bits 1 and 2 are the size of a record.
    pub fn advise(&self) -> u16 {
        (self.raw >> 32) as u16
    }

    /// Whether all bits of `mask` are advised.
    pub fn advises(&self, mask: u16) -> bool {
        self.advise() & mask == mask
    }

    /// The last extent's position in the packed file, low 32 bits.
    pub fn fragment_offset(&self) -> u32 {
        self.raw as u32
    }

    /// Stored length of the inline last extent, bytes.
    pub fn inline_bytes(&self) -> u16 {
        (self.raw >> 16) as u16
    }

    /// Number of the first algorithm.
    pub fn algorithm_1(&self) -> u8 {
        (self.raw >> 48) as u8 & 0xf
    }

    /// Number of the second algorithm.
    pub fn algorithm_2(&self) -> u8 {
        (self.raw >> 52) as u8 & 0xf
    }

    /// By how many bits a logical cluster is larger than a block.
    pub fn lcluster_shift(&self) -> u8 {
        (self.raw >> 56) as u8 & 0xf
    }

    /// Position of the whole file in the packed file, if it is a fragment.
    pub fn whole_fragment(&self) -> Option<u64> {
        (self.raw >> 63 == 1).then_some(self.raw & (u64::MAX >> 1))
    }

    /// Size of an extent record as a power of two: 2 to 5 for 4 to 32 bytes.
    pub fn record_bits(&self) -> u8 {
        2 + ((self.advise() >> 1) & 3) as u8
    }

    /// Number of extent records; only for records of 16 and 32 bytes.
    pub fn record_count(&self) -> u64 {
        (self.raw & 0xffff_ffff) | (self.raw >> 48) << 32
    }
}

/// The type of a logical cluster, from two bits of its entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryType {
    /// An uncompressed extent begins in it.
    Plain,
    /// An extent begins in it, compressed with the first algorithm.
    Head1,
    /// No extent begins in it.
    NonHead,
    /// An extent begins in it, compressed with the second algorithm.
    Head2,
}

impl EntryType {
    /// Decodes the low two bits of `bits`.
    pub fn from_bits(bits: u16) -> Self {
        match bits & 3 {
            0 => EntryType::Plain,
            1 => EntryType::Head1,
            2 => EntryType::NonHead,
            _ => EntryType::Head2,
        }
    }

    /// Encodes the type; the inverse of [`from_bits`](Self::from_bits).
    pub fn bits(self) -> u16 {
        match self {
            EntryType::Plain => 0,
            EntryType::Head1 => 1,
            EntryType::NonHead => 2,
            EntryType::Head2 => 3,
        }
    }
}

/// Bit of a distance back to the head: the bits of [`BLOCKS_MASK`] are the cluster's number of blocks instead.
pub const IS_BLOCKS: u16 = 0x800;
/// The bits of a number of blocks.
pub const BLOCKS_MASK: u16 = 0x7ff;

on_disk! {
    /// An entry of the full form, as it is stored.
    pub struct RawFullEntry: 8 {
        /// The entry's type, and in bit 15 whether the extent is only a prefix of the cluster's output.
        pub advise: Le16,
        /// Heads: offset of the extent in its logical cluster, bytes.
        pub lcluster_offset: Le16,
        /// Heads: the first block. Others: two distances, the one back to the head in the lower half.
        pub block: Le32,
    }
}

/// An entry of the full form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FullEntry {
    /// The entry's type.
    pub kind: EntryType,
    /// Heads: whether the extent is only a prefix of the cluster's output.
    pub partial: bool,
    /// Heads: offset of the extent in its logical cluster, bytes.
    pub lcluster_offset: u16,
    /// Heads: the first block.
    pub block: u32,
    /// Others: the distance back to the head, or a number of blocks with [`IS_BLOCKS`].
    pub back: u16,
    /// Others: the distance forward to the next head.
    pub forward: u16,
}

impl FullEntry {
    /// Parses an entry.
    pub fn parse(bytes: [u8; 8]) -> Self {
        let raw = RawFullEntry::parse(&bytes);
        let (advise, block) = (raw.advise.get(), raw.block.get());
        FullEntry {
            kind: EntryType::from_bits(advise),
            partial: advise & 0x8000 != 0,
            lcluster_offset: raw.lcluster_offset.get(),
            block,
            back: block as u16,
            forward: (block >> 16) as u16,
        }
    }

    /// Encodes the entry; the inverse of [`parse`](Self::parse).
    pub fn encode(&self) -> [u8; 8] {
        let block = match self.kind {
            EntryType::NonHead => u32::from(self.back) | u32::from(self.forward) << 16,
            _ => self.block,
        };
        let partial = if self.partial { 0x8000 } else { 0 };
        RawFullEntry {
            advise: (self.kind.bits() | partial).into(),
            lcluster_offset: self.lcluster_offset.into(),
            block: block.into(),
        }
        .encode()
    }
}

/// A pack of the compact form: entries as a stream of bits, then a block address in the last 4 bytes.
#[derive(Debug, Clone, Copy)]
pub struct Pack {
    bytes: [u8; 32],
    entry_bits: u32,
    /// Number of entries: 2 or 16.
    pub entries: u32,
    /// The block address to which the entries of the pack are relative.
    pub base: u32,
}

impl Pack {
    /// Parses a pack of two entries of 16 bits.
    pub fn two(b: [u8; 8]) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&b);
        let base = u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
        Pack { bytes, entry_bits: 16, entries: 2, base }
    }

    /// Parses a pack of sixteen entries of 14 bits.
    pub fn sixteen(bytes: [u8; 32]) -> Self {
        let base = u32::from_le_bytes([bytes[28], bytes[29], bytes[30], bytes[31]]);
        Pack { bytes, entry_bits: 14, entries: 16, base }
    }

    /// Encodes a pack of two entries of 16 bits.
    pub fn encode_two(entries: [u16; 2], base: u32) -> [u8; 8] {
        let low = u32::from(entries[0]) | u32::from(entries[1]) << 16;
        (u64::from(low) | u64::from(base) << 32).to_le_bytes()
    }

    /// Encodes a pack of sixteen entries of 14 bits.
    pub fn encode_sixteen(entries: [u16; 16], base: u32) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (i, entry) in entries.into_iter().enumerate() {
            let bit = i * 14;
            // An entry and what precedes it in its first byte are 20 bits: three bytes, of which the last is at most 27.
            let word = u32::from(entry & 0x3fff) << (bit % 8);
            for (byte, part) in bytes[bit / 8..].iter_mut().zip(&word.to_le_bytes()[..3]) {
                *byte |= part;
            }
        }
        bytes[28..].copy_from_slice(&base.to_le_bytes());
        bytes
    }

    /// Returns the bits of entry `i`, which is less than [`Self::entries`].
    pub fn entry(&self, i: u32) -> u16 {
        let bit = i.min(self.entries - 1) * self.entry_bits;
        // At most bit 210, so bytes 26 to 28; an entry and what precedes it in its first byte are 20 bits.
        let b = (bit / 8) as usize;
        let word = u32::from_le_bytes([self.bytes[b], self.bytes[b + 1], self.bytes[b + 2], 0]);
        ((word >> (bit % 8)) & ((1 << self.entry_bits) - 1)) as u16
    }
}

/// The length word of an extent record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredLength(pub u32);

impl StoredLength {
    /// Makes the length word of an extent of so many stored bytes, with a format as [`format`](Self::format) returns.
    pub fn of(len_bytes: u32, format: u8) -> Self {
        StoredLength(len_bytes & 0x1f_ffff | u32::from(format) << 28)
    }

    /// Stored length, bytes; 0 is a hole.
    pub fn len_bytes(self) -> u32 {
        self.0 & 0x1f_ffff
    }

    /// Whether the extent is only a prefix of the cluster's output.
    pub fn partial(self) -> bool {
        self.0 & (1 << 27) != 0
    }

    /// 0 for uncompressed extents, else the algorithm's number plus one.
    pub fn format(self) -> u8 {
        (self.0 >> 28) as u8
    }
}

on_disk! {
    /// The fields of an extent record, as they are stored; records of 32 bytes have padding after them.
    pub struct RawExtentRecord: 20 {
        /// The length word; see [`StoredLength`].
        pub plen: Le32,
        /// Stored position, bytes: bits 0 to 31.
        pub pstart_lo: Le32,
        /// Stored position: bits 32 to 63.
        pub pstart_hi: Le32,
        /// Position in the file, bytes: bits 0 to 31.
        pub lstart_lo: Le32,
        /// Position in the file: bits 32 to 63.
        pub lstart_hi: Le32,
    }
}

/// An extent record of 8, 16 or 32 bytes; shorter ones leave the rest zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtentRecord {
    /// Stored length, and the kind of storage.
    pub stored: StoredLength,
    /// Stored position, bytes.
    pub physical: u64,
    /// Position in the file, bytes; not in records of 8 bytes.
    pub logical: u64,
}

impl ExtentRecord {
    /// Parses a record; a shorter one is padded with zeroes.
    pub fn parse(bytes: [u8; 20]) -> Self {
        let raw = RawExtentRecord::parse(&bytes);
        let long = |low: Le32, high: Le32| u64::from(low.get()) | u64::from(high.get()) << 32;
        ExtentRecord {
            stored: StoredLength(raw.plen.get()),
            physical: long(raw.pstart_lo, raw.pstart_hi),
            logical: long(raw.lstart_lo, raw.lstart_hi),
        }
    }
}
