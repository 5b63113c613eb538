//! Zstandard frames by libzstd: its buffer-to-buffer call for whole streams, its streams for the rest.

use super::drive::{Outcome, Step, Stepper, drive};
use super::source::Source;
use super::zstd_header::{HEADER_MAX_BYTES, Header, header};
use super::{RangeError, Want};
use crate::CodecError;
use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer, ResetDirective, zstd_sys};

pub(super) const NAME: &str = "zstd";

/// The context's own size and a little for the allocator.
pub(super) fn contiguous_bytes() -> usize {
    // SAFETY: no arguments, a constant of the library.
    unsafe { zstd_sys::ZSTD_estimateDCtxSize() }
}

/// The context with its input block and its window.
pub(super) fn windowed_bytes(max_window_bytes: u32) -> usize {
    // SAFETY: arithmetic on its argument.
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
        // The header is judged before; this is the library's own guard of the same limit.
        let window_log = max_window_bytes.next_power_of_two().ilog2();
        context.set_parameter(DParameter::WindowLogMax(window_log)).map_err(|_| no_memory)?;
        Ok(Zstd { context, max_window_bytes: u64::from(max_window_bytes) })
    }

    /// Decodes `src`, which is one frame, to all of `dst`.
    pub(super) fn all(&mut self, src: &[u8], dst: &mut [u8]) -> Result<(), CodecError> {
        let corrupt = CodecError::Corrupt { codec: NAME, src_len_bytes: src.len() };
        // The call below takes several frames, and any window.
        let one_frame = zstd_safe::find_frame_compressed_size(src) == Ok(src.len());
        if !one_frame || !self.window_is_allowed(src) {
            return Err(corrupt);
        }
        match self.context.decompress(dst, src) {
            Ok(len) if len == dst.len() => Ok(()),
            _ => Err(corrupt),
        }
    }

    pub(super) fn range<S: Source>(
        &mut self,
        source: &mut S,
        ring: &mut [u8],
        skip: u64,
        dst: &mut [u8],
        want: Want,
    ) -> Result<(), RangeError<S::Error>> {
        let reset = self.context.reset(ResetDirective::SessionOnly);
        reset.map_err(|_| CodecError::NoMemory { codec: NAME })?;
        let mut stream = Stream { zstd: self, head: [0; HEADER_MAX_BYTES], head_len: 0, judged: false };
        drive(&mut stream, source, ring, skip, dst, want)
    }

    fn window_is_allowed(&self, src: &[u8]) -> bool {
        matches!(header(src), Header::Frame { window_bytes } if window_bytes <= self.max_window_bytes)
    }
}

/// A frame in the context, whose header is judged before the library sees it.
struct Stream<'a> {
    zstd: &'a mut Zstd,
    /// The header as far as it came, where it does not come in one piece.
    head: [u8; HEADER_MAX_BYTES],
    head_len: usize,
    judged: bool,
}

impl Stepper for Stream<'_> {
    const NAME: &'static str = NAME;

    fn step(&mut self, src: &[u8], dst: &mut [u8]) -> Step {
        match self.judged {
            true => self.pass(src, dst),
            false => self.judge(src, dst),
        }
    }
}

impl Stream<'_> {
    /// Takes bytes of the header and, when it is whole, gives them to the library.
    fn judge(&mut self, src: &[u8], dst: &mut [u8]) -> Step {
        let corrupt = |src_len_bytes| Outcome::Failed(CodecError::Corrupt { codec: NAME, src_len_bytes });
        if self.head_len == 0 && self.zstd.window_is_allowed(src) {
            self.judged = true;
            return self.pass(src, dst);
        }
        let (Some(next), Some(place)) = (src.first(), self.head.get_mut(self.head_len)) else {
            return Step { taken_bytes: 0, made_bytes: 0, outcome: Outcome::More };
        };
        *place = *next;
        self.head_len += 1;
        let head = self.head;
        let head = &head[..self.head_len];
        let outcome = match header(head) {
            Header::Short => Outcome::More,
            _ if self.zstd.window_is_allowed(head) => {
                self.judged = true;
                // The library makes no output of a header, so all of `dst` is still free after it.
                let step = self.pass(head, dst);
                match step.taken_bytes == head.len() && step.made_bytes == 0 {
                    true => step.outcome,
                    false => corrupt(head.len()),
                }
            }
            _ => corrupt(head.len()),
        };
        Step { taken_bytes: 1, made_bytes: 0, outcome }
    }

    fn pass(&mut self, src: &[u8], dst: &mut [u8]) -> Step {
        let (mut input, mut output) = (InBuffer::around(src), OutBuffer::around(dst));
        let result = self.zstd.context.decompress_stream(&mut output, &mut input);
        let outcome = match result {
            Ok(0) => Outcome::Ended,
            Ok(_) => Outcome::More,
            Err(code) if code == memory_error() => Outcome::Failed(CodecError::NoMemory { codec: NAME }),
            Err(_) => Outcome::Failed(CodecError::Corrupt { codec: NAME, src_len_bytes: src.len() }),
        };
        Step { taken_bytes: input.pos(), made_bytes: output.pos(), outcome }
    }
}

/// The code of libzstd for an allocation that failed.
fn memory_error() -> usize {
    (zstd_sys::ZSTD_ErrorCode::ZSTD_error_memory_allocation as usize).wrapping_neg()
}
