//! zstd frames by libzstd, cut to a cluster.
//!
//! libzstd cannot fill a destination, and searching for the right input length takes some ten compressions. Here a
//! frame is compressed once, as a stream that is flushed at chosen input offsets. A flush ends a block, so the length
//! of the output is known there. The first block is nearly as long as the cluster; each further one is a part of what
//! the rest of the cluster is expected to hold, so that blocks shrink towards the end. A block that does not fit is
//! taken back, and a shorter one is compressed instead (`zstd_context`).
//!
//! In a small cluster each block costs a noticeable part. There the first block only serves to estimate, and the frame
//! begins again with a block that is nearly as long as all that fits.
//!
//! `zstd_level` has the parameters, and `zstd_kind` chooses between two searches of a level.
//!
//! The header is written last, because only then the content size is known. libzstd's header, which has no content
//! size, is overwritten. Format: RFC 8878.

use super::fit::Fit;
use super::zstd_context::{Context, Flushed};
use super::zstd_kind::Sampler;
use super::zstd_level::{Kind, all_parameters, parameters};
use crate::error::CodecError;
use zstd_safe::zstd_sys::ZSTD_compressionParameters;

/// Length of the longest header that is written: magic, descriptor, window, content size of 4 bytes.
const HEADER_MAX_BYTES: usize = 4 + 1 + 1 + 4;
/// Length of the header that libzstd writes without content size: magic, descriptor, window.
const UNSIZED_HEADER_BYTES: usize = 4 + 1 + 1;
/// Length of a block's header.
const BLOCK_HEADER_BYTES: usize = 3;
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Content that a cluster is expected to hold, as a multiple of its length: libzstd's parameters depend on it.
const EXPECTED_RATIO: usize = 3;
/// No block is begun for fewer bytes of output: its headers would take most of them.
const ROOM_MIN_BYTES: usize = 24;
/// No block is begun for a smaller part of the cluster than this, 1 / 512.
const ROOM_MIN_SHIFT: u32 = 9;
/// Clusters up to this length begin with one block that is nearly as long as all that fits.
const SMALL_BYTES: usize = 32 << 10;
/// A block that does not fit ends the frame if the rest of the cluster is a smaller part than this, 1 / 64: saving the
/// state takes longer than the rest is worth.
const SAVE_SHIFT: u32 = 6;
/// The most blocks of a frame, and the most attempts at blocks: far more than shrinking blocks need.
const ATTEMPTS_MAX: usize = 32;

pub(super) struct Zstd {
    context: Context,
    /// `None`: the level has one search for all sources.
    sampler: Option<Sampler>,
    max_window_bytes: u32,
    level: i32,
}

/// The complete blocks of a frame that is being written.
#[derive(Clone, Copy, Default)]
struct Blocks {
    consumed_bytes: usize,
    written_bytes: usize,
}

/// Returns an upper bound of the heap bytes of an encoder.
pub(super) fn heap_bytes(max_window_bytes: u32, level: i32) -> usize {
    let all = all_parameters(max_window_bytes, level);
    all.into_iter().map(Context::heap_bytes).max().unwrap_or_default() + Sampler::heap_bytes(level)
}

impl Zstd {
    pub(super) fn new(max_window_bytes: u32, level: i32) -> Result<Self, CodecError> {
        let context = Context::new(&all_parameters(max_window_bytes, level))?;
        Ok(Zstd { context, sampler: Sampler::new(level)?, max_window_bytes, level })
    }

    /// Returns the parameters for a source whose frame is expected to hold so many bytes.
    fn parameters(
        &mut self,
        src: &[u8],
        expected_bytes: usize,
    ) -> Result<ZSTD_compressionParameters, CodecError> {
        let kind = match &mut self.sampler {
            Some(sampler) => sampler.kind(&src[..src.len().min(expected_bytes)])?,
            None => Kind::LongMatches,
        };
        Ok(parameters(self.max_window_bytes, self.level, expected_bytes, kind))
    }

    pub(super) fn whole(&mut self, src: &[u8], dst: &mut [u8]) -> Result<Option<usize>, CodecError> {
        let parameters = self.parameters(src, src.len())?;
        self.context.begin_whole(self.level, parameters)?;
        self.context.compress(src, dst)
    }

    /// Fills `dst`, and adds the number of bytes that it compresses to `input_bytes`.
    pub(super) fn fit(
        &mut self,
        src: &[u8],
        dst: &mut [u8],
        input_bytes: &mut u64,
    ) -> Result<Fit, CodecError> {
        // Where libzstd writes its header, so that the blocks begin after the longest header.
        let frame_at = HEADER_MAX_BYTES - UNSIZED_HEADER_BYTES;
        let frame = &mut dst[frame_at..];
        let blocks = self.blocks(src, frame, input_bytes)?;
        end_last_block(&mut frame[UNSIZED_HEADER_BYTES..blocks.written_bytes]);
        let (header, header_len) = self.header(blocks.consumed_bytes);
        dst[..header_len].copy_from_slice(&header[..header_len]);
        dst.copy_within(HEADER_MAX_BYTES..frame_at + blocks.written_bytes, header_len);
        let written_bytes = header_len + blocks.written_bytes - UNSIZED_HEADER_BYTES;
        Ok(Fit { consumed_bytes: blocks.consumed_bytes, written_bytes })
    }

    /// Compresses blocks until the frame is full.
    fn blocks(&mut self, src: &[u8], frame: &mut [u8], input_bytes: &mut u64) -> Result<Blocks, CodecError> {
        let parameters = self.parameters(src, frame.len() * EXPECTED_RATIO)?;
        self.context.begin_blocks(self.level, parameters)?;
        let mut blocks = Blocks::default();
        // Data that does not compress fits too, with the headers of blocks.
        let mut step = frame.len() - frame.len() / 8 - ROOM_MIN_BYTES;
        // Whether a block that does not fit can be taken back.
        let mut is_saved = true;
        let mut is_estimate = frame.len() <= SMALL_BYTES && step < src.len();
        for _ in 0..ATTEMPTS_MAX {
            let source = &src[blocks.consumed_bytes..src.len().min(blocks.consumed_bytes + step)];
            *input_bytes += source.len() as u64;
            match self.context.flush(source, frame, blocks.written_bytes)? {
                Flushed::Complete(written_bytes) => {
                    let before = blocks;
                    blocks = Blocks { consumed_bytes: blocks.consumed_bytes + source.len(), written_bytes };
                    let Some(next) = next_step(before, blocks, frame.len(), src.len()) else { break };
                    step = next;
                    if std::mem::take(&mut is_estimate) {
                        step += blocks.consumed_bytes;
                        blocks = Blocks::default();
                        self.context.begin_blocks(self.level, parameters)?;
                    } else if frame.len() - written_bytes > frame.len() >> SAVE_SHIFT {
                        self.context.save();
                        is_saved = true;
                    } else {
                        is_saved = false;
                    }
                }
                Flushed::Full { consumed_bytes, produced_bytes } => {
                    let room = frame.len() - blocks.written_bytes;
                    step = (room * consumed_bytes / produced_bytes.max(1) / 16 * 15).min(source.len() - 1);
                    if step < ROOM_MIN_BYTES / 2 || !is_saved {
                        break;
                    }
                    match blocks.written_bytes {
                        0 => self.context.begin_blocks(self.level, parameters)?,
                        _ => self.context.restore(),
                    }
                }
            }
        }
        Ok(blocks)
    }

    /// Makes the header of a frame with this content size, and returns it with its length.
    ///
    /// Content that the longest window covers makes the frame a single segment: a header without window.
    fn header(&self, content_bytes: usize) -> ([u8; HEADER_MAX_BYTES], usize) {
        let mut header = [0; HEADER_MAX_BYTES];
        header[..4].copy_from_slice(&MAGIC);
        let is_single_segment = content_bytes <= self.max_window_bytes as usize;
        let (size_flag, size_len, size) = match content_bytes {
            0..256 => (0, 1, content_bytes),
            256..65_792 => (1, 2, content_bytes - 256),
            _ => (2, 4, content_bytes),
        };
        header[4] = size_flag << 6 | u8::from(is_single_segment) << 5;
        let mut len = 5;
        if !is_single_segment {
            header[len] = ((self.max_window_bytes.ilog2() - 10) << 3) as u8;
            len += 1;
        }
        header[len..len + size_len].copy_from_slice(&size.to_le_bytes()[..size_len]);
        (header, len + size_len)
    }
}

/// Returns the length of the next block's input, or `None` if the frame is full or the source has ended.
///
/// The block gets four fifths of the input that the rest of the frame holds if the block before, or all of them, are
/// any guide: denser data than these fits too.
fn next_step(before: Blocks, blocks: Blocks, frame_len: usize, src_len: usize) -> Option<usize> {
    let room = frame_len - blocks.written_bytes;
    if blocks.consumed_bytes == src_len || room < ROOM_MIN_BYTES.max(frame_len >> ROOM_MIN_SHIFT) {
        return None;
    }
    let expected = |consumed: usize, written: usize| room * consumed / written.max(1) / 5 * 4;
    let by_all = expected(blocks.consumed_bytes, blocks.written_bytes);
    let by_last =
        expected(blocks.consumed_bytes - before.consumed_bytes, blocks.written_bytes - before.written_bytes);
    // Fewer bytes would gain nothing.
    Some(by_all.min(by_last)).filter(|step| *step >= ROOM_MIN_BYTES / 2)
}

/// Marks the last of these blocks as the last of its frame.
fn end_last_block(blocks: &mut [u8]) {
    let mut at = 0;
    while let Some([low, middle, high]) = blocks.get(at..at + BLOCK_HEADER_BYTES) {
        let header = u32::from_le_bytes([*low, *middle, *high, 0]);
        // A block of type 1 is one byte that is repeated.
        let body_len = if header >> 1 & 3 == 1 { 1 } else { (header >> 3) as usize };
        let next = at + BLOCK_HEADER_BYTES + body_len;
        if next >= blocks.len() {
            blocks[at] |= 1;
            return;
        }
        at = next;
    }
}

#[cfg(test)]
mod tests {
    use super::super::zstd_kind::is_text;
    use super::*;

    /// Parts of this program that are code.
    fn programs() -> Vec<Vec<u8>> {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let mut sampler = Sampler::new(12).unwrap().unwrap();
        let parts = bytes.chunks_exact(240 << 10);
        let code = parts.filter(|part| sampler.kind(part).unwrap() == Kind::ShortMatches);
        let code: Vec<_> = code.take(8).map(<[u8]>::to_vec).collect();
        assert!(code.len() > 2 && code.iter().all(|part| !is_text(part)));
        code
    }

    fn compressed_bytes(src: &[u8], level: i32) -> usize {
        let mut dst = vec![0; src.len()];
        Zstd::new(1 << 19, level).unwrap().whole(src, &mut dst).unwrap().unwrap()
    }

    #[test]
    fn programs_become_smaller_than_with_the_parameters_of_libzstd() {
        let parts = programs();
        let mut lower = usize::MAX;
        for level in 10..=13 {
            let theirs =
                |src: &Vec<u8>| zstd_safe::compress(vec![0; src.len()].as_mut_slice(), src, level).unwrap();
            let theirs: usize = parts.iter().map(theirs).sum();
            let ours: usize = parts.iter().map(|src| compressed_bytes(src, level)).sum();
            assert!(ours < theirs.min(lower), "level {level}: {ours} against {theirs} and {lower}");
            lower = ours;
        }
    }

    /// The search of libzstd's level 10 takes a quarter of the time of its level 12.
    #[test]
    fn text_becomes_as_small_as_at_a_lower_level_of_libzstd() {
        let text: Vec<u8> =
            (0..20_000u32).flat_map(|n| format!("{} {};\n", n, n * n % 977).into_bytes()).collect();
        assert!(is_text(&text) && is_text(b"") && !is_text(b"\0"));
        let mut dst = vec![0; text.len()];
        let theirs = zstd_safe::compress(dst.as_mut_slice(), &text, 10).unwrap();
        let ours = compressed_bytes(&text, 12);
        assert!(ours <= theirs + theirs / 500, "{ours} against {theirs}");
    }

    #[test]
    fn a_context_has_room_for_each_kind_of_source() {
        for level in 1..=22 {
            let bytes = heap_bytes(1 << 19, level);
            for len in [1 << 10, 200 << 10, 1 << 20] {
                for kind in Kind::ALL {
                    assert!(Context::heap_bytes(parameters(1 << 19, level, len, kind)) <= bytes);
                }
            }
        }
    }
}
