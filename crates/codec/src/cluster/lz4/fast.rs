//! The fast path of the LZ4 decoder, for sequences that are complete in the piece and whose match is contiguous in a
//! buffer.
//!
//! Short copies are made 16 bytes at a time, so they write up to 15 bytes past their end, inside the buffer. This
//! module does not decode a sequence that is too near to an end for that, or any other unusual one: it returns with the
//! sequence not consumed, and the block decoder decodes it and overwrites any bytes already written for it.
//!
//! This path has somewhat more than half of liblz4's speed, so liblz4 decodes everything that it can.

use super::copies::{WIDE, copy_apart, copy_back, copy_short};
use super::output::{Segment, repeat};
use crate::lz4_block::{LEN_IN_TOKEN_MAX, MATCH_LEN_MIN};

/// The number of bytes that [`sequences`] decoded.
pub(super) struct Decoded {
    pub(super) consumed_bytes: usize,
    pub(super) produced_bytes: usize,
}

/// Decodes sequences from the front of `src`, which begins with a token, to `segment`, until one is not for this
/// path.
///
/// At least [`WIDE`] bytes of the segment's run stay free.
pub(super) fn sequences(src: &[u8], mut segment: Segment<'_>, window_bytes: usize) -> Decoded {
    let start = segment.at;
    let mut consumed = 0;
    while let Some((next_consumed, next_at)) = sequence(src, consumed, &mut segment, window_bytes) {
        (consumed, segment.at) = (next_consumed, next_at);
    }
    Decoded { consumed_bytes: consumed, produced_bytes: segment.at - start }
}

/// Decodes the sequence at `src[consumed]`. Returns the positions after it in `src` and in the segment, or `None` if
/// the sequence is not for this path.
#[inline(always)]
fn sequence(
    src: &[u8],
    mut consumed: usize,
    segment: &mut Segment<'_>,
    window_bytes: usize,
) -> Option<(usize, usize)> {
    let (mut at, end) = (segment.at, segment.end);
    let token = usize::from(*src.get(consumed)?);
    consumed += 1;
    let mut literals = token >> 4;
    if literals < LEN_IN_TOKEN_MAX {
        copy_short(src, consumed, segment.bytes, at)?;
    } else {
        literals += long_len(src, &mut consumed)?;
        // This copy may be of any length, unlike the wide one, so it must not pass the run's end.
        let room = segment.bytes.get_mut(at..end)?.get_mut(..literals)?;
        room.copy_from_slice(src.get(consumed..)?.get(..literals)?);
    }
    consumed += literals;
    at += literals;
    let offset = usize::from(u16::from_le_bytes(*src.get(consumed..)?.first_chunk::<2>()?));
    consumed += 2;
    let mut len = (token & LEN_IN_TOKEN_MAX) + MATCH_LEN_MIN;
    if len == LEN_IN_TOKEN_MAX + MATCH_LEN_MIN {
        len += long_len(src, &mut consumed)?;
    }
    let stop = at + len;
    if offset == 0 || offset > window_bytes || stop + WIDE > end {
        return None;
    }
    if offset > at {
        copy_match_before(segment, offset, at, stop)?;
    } else if offset >= 8 {
        copy_back(segment.bytes, offset, at, stop)?;
    } else {
        repeat(segment.bytes, offset, at, len);
    }
    Some((consumed, stop))
}

/// Reads the bytes of a length that does not fit the token; returns what they add to it.
#[inline]
fn long_len(src: &[u8], consumed: &mut usize) -> Option<usize> {
    let mut len = 0;
    loop {
        let byte = *src.get(*consumed)?;
        *consumed += 1;
        len += usize::from(byte);
        if byte != 255 {
            return Some(len);
        }
    }
}

/// Copies a match that begins before the segment's start, if it is contiguous there.
#[inline]
fn copy_match_before(segment: &mut Segment<'_>, offset: usize, at: usize, stop: usize) -> Option<()> {
    let (back, len) = (offset - at, stop - at);
    if segment.wrapped {
        // The match is before the ring's wrap, so in its last bytes, which are ahead of `at` by at least a page.
        let from = segment.bytes.len().checked_sub(back)?;
        if len > back {
            return None;
        }
        segment.bytes.copy_within(from..from + len, at);
        return Some(());
    }
    // The match begins in the ring before the caller's buffer: the newest output is before `ring_head`, older output
    // from there to the ring's end.
    let ring_head = segment.ring_head;
    let (from, run) = match back <= ring_head {
        true => (ring_head - back, back),
        false => ((segment.ring.len() + ring_head).checked_sub(back)?, back - ring_head),
    };
    match len <= run && back <= segment.ring_filled {
        true => copy_apart(segment.ring, from, segment.bytes, at, stop),
        false => None,
    }
}
