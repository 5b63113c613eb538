//! Whole LZ4 sequences at full speed: all of it is in the piece, and its match lies in one run of a buffer.
//!
//! Short copies are made 16 bytes at a time whatever their length, so they write up to 15 bytes too much,
//! inside the buffer; a sequence that comes too near to an end for that, and any other that is unusual,
//! is left to the machine, with nothing counted as taken. What was written for it is written again.
//!
//! Somewhat more than half as fast as liblz4, which therefore keeps the work that it can do.

use super::copies::{WIDE, copy_apart, copy_back, copy_short};
use super::machine::MATCH_MIN;
use super::output::{Segment, repeat};

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
pub(super) fn sequences(src: &[u8], mut segment: Segment<'_>, window_bytes: usize) -> Done {
    let start = segment.at;
    let mut taken = 0;
    while let Some((next_taken, next_at)) = sequence(src, taken, &mut segment, window_bytes) {
        (taken, segment.at) = (next_taken, next_at);
    }
    Done { taken_bytes: taken, made_bytes: segment.at - start }
}

/// Decodes the sequence at `taken` of `src`, and returns where the next one is and where it goes.
#[inline(always)]
fn sequence(
    src: &[u8],
    mut taken: usize,
    segment: &mut Segment<'_>,
    window_bytes: usize,
) -> Option<(usize, usize)> {
    let (mut at, end) = (segment.at, segment.end);
    let token = usize::from(*src.get(taken)?);
    taken += 1;
    let mut literals = token >> 4;
    if literals < LONG {
        copy_short(src, taken, segment.bytes, at)?;
    } else {
        literals += long(src, &mut taken)?;
        // Unlike the wide copy this one may be of any length, so it must not pass the run's end.
        let room = segment.bytes.get_mut(at..end)?.get_mut(..literals)?;
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
    if offset == 0 || offset > window_bytes || stop + WIDE > end {
        return None;
    }
    if offset > at {
        earlier(segment, offset, at, stop)?;
    } else if offset >= 8 {
        copy_back(segment.bytes, offset, at, stop)?;
    } else {
        repeat(segment.bytes, offset, at, len);
    }
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

/// Copies a match that begins before the segment, if it is one run there.
#[inline]
fn earlier(segment: &mut Segment<'_>, offset: usize, at: usize, stop: usize) -> Option<()> {
    let (back, len) = (offset - at, stop - at);
    if segment.lapped {
        // The ring's last lap, up to its end. It is ahead of `at` by at least a page.
        let from = segment.bytes.len().checked_sub(back)?;
        if len > back {
            return None;
        }
        segment.bytes.copy_within(from..from + len, at);
        return Some(());
    }
    // The ring before the caller's buffer: its last lap up to the seam, and the lap before from there on.
    let seam = segment.seam;
    let (from, run) = match back <= seam {
        true => (seam - back, back),
        false => ((segment.ring.len() + seam).checked_sub(back)?, back - seam),
    };
    match len <= run && back <= segment.ring_back {
        true => copy_apart(segment.ring, from, segment.bytes, at, stop),
        false => None,
    }
}
