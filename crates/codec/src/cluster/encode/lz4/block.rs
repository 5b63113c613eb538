//! Writes the sequences of an LZ4 block until the destination is full.
//!
//! The end of a block has rules: the last sequence is literals only, its last 5 bytes are literals, and the last match
//! begins at least 12 bytes before the end. So a match is written only if the literals that must follow it fit too.
//! Format: `lz4_Block_format.md` of the LZ4 project.

use crate::cluster::encode::fit::Fit;
use crate::lz4_block::{LAST_LITERALS, LAST_MATCH_TO_END, LEN_IN_TOKEN_MAX, MATCH_LEN_MIN};

/// Longest match whose length is in the token.
pub(super) const TOKEN_MATCH_LEN_MAX: usize = MATCH_LEN_MIN + LEN_IN_TOKEN_MAX - 1;

/// Bytes of a wide copy.
const WIDE: usize = 16;
/// The room that a short sequence takes at most, with a wide copy of its literals and the literals that must follow it.
const ROOM: usize = 1 + WIDE + 2 + 1 + LAST_MATCH_TO_END;

/// A block that is being written.
pub(super) struct BlockWriter<'a> {
    src: &'a [u8],
    dst: &'a mut [u8],
    /// The end of the last match: literals begin here.
    anchor: usize,
    written: usize,
}

impl<'a> BlockWriter<'a> {
    pub(super) fn new(src: &'a [u8], dst: &'a mut [u8]) -> Self {
        BlockWriter { src, dst, anchor: 0, written: 0 }
    }

    /// Returns the position that the literals before the next match begin at.
    pub(super) fn anchor(&self) -> usize {
        self.anchor
    }

    /// Returns the length of the sequences so far.
    pub(super) fn written(&self) -> usize {
        self.written
    }

    /// Returns the number of free bytes.
    pub(super) fn room(&self) -> usize {
        self.dst.len() - self.written
    }

    /// Writes the literals before `at` and a match there. Returns false if the block is full: then the match was
    /// shortened, or nothing was written.
    ///
    /// The match ends at least 5 bytes before the end of the source, and begins at least 12 bytes before it.
    #[inline(always)]
    pub(super) fn sequence(&mut self, at: usize, offset: usize, len: usize) -> bool {
        let literals = at - self.anchor;
        // Most sequences are short and far from the end of both slices. Such a sequence is written with one wide copy.
        if literals < LEN_IN_TOKEN_MAX
            && len <= TOKEN_MATCH_LEN_MAX
            && let Some(wide) = self.src[self.anchor..].first_chunk::<WIDE>()
            && let Some(room) = self.dst[self.written..].first_chunk_mut::<ROOM>()
        {
            room[0] = (literals << 4 | (len - MATCH_LEN_MIN)) as u8;
            room[1..1 + WIDE].copy_from_slice(wide);
            room[1 + literals..3 + literals].copy_from_slice(&(offset as u16).to_le_bytes());
            self.written += 3 + literals;
            self.anchor = at + len;
            return true;
        }
        self.any_sequence(at, offset, len)
    }

    /// Does the same for any lengths, near the end too.
    fn any_sequence(&mut self, at: usize, offset: usize, len: usize) -> bool {
        let literals = at - self.anchor;
        let literals_after = LAST_LITERALS.max(LAST_MATCH_TO_END.saturating_sub(len));
        let fixed = 1 + extra_bytes(literals) + literals + 2 + (1 + literals_after);
        let Some(room) = self.room().checked_sub(fixed) else { return false };
        // A match of millions of bytes may be longer than the room for its length.
        let fitting = len.min(TOKEN_MATCH_LEN_MAX + 255 * room);
        let match_code = fitting - MATCH_LEN_MIN;
        self.token(literals, match_code);
        self.literals(literals);
        let offset = offset as u16;
        self.push(&offset.to_le_bytes());
        self.extra_length(match_code);
        self.anchor = at + fitting;
        fitting == len
    }

    /// Writes as many literals as fit, which end the block.
    pub(super) fn finish(mut self) -> Fit {
        let left = self.src.len() - self.anchor;
        let mut literals = left.min(self.room().saturating_sub(1));
        while 1 + extra_bytes(literals) + literals > self.room() {
            literals -= 1;
        }
        self.token(literals, 0);
        self.literals(literals);
        Fit { consumed_bytes: self.anchor + literals, written_bytes: self.written }
    }

    fn token(&mut self, literals: usize, match_code: usize) {
        let token = literals.min(LEN_IN_TOKEN_MAX) << 4 | match_code.min(LEN_IN_TOKEN_MAX);
        self.push(&[token as u8]);
        self.extra_length(literals);
    }

    /// Writes the part of a length that is not in the token.
    fn extra_length(&mut self, len: usize) {
        let count = extra_bytes(len);
        if let Some(full) = count.checked_sub(1) {
            self.dst[self.written..self.written + full].fill(255);
            self.written += full;
            self.push(&[((len - LEN_IN_TOKEN_MAX) % 255) as u8]);
        }
    }

    fn literals(&mut self, len: usize) {
        let src = self.src;
        self.push(&src[self.anchor..self.anchor + len]);
    }

    fn push(&mut self, bytes: &[u8]) {
        self.dst[self.written..self.written + bytes.len()].copy_from_slice(bytes);
        self.written += bytes.len();
    }
}

/// Returns the number of bytes that a length takes beyond the token.
pub(super) fn extra_bytes(len: usize) -> usize {
    match len.checked_sub(LEN_IN_TOKEN_MAX) {
        None => 0,
        Some(rest) => 1 + rest / 255,
    }
}
