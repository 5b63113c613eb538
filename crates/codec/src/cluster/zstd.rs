//! Zstandard frames by libzstd: its buffer-to-buffer call for whole streams, its streaming calls for prefixes and
//! ranges.

use super::source::{RangeError, Source, Target};
use super::streaming::{Step, StepStatus, StreamingDecoder, decode_stream};
use super::zstd_header::{HEADER_MAX_BYTES, Header, header};
use crate::error::CodecError;
use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer, ResetDirective, zstd_sys};

pub(super) const NAME: &str = "zstd";

/// Heap bytes of a context that decodes whole streams only.
pub(super) fn contiguous_bytes() -> usize {
    // SAFETY: the function has no arguments and returns a constant.
    unsafe { zstd_sys::ZSTD_estimateDCtxSize() }
}

/// Heap bytes of a context with its input block and its window.
pub(super) fn windowed_bytes(max_window_bytes: u32) -> usize {
    // SAFETY: the function only calculates with its argument.
    unsafe { zstd_sys::ZSTD_estimateDStreamSize(max_window_bytes as usize) }
}

pub(super) struct Zstd {
    context: DCtx<'static>,
    max_window_bytes: u64,
}

impl Zstd {
    pub(super) fn new(max_window_bytes: u32) -> Result<Self, CodecError> {
        let no_memory = CodecError::NoMemory { codec: NAME };
        let mut context = DCtx::try_create().ok_or(no_memory.clone())?;
        // `window_is_allowed` checks each header first; this is the library's check of the same limit.
        let window_log = max_window_bytes.next_power_of_two().ilog2();
        context.set_parameter(DParameter::WindowLogMax(window_log)).map_err(|_| no_memory)?;
        Ok(Zstd { context, max_window_bytes: u64::from(max_window_bytes) })
    }

    /// Decodes `src`, which is one frame, to all of `dst`.
    pub(super) fn decode_whole(&mut self, src: &[u8], dst: &mut [u8]) -> Result<(), CodecError> {
        let corrupt = CodecError::Corrupt { codec: NAME, src_len_bytes: src.len() };
        // `decompress` would accept several frames, and any window.
        let one_frame = zstd_safe::find_frame_compressed_size(src) == Ok(src.len());
        if !one_frame || !self.window_is_allowed(src) {
            return Err(corrupt);
        }
        match self.context.decompress(dst, src) {
            Ok(len) if len == dst.len() => Ok(()),
            _ => Err(corrupt),
        }
    }

    /// Decodes the stream of `source` to `target`.
    pub(super) fn decode_range<S: Source>(
        &mut self,
        source: &mut S,
        target: Target<'_>,
    ) -> Result<(), RangeError<S::Error>> {
        let reset = self.context.reset(ResetDirective::SessionOnly);
        reset.map_err(|_| CodecError::NoMemory { codec: NAME })?;
        let mut stream =
            Stream { zstd: self, header: [0; HEADER_MAX_BYTES], header_len: 0, header_checked: false };
        decode_stream(&mut stream, source, target)
    }

    fn window_is_allowed(&self, src: &[u8]) -> bool {
        matches!(header(src), Header::Frame { window_bytes } if window_bytes <= self.max_window_bytes)
    }
}

/// A frame that the context decodes; its header is checked before libzstd gets it.
struct Stream<'a> {
    zstd: &'a mut Zstd,
    /// The first `header_len` bytes of the header, if it does not come in one piece.
    header: [u8; HEADER_MAX_BYTES],
    header_len: usize,
    /// Whether the header is complete, allowed, and passed to libzstd.
    header_checked: bool,
}

impl StreamingDecoder for Stream<'_> {
    const NAME: &'static str = NAME;

    fn step(&mut self, src: &[u8], dst: &mut [u8]) -> Step {
        match self.header_checked {
            true => self.decode(src, dst),
            false => self.check_header(src, dst),
        }
    }
}

impl Stream<'_> {
    /// Collects the header byte by byte unless `src` has all of it, checks it, and passes it to libzstd.
    fn check_header(&mut self, src: &[u8], dst: &mut [u8]) -> Step {
        let corrupt = |src_len_bytes| StepStatus::Failed(CodecError::Corrupt { codec: NAME, src_len_bytes });
        if self.header_len == 0 && self.zstd.window_is_allowed(src) {
            self.header_checked = true;
            return self.decode(src, dst);
        }
        let (Some(next), Some(free)) = (src.first(), self.header.get_mut(self.header_len)) else {
            return Step { consumed_bytes: 0, produced_bytes: 0, status: StepStatus::More };
        };
        *free = *next;
        self.header_len += 1;
        let bytes = self.header;
        let bytes = &bytes[..self.header_len];
        let status = match header(bytes) {
            Header::Short => StepStatus::More,
            _ if self.zstd.window_is_allowed(bytes) => {
                self.header_checked = true;
                // libzstd writes no output for a header, so all of `dst` is free for the next step.
                let step = self.decode(bytes, dst);
                match step.consumed_bytes == bytes.len() && step.produced_bytes == 0 {
                    true => step.status,
                    false => corrupt(bytes.len()),
                }
            }
            _ => corrupt(bytes.len()),
        };
        Step { consumed_bytes: 1, produced_bytes: 0, status }
    }

    fn decode(&mut self, src: &[u8], dst: &mut [u8]) -> Step {
        let (mut input, mut output) = (InBuffer::around(src), OutBuffer::around(dst));
        let result = self.zstd.context.decompress_stream(&mut output, &mut input);
        let status = match result {
            Ok(0) => StepStatus::StreamEnd,
            Ok(_) => StepStatus::More,
            Err(code) if code == memory_error() => StepStatus::Failed(CodecError::NoMemory { codec: NAME }),
            Err(_) => StepStatus::Failed(CodecError::Corrupt { codec: NAME, src_len_bytes: src.len() }),
        };
        Step { consumed_bytes: input.pos(), produced_bytes: output.pos(), status }
    }
}

/// Returns libzstd's code for an allocation that failed.
fn memory_error() -> usize {
    (zstd_sys::ZSTD_ErrorCode::ZSTD_error_memory_allocation as usize).wrapping_neg()
}
