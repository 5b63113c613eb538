//! Whole LZ4 sequences at full speed: all of it is in the piece, and its match lies in the same buffer.
//!
//! Short copies are made 16 bytes at a time whatever their length, so they write up to 15 bytes too much,
//! inside the buffer; a sequence that comes too near to an end for that, and any other that is unusual,
//! is left to the machine, with nothing counted as taken. What was written for it is written again.
//!
//! Safe Rust: that copies stay inside the buffer is checked by the slices.

use super::machine::MATCH_MIN;
use super::output::{Segment, repeat};

/// Bytes of a wide copy.
const WIDE: usize = 16;
/// A length in a token that says: more bytes follow.
const LONG: usize = 15;

/// How far it came.
pub(super) struct Done {
    pub(super) taken_bytes: usize,
    pub(super) made_bytes: usize,
}

/// Decodes sequences from the front of `src`, which begins with a token, to `segment`, as many as are easy.
///
/// At least [`WIDE`] bytes of the segment's run stay free.
pub(super) fn sequences(src: &[u8], segment: Segment<'_>, window_bytes: usize) -> Done {
    let Segment { bytes, at: start, end } = segment;
    let (mut taken, mut at) = (0, start);
    while let Some((next_taken, next_at)) = sequence(src, taken, bytes, at, end, window_bytes) {
        (taken, at) = (next_taken, next_at);
    }
    Done { taken_bytes: taken, made_bytes: at - start }
}

/// Decodes the sequence at `taken` of `src` to `at` of `out`, and returns where the next ones are.
#[inline(always)]
fn sequence(
    src: &[u8],
    mut taken: usize,
    out: &mut [u8],
    mut at: usize,
    end: usize,
    window_bytes: usize,
) -> Option<(usize, usize)> {
    let token = usize::from(*src.get(taken)?);
    taken += 1;
    let mut literals = token >> 4;
    if literals < LONG {
        let wide = *src.get(taken..)?.first_chunk::<WIDE>()?;
        *out.get_mut(at..)?.first_chunk_mut::<WIDE>()? = wide;
    } else {
        literals += long(src, &mut taken)?;
        // Unlike the wide copy this one may be of any length, so it must not pass the run's end.
        let room = out.get_mut(..end)?.get_mut(at..)?.get_mut(..literals)?;
        room.copy_from_slice(src.get(taken..)?.get(..literals)?);
    }
    taken += literals;
    at += literals;
    let offset = usize::from(u16::from_le_bytes(*src.get(taken..)?.first_chunk::<2>()?));
    taken += 2;
    let mut len = (token & LONG) + MATCH_MIN;
    if len == LONG + MATCH_MIN {
        len += long(src, &mut taken)?;
    }
    let stop = at + len;
    if offset == 0 || offset > window_bytes || offset > at || stop + WIDE > end {
        return None;
    }
    matched(out, offset, at, stop)?;
    Some((taken, stop))
}

/// Reads the rest of a length that does not fit its token.
#[inline]
fn long(src: &[u8], taken: &mut usize) -> Option<usize> {
    let mut len = 0;
    loop {
        let byte = *src.get(*taken)?;
        *taken += 1;
        len += usize::from(byte);
        if byte != 255 {
            return Some(len);
        }
    }
}

/// Writes `at..stop` of `out`, and perhaps some bytes more, with what is `offset` before.
#[inline(always)]
fn matched(out: &mut [u8], offset: usize, at: usize, stop: usize) -> Option<()> {
    if offset >= WIDE {
        steps::<WIDE>(out, offset, at, stop)
    } else if offset >= 8 {
        steps::<8>(out, offset, at, stop)
    } else {
        repeat(out, offset, at, stop - at);
        Some(())
    }
}

/// Copies in steps of `N` bytes, at most the offset, so that each step's source is complete.
#[inline(always)]
fn steps<const N: usize>(out: &mut [u8], offset: usize, mut at: usize, stop: usize) -> Option<()> {
    while at < stop {
        let step = *out.get(at - offset..)?.first_chunk::<N>()?;
        *out.get_mut(at..)?.first_chunk_mut::<N>()? = step;
        at += N;
    }
    Some(())
}
