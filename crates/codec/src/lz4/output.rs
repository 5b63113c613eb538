//! Writes sequences (literals and a match) in the LZ4 block format.
//!
//! Literals are copied 16 bytes at a time, so a copy may write past its literals; the destination has room for that.
//! This module is safe Rust: each sequence checks once that it fits, and it always does.

use crate::lz4_block::{LEN_IN_TOKEN_MAX, MATCH_LEN_MIN};
use pagefold_page::{PAGE_SIZE, Page};

/// Bytes of a destination: the longest output, and the bytes that the last wide copy writes past it.
///
/// A sequence is longer than the bytes that it encodes by less than a byte, and one more for each 255 of its literals:
/// its match of at least 4 bytes takes 3, which makes up for the other bytes of the lengths. So the output is at
/// most `PAGE_SIZE + PAGE_SIZE / 255 + 2` bytes, the last sequence's token and length included.
pub(super) const DST_LEN: usize = PAGE_SIZE + PAGE_SIZE / 255 + 2 + WIDE * 2;

/// Bytes of a wide copy.
const WIDE: usize = 16;

/// A block that is being written.
pub(super) struct Output<'a> {
    page: &'a Page,
    /// Bytes of the page that the sequences so far encode.
    anchor: usize,
    dst: &'a mut [u8; DST_LEN],
    len: usize,
}

impl<'a> Output<'a> {
    pub(super) fn new(page: &'a Page, dst: &'a mut [u8; DST_LEN]) -> Self {
        Output { page, anchor: 0, dst, len: 0 }
    }

    /// Returns the end of the last match.
    #[inline(always)]
    pub(super) fn anchor(&self) -> usize {
        self.anchor
    }

    /// Appends the literals up to `at` and the match from there to `end`. The anchor is at least 16 bytes before the
    /// page's end.
    #[inline(always)]
    pub(super) fn sequence(&mut self, at: usize, offset: usize, end: usize) -> Option<()> {
        let (literals, code) = (at - self.anchor, end - at - MATCH_LEN_MIN);
        if (literals >= LEN_IN_TOKEN_MAX) | (code >= LEN_IN_TOKEN_MAX) {
            return self.long_sequence(literals, offset, code, end);
        }
        let wide = self.page.get(self.anchor..)?.first_chunk::<WIDE>()?;
        let room = self.dst.get_mut(self.len..)?.first_chunk_mut::<{ 1 + WIDE + 2 }>()?;
        room[0] = (literals << 4 | code) as u8;
        room[1..1 + WIDE].copy_from_slice(wide);
        room[1 + literals..3 + literals].copy_from_slice(&(offset as u16).to_le_bytes());
        self.len += 3 + literals;
        self.anchor = end;
        Some(())
    }

    /// Appends a match without literals.
    #[inline(always)]
    pub(super) fn match_only(&mut self, offset: usize, end: usize) -> Option<()> {
        let code = end - self.anchor - MATCH_LEN_MIN;
        if code >= LEN_IN_TOKEN_MAX {
            return self.long_sequence(0, offset, code, end);
        }
        let room = self.dst.get_mut(self.len..)?.first_chunk_mut::<4>()?;
        *room = (code as u32 | (offset as u32) << 8).to_le_bytes();
        self.len += 3;
        self.anchor = end;
        Some(())
    }

    /// Does the same as [`sequence`](Self::sequence) where the page may end within a wide copy.
    #[inline(always)]
    pub(super) fn sequence_near_end(&mut self, at: usize, offset: usize, end: usize) -> Option<()> {
        self.long_sequence(at - self.anchor, offset, end - at - MATCH_LEN_MIN, end)
    }

    /// Appends a sequence with literals and match of any length.
    #[inline(always)]
    fn long_sequence(&mut self, literals: usize, offset: usize, code: usize, end: usize) -> Option<()> {
        self.push((literals.min(LEN_IN_TOKEN_MAX) << 4 | code.min(LEN_IN_TOKEN_MAX)) as u8)?;
        self.push_rest(literals)?;
        self.push_literals(literals)?;
        let [low, high] = (offset as u16).to_le_bytes();
        self.push(low)?;
        self.push(high)?;
        self.push_rest(code)?;
        self.anchor = end;
        Some(())
    }

    /// Appends the last literals and returns the block's length.
    #[inline(always)]
    pub(super) fn finish(mut self) -> Option<usize> {
        let last = self.page.get(self.anchor..)?;
        self.push((last.len().min(LEN_IN_TOKEN_MAX) << 4) as u8)?;
        self.push_rest(last.len())?;
        self.dst.get_mut(self.len..)?.get_mut(..last.len())?.copy_from_slice(last);
        Some(self.len + last.len())
    }

    #[inline(always)]
    fn push(&mut self, byte: u8) -> Option<()> {
        *self.dst.get_mut(self.len)? = byte;
        self.len += 1;
        Some(())
    }

    /// Appends the bytes of a length that do not fit the token.
    #[inline(always)]
    fn push_rest(&mut self, len: usize) -> Option<()> {
        let Some(mut rest) = len.checked_sub(LEN_IN_TOKEN_MAX) else { return Some(()) };
        while rest >= 255 {
            self.push(255)?;
            rest -= 255;
        }
        self.push(rest as u8)
    }

    /// Appends literals from the anchor on, with wide copies unless they would read past the page or write past the
    /// destination.
    #[inline(always)]
    fn push_literals(&mut self, len: usize) -> Option<()> {
        let wide_len = len.next_multiple_of(WIDE);
        let from = self.page.get(self.anchor..)?;
        let to = self.dst.get_mut(self.len..)?;
        match (from.get(..wide_len), to.get_mut(..wide_len)) {
            (Some(from), Some(to)) => {
                let (from, _) = from.as_chunks::<WIDE>();
                let (to, _) = to.as_chunks_mut::<WIDE>();
                to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            }
            _ => to.get_mut(..len)?.copy_from_slice(from.get(..len)?),
        }
        self.len += len;
        Some(())
    }
}
