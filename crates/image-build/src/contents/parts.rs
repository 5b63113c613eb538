//! The parts that a file stores itself, and its references to other files.
//!
//! A file's own parts are compressed by any thread, like whole files. A reference becomes extents when it
//! is written, since the places of the other file's clusters are known then. If that file has no extent which begins there,
//! or none of these extents can begin where the reference has them, the bytes are read again and compressed.

use super::filled::Filled;
use super::filler::{Filler, Pending, PendingReference, PendingSegment, Source};
use crate::compress::buffers::Buffer;
use crate::compress::cutter::CutRules;
use crate::compress::input::Src;
use crate::compress::segment::{SEGMENT_BYTES_MAX, next_segment_bytes};
use crate::compress::workers::{ToCompress, Turn};
use crate::compression::Compression;
use crate::content_hash::ContentHash;
use crate::error::path_of;
use crate::options::BLOCK_BYTES;
use crate::{BuildError, Result};
use std::ops::Range;

const BLOCK: usize = BLOCK_BYTES as usize;
/// Shorter segments are read by the builder's thread: a thread that reads one checks its file again.
const READ_BY_THREAD_BYTES_MIN: usize = 128 << 10;
/// If this many segments wait for a thread, the builder's thread reads further ones: each that a thread reads keeps a file
/// open.
const WAITING_MAX: usize = 128;

/// Most references that wait to be written, which take 2 MiB.
const PENDING_REFERENCES_MAX: usize = 512;

/// A part of a file that it stores itself.
#[derive(Debug, Clone, Default)]
pub(super) struct OwnPart {
    /// Its place in the file, bytes.
    range: Range<u64>,
    /// Whether later files have contents of the file.
    is_original: bool,
    /// Whether the file has references, or cuts for those of others.
    is_divided: bool,
    /// Positions in the part where extents should begin.
    cuts: Box<[u64]>,
    /// Bytes of the file before this are in blocks.
    in_blocks: u64,
}

impl OwnPart {
    /// All of a file, which has no references, and no cuts for those of others.
    pub(super) fn whole(len_bytes: u64, is_original: bool) -> Self {
        OwnPart { range: 0..len_bytes, is_original, ..OwnPart::default() }
    }
}

impl<'a> Filler<'_, 'a, '_> {
    /// Passes the own parts of a file to the threads that compress.
    pub(super) fn submit_scanned(
        &mut self,
        file: &Source,
        compression: Compression,
        reader: &mut Filled<'_>,
    ) -> Result<()> {
        let planned = file.planned;
        let (mut start, mut number) = (0, 0);
        while let Some(reference) = self.scan.divided.reference(planned.id, number) {
            number += 1;
            self.submit_part(file, &self.scanned_part(file, start..reference.start), reader)?;
            let skipped = reference.end - reference.start - BLOCK as u64;
            let hash = reader.skip(skipped, || self.writer.report(0))?;
            let last = reader.read(BLOCK, Buffer::default())?.to_vec();
            self.pending.push_back(Pending::Reference(PendingReference {
                planned,
                compression,
                reference,
                hash,
                last,
            }));
            self.pending_references += 1;
            while self.pending_references > PENDING_REFERENCES_MAX {
                self.write_next()?;
            }
            self.write_ready()?;
            start = reference.end;
        }
        self.submit_part(file, &self.scanned_part(file, start..file.len_bytes), reader)
    }

    /// A part of a file that the scan has looked at.
    fn scanned_part(&self, file: &Source, range: Range<u64>) -> OwnPart {
        let id = file.planned.id;
        OwnPart {
            is_original: self.scan.is_original(id),
            is_divided: self.scan.divided.is_divided(id),
            cuts: self.scan.divided.cuts(id, range.clone()).collect(),
            in_blocks: self.scan.divided.of(id).in_blocks,
            range,
        }
    }

    /// Passes a part of a file to the threads, in segments.
    pub(super) fn submit_part(
        &mut self,
        file: &Source,
        part: &OwnPart,
        reader: &mut Filled<'_>,
    ) -> Result<()> {
        let later_bytes = self.left_bytes.saturating_sub(part.range.end);
        let mut start = part.range.start;
        while start < part.range.end {
            let part_left = part.range.end - start;
            let segment_bytes = next_segment_bytes(part_left, part_left + later_bytes);
            self.wait_for_capacity(segment_bytes)?;
            let src = self.source(segment_bytes, reader)?;
            self.submit_segment(file, part, start, src);
            start += segment_bytes as u64;
        }
        Ok(())
    }

    /// Returns the next bytes of a file, or how a thread reads them.
    ///
    /// The threads read long segments themselves: all of them can at once, and none waits at the beginning until others have
    /// a segment. Each does that in memory which it keeps; so where memory is limited, the builder's thread reads.
    fn source(&mut self, len: usize, reader: &mut Filled<'_>) -> Result<Src> {
        let is_limited = self.writer.options.memory_bytes.is_some();
        if len >= READ_BY_THREAD_BYTES_MIN
            && !is_limited
            && self.workers.waiting() < WAITING_MAX
            && let Some(range) = reader.range(len)
        {
            return Ok(Src::Unread { len, range });
        }
        Ok(reader.read(len, self.sources.take(len))?.into())
    }

    /// Passes a segment, which begins at byte `start` of its file, to the threads.
    pub(super) fn submit_segment(&mut self, file: &Source, part: &OwnPart, start: u64, src: Src) {
        let options = self.writer.options;
        let &OwnPart { is_original, is_divided, in_blocks, .. } = part;
        let (planned, compression) = (file.planned, file.compression);
        let (len, end) = (src.len(), start + src.len() as u64);
        let is_last = end == file.len_bytes;
        let by_rule = planned.rule_cluster(self.writer.tree, &options.rules);
        let is_inside = |cut: &u64| (start + 1..end).contains(cut);
        let cut = CutRules {
            start,
            is_last,
            cluster_bytes: by_rule.unwrap_or(options.cluster_bytes) as usize,
            tail_packing: options.tail_packing,
            may_be_plain: !is_divided,
            fragment_bytes_max: self.packing.fragment_bytes_max(compression),
            in_blocks,
            cuts: part.cuts.iter().copied().filter(is_inside).collect(),
        };
        let ticket = self.workers.submit(src, ToCompress { cut, compression }, Turn::Last);
        let segment = PendingSegment { ticket, planned, len, is_last, compression, is_original, is_divided };
        self.pending.push_back(Pending::Segment(segment));
    }

    /// Adds a reference to the file that is being written.
    pub(super) fn write_reference(&mut self, pending: &PendingReference) -> Result<()> {
        let PendingReference { planned, reference, ref last, .. } = *pending;
        let not_stored = std::mem::take(&mut self.not_stored);
        self.file.is_cut = true;
        if !not_stored.is_empty() || !self.writer.add_reference(&planned, &mut self.file, &reference, last)? {
            self.store_again(pending, not_stored)?;
        }
        self.writer.report(reference.end - reference.start)
    }

    /// Compresses the contents of a reference, and the bytes before it that are not stored.
    fn store_again(&mut self, pending: &PendingReference, not_stored: Vec<u8>) -> Result<()> {
        let PendingReference { planned, compression, reference, hash, ref last } = *pending;
        let mut second = SecondRead { hash: ContentHash::new(), last: Vec::new() };
        let Some(content) = self.writer.content(&planned) else { return Ok(()) };
        let reader = content.open()?;
        let data = reader.data_ranges()?;
        let mut filled = Filled::new(reader.as_ref(), data.as_deref(), false);
        filled.seek(reference.start);
        let (mut src, mut start) = (not_stored, reference.start);
        while start < reference.end {
            let segment_start = start - src.len() as u64;
            let len = (reference.end - start).min((SEGMENT_BYTES_MAX - src.len()) as u64);
            let further = filled.read(len as usize, Buffer::default())?;
            src.extend_from_slice(&further);
            second.add(&further, reference.end - start);
            start += len;
            let cluster_bytes = self.writer.options.cluster_bytes as usize;
            let cut = CutRules { start: segment_start, cluster_bytes, ..CutRules::default() };
            let what = ToCompress { cut, compression: Some(compression) };
            let ticket = self.workers.submit(src.into(), what, Turn::First);
            let mut done = self.workers.take(ticket, || self.writer.report(0))?;
            src = std::mem::take(&mut done.output.left);
            self.blocks_memory.keep(self.writer.append_segment(&mut self.file, done.output, done.elapsed)?);
        }
        // Other files may refer to these extents, because of what was read before.
        if hash.is_some_and(|hash| hash != second.hash.finish() || second.last != *last) {
            return Err(BuildError::Changed { path: path_of(&planned.path(self.writer.tree)) });
        }
        reader.finish()
    }
}

/// Hashes a shared range on the second read, to detect that the file changed.
struct SecondRead {
    /// The hash of all but the last block.
    hash: ContentHash,
    last: Vec<u8>,
}

impl SecondRead {
    /// Adds the next bytes. From their first one on, the reference has `left_bytes`.
    fn add(&mut self, bytes: &[u8], left_bytes: u64) {
        let before_last = left_bytes.saturating_sub(BLOCK as u64).min(bytes.len() as u64) as usize;
        self.hash.write(&bytes[..before_last]);
        self.last.extend_from_slice(&bytes[before_last..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How the bytes are cut while they are read is of no importance.
    #[test]
    fn the_last_block_is_kept_and_the_rest_is_hashed() {
        let bytes: Vec<u8> = (0..3 * BLOCK + 100).map(|i| (i * i) as u8).collect();
        let mut rest = ContentHash::new();
        rest.write(&bytes[..2 * BLOCK + 100]);
        for step in [1, 99, BLOCK - 1, BLOCK, BLOCK + 1, bytes.len()] {
            let mut second = SecondRead { hash: ContentHash::new(), last: Vec::new() };
            for (number, piece) in bytes.chunks(step).enumerate() {
                second.add(piece, (bytes.len() - number * step) as u64);
            }
            assert!(
                second.hash.finish() == rest.finish() && second.last == bytes[2 * BLOCK + 100..],
                "{step}"
            );
        }
    }
}
