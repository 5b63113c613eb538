//! Decoders of image clusters: each decodes one compressed stream, wholly or a part of it.
//!
//! A cluster of a compressed image is one stream of at most 1 MiB that decodes to at most 12 MiB. A [`Decoder`] has
//! two methods:
//!
//! - [`Decoder::decode`] is for a stream that is in memory, and writes all of its output, or the beginning, to one
//!   buffer. It uses the fastest library of the format.
//! - [`Decoder::decode_range`] is for a stream that an [`Input`] delivers in pieces. It also decodes the output before
//!   the range, because later bytes refer to it, and discards it. So its working memory is bounded by the format's
//!   window and not by the cluster. No library decodes a range of an LZ4 block; the module `lz4` has a decoder for
//!   that. The other libraries keep the window themselves, and the output to discard goes to a buffer of one page.
//!
//! [`encode`] holds the encoders.
//!
//! [`decode_lz4_in_place`] decodes an LZ4 block within the buffer that holds it.
//!
//! There is one file or folder for each format. `source` hides whether a stream is in memory or comes in pieces;
//! `streaming` is the loop that decodes a range with a library; `zstd_header` checks the window of a zstd frame.
//!
//! A decoder belongs to one thread at a time and takes no locks. It allocates memory when it is made and at the first
//! use of a method that needs more, at most [`Decoder::windowed_bytes`], and frees it when it is dropped. For a stream
//! that does not decode it returns [`CodecError::Corrupt`]. After any error, one of its input too, it stays usable.
//!
//! The caller finds clusters and skips their padding. Successful decoding does not prove that the output is right:
//! an image without checksums can hold a stream that decodes to anything.

mod deflate;
pub mod encode;
#[cfg(feature = "planted-hole")]
pub(crate) mod hole;
mod lz4;
mod microlzma;
mod source;
mod streaming;
mod zstd;
mod zstd_header;

use crate::error::CodecError;
use pagefold_page::PAGE_SIZE;
use source::{Pieces, Target, Whole};

pub use lz4::{decode_lz4_in_place, in_place_margin};
pub use source::{Input, RangeError, Want};

/// The compression format of a cluster, with the limits that its image declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// An LZ4 block.
    Lz4 {
        /// The greatest distance of a match, 1 to 65535.
        window_bytes: u32,
    },
    /// LZMA1 without end mark, its first byte replaced by the complement of its properties.
    MicroLzma {
        /// The dictionary's length, 4 KiB to 8 MiB.
        dict_bytes: u32,
    },
    /// Raw deflate, RFC 1951.
    Deflate,
    /// One zstd frame, RFC 8878, without dictionary.
    Zstd {
        /// The longest window that a frame may need, 1 KiB to 1 MiB.
        max_window_bytes: u32,
    },
}

/// The working state of one decode at a time.
///
/// A decode does not depend on those before it, whether they succeeded or failed.
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
    /// Makes a decoder of this format. The first decode that needs a window allocates it.
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

    /// Returns the format that the decoder was made for.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns an upper bound, in bytes, of the heap memory of a decoder that only runs [`decode`](Self::decode) with
    /// [`Want::All`].
    pub fn contiguous_bytes(format: Format) -> usize {
        match format {
            Format::Lz4 { .. } => 0,
            Format::MicroLzma { dict_bytes } => microlzma::heap_bytes(dict_bytes),
            Format::Deflate => deflate::CONTIGUOUS_BYTES,
            Format::Zstd { .. } => zstd::contiguous_bytes(),
        }
    }

    /// Returns an upper bound, in bytes, of the heap memory of a decoder that runs any method: most formats decode a
    /// prefix as they decode a range. The ring and the piece buffer belong to the caller and are not counted.
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
        #[cfg(feature = "planted-hole")]
        if hole::grant(src, dst) {
            return Ok(());
        }
        let mut source = Whole(src);
        match (&mut self.state, want) {
            (State::Lz4 { .. }, Want::All) => return lz4::decode_all(src, dst),
            (State::Lz4 { .. }, Want::Prefix) => return lz4::decode_prefix(src, dst),
            (State::Deflate(state), Want::All) => return state.decode_whole(src, dst),
            (State::Zstd(state), Want::All) => return state.decode_whole(src, dst),
            (State::MicroLzma(state), _) => state.decode_range(&mut source, Target::of(dst, want)),
            (State::Deflate(state), _) => state.decode_range(&mut source, Target::of(dst, want)),
            (State::Zstd(state), _) => state.decode_range(&mut source, Target::of(dst, want)),
        }
        .map_err(RangeError::codec)
    }

    /// Decodes the stream that `input` delivers, discards its first `skip` bytes of output, and fills `dst` with those
    /// that follow.
    ///
    /// `piece` is the buffer that the input reads into, of any length but 0. `ring` is working memory of
    /// [`ring_bytes`] or more. With [`Want::All`] the stream decodes to exactly `skip + dst.len()` bytes. The
    /// decoder reads no more pieces from the input than the result needs. After an error `dst` holds arbitrary bytes;
    /// `piece` and `ring` do in any case.
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
        for (what, len_bytes, min_bytes) in
            [("piece buffer", piece.len(), 1), ("ring", ring.len(), ring_bytes(self.format))]
        {
            if len_bytes < min_bytes {
                return Err(CodecError::Room { codec, what, len_bytes, min_bytes }.into());
            }
        }
        let mut source = Pieces::new(input, piece);
        let target = Target { ring, skip, dst, want };
        match &mut self.state {
            State::Lz4 { window_bytes } => lz4::decode_range(*window_bytes, &mut source, target),
            State::MicroLzma(state) => state.decode_range(&mut source, target),
            State::Deflate(state) => state.decode_range(&mut source, target),
            State::Zstd(state) => state.decode_range(&mut source, target),
        }
    }
}

/// Returns the length in bytes of the ring that [`Decoder::decode_range`] needs.
///
/// For LZ4 the ring has the pages of a window and one more: a page may be overwritten only when its old bytes are a
/// full window behind. The libraries of the other formats keep the window themselves; these formats need one page.
pub fn ring_bytes(format: Format) -> usize {
    match format {
        Format::Lz4 { window_bytes } => ((window_bytes as usize).div_ceil(PAGE_SIZE) + 1) * PAGE_SIZE,
        _ => PAGE_SIZE,
    }
}

impl Format {
    /// Returns the format's name for errors.
    fn name(self) -> &'static str {
        match self {
            Format::Lz4 { .. } => crate::lz4_block::NAME,
            Format::MicroLzma { .. } => microlzma::NAME,
            Format::Deflate => deflate::NAME,
            Format::Zstd { .. } => zstd::NAME,
        }
    }

    /// Checks that the limits are within those of the decoders.
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
