//! An LZ4 decoder that stops at the end of its input, at any byte, and goes on with the next piece.
//!
//! A sequence is: a token; more bytes of the literals' length; literals; two bytes of offset; more bytes of the match's
//! length. The decoder is a state machine, and its [`State`] is the part of the sequence that it expects next. Before
//! each token [`fast`](super::fast) decodes as many sequences as input and room allow.
//!
//! It rejects the blocks that liblz4 rejects, and matches that reach beyond the window. The format does not allow an
//! offset of 0, but liblz4 and the kernel accept it as a run of zeroes. So this decoder does too: which decoder runs
//! depends on the free memory, and the result must not. (liblz4's result is another where such a match
//! reaches the end of a prefix; see [`decode_prefix`](super::decode_prefix).)

use super::fast;
use super::output::Output;
use crate::cluster::source::Want;
use crate::error::CodecError;
use crate::lz4_block::{LAST_LITERALS, LAST_MATCH_TO_END, LEN_IN_TOKEN_MAX, MATCH_LEN_MIN, NAME};

/// The part of a sequence that comes next in the input, or that the block is corrupt.
#[derive(Debug, Clone, Copy)]
enum State {
    Token,
    LiteralsLen,
    Literals,
    OffsetLow,
    OffsetHigh,
    MatchLen,
    Corrupt,
}

/// The state of one block's decoding.
pub(super) struct BlockDecoder<'a> {
    window_bytes: usize,
    output: Output<'a>,
    want: Want,
    state: State,
    /// Literals that are still to be copied, or the length of the match as far as it has been read.
    len: usize,
    /// The match's length in the token.
    match_nibble: usize,
    offset: usize,
    /// Bytes of input before the current piece, for errors.
    src_len_bytes: usize,
}

impl<'a> BlockDecoder<'a> {
    pub(super) fn new(window_bytes: usize, output: Output<'a>, want: Want) -> Self {
        let (state, len, match_nibble, offset) = (State::Token, 0, 0, 0);
        BlockDecoder { window_bytes, output, want, state, len, match_nibble, offset, src_len_bytes: 0 }
    }

    /// Returns whether the caller wants only a prefix, and the prefix is complete.
    pub(super) fn has_prefix(&self) -> bool {
        self.want == Want::Prefix && self.output.left() == 0
    }

    /// Decodes all of `src`, or as much of it as the wanted prefix needs.
    pub(super) fn feed(&mut self, src: &[u8]) -> Result<(), CodecError> {
        let mut rest = src;
        while !rest.is_empty() && !self.has_prefix() {
            if let State::Token = self.state {
                let decoded = fast::sequences(rest, self.output.segment(), self.window_bytes);
                self.output.advance(decoded.produced_bytes);
                rest = &rest[decoded.consumed_bytes..];
            }
            rest = self.step(rest);
            if let State::Corrupt = self.state {
                return Err(self.corrupt());
            }
        }
        self.src_len_bytes += src.len();
        Ok(())
    }

    /// Checks, at the end of the input, that the block is complete.
    pub(super) fn finish(&self) -> Result<(), CodecError> {
        let after_literals = matches!(self.state, State::OffsetLow);
        match self.want == Want::All && after_literals && self.output.left() == 0 {
            true => Ok(()),
            false => Err(self.corrupt()),
        }
    }

    fn corrupt(&self) -> CodecError {
        CodecError::Corrupt { codec: NAME, src_len_bytes: self.src_len_bytes }
    }

    /// Consumes the part of the sequence that the state expects from the front of `src`, and returns the rest.
    fn step<'s>(&mut self, src: &'s [u8]) -> &'s [u8] {
        let Some((byte, rest)) = src.split_first() else { return src };
        match self.state {
            State::Token => {
                self.len = usize::from(byte >> 4);
                self.match_nibble = usize::from(byte & 15);
                self.state =
                    if self.len == LEN_IN_TOKEN_MAX { State::LiteralsLen } else { self.after_literals_len() };
            }
            State::LiteralsLen => {
                self.len += usize::from(*byte);
                self.state = if *byte == 255 { self.len_continues() } else { self.after_literals_len() };
            }
            State::Literals => return self.copy_literals(src),
            State::OffsetLow => {
                self.offset = usize::from(*byte);
                self.state = State::OffsetHigh;
            }
            State::OffsetHigh => {
                self.offset |= usize::from(*byte) << 8;
                self.len = self.match_nibble + MATCH_LEN_MIN;
                self.state = match self.offset_is_valid() {
                    true if self.match_nibble == LEN_IN_TOKEN_MAX => State::MatchLen,
                    true => self.copy_match(),
                    false => State::Corrupt,
                };
            }
            State::MatchLen => {
                self.len += usize::from(*byte);
                self.state = if *byte == 255 { self.len_continues() } else { self.copy_match() };
            }
            State::Corrupt => {}
        }
        rest
    }

    /// Returns the state while a length has more bytes. A length beyond the room is cut to the room, so that no run of
    /// length bytes makes it overflow; or it makes the block corrupt.
    fn len_continues(&mut self) -> State {
        match self.cut_to_room() {
            true => self.state,
            false => State::Corrupt,
        }
    }

    /// Cuts the length to the number of bytes that are left to produce.
    ///
    /// Returns false if the length was greater and the whole block is wanted: then the block is corrupt.
    fn cut_to_room(&mut self) -> bool {
        let left = usize::try_from(self.output.left()).unwrap_or(usize::MAX);
        let fits = self.len <= left;
        self.len = self.len.min(left);
        fits || self.want == Want::Prefix
    }

    /// Returns the state once the literals' length is known.
    fn after_literals_len(&mut self) -> State {
        match (self.cut_to_room(), self.len) {
            (false, _) => State::Corrupt,
            (true, 0) => State::OffsetLow,
            (true, _) => State::Literals,
        }
    }

    fn copy_literals<'s>(&mut self, src: &'s [u8]) -> &'s [u8] {
        let (now, rest) = src.split_at(self.len.min(src.len()));
        self.output.copy_literals(now);
        self.len -= now.len();
        if self.len == 0 {
            self.state = State::OffsetLow;
        }
        rest
    }

    /// Returns whether a match with the offset just read may begin here.
    fn offset_is_valid(&self) -> bool {
        let reach = (self.window_bytes as u64).min(self.output.done());
        let room_is_left = self.want == Want::Prefix || self.output.left() >= LAST_MATCH_TO_END as u64;
        self.offset as u64 <= reach && room_is_left
    }

    /// Appends the match whose length is now known, and returns the next state.
    fn copy_match(&mut self) -> State {
        let fits = self.cut_to_room();
        let room_for_literals =
            self.want == Want::Prefix || self.output.left() - self.len as u64 >= LAST_LITERALS as u64;
        match fits && room_for_literals {
            true => {
                match self.offset {
                    0 => self.output.put_zeroes(self.len),
                    offset => self.output.copy_match(offset, self.len),
                }
                State::Token
            }
            false => State::Corrupt,
        }
    }
}
