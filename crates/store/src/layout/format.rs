//! The log on the medium: superblock, segment header, record header.
//!
//! The fields are described in `docs/formats/log.md`; all numbers are little-endian. This module encodes and decodes
//! them, and knows nothing of segments in use. Decoding validates all input.

use crate::slot::Generation;
use pagefold_page::PAGE_SIZE;

/// The first bytes of a backing written by pagefold.
pub const MAGIC: [u8; 8] = *b"PAGEFOLD";
/// Version of the format.
const VERSION: u32 = 1;
/// Bytes of the superblock that are used.
pub(crate) const SUPERBLOCK_LEN: usize = 80;
/// Segments or blocks begin here; before it is room for a second superblock and a table of checkpoints.
pub(crate) const DATA_START: u64 = 1 << 20;
/// Bytes of a segment header.
pub(crate) const HEADER_LEN: usize = 64;
/// Bytes of a record header.
pub(crate) const RECORD_HEADER_LEN: usize = 24;
/// Records begin at multiples of this.
pub(crate) const RECORD_ALIGN: usize = 8;
/// Writes begin and end at multiples of this.
pub(crate) const WRITE_ALIGN: usize = 4096;
/// The longest record, bytes.
pub(crate) const RECORD_LEN_MAX: usize = RECORD_HEADER_LEN + PAGE_SIZE;

const SEGMENT_MAGIC: u32 = u32::from_le_bytes(*b"PFSG");
/// The codec number of an uncompressed page.
const CODEC_RAW: u8 = 0xff;

/// The identity of one use of a backing; records of an earlier use have another one and are ignored.
pub(crate) type StoreId = [u8; 16];

/// The number of an opening of a segment, among all openings; orders them in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Sequence(pub(crate) u64);

/// The seed of a record's checksum: the identity of the use of the backing and the opening of the segment that the
/// record was written in. So a record of an earlier use never verifies, even if it belongs to the same slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seed(u32);

impl Seed {
    pub(crate) fn new(id: StoreId, sequence: Sequence) -> Self {
        Seed(crc32c::crc32c_append(crc32c::crc32c(&id), &sequence.0.to_le_bytes()))
    }

    /// The checksum of a record, without the four bytes that hold it.
    fn checksum(self, record: &[u8]) -> u32 {
        crc32c::crc32c_append(self.0, record)
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes[at..].first_chunk().map_or(0, |b| u16::from_le_bytes(*b))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |b| u32::from_le_bytes(*b))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b))
}

/// The superblock at the beginning of a backing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) id: StoreId,
    /// Whether the layout is the log; otherwise it is blocks.
    pub(crate) is_log: bool,
    pub(crate) segment_len: u32,
    pub(crate) page_count: u64,
}

impl Superblock {
    /// Encodes it.
    pub(crate) fn encode(&self) -> [u8; SUPERBLOCK_LEN] {
        let mut bytes = [0; SUPERBLOCK_LEN];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&u32::from(!self.is_log).to_le_bytes());
        bytes[16..32].copy_from_slice(&self.id);
        bytes[32..36].copy_from_slice(&self.segment_len.to_le_bytes());
        bytes[40..48].copy_from_slice(&DATA_START.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.page_count.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..SUPERBLOCK_LEN - 4]);
        bytes[SUPERBLOCK_LEN - 4..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

/// The header at the beginning of every write into a segment: describes the segment and the write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) id: StoreId,
    pub(crate) sequence: Sequence,
    /// Offset of this write in the segment, bytes.
    pub(crate) offset: u32,
    /// Bytes of this write, padding included.
    pub(crate) len: u32,
    /// Bytes of it up to the end of the last record.
    pub(crate) used: u32,
    /// Records in it.
    pub(crate) records: u32,
}

impl SegmentHeader {
    /// Encodes it. The encryption field (bytes 48 to 60) is zero: not encrypted.
    pub(crate) fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0..4].copy_from_slice(&SEGMENT_MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.offset.to_le_bytes());
        bytes[8..24].copy_from_slice(&self.id);
        bytes[24..32].copy_from_slice(&self.sequence.0.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.len.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.used.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.records.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..HEADER_LEN - 4]);
        bytes[HEADER_LEN - 4..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes the header at the start of `bytes`; `None` if it is incomplete or its lengths are invalid.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HEADER_LEN] = bytes.first_chunk()?;
        let crc = crc32c::crc32c(&bytes[..HEADER_LEN - 4]);
        if u32_at(bytes, 0) != SEGMENT_MAGIC || u32_at(bytes, HEADER_LEN - 4) != crc {
            return None;
        }
        let mut id = [0; 16];
        id.copy_from_slice(&bytes[8..24]);
        let header = SegmentHeader {
            id,
            sequence: Sequence(u64_at(bytes, 24)),
            offset: u32_at(bytes, 4),
            len: u32_at(bytes, 32),
            used: u32_at(bytes, 36),
            records: u32_at(bytes, 40),
        };
        let makes_sense = (header.len as usize).is_multiple_of(WRITE_ALIGN)
            && header.used <= header.len
            && header.used as usize >= HEADER_LEN;
        makes_sense.then_some(header)
    }
}

/// The kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RecordKind {
    /// A page, compressed or raw.
    Page = 1,
    // Reserved for later versions, so that they need no new format: 2 same-filled page, 3 tombstone, 4 checkpoint, 5
    // cluster.
}

/// The header in front of a page's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) slot: u64,
    pub(crate) generation: Generation,
    /// Length of the page's bytes.
    pub(crate) len_bytes: u16,
    /// Which of the store's codecs compressed them; meaningless for a raw page.
    pub(crate) priority: u8,
    /// The segment that first contained this record; copies by the cleaner keep it.
    pub(crate) birth: Sequence,
}

/// Bytes that a record of `len_bytes` takes, header and alignment included.
pub(crate) fn record_len(len_bytes: usize) -> usize {
    (RECORD_HEADER_LEN + len_bytes).next_multiple_of(RECORD_ALIGN)
}

impl RecordHeader {
    /// Writes the header in front of the page's bytes; `record` contains both.
    pub(crate) fn seal(&self, record: &mut [u8], seed: Seed) {
        record[4..6].copy_from_slice(&self.len_bytes.to_le_bytes());
        record[6] = RecordKind::Page as u8;
        let is_raw = usize::from(self.len_bytes) == PAGE_SIZE;
        record[7] = if is_raw { CODEC_RAW } else { self.priority };
        record[8..16].copy_from_slice(&self.slot.to_le_bytes());
        let version = u64::from(self.generation.to_bits()) | self.birth.0 << 24;
        record[16..24].copy_from_slice(&version.to_le_bytes());
        let crc = seed.checksum(&record[4..]);
        record[..4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Decodes and verifies the record at the start of `bytes`. Returns its header and the page's bytes, or `None` if
    /// it is not an intact record of a page with this seed.
    pub(crate) fn open(bytes: &[u8], seed: Seed) -> Option<(Self, &[u8])> {
        if bytes.len() < RECORD_HEADER_LEN {
            return None;
        }
        let len_bytes = u16_at(bytes, 4);
        let len = usize::from(len_bytes);
        let record = bytes.get(..RECORD_HEADER_LEN + len)?;
        let is_page = record[6] == RecordKind::Page as u8 && (1..=PAGE_SIZE).contains(&len);
        if !is_page || u32_at(record, 0) != seed.checksum(&record[4..]) {
            return None;
        }
        let is_raw = len == PAGE_SIZE;
        if is_raw != (record[7] == CODEC_RAW) || (!is_raw && record[7] > 3) {
            return None;
        }
        let version = u64_at(record, 16);
        let header = RecordHeader {
            slot: u64_at(record, 8),
            generation: Generation::from_bits(version as u32),
            len_bytes,
            priority: if is_raw { 0 } else { record[7] },
            birth: Sequence(version >> 24),
        };
        Some((header, &record[RECORD_HEADER_LEN..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seed of the store 7, 7, 7... and its ninth segment.
    const SEED: Seed = Seed(SEED_BITS);

    fn header(len_bytes: u16, priority: u8) -> RecordHeader {
        let generation = Generation::from_bits(0x00ab_cdef);
        RecordHeader { slot: (1 << 38) - 1, generation, len_bytes, priority, birth: Sequence((1 << 40) - 1) }
    }

    #[test]
    fn records_come_back_and_any_flipped_bit_is_noticed() {
        for header in [header(1, 3), header(100, 0), header(4096, 0)] {
            let mut record = vec![0x5a; RECORD_HEADER_LEN + usize::from(header.len_bytes)];
            header.seal(&mut record, SEED);
            let (opened, bytes) = RecordHeader::open(&record, SEED).unwrap();
            assert_eq!((opened, bytes.len()), (header, usize::from(header.len_bytes)));
            assert!(bytes.iter().all(|b| *b == 0x5a));
            for bit in (0..record.len() * 8).step_by(3) {
                record[bit / 8] ^= 1 << (bit % 8);
                assert!(RecordHeader::open(&record, SEED).is_none(), "bit {bit}");
                record[bit / 8] ^= 1 << (bit % 8);
            }
            assert!(RecordHeader::open(&record[..record.len() - 1], SEED).is_none());
            for other in [Seed::new([7; 16], Sequence(10)), Seed::new([8; 16], Sequence(9))] {
                assert!(RecordHeader::open(&record, other).is_none());
            }
        }
        assert!(RecordHeader::open(&[0; RECORD_LEN_MAX], SEED).is_none());
    }

    #[test]
    fn segment_headers_come_back_and_any_flipped_bit_is_noticed() {
        let header = SegmentHeader {
            id: *b"0123456789abcdef",
            sequence: Sequence(7),
            offset: 8192,
            len: 4096,
            used: 4000,
            records: 3,
        };
        let mut bytes = header.encode();
        assert_eq!(SegmentHeader::decode(&bytes), Some(header));
        for bit in 0..HEADER_LEN * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SegmentHeader::decode(&bytes), None);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(SegmentHeader::decode(&bytes[1..]), None);
        assert_eq!(SegmentHeader::decode(&[0; 4096]), None);
    }

    #[test]
    fn the_format_does_not_change_by_accident() {
        let superblock = Superblock { id: [7; 16], is_log: true, segment_len: 1 << 20, page_count: 1 << 18 };
        assert_eq!(crc32c::crc32c(&superblock.encode()), SUPERBLOCK_CRC);
        assert_eq!(Seed::new([7; 16], Sequence(9)), SEED);
        let mut record = [9; RECORD_HEADER_LEN + 3];
        header(3, 1).seal(&mut record, SEED);
        assert_eq!(crc32c::crc32c(&record), RECORD_CRC);
    }

    /// Checksums of the bytes of version 1.
    const SEED_BITS: u32 = 1_442_951_188;
    const SUPERBLOCK_CRC: u32 = 1_214_729_159;
    const RECORD_CRC: u32 = 1_437_733_825;
}
