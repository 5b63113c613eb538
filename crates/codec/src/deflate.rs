//! Raw DEFLATE (RFC 1951) by libdeflate (vendored by `libdeflate-sys`).
//!
//! libdeflate is the fastest maintained encoder and decoder for whole buffers, and a page is one. It has neither
//! dictionaries nor a choice of window; a window longer than a page would be of no use.

use crate::backend::{Algorithm, Backend, Levels, Stream};
use crate::error::CodecError;
use libdeflater::{CompressionLvl, Compressor, Decompressor};

const NAME: &str = "deflate";

const LEVELS: Levels = Levels { min: 1, max: 12, default: 6 };

pub(crate) const BACKEND: Backend = Backend {
    name: NAME,
    summary: "dense, slow to write; for pages that are seldom read",
    levels: Some(LEVELS),
    dictionary: false,
    open: |level, _| {
        let level = CompressionLvl::new(level).map_err(|_| CodecError::Level {
            codec: NAME,
            level,
            min: LEVELS.min,
            max: LEVELS.max,
        })?;
        Ok(Box::new(Deflate { level }))
    },
};

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
        let src_len_bytes = src.len();
        self.decoder
            .deflate_decompress(src, dst)
            .map_err(|_| CodecError::Corrupt { codec: NAME, src_len_bytes })
    }
}
