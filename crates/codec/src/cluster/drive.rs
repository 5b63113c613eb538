//! The loop around a library that decodes a stream step by step.
//!
//! One loop for all of them, so that skipping, ends, and truncation mean the same in each format. The
//! library keeps its window; the loop only says where the next output goes.

use super::source::Source;
use super::{RangeError, Want};
use crate::CodecError;

/// A library with a stream in it.
pub(super) trait Stepper {
    /// The format's name, for errors.
    const NAME: &'static str;

    /// Decodes some of `src` to the front of `dst`, either of which may be empty.
    fn step(&mut self, src: &[u8], dst: &mut [u8]) -> Step;
}

/// What one call did.
pub(super) struct Step {
    /// Bytes of the source that it took.
    pub(super) taken_bytes: usize,
    /// Bytes of output that it made.
    pub(super) made_bytes: usize,
    /// How it ended.
    pub(super) outcome: Outcome,
}

pub(super) enum Outcome {
    /// There is more to do, or more input or room is needed.
    More,
    /// The stream has ended: all of its output is made.
    Ended,
    /// It cannot go on. Output made before is good.
    Failed(CodecError),
}

/// Decodes the stream of `source`: `skip` bytes into `ring`, over and over, and what follows into `dst`.
///
/// `ring` may be empty where `skip` is 0.
pub(super) fn drive<T: Stepper, S: Source>(
    stepper: &mut T,
    source: &mut S,
    ring: &mut [u8],
    skip: u64,
    dst: &mut [u8],
    want: Want,
) -> Result<(), RangeError<S::Error>> {
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
        let step = stepper.step(src, room);
        if step.taken_bytes == 0 && step.made_bytes == 0 && matches!(step.outcome, Outcome::More) {
            // The input is at its end, or the stream wants to go on behind the last byte of `dst`.
            return corrupt(src_len_bytes);
        }
        source.take(step.taken_bytes);
        src_len_bytes += step.taken_bytes;
        match skip_left {
            0 => filled += step.made_bytes,
            left => skip_left = left - step.made_bytes as u64,
        }
        match step.outcome {
            Outcome::More => {}
            Outcome::Ended => ended = true,
            // What lies behind a prefix may be anything, and a library may have looked at it.
            Outcome::Failed(_) if want == Want::Prefix && skip_left == 0 && filled == dst.len() => {}
            Outcome::Failed(error) => return Err(error.into()),
        }
    }
    let whole = want == Want::Prefix || source.chunk()?.is_empty();
    match skip_left == 0 && filled == dst.len() && whole {
        true => Ok(()),
        false => corrupt(src_len_bytes),
    }
}
