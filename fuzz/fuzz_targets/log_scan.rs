//! Invariant: a scan of any bytes as a log segment finds records inside the segment and in order; in a damaged
//! segment it finds every intact record, and only records that were written.
//!
//! The first byte chooses between raw bytes and a recipe. A recipe contains the numbers of writes and of their
//! records, then the offsets and values of bytes that overwrite them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagefold_fuzz::damages;
use pagefold_store::writeback::scan_segment;
use std::ops::Range;

const ID: [u8; 16] = *b"0123456789abcdef";
const SEQUENCE: u64 = 0x01_0203_0405;

fuzz_target!(|data: &[u8]| {
    let Some((&choice, data)) = data.split_first() else { return };
    if choice & 1 == 0 {
        check(data, &scan_segment(data, ID, SEQUENCE));
        return;
    }
    let mut recipe = data.iter().copied();
    let (mut segment, records) = build(&mut recipe);
    let damaged = damage(&mut segment, &mut recipe);
    let found = scan_segment(&segment, ID, SEQUENCE);
    check(&segment, &found);
    let is_whole =
        |range: &Range<usize>| damaged.iter().all(|d| d.end <= range.start || range.end <= d.start);
    for record in &records {
        let is_found = found.iter().any(|f| f.0 == record.at.start && f.1 == record.slot);
        if is_whole(&record.header) && is_whole(&record.at) {
            assert!(is_found, "an intact record was not found");
        }
    }
    // A record that was never written would need a right checksum of 32 bits by chance.
    for f in &found {
        assert!(
            records.iter().any(|r| (r.at.start, r.slot) == (f.0, f.1)),
            "the scan found a record that was never written"
        );
    }
});

fn check(segment: &[u8], found: &[(usize, u64, &[u8])]) {
    let mut end = 0;
    for (at, _, payload) in found {
        assert!(at.is_multiple_of(8) && *at >= end);
        assert!((1..=4096).contains(&payload.len()));
        end = at + 24 + payload.len();
        assert!(end <= segment.len());
    }
}

struct Written {
    /// The header of the write that contains the record.
    header: Range<usize>,
    at: Range<usize>,
    slot: u64,
}

/// Builds a segment as docs/formats/log.md describes it.
fn build(recipe: &mut impl Iterator<Item = u8>) -> (Vec<u8>, Vec<Written>) {
    let (mut segment, mut records) = (Vec::new(), Vec::new());
    let seed = crc32c::crc32c_append(crc32c::crc32c(&ID), &SEQUENCE.to_le_bytes());
    for _ in 0..recipe.next().unwrap_or(0) % 4 {
        let start = segment.len();
        let count = recipe.next().unwrap_or(0) % 12;
        segment.resize(start + 64, 0);
        for _ in 0..count {
            let kind = recipe.next().unwrap_or(0);
            let len = if kind == 0 { 4096 } else { usize::from(kind) * 7 };
            let (at, slot) = (segment.len(), u64::from(recipe.next().unwrap_or(0)));
            let mut record = vec![kind; 24 + len];
            record[4..6].copy_from_slice(&(len as u16).to_le_bytes());
            record[6] = 1;
            record[7] = if len == 4096 { 0xff } else { kind & 3 };
            record[8..16].copy_from_slice(&slot.to_le_bytes());
            record[16..24].copy_from_slice(&(SEQUENCE << 24 | 5).to_le_bytes());
            let crc = crc32c::crc32c_append(seed, &record[4..]);
            record[..4].copy_from_slice(&crc.to_le_bytes());
            segment.extend(record);
            records.push(Written { header: start..start + 64, at: at..segment.len(), slot });
            segment.resize(segment.len().next_multiple_of(8), 0);
        }
        let used = segment.len() - start;
        segment.resize(segment.len().next_multiple_of(4096), 0);
        let len = segment.len() - start;
        let mut header = [0; 64];
        header[..4].copy_from_slice(b"PFSG");
        header[4..8].copy_from_slice(&(start as u32).to_le_bytes());
        header[8..24].copy_from_slice(&ID);
        header[24..32].copy_from_slice(&SEQUENCE.to_le_bytes());
        header[32..36].copy_from_slice(&(len as u32).to_le_bytes());
        header[36..40].copy_from_slice(&(used as u32).to_le_bytes());
        header[40..44].copy_from_slice(&u32::from(count).to_le_bytes());
        let crc = crc32c::crc32c(&header[..60]);
        header[60..].copy_from_slice(&crc.to_le_bytes());
        segment[start..start + 64].copy_from_slice(&header);
    }
    (segment, records)
}

/// Overwrites bytes of the segment and truncates it. Returns the ranges that may have changed.
fn damage(segment: &mut Vec<u8>, recipe: &mut impl Iterator<Item = u8>) -> Vec<Range<usize>> {
    let mut damaged = Vec::new();
    for (at, byte) in damages(recipe) {
        let at = if byte & 1 == 1 { at * 4 } else { at & !7 };
        if byte == 0xfe && at < segment.len() {
            damaged.push(at..segment.len());
            segment.truncate(at);
        } else if at < segment.len() {
            let end = (at + usize::from(byte >> 4)).min(segment.len()).max(at + 1);
            segment[at..end].fill(byte);
            damaged.push(at..end);
        }
    }
    damaged
}
