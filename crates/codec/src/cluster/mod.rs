//! Decoders of image clusters: one compressed stream in, a whole or a part of what it decodes to out.
//!
//! A cluster of a compressed image is one stream of at most 1 MiB that decodes to at most 12 MiB. There are
//! two ways to decode it, because there are two kinds of reader. *Contiguous*: the stream is in memory, and
//! all of its output is wanted in one buffer; the fastest library does it. *In a range*: the stream comes in
//! pieces, output in front of the range is produced (later bytes refer to it) but thrown away, and working
//! memory is bounded by the window of the format, not by the cluster. LZ4 has no library for the second way;
//! the module `lz4` holds our own decoder. The others keep their window inside their library and throw the
//! unwanted output into one page.
//!
//! Cut by format below this file, and by way within a format; `drive` is the second way of every library.
//!
//! This module does not find clusters, skip their padding, or know whether the output is what the image's
//! author meant: an image without checksums can hold a stream that decodes to anything.

mod deflate;
mod drive;
mod lz4;
mod microlzma;
mod source;
mod zstd;
mod zstd_header;

use crate::CodecError;
use source::{Pieces, Whole};
use std::convert::Infallible;

pub use lz4::{decode_lz4_in_place, in_place_margin};
pub use source::Input;

/// Bytes of a page: rings are counted in these.
const PAGE_BYTES: usize = 4096;

/// How a cluster is compressed, with the limits that its image declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// An LZ4 block.
    Lz4 {
        /// How far matches reach back at most, 1 to 65535.
        window_bytes: u32,
    },
    /// LZMA1 whose first byte is the complement of its properties, without end mark.
    MicroLzma {
        /// The dictionary, 4 KiB to 8 MiB.
        dict_bytes: u32,
    },
    /// Raw deflate, RFC 1951.
    Deflate,
    /// One zstd frame, RFC 8878, without dictionary.
    Zstd {
        /// The longest window that a frame may ask for, 1 KiB to 1 MiB.
        max_window_bytes: u32,
    },
}

/// How much of a stream's output is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Want {
    /// All: the stream decodes to exactly the bytes asked for, and its last byte is the input's last.
    All,
    /// The first bytes. Whatever follows in stream and input, it is not looked at.
    Prefix,
}

/// A decode in a range that failed: the stream's fault or its source's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RangeError<E> {
    /// The stream does not decode, or the call lacks room or memory.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The input failed; its error, unchanged.
    #[error("the input of a decoder failed")]
    Input(#[source] E),
}

impl RangeError<Infallible> {
    /// The error of a decode whose input cannot fail.
    fn codec(self) -> CodecError {
        match self {
            RangeError::Codec(error) => error,
            RangeError::Input(never) => match never {},
        }
    }
}

/// The working state of one decode at a time.
///
/// Nothing is carried from one decode to the next, whether it succeeded or failed.
pub struct Decoder {
    format: Format,
    state: State,
}

enum State {
    Lz4 { window_bytes: usize },
    MicroLzma(microlzma::MicroLzma),
    Deflate(deflate::Deflate),
    Zstd(zstd::Zstd),
}

impl Decoder {
    /// A decoder of this format. Memory for windows is allocated with the first use that needs it.
    pub fn new(format: Format) -> Result<Decoder, CodecError> {
        format.check()?;
        let state = match format {
            Format::Lz4 { window_bytes } => State::Lz4 { window_bytes: window_bytes as usize },
            Format::MicroLzma { dict_bytes } => State::MicroLzma(microlzma::MicroLzma::new(dict_bytes)),
            Format::Deflate => State::Deflate(deflate::Deflate::new()?),
            Format::Zstd { max_window_bytes } => State::Zstd(zstd::Zstd::new(max_window_bytes)?),
        };
        Ok(Decoder { format, state })
    }

    /// The format that it was made for.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Upper bound of the heap memory, in bytes, of a decoder that only ever runs [`decode`](Self::decode)
    /// with [`Want::All`].
    pub fn contiguous_bytes(format: Format) -> usize {
        match format {
            Format::Lz4 { .. } => 0,
            Format::MicroLzma { dict_bytes } => microlzma::heap_bytes(dict_bytes),
            Format::Deflate => deflate::CONTIGUOUS_BYTES,
            Format::Zstd { .. } => zstd::contiguous_bytes(),
        }
    }

    /// Upper bound of the heap memory, in bytes, of a decoder whatever it runs: a prefix is taken the way
    /// a range is. The ring and the piece are the caller's and not counted.
    pub fn windowed_bytes(format: Format) -> usize {
        match format {
            Format::Lz4 { .. } => 0,
            Format::MicroLzma { dict_bytes } => microlzma::heap_bytes(dict_bytes),
            Format::Deflate => deflate::WINDOWED_BYTES,
            Format::Zstd { max_window_bytes } => zstd::windowed_bytes(max_window_bytes),
        }
    }

    /// Decodes the stream that is the whole of `src` and fills `dst`.
    ///
    /// After an error `dst` holds arbitrary bytes.
    pub fn decode(&mut self, src: &[u8], dst: &mut [u8], want: Want) -> Result<(), CodecError> {
        match (&mut self.state, want) {
            (State::Lz4 { .. }, Want::All) => lz4::decode_all(src, dst),
            (State::Lz4 { .. }, Want::Prefix) => lz4::decode_prefix(src, dst),
            (State::MicroLzma(state), want) => {
                state.range(&mut Whole(src), &mut [], 0, dst, want).map_err(RangeError::codec)
            }
            (State::Deflate(state), Want::All) => state.all(src, dst),
            (State::Deflate(state), want) => {
                state.range(&mut Whole(src), &mut [], 0, dst, want).map_err(RangeError::codec)
            }
            (State::Zstd(state), Want::All) => state.all(src, dst),
            (State::Zstd(state), want) => {
                state.range(&mut Whole(src), &mut [], 0, dst, want).map_err(RangeError::codec)
            }
        }
    }

    /// Decodes the stream that `input` gives, throws its first `skip` bytes of output away, and fills `dst`
    /// with those that follow.
    ///
    /// `piece` is the buffer that the input reads into, of any length but 0. `ring` is working memory of
    /// [`ring_bytes`] or more. With [`Want::All`] the stream decodes to exactly `skip + dst.len()` bytes. The
    /// input is asked for no more pieces than the result needs. After an error `dst` holds arbitrary bytes;
    /// `piece` and `ring` do so in any case.
    pub fn decode_range<I: Input + ?Sized>(
        &mut self,
        input: &mut I,
        piece: &mut [u8],
        ring: &mut [u8],
        skip: u64,
        dst: &mut [u8],
        want: Want,
    ) -> Result<(), RangeError<I::Error>> {
        let codec = self.format.name();
        for (what, len_bytes, least_bytes) in
            [("piece buffer", piece.len(), 1), ("ring", ring.len(), ring_bytes(self.format))]
        {
            if len_bytes < least_bytes {
                return Err(CodecError::Room { codec, what, len_bytes, least_bytes }.into());
            }
        }
        let mut source = Pieces::new(input, piece);
        match &mut self.state {
            State::Lz4 { window_bytes } => lz4::range(*window_bytes, &mut source, ring, skip, dst, want),
            State::MicroLzma(state) => state.range(&mut source, ring, skip, dst, want),
            State::Deflate(state) => state.range(&mut source, ring, skip, dst, want),
            State::Zstd(state) => state.range(&mut source, ring, skip, dst, want),
        }
    }
}

/// Bytes of the ring that [`Decoder::decode_range`] takes.
///
/// For LZ4 the pages of a window and one more: the page that is being written may be reused only when its old
/// bytes are a full window behind. The other formats keep their window themselves and take one page.
pub fn ring_bytes(format: Format) -> usize {
    match format {
        Format::Lz4 { window_bytes } => ((window_bytes as usize).div_ceil(PAGE_BYTES) + 1) * PAGE_BYTES,
        _ => PAGE_BYTES,
    }
}

impl Format {
    /// Its name in errors.
    fn name(self) -> &'static str {
        match self {
            Format::Lz4 { .. } => lz4::NAME,
            Format::MicroLzma { .. } => microlzma::NAME,
            Format::Deflate => deflate::NAME,
            Format::Zstd { .. } => zstd::NAME,
        }
    }

    /// Whether its limits are within what decoders take.
    fn check(self) -> Result<(), CodecError> {
        let (value, min, max) = match self {
            Format::Lz4 { window_bytes } => (window_bytes, 1, 65535),
            Format::MicroLzma { dict_bytes } => (dict_bytes, 4 << 10, 8 << 20),
            Format::Deflate => return Ok(()),
            Format::Zstd { max_window_bytes } => (max_window_bytes, 1 << 10, 1 << 20),
        };
        match (min..=max).contains(&value) {
            true => Ok(()),
            false => Err(CodecError::Window { codec: self.name(), window_bytes: value, min, max }),
        }
    }
}
