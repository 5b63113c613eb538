//! An independent parser of the log format, written from `docs/formats/log.md`: the reference model of what the store
//! writes.
//!
//! It validates everything and shares no code with the store: offsets are those of the document, and the checksum is
//! computed bit by bit.

use super::rig::DATA_START;

pub struct Record {
    /// Byte of the medium at which it begins.
    pub at: u64,
    pub slot: u64,
    pub generation: u32,
    pub birth: u64,
    /// 0xff for a page as it is.
    pub codec: u8,
    pub payload: Vec<u8>,
}

pub struct SegmentWrite {
    pub id: [u8; 16],
    pub sequence: u64,
    /// Offset in the segment.
    pub offset: u32,
    pub records: Vec<Record>,
}

fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..at + len].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

/// CRC-32C, one bit at a time.
pub fn crc32c(pieces: &[&[u8]]) -> u32 {
    let mut crc = u32::MAX;
    for byte in pieces.iter().copied().flatten() {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    !crc
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|b| *b == 0)
}

/// Parses the first MiB, checks each byte, and returns the store's identity.
pub fn superblock(bytes: &[u8], is_log: bool, page_count: u64) -> [u8; 16] {
    assert_eq!(bytes.len() as u64, DATA_START);
    assert_eq!(&bytes[0..8], b"PAGEFOLD");
    assert_eq!(number(bytes, 8, 4), 1, "version");
    assert_eq!(number(bytes, 12, 4), u64::from(!is_log), "layout");
    assert_eq!(number(bytes, 32, 4), if is_log { 256 << 10 } else { 4096 });
    assert_eq!(number(bytes, 36, 4), 0);
    assert_eq!(number(bytes, 40, 8), DATA_START);
    assert_eq!(number(bytes, 48, 8), page_count);
    assert!(is_zero(&bytes[56..76]));
    assert_eq!(number(bytes, 76, 4), u64::from(crc32c(&[&bytes[..76]])));
    assert!(is_zero(&bytes[80..]));
    bytes[16..32].try_into().unwrap()
}

/// Parses one write into a segment that begins at byte `segment` of the medium, and checks each byte.
pub fn segment_write(bytes: &[u8], medium_offset: u64, segment: u64) -> SegmentWrite {
    assert!(bytes.len().is_multiple_of(4096) && bytes.len() <= 256 << 10);
    assert_eq!(&bytes[0..4], b"PFSG");
    assert_eq!(number(bytes, 4, 4), medium_offset - segment);
    let id: [u8; 16] = bytes[8..24].try_into().unwrap();
    let sequence = number(bytes, 24, 8);
    assert_eq!(number(bytes, 32, 4), bytes.len() as u64);
    let used = number(bytes, 36, 4) as usize;
    let count = number(bytes, 40, 4);
    assert!(is_zero(&bytes[44..60]), "reserved, and no encryption");
    assert_eq!(number(bytes, 60, 4), u64::from(crc32c(&[&bytes[..60]])));
    let mut records = Vec::new();
    let mut at = 64;
    while at < used {
        let len = number(bytes, at + 4, 2) as usize;
        assert!((1..=4096).contains(&len));
        assert_eq!(bytes[at + 6], 1, "a page");
        let end = at + 24 + len;
        let crc = crc32c(&[&id, &sequence.to_le_bytes(), &bytes[at + 4..end]]);
        assert_eq!(number(bytes, at, 4), u64::from(crc));
        records.push(Record {
            at: medium_offset + at as u64,
            slot: number(bytes, at + 8, 8),
            generation: number(bytes, at + 16, 3) as u32,
            birth: number(bytes, at + 19, 5),
            codec: bytes[at + 7],
            payload: bytes[at + 24..end].to_vec(),
        });
        at = end.next_multiple_of(8);
        assert!(is_zero(&bytes[end..at]), "behind a record");
    }
    assert_eq!((at, records.len() as u64), (used, count));
    assert!(is_zero(&bytes[used..]), "behind the last record");
    assert!(bytes.len() - used < 4096);
    SegmentWrite { id, sequence, offset: (medium_offset - segment) as u32, records }
}
