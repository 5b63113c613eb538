//! DEFLATE (RFC 1951): by libdeflate (vendored by `libdeflate-sys`), or with window bits by zlib-rs.
//!
//! libdeflate is the fastest maintained encoder and decoder for whole buffers, and a page is one. It has neither
//! dictionaries nor a choice of window; a window longer than a page would be of no use. Users of zram's
//! `deflate.winbits` choose a window and a format; zlib-rs then compresses, and libdeflate decompresses
//! all the same, because a decoder needs no window when its output is one buffer, in half the time, and checks the
//! checksum of zlib's format too. zlib-rs allocates all memory of an encoder when it is made: two windows, the hash table
//! and the buffer of symbols, up to 400 KiB. Compressing allocates nothing.
//!
//! Level -1 is zlib's name for its default. The levels of both libraries go from 0, which stores pages uncompressed,
//! to 9; libdeflate has three more.

use crate::backend::{Algorithm, Backend, Levels, Params, Stream};
use crate::error::CodecError;
use libdeflater::{CompressionLvl, Compressor, Decompressor};
use zlib_rs::{DeflateFlush, Status};

const NAME: &str = "deflate";

const LEVELS: Levels = Levels { min: -1, max: 12, default: 6 };

pub(crate) const BACKEND: Backend = Backend {
    name: NAME,
    summary: "dense, slow to write; for pages that are seldom read",
    levels: Some(LEVELS),
    dictionary: false,
    window_bits: true,
    in_zram: true,
    open,
};

/// log2 of the shortest window. zlib takes 8 in some cases and means 9; the kernel refuses it.
const LOG2_MIN: u8 = 9;
/// log2 of the longest window.
const LOG2_MAX: u8 = 15;
/// zlib's highest level.
const WINDOWED_LEVEL_MAX: i32 = 9;

fn open(params: &Params<'_>) -> Result<Algorithm, CodecError> {
    let level = if params.level == -1 { LEVELS.default } else { params.level };
    let no_level = |level, max| CodecError::Level { codec: NAME, level, min: LEVELS.min, max };
    match params.window_bits {
        None => {
            let level = CompressionLvl::new(level).map_err(|_| no_level(params.level, LEVELS.max))?;
            Ok(Box::new(move || Ok(DeflateStream::boxed(Encoder::Whole(Compressor::new(level)), false))))
        }
        Some(window_bits) => {
            // Those that the kernel's deflate accepts are valid, so gzip's (above 15) are not.
            let log2 = u8::try_from(window_bits.unsigned_abs()).ok();
            let (codec, min, max) = (NAME, LOG2_MIN, LOG2_MAX);
            let log2 = log2.filter(|log2| (min..=max).contains(log2));
            let log2 = log2.ok_or(CodecError::WindowBits { codec, window_bits, min, max })?;
            if level > WINDOWED_LEVEL_MAX {
                return Err(no_level(level, WINDOWED_LEVEL_MAX));
            }
            let is_zlib = window_bits > 0;
            let encoder = move || Encoder::Windowed(zlib_rs::Deflate::new(level, is_zlib, log2));
            Ok(Box::new(move || Ok(DeflateStream::boxed(encoder(), is_zlib))))
        }
    }
}

enum Encoder {
    Whole(Compressor),
    Windowed(zlib_rs::Deflate),
}

struct DeflateStream {
    encoder: Encoder,
    decoder: Decompressor,
    /// Whether streams have zlib's header and checksum (RFC 1950).
    is_zlib: bool,
}

impl DeflateStream {
    fn boxed(encoder: Encoder, is_zlib: bool) -> Box<dyn Stream> {
        Box::new(DeflateStream { encoder, decoder: Decompressor::new(), is_zlib })
    }
}

impl Stream for DeflateStream {
    fn compress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        let len = match &mut self.encoder {
            Encoder::Whole(encoder) => encoder.deflate_compress(src, dst).ok(),
            Encoder::Windowed(encoder) => {
                encoder.reset();
                let status = encoder.compress(src, dst, DeflateFlush::Finish);
                (status == Ok(Status::StreamEnd)).then(|| encoder.total_out() as usize)
            }
        };
        len.ok_or(CodecError::Compress { codec: NAME, dst_len_bytes: dst.len() })
    }

    fn decompress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        let result = match self.is_zlib {
            true => self.decoder.zlib_decompress(src, dst),
            false => self.decoder.deflate_decompress(src, dst),
        };
        result.map_err(|_| CodecError::Corrupt { codec: NAME, src_len_bytes: src.len() })
    }
}
