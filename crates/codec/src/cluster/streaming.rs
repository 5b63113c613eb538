//! The loop that decodes a range of a stream with a library that decodes step by step.
//!
//! All libraries share the loop, so that skipped output, stream ends and truncation are handled the same in each
//! format. The library keeps its window; the loop passes it input and the buffer for the next output.

use super::source::{RangeError, Source, Target, Want};
use crate::error::CodecError;

/// A library's decoder in the middle of a stream.
pub(super) trait StreamingDecoder {
    /// The format's name, for errors.
    const NAME: &'static str;

    /// Decodes some of `src` to the front of `dst`; either may be empty.
    fn step(&mut self, src: &[u8], dst: &mut [u8]) -> Step;
}

/// The result of one [`StreamingDecoder::step`].
pub(super) struct Step {
    /// Bytes of the source that the step consumed.
    pub(super) consumed_bytes: usize,
    /// Bytes of output that the step wrote.
    pub(super) produced_bytes: usize,
    /// The state of the stream after the step.
    pub(super) status: StepStatus,
}

/// The state of a stream after a step.
pub(super) enum StepStatus {
    /// The stream goes on; the decoder may need more input or more room.
    More,
    /// The stream has ended, and all of its output is written.
    StreamEnd,
    /// The decoder cannot go on. The output before is valid.
    Failed(CodecError),
}

/// Decodes the stream of `source` to `target`, until `dst` is full ([`Want::Prefix`]) or the stream ends ([`Want::All`]).
pub(super) fn decode_stream<T: StreamingDecoder, S: Source>(
    decoder: &mut T,
    source: &mut S,
    target: Target<'_>,
) -> Result<(), RangeError<S::Error>> {
    let Target { ring, skip, dst, want } = target;
    let mut src_len_bytes = 0;
    let corrupt = |src_len_bytes| Err(CodecError::Corrupt { codec: T::NAME, src_len_bytes }.into());
    let (mut skip_left, mut filled, mut ended) = (skip, 0, false);
    while !ended && (want == Want::All || skip_left > 0 || filled < dst.len()) {
        let room = match usize::try_from(skip_left) {
            Ok(0) => &mut dst[filled..],
            Ok(left) if left < ring.len() => &mut ring[..left],
            _ => &mut *ring,
        };
        let src = source.chunk()?;
        let step = decoder.step(src, room);
        if step.consumed_bytes == 0 && step.produced_bytes == 0 && matches!(step.status, StepStatus::More) {
            // The input ended before the stream did, or the stream has output past the end of `dst`.
            return corrupt(src_len_bytes);
        }
        source.consume(step.consumed_bytes);
        src_len_bytes += step.consumed_bytes;
        match skip_left {
            0 => filled += step.produced_bytes,
            left => skip_left = left - step.produced_bytes as u64,
        }
        match step.status {
            StepStatus::More => {}
            StepStatus::StreamEnd => ended = true,
            // The bytes after a prefix may be arbitrary, and a library may have read some of them.
            StepStatus::Failed(_) if want == Want::Prefix && skip_left == 0 && filled == dst.len() => {}
            StepStatus::Failed(error) => return Err(error.into()),
        }
    }
    let end_is_valid = want == Want::Prefix || source.chunk()?.is_empty();
    match skip_left == 0 && filled == dst.len() && end_is_valid {
        true => Ok(()),
        false => corrupt(src_len_bytes),
    }
}
