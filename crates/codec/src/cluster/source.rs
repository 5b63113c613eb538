//! The source of a decoder's compressed bytes: a slice in memory ([`Whole`]), or an [`Input`] that delivers pieces
//! ([`Pieces`]).

use crate::error::CodecError;
use std::convert::Infallible;
use std::ops::Range;

/// Selects how much of a stream's output a decode produces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Want {
    /// All of it: the stream must decode to exactly the requested bytes, and its last byte must be the input's last.
    All,
    /// The first bytes. The rest of stream and input is not examined.
    Prefix,
}

/// The error of [`Decoder::decode_range`](super::Decoder::decode_range): the stream's or its input's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RangeError<E> {
    /// The stream does not decode, or the call lacks room or memory.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The input failed; this is its error, unchanged.
    #[error("the input of a decoder failed")]
    Input(#[source] E),
}

impl RangeError<Infallible> {
    /// Converts the error of a decode whose input cannot fail.
    pub(super) fn codec(self) -> CodecError {
        match self {
            RangeError::Codec(error) => error,
            RangeError::Input(never) => match never {},
        }
    }
}

/// Delivers a compressed stream piece by piece.
pub trait Input {
    /// The error of a failed read.
    type Error;

    /// Reads the next bytes of the stream into the front of `buf` and returns their number.
    ///
    /// `buf` is not empty. A read may return fewer bytes than fit, but at least one, unless the stream is at its end:
    /// then this and every later call returns 0.
    fn read(&mut self, buf: &mut [u8]) -> Result<usize, Self::Error>;
}

/// The output that a decode produces.
pub(super) struct Target<'a> {
    /// Where output is written that is discarded; it is overwritten again and again, and may be empty where `skip` is 0.
    pub(super) ring: &'a mut [u8],
    /// Bytes of output to discard.
    pub(super) skip: u64,
    /// Where the output after them goes.
    pub(super) dst: &'a mut [u8],
    /// How much of it there is.
    pub(super) want: Want,
}

impl<'a> Target<'a> {
    /// Makes the target that discards nothing.
    pub(super) fn of(dst: &'a mut [u8], want: Want) -> Self {
        Target { ring: &mut [], skip: 0, dst, want }
    }
}

/// A stream that decoders read: they get a run of bytes and consume as many of them as they can use.
pub(super) trait Source {
    type Error;

    /// Returns the next bytes that are not consumed; empty only at the end of the stream.
    fn chunk(&mut self) -> Result<&[u8], RangeError<Self::Error>>;

    /// Consumes the first `len` bytes of the last chunk.
    fn consume(&mut self, len: usize);
}

/// A stream that is wholly in memory.
pub(super) struct Whole<'a>(pub(super) &'a [u8]);

impl Source for Whole<'_> {
    type Error = Infallible;

    fn chunk(&mut self) -> Result<&[u8], RangeError<Infallible>> {
        Ok(self.0)
    }

    fn consume(&mut self, len: usize) {
        self.0 = self.0.get(len..).unwrap_or_default();
    }
}

/// A stream that an input delivers in pieces through a buffer.
pub(super) struct Pieces<'a, I: ?Sized> {
    input: &'a mut I,
    piece: &'a mut [u8],
    /// The part of `piece` that is read and not consumed.
    rest: Range<usize>,
}

impl<'a, I: Input + ?Sized> Pieces<'a, I> {
    pub(super) fn new(input: &'a mut I, piece: &'a mut [u8]) -> Self {
        Pieces { input, piece, rest: 0..0 }
    }
}

impl<I: Input + ?Sized> Source for Pieces<'_, I> {
    type Error = I::Error;

    fn chunk(&mut self) -> Result<&[u8], RangeError<I::Error>> {
        if self.rest.is_empty() {
            let len = self.input.read(self.piece).map_err(RangeError::Input)?;
            // An input that returns more than the buffer's length is taken to have filled the buffer.
            self.rest = 0..len.min(self.piece.len());
        }
        Ok(&self.piece[self.rest.clone()])
    }

    fn consume(&mut self, len: usize) {
        self.rest.start = (self.rest.start + len).min(self.rest.end);
    }
}
