//! Where a decoder's bytes come from: memory, or pieces that an input gives.

use super::RangeError;
use std::convert::Infallible;
use std::ops::Range;

/// Gives a compressed stream piece by piece.
pub trait Input {
    /// Why it can fail.
    type Error;

    /// Writes the next bytes of the stream to the front of `buf`, as many as it likes but at least one, and
    /// returns their number; 0 at the stream's end, and again if asked again. `buf` is not empty.
    fn read(&mut self, buf: &mut [u8]) -> Result<usize, Self::Error>;
}

/// What decoders read from: a run of bytes at a time, of which they take as many as they can use.
pub(super) trait Source {
    type Error;

    /// The bytes that are next and not yet taken; empty only at the end of the stream.
    fn chunk(&mut self) -> Result<&[u8], RangeError<Self::Error>>;

    /// Takes the first `len` bytes of the last chunk.
    fn take(&mut self, len: usize);
}

/// A stream that is in memory.
pub(super) struct Whole<'a>(pub(super) &'a [u8]);

impl Source for Whole<'_> {
    type Error = Infallible;

    fn chunk(&mut self) -> Result<&[u8], RangeError<Infallible>> {
        Ok(self.0)
    }

    fn take(&mut self, len: usize) {
        self.0 = self.0.get(len..).unwrap_or_default();
    }
}

/// A stream that comes in pieces through a buffer.
pub(super) struct Pieces<'a, I: ?Sized> {
    input: &'a mut I,
    piece: &'a mut [u8],
    /// What of `piece` is read and not taken.
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
            // An input that claims more than it was given room for is taken at the room's length.
            self.rest = 0..len.min(self.piece.len());
        }
        Ok(&self.piece[self.rest.clone()])
    }

    fn take(&mut self, len: usize) {
        self.rest.start = (self.rest.start + len).min(self.rest.end);
    }
}
