//! Files that consist mostly of holes: they are stored in chunks, of which the holes take no room.
//!
//! Chunks are not compressed, so a file with few holes is better compressed with its zeroes.

use super::content::Reader;
use super::content_hash::ContentHash;
use super::metadata::inode::ADDRESS_WIDE;
use super::options::BLOCK_BYTES;
use super::plan::Planned;
use super::target::Target;
use super::writer::Writer;
use crate::Result;
use pagefold_image::format::chunk::{BLOCK_ENTRY_LEN, FORMAT_INDEXES, FORMAT_WIDE, HOLE_WIDE, RawChunkIndex};
use pagefold_image::format::features::incompat;
use std::ops::Range;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Holes of fewer bytes in all are not worth a different layout.
const HOLE_BYTES_MIN: u64 = 1 << 20;
/// Entries of a file at most, as long as its chunks are short.
const ENTRIES_MAX: u64 = 1 << 16;
/// Largest short chunk, as a power of two in blocks: 8 MiB. Around a byte of data, a chunk of zeroes is stored.
const SHORT_CHUNK_BITS_MAX: u32 = 11;
/// Entries of any file at most: they are in memory while it is written.
const LONG_ENTRIES_MAX: u64 = 1 << 20;
/// Largest chunk of the format, as a power of two in blocks.
const CHUNK_BITS_MAX: u32 = 31;
/// Bytes that are read at once.
const PIECE_BYTES: usize = 8 << 20;

/// Whether a file with these ranges of data is stored in chunks.
pub fn is_worth(target: Target, len_bytes: u64, data: &[Range<u64>]) -> bool {
    let data_bytes: u64 = data.iter().map(|range| range.end - range.start).sum();
    let hole_bytes = len_bytes.saturating_sub(data_bytes);
    target.has(incompat::CHUNKED_FILE) && hole_bytes >= HOLE_BYTES_MIN && hole_bytes >= len_bytes / 4 * 3
}

/// Reads a file and writes it in chunks.
pub fn write(
    writer: &mut Writer<'_>,
    planned: &Planned,
    len_bytes: u64,
    data: &[Range<u64>],
    reader: &dyn Reader,
) -> Result<()> {
    let chunk_bits = chunk_bits(len_bytes);
    let chunk = BLOCK << chunk_bits;
    let mut blocks = Vec::new();
    let mut stored_bytes = 0;
    let mut hash = writer.options.digests.then(ContentHash::new);
    for start in (0..len_bytes).step_by(chunk as usize) {
        let end = (start + chunk).min(len_bytes);
        let has_data =
            data.get(data.partition_point(|range| range.end <= start)).is_some_and(|r| r.start < end);
        let block = match has_data {
            false => HOLE_WIDE,
            true => {
                let (block, bytes) = write_chunk(writer, start..end, reader, &mut hash)?;
                stored_bytes += bytes;
                block
            }
        };
        blocks.push(block);
        if has_data {
            writer.report(end - start)?;
        }
    }
    writer.report(len_bytes - data_len(data, chunk, len_bytes))?;
    writer.add_digest(planned, hash.map(|hash| hash.finish()))?;
    let (further_format, entries, entry_bytes) = encode(&blocks, false);
    let format = chunk_bits as u16 | further_format;
    writer.put_chunks(planned, format, (&entries, entry_bytes), stored_bytes)
}

/// Writes a chunk, unless it has nothing but zeroes: how short the holes of a file may be depends on its file system, and the
/// image does not. Returns the first block, and the bytes that were written. Only these are hashed.
fn write_chunk(
    writer: &mut Writer<'_>,
    chunk: Range<u64>,
    reader: &dyn Reader,
    hash: &mut Option<ContentHash>,
) -> Result<(u64, u64)> {
    let (mut first, mut zero_bytes, mut stored_bytes) = (None, 0, 0);
    let mut append = |writer: &mut Writer<'_>, bytes: &mut Vec<u8>| {
        hash.iter_mut().for_each(|hash| hash.write(bytes));
        bytes.resize(bytes.len().next_multiple_of(BLOCK as usize), 0);
        stored_bytes += bytes.len() as u64;
        writer.out.append(bytes)
    };
    for start in chunk.clone().step_by(PIECE_BYTES) {
        let mut bytes = vec![0; (chunk.end - start).min(PIECE_BYTES as u64) as usize];
        reader.read_exact_at(&mut bytes, start)?;
        if first.is_none() && bytes.iter().fold(0, |all, byte| all | byte) == 0 {
            zero_bytes += bytes.len() as u64;
            continue;
        }
        if first.is_none() {
            first = Some(writer.out.next_block());
            // These are whole pieces.
            for _ in (0..zero_bytes).step_by(PIECE_BYTES) {
                append(writer, &mut vec![0; PIECE_BYTES])?;
            }
        }
        append(writer, &mut bytes)?;
    }
    Ok((first.unwrap_or(HOLE_WIDE), stored_bytes))
}

/// Encodes the entries of chunks with these first blocks. Returns the bits of the chunk format that say which entries
/// these are, the entries, and the bytes of one. Entries have 8 bytes if they are `indexed`, or have addresses of 48 bits.
pub fn encode(blocks: &[u64], indexed: bool) -> (u16, Vec<u8>, usize) {
    encode_on(blocks, indexed, 0)
}

/// Like [`encode`], of chunks on a device. Those on a further one are `indexed`.
pub fn encode_on(blocks: &[u64], indexed: bool, device: u16) -> (u16, Vec<u8>, usize) {
    let is_wide = blocks.iter().any(|block| *block != HOLE_WIDE && *block >= ADDRESS_WIDE);
    if !is_wide && !indexed {
        // The low bits of a hole are those of a hole of 32 bits.
        let entries = blocks.iter().flat_map(|block| (*block as u32).to_le_bytes()).collect();
        return (0, entries, BLOCK_ENTRY_LEN);
    }
    let entry = |block: &u64| {
        let (high, low) = (if is_wide { (*block >> 32) as u16 } else { 0 }, *block as u32);
        RawChunkIndex { startblk_hi: high.into(), device_id: device.into(), startblk_lo: low.into() }.encode()
    };
    let entries = blocks.iter().flat_map(entry).collect();
    (FORMAT_INDEXES | if is_wide { FORMAT_WIDE } else { 0 }, entries, RawChunkIndex::LEN)
}

/// Bytes of the chunks that have data.
fn data_len(data: &[Range<u64>], chunk: u64, len_bytes: u64) -> u64 {
    let mut end = 0;
    let mut sum = 0;
    for range in data {
        let from = (range.start / chunk * chunk).max(end);
        let to = range.end.next_multiple_of(chunk).min(len_bytes).max(from);
        sum += to - from;
        end = to;
    }
    sum
}

/// The smallest chunk with which a file has a bounded number of entries.
fn chunk_bits(len_bytes: u64) -> u32 {
    let entries = |bits: &u32| len_bytes.div_ceil(BLOCK << bits);
    let short = (0..SHORT_CHUNK_BITS_MAX).find(|bits| entries(bits) <= ENTRIES_MAX);
    let long = || (SHORT_CHUNK_BITS_MAX..CHUNK_BITS_MAX).find(|bits| entries(bits) <= LONG_ENTRIES_MAX);
    short.or_else(long).unwrap_or(CHUNK_BITS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_that_are_mostly_holes_are_stored_in_chunks() {
        let target = Target::new(6, 1);
        let mib = 1u64 << 20;
        assert!(is_worth(target, 4 * mib, &[Range { start: 0, end: mib }]));
        assert!(!is_worth(target, 4 * mib, &[Range { start: 0, end: 2 * mib }]));
        assert!(!is_worth(target, mib / 2, &[]));
        assert!(!is_worth(Target::new(5, 10), 4 * mib, &[]));
    }

    #[test]
    fn chunks_grow_with_the_file() {
        assert_eq!((chunk_bits(1), chunk_bits(256 << 20), chunk_bits((256 << 20) + 1)), (0, 0, 1));
        assert_eq!(
            [1 << 39, (1 << 39) + 1, 1 << 43, (1 << 43) + 1, 1 << 47, u64::MAX].map(chunk_bits),
            [11, 11, 11, 12, 15, CHUNK_BITS_MAX]
        );
    }

    #[test]
    fn chunks_with_data_are_counted_once() {
        let ranges = [10..20, 30..40, 9000..9001];
        assert_eq!(data_len(&ranges, 4096, 10_000), 4096 + (10_000 - 8192));
    }
}
