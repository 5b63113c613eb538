//! The LZ4 decoder that stops at the end of its input, wherever that is, and goes on with the next piece.
//!
//! A sequence is: a token; more bytes of the literals' length; literals; two bytes of offset; more bytes of
//! the match's length. The machine's state is what it waits for. Between sequences
//! [`fast`](super::fast) takes over for as long as input and room are plentiful.
//!
//! It refuses what liblz4 refuses, and besides an offset of 0, which the format has not, and matches beyond
//! the window that the image declares.

use super::fast;
use super::output::Output;
use super::{NAME, Want};
use crate::CodecError;

/// The last sequence of a block is literals only, at least this many bytes where it follows a match.
const LAST_LITERALS: u64 = 5;
/// The last match begins at least this far from the end.
const LAST_MATCH: u64 = 12;
/// A match is this much longer than its token says.
pub(super) const MATCH_MIN: usize = 4;
/// A length in a token that says: more bytes follow.
const LONG: usize = 15;

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

pub(super) struct Machine<'a> {
    window_bytes: usize,
    output: Output<'a>,
    want: Want,
    state: State,
    /// What is left of the literals, or the length of the match as far as it is known.
    len: usize,
    /// The token's length of the match.
    match_nibble: usize,
    offset: usize,
    src_len_bytes: usize,
}

impl<'a> Machine<'a> {
    pub(super) fn new(window_bytes: usize, output: Output<'a>, want: Want) -> Self {
        let (state, len, match_nibble, offset) = (State::Token, 0, 0, 0);
        Machine { window_bytes, output, want, state, len, match_nibble, offset, src_len_bytes: 0 }
    }

    /// Whether only a prefix is wanted and it is complete.
    pub(super) fn has_prefix(&self) -> bool {
        self.want == Want::Prefix && self.output.left() == 0
    }

    /// Decodes all of `src`, or as much as is wanted.
    pub(super) fn feed(&mut self, src: &[u8]) -> Result<(), CodecError> {
        let mut rest = src;
        while !rest.is_empty() && !self.has_prefix() {
            if let State::Token = self.state {
                let done = fast::sequences(rest, self.output.segment(), self.window_bytes);
                self.output.advance(done.made_bytes);
                rest = &rest[done.taken_bytes..];
            }
            rest = self.step(rest);
            if let State::Corrupt = self.state {
                return Err(self.corrupt());
            }
        }
        self.src_len_bytes += src.len();
        Ok(())
    }

    /// The input has ended: whether the block has, too.
    pub(super) fn end(&self) -> Result<(), CodecError> {
        let after_literals = matches!(self.state, State::OffsetLow);
        match self.want == Want::All && after_literals && self.output.left() == 0 {
            true => Ok(()),
            false => Err(self.corrupt()),
        }
    }

    fn corrupt(&self) -> CodecError {
        CodecError::Corrupt { codec: NAME, src_len_bytes: self.src_len_bytes }
    }

    /// Takes what it waits for from the front of `src`, and returns the rest.
    fn step<'s>(&mut self, src: &'s [u8]) -> &'s [u8] {
        let Some((byte, rest)) = src.split_first() else { return src };
        match self.state {
            State::Token => {
                self.len = usize::from(byte >> 4);
                self.match_nibble = usize::from(byte & 15);
                self.state = if self.len == LONG { State::LiteralsLen } else { self.literals() };
            }
            State::LiteralsLen => {
                self.len += usize::from(*byte);
                self.state = if *byte == 255 { self.len_goes_on() } else { self.literals() };
            }
            State::Literals => return self.copy_literals(src),
            State::OffsetLow => {
                self.offset = usize::from(*byte);
                self.state = State::OffsetHigh;
            }
            State::OffsetHigh => {
                self.offset |= usize::from(*byte) << 8;
                self.len = self.match_nibble + MATCH_MIN;
                self.state = match self.offset_is_good() {
                    true if self.match_nibble == LONG => State::MatchLen,
                    true => self.copy_match(),
                    false => State::Corrupt,
                };
            }
            State::MatchLen => {
                self.len += usize::from(*byte);
                self.state = if *byte == 255 { self.len_goes_on() } else { self.copy_match() };
            }
            State::Corrupt => {}
        }
        rest
    }

    /// The state while a length has more bytes. One that is beyond the room already is cut to it, so that no
    /// run of length bytes makes it overflow, or is refused.
    fn len_goes_on(&mut self) -> State {
        match self.cut_to_room() {
            true => self.state,
            false => State::Corrupt,
        }
    }

    /// Sees to it that the length is at most what is left to produce. False where that makes the block
    /// corrupt: where the whole of it is wanted.
    fn cut_to_room(&mut self) -> bool {
        let left = usize::try_from(self.output.left()).unwrap_or(usize::MAX);
        let fits = self.len <= left;
        self.len = self.len.min(left);
        fits || self.want == Want::Prefix
    }

    /// The state when the literals' length is known.
    fn literals(&mut self) -> State {
        match (self.cut_to_room(), self.len) {
            (false, _) => State::Corrupt,
            (true, 0) => State::OffsetLow,
            (true, _) => State::Literals,
        }
    }

    fn copy_literals<'s>(&mut self, src: &'s [u8]) -> &'s [u8] {
        let (now, rest) = src.split_at(self.len.min(src.len()));
        self.output.literals(now);
        self.len -= now.len();
        if self.len == 0 {
            self.state = State::OffsetLow;
        }
        rest
    }

    /// Whether a match may begin here with the offset just read.
    fn offset_is_good(&self) -> bool {
        let reach = (self.window_bytes as u64).min(self.output.done());
        let room_is_left = self.want == Want::Prefix || self.output.left() >= LAST_MATCH;
        self.offset != 0 && self.offset as u64 <= reach && room_is_left
    }

    /// Appends the match whose length is now known, and returns the state behind it.
    fn copy_match(&mut self) -> State {
        let fits = self.cut_to_room();
        let rest_is_left = self.want == Want::Prefix || self.output.left() - self.len as u64 >= LAST_LITERALS;
        match fits && rest_is_left {
            true => {
                self.output.matched(self.offset, self.len);
                State::Token
            }
            false => State::Corrupt,
        }
    }
}
