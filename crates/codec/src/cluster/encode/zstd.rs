//! zstd frames by libzstd, cut to a cluster.
//!
//! libzstd cannot fill a destination, and searching for the right input length takes some ten compressions. Here a frame
//! is compressed once, as a stream that is flushed at chosen input offsets. A flush ends a block, so the length of the
//! output is known there. The first block is nearly as long as the cluster; each further one is a part of what the rest
//! of the cluster is expected to hold, so that blocks shrink towards the end. A block that does not fit is dropped. If
//! much of the cluster is free then, another pass repeats the flushes before it and makes it shorter.
//!
//! The header is written last, because only then the content size is known. libzstd's header, which has no content
//! size, is overwritten.

use super::Fit;
use crate::cluster::zstd::NAME;
use crate::error::CodecError;
use zstd_safe::zstd_sys::{self, ZSTD_EndDirective};
use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer, ResetDirective};

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
/// A pass that leaves more than this part of the cluster free is repeated, 1 / 256.
const SLACK_SHIFT: u32 = 8;
const PASSES_MAX: usize = 3;
/// The most blocks of a frame, far more than shrinking blocks need.
const CUTS_MAX: usize = 64;

pub(super) struct Zstd {
    context: CCtx<'static>,
    max_window_bytes: u32,
    level: i32,
    /// The input offsets where the blocks of the current pass end.
    cuts: Vec<usize>,
}

/// The complete blocks that a pass has produced.
#[derive(Clone, Copy, Default)]
struct Blocks {
    consumed_bytes: usize,
    written_bytes: usize,
}

/// Returns an upper bound of the heap bytes of a context.
pub(super) fn heap_bytes(max_window_bytes: u32, level: i32) -> usize {
    // The lengths where libzstd changes to another table of parameters.
    let lengths = [16 << 10, 128 << 10, 256 << 10, 16 << 20];
    let bytes_for = |expected_bytes: usize| {
        let parameters = parameters(max_window_bytes, level, expected_bytes);
        // SAFETY: the function only calculates with its argument.
        unsafe { zstd_sys::ZSTD_estimateCStreamSize_usingCParams(parameters) }
    };
    lengths.into_iter().map(bytes_for).max().unwrap_or_default() + CUTS_MAX * size_of::<usize>()
}

/// Returns libzstd's parameters for sources of this length, with the longest window that the image allows.
fn parameters(
    max_window_bytes: u32,
    level: i32,
    expected_bytes: usize,
) -> zstd_sys::ZSTD_compressionParameters {
    // SAFETY: the function only calculates with its arguments.
    let mut parameters = unsafe { zstd_sys::ZSTD_getCParams(level, expected_bytes as u64, 0) };
    parameters.windowLog = max_window_bytes.ilog2();
    parameters
}

impl Zstd {
    pub(super) fn new(max_window_bytes: u32, level: i32) -> Result<Self, CodecError> {
        let context = CCtx::try_create().ok_or(CodecError::NoMemory { codec: NAME })?;
        Ok(Zstd { context, max_window_bytes, level, cuts: Vec::with_capacity(CUTS_MAX) })
    }

    pub(super) fn whole(&mut self, src: &[u8], dst: &mut [u8]) -> Result<Option<usize>, CodecError> {
        self.begin(src.len(), true)?;
        let too_short = (zstd_sys::ZSTD_ErrorCode::ZSTD_error_dstSize_tooSmall as usize).wrapping_neg();
        match self.context.compress2(dst, src) {
            Ok(written) => Ok(Some(written)),
            Err(code) if code == too_short => Ok(None),
            Err(code) => Err(error(code, dst.len())),
        }
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
        self.cuts.clear();
        let mut passes = 0;
        let blocks = loop {
            let (blocks, has_overflowed) = self.pass(src, frame, input_bytes)?;
            passes += 1;
            let slack_bytes = frame.len() - blocks.written_bytes;
            if !has_overflowed || slack_bytes <= frame.len() >> SLACK_SHIFT || passes == PASSES_MAX {
                break blocks;
            }
            if let Some(cut) = self.cuts.last_mut() {
                *cut = blocks.consumed_bytes + (*cut - blocks.consumed_bytes) / 2;
            }
        };
        end_last_block(&mut frame[UNSIZED_HEADER_BYTES..blocks.written_bytes]);
        let (header, header_len) = self.header(blocks.consumed_bytes);
        dst[..header_len].copy_from_slice(&header[..header_len]);
        dst.copy_within(HEADER_MAX_BYTES..frame_at + blocks.written_bytes, header_len);
        let written_bytes = header_len + blocks.written_bytes - UNSIZED_HEADER_BYTES;
        Ok(Fit { consumed_bytes: blocks.consumed_bytes, written_bytes })
    }

    /// Compresses blocks that end at `cuts`, then shrinking ones, until the frame is full.
    ///
    /// Returns the blocks, and whether one was dropped because it did not fit. Its end is the last of `cuts` then.
    fn pass(
        &mut self,
        src: &[u8],
        frame: &mut [u8],
        input_bytes: &mut u64,
    ) -> Result<(Blocks, bool), CodecError> {
        self.begin(frame.len() * EXPECTED_RATIO, false)?;
        let (mut before, mut blocks) = (Blocks::default(), Blocks::default());
        for index in 0..CUTS_MAX {
            if index == self.cuts.len() {
                let Some(cut) = next_cut(before, blocks, frame.len(), src.len()) else { break };
                self.cuts.push(cut);
            }
            let cut = self.cuts[index];
            *input_bytes += (cut - blocks.consumed_bytes) as u64;
            let source = &src[blocks.consumed_bytes..cut];
            let Some(written_bytes) = self.flush(source, frame, blocks.written_bytes)? else {
                self.cuts.truncate(index + 1);
                return Ok((blocks, true));
            };
            before = blocks;
            blocks = Blocks { consumed_bytes: cut, written_bytes };
        }
        Ok((blocks, false))
    }

    /// Prepares the context for a frame of about this many bytes of content.
    fn begin(&mut self, expected_bytes: usize, content_size: bool) -> Result<(), CodecError> {
        let failed = |code| error(code, 0);
        self.context.reset(ResetDirective::SessionOnly).map_err(failed)?;
        let parameters = parameters(self.max_window_bytes, self.level, expected_bytes);
        for parameter in [
            CParameter::CompressionLevel(self.level),
            CParameter::WindowLog(parameters.windowLog),
            CParameter::HashLog(parameters.hashLog),
            CParameter::ChainLog(parameters.chainLog),
            CParameter::SearchLog(parameters.searchLog),
            CParameter::MinMatch(parameters.minMatch),
            CParameter::TargetLength(parameters.targetLength),
            CParameter::Strategy(parameters.strategy),
            CParameter::ContentSizeFlag(content_size),
            CParameter::ChecksumFlag(false),
            CParameter::DictIdFlag(false),
        ] {
            self.context.set_parameter(parameter).map_err(failed)?;
        }
        Ok(())
    }

    /// Appends `src` as blocks to the `written_bytes` of the frame. Returns the frame's length, or `None` if the blocks
    /// do not fit.
    fn flush(
        &mut self,
        src: &[u8],
        frame: &mut [u8],
        written_bytes: usize,
    ) -> Result<Option<usize>, CodecError> {
        let len_bytes = frame.len();
        let mut input = InBuffer::around(src);
        let mut output = OutBuffer::around_pos(frame, written_bytes);
        loop {
            let flush = ZSTD_EndDirective::ZSTD_e_flush;
            match self.context.compress_stream2(&mut output, &mut input, flush) {
                Ok(0) if input.pos() == src.len() => return Ok(Some(output.pos())),
                Ok(_) if output.pos() == len_bytes => return Ok(None),
                Ok(_) => {}
                Err(code) => return Err(error(code, len_bytes)),
            }
        }
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

/// Returns the input offset where the next block ends, or `None` if the frame is full or the source has ended.
///
/// The block gets four fifths of the input that the rest of the frame holds if the block before, or all of them, are
/// any guide: denser data than these fits too.
fn next_cut(before: Blocks, blocks: Blocks, frame_len: usize, src_len: usize) -> Option<usize> {
    let room = frame_len - blocks.written_bytes;
    if blocks.consumed_bytes == src_len || room < ROOM_MIN_BYTES {
        return None;
    }
    let expected = |consumed: usize, written: usize| room * consumed / written.max(1) / 5 * 4;
    let step = match blocks.consumed_bytes {
        // Data that does not compress fits too, with the headers of blocks.
        0 => frame_len - frame_len / 8 - ROOM_MIN_BYTES,
        all => expected(all, blocks.written_bytes)
            .min(expected(all - before.consumed_bytes, blocks.written_bytes - before.written_bytes)),
    };
    // Fewer bytes would gain nothing.
    (step >= ROOM_MIN_BYTES / 2).then(|| src_len.min(blocks.consumed_bytes + step))
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

/// Converts an error code of libzstd.
fn error(code: usize, dst_len_bytes: usize) -> CodecError {
    let no_memory = (zstd_sys::ZSTD_ErrorCode::ZSTD_error_memory_allocation as usize).wrapping_neg();
    match code == no_memory {
        true => CodecError::NoMemory { codec: NAME },
        false => CodecError::Compress { codec: NAME, dst_len_bytes },
    }
}
