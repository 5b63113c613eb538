//! Finds the records of a segment by reading it from front to back.
//!
//! A failed write leaves arbitrary bytes. Writes begin at multiples of 4096 with a header that identifies the
//! segment, the use of the segment (its sequence number) and the offset. Where there is no such header, the scan
//! continues at the next multiple; so it never takes bytes of an earlier use of the segment for a record of this one.

use crate::layout::format::{
    HEADER_LEN, RECORD_ALIGN, RECORD_HEADER_LEN, RecordHeader, Seed, SegmentHeader, Sequence, StoreId,
    WRITE_ALIGN, record_len,
};

/// A record found in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FoundRecord {
    /// Where it begins in the segment, bytes.
    pub(crate) at: usize,
    /// Its header.
    pub(crate) header: RecordHeader,
}

impl FoundRecord {
    /// The page's bytes in the segment.
    pub(crate) fn payload<'a>(&self, segment: &'a [u8]) -> &'a [u8] {
        &segment[self.at + RECORD_HEADER_LEN..][..usize::from(self.header.len_bytes)]
    }
}

/// Returns the intact records in a segment's bytes. Any bytes are valid input.
pub(crate) fn scan(segment: &[u8], id: StoreId, sequence: Sequence) -> Vec<FoundRecord> {
    let mut found = Vec::new();
    let seed = Seed::new(id, sequence);
    let mut at = 0;
    while at + HEADER_LEN <= segment.len() {
        match SegmentHeader::decode(&segment[at..]) {
            Some(h) if h.id == id && h.sequence == sequence && h.offset as usize == at && h.len > 0 => {
                let end = (at + h.used as usize).min(segment.len());
                scan_write(&segment[..end], at + HEADER_LEN, seed, h.records, &mut found);
                at += h.len as usize;
            }
            _ => at += WRITE_ALIGN,
        }
    }
    found
}

/// Finds the records of one write. After a corrupt record, whose length is unknown, it searches for the next one; a
/// false match inside a page's bytes does no harm, because no slot points to it.
fn scan_write(segment: &[u8], mut at: usize, seed: Seed, records: u32, found: &mut Vec<FoundRecord>) {
    let before = found.len();
    while at < segment.len() && found.len() - before < records as usize {
        match RecordHeader::open(&segment[at..], seed) {
            Some((header, _)) => {
                found.push(FoundRecord { at, header });
                at += record_len(header.len_bytes.into());
            }
            None => at += RECORD_ALIGN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot::Generation;

    const ID: StoreId = *b"0123456789abcdef";
    const NOW: Sequence = Sequence(9);

    fn write(offset: usize, sequence: Sequence, slots: std::ops::Range<u64>) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_LEN];
        for slot in slots.clone() {
            let len = 100 + slot as usize * 7;
            let mut record = vec![slot as u8; record_len(len)];
            record[RECORD_HEADER_LEN + len..].fill(0);
            let header = RecordHeader {
                slot,
                generation: Generation::from_bits(1),
                len_bytes: len as u16,
                priority: 0,
                birth: sequence,
            };
            header.seal(&mut record[..RECORD_HEADER_LEN + len], Seed::new(ID, sequence));
            bytes.extend(record);
        }
        let used = bytes.len();
        bytes.resize(used.next_multiple_of(WRITE_ALIGN), 0);
        let header = SegmentHeader {
            id: ID,
            sequence,
            offset: offset as u32,
            len: bytes.len() as u32,
            used: used as u32,
            records: (slots.end - slots.start) as u32,
        };
        bytes[..HEADER_LEN].copy_from_slice(&header.encode());
        bytes
    }

    fn slots(segment: &[u8]) -> Vec<u64> {
        scan(segment, ID, NOW).iter().map(|f| f.header.slot).collect()
    }

    /// Three writes, of which the caller passes the second.
    fn segment(second: Vec<u8>) -> Vec<u8> {
        let mut bytes = write(0, NOW, 0..3);
        bytes.extend(second);
        bytes.extend(write(bytes.len(), NOW, 6..8));
        bytes
    }

    #[test]
    fn gaps_and_writes_of_an_earlier_use_are_skipped() {
        assert_eq!(slots(&segment(write(4096, NOW, 3..6))), [0, 1, 2, 3, 4, 5, 6, 7]);
        for other in [write(4096, Sequence(8), 3..6), write(0, NOW, 3..6), vec![0xa5; 4096], vec![0; 8192]] {
            assert_eq!(slots(&segment(other)), [0, 1, 2, 6, 7]);
        }
        assert_eq!(slots(&[]), []);
    }

    #[test]
    fn behind_a_corrupt_record_the_others_are_found() {
        let mut bytes = segment(write(4096, NOW, 3..6));
        let found = scan(&bytes, ID, NOW);
        bytes[found[4].at + 4] ^= 1;
        assert_eq!(slots(&bytes), [0, 1, 2, 3, 5, 6, 7]);
        assert!(found[5].payload(&bytes).iter().all(|b| *b == 5));
    }
}
