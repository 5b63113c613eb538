//! DEFLATE (RFC 1951): by libdeflate (vendored by `libdeflate-sys`), or with window bits by zlib-rs.
//!
//! libdeflate is the fastest maintained encoder and decoder for whole buffers, and a page is one. It has neither
//! dictionaries nor a choice of window; a window longer than a page would be of no use. Users of zram's
//! `deflate.winbits` choose a window and a format (`windowed`); zlib-rs then compresses, and libdeflate decompresses
//! all the same, because a decoder needs no window when its output is one buffer.
//!
//! Level -1 is zlib's name for its default. The levels of both libraries go from 0, which stores pages uncompressed,
//! to 9; libdeflate has three more.

mod windowed;

use crate::backend::{Algorithm, Backend, Levels, Params, Stream};
use crate::error::CodecError;
use libdeflater::{CompressionLvl, Compressor, DecompressionError, Decompressor};
use windowed::{WindowBits, Windowed};

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

fn open(params: &Params<'_>) -> Result<Box<dyn Algorithm>, CodecError> {
    let level = if params.level == -1 { LEVELS.default } else { params.level };
    if let Some(window_bits) = params.window_bits {
        return Ok(Box::new(Windowed::new(level, WindowBits::new(window_bits)?)?));
    }
    let level = CompressionLvl::new(level).map_err(|_| no_level(params.level, LEVELS.max))?;
    Ok(Box::new(Deflate { level }))
}

fn no_level(level: i32, max: i32) -> CodecError {
    CodecError::Level { codec: NAME, level, min: LEVELS.min, max }
}

struct Deflate {
    level: CompressionLvl,
}

impl Algorithm for Deflate {
    fn stream(&self) -> Result<Box<dyn Stream>, CodecError> {
        Ok(Box::new(DeflateStream { encoder: Compressor::new(self.level), decoder: Decompressor::new() }))
    }
}

struct DeflateStream {
    encoder: Compressor,
    decoder: Decompressor,
}

impl Stream for DeflateStream {
    fn compress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        let dst_len_bytes = dst.len();
        self.encoder
            .deflate_compress(src, dst)
            .map_err(|_| CodecError::Compress { codec: NAME, dst_len_bytes })
    }

    fn decompress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        decompressed_len(self.decoder.deflate_decompress(src, dst), src)
    }
}

/// Converts the return value of libdeflate's decoder for `src`.
fn decompressed_len(result: Result<usize, DecompressionError>, src: &[u8]) -> Result<usize, CodecError> {
    result.map_err(|_| CodecError::Corrupt { codec: NAME, src_len_bytes: src.len() })
}
