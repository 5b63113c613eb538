//! Files that are stored in chunks of a length that the caller chose: equal chunks once, and no hole.
//!
//! That is less dense than equal parts of compressed files ([`Dedupe`](crate::Dedupe)), but a reader finds every chunk without
//! decoding, and kernels from 5.15 on can. Chunks are equal by the SHA-256 of their bytes, since sources are hostile.

use super::content::Reader;
use super::content_hash::ContentHash;
use super::options::BLOCK_BYTES;
use super::plan::Planned;
use super::sparse::encode;
use super::table::Hashes;
use super::writer::Writer;
use crate::{BuildError, Result};
use pagefold_image::format::chunk::HOLE_WIDE;
use std::ops::Range;

/// Longest chunk, bytes: it is in memory while it is compared.
pub const CHUNK_BYTES_MAX: u32 = 16 << 20;
/// Entries of a file at most: they are in memory while it is written.
const ENTRIES_MAX: u64 = 1 << 24;

/// The chunks of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkForm {
    /// Length, bytes: a power of two, from a block to [`CHUNK_BYTES_MAX`].
    pub bytes: u32,
    /// Whether entries have 8 bytes, with the number of a device, also where 4 would do.
    pub indexed: bool,
}

/// Reads a file and writes it in chunks. `data` are its ranges that are no holes, if they are known.
pub fn write(
    writer: &mut Writer<'_>,
    planned: &Planned,
    len_bytes: u64,
    data: Option<&[Range<u64>]>,
    reader: &dyn Reader,
    form: ChunkForm,
) -> Result<()> {
    let chunk = u64::from(form.bytes);
    if len_bytes.div_ceil(chunk) > ENTRIES_MAX {
        let what = format!("it has more than 2^24 chunks of {chunk} bytes; choose longer ones");
        return Err(BuildError::refused(&planned.path(writer.tree), what));
    }
    let (mut blocks, mut stored_bytes) = (Vec::new(), 0);
    let mut hash = writer.options.digests.then(ContentHash::new);
    for start in (0..len_bytes).step_by(form.bytes as usize) {
        let end = (start + chunk).min(len_bytes);
        let is_hole = data.is_some_and(|data| {
            data.get(data.partition_point(|range| range.end <= start)).is_none_or(|range| range.start >= end)
        });
        let block = match is_hole {
            true => HOLE_WIDE,
            false => {
                let mut bytes = vec![0; (end - start) as usize];
                reader.read_exact_at(&mut bytes, start)?;
                hash.iter_mut().for_each(|hash| hash.write(&bytes));
                bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES as usize), 0);
                let block = writer.out.next_block();
                let key = Hashes::key_of_bytes(&[&bytes]);
                match writer.chunks.get_or_insert(&key, block)? {
                    Some(first) => first,
                    None => {
                        writer.out.append(&bytes)?;
                        stored_bytes += bytes.len() as u64;
                        block
                    }
                }
            }
        };
        blocks.push(block);
        writer.report(end - start)?;
    }
    writer.add_digest(planned, hash.map(|hash| hash.finish()))?;
    let (further_format, entries, entry_bytes) = encode(&blocks, form.indexed);
    let chunk_bits = (form.bytes / BLOCK_BYTES).trailing_zeros() as u16;
    writer.put_chunks(planned, chunk_bits | further_format, (&entries, entry_bytes), stored_bytes)
}
