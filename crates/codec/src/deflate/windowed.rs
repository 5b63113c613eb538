//! Deflate with zlib's `windowBits`: a chosen window, raw or in zlib's format.
//!
//! zlib-rs allocates all memory of an encoder when it is made: two windows, the hash table and the buffer of symbols,
//! up to 400 KiB. Compressing allocates nothing, and neither does libdeflate, which decompresses. libdeflate takes half
//! the time of zlib-rs for that, and checks the checksum of zlib's format too.

use super::{LEVELS, NAME, decompressed_len, no_level};
use crate::backend::{Algorithm, Stream};
use crate::error::CodecError;
use libdeflater::Decompressor;
use zlib_rs::{Deflate, DeflateFlush, Status};

/// log2 of the shortest window. zlib takes 8 in some cases and means 9; the kernel refuses it.
const LOG2_MIN: u8 = 9;
/// log2 of the longest window.
const LOG2_MAX: u8 = 15;
/// zlib's highest level.
const LEVEL_MAX: i32 = 9;

/// A window and a format of streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WindowBits {
    log2: u8,
    /// Whether streams have zlib's header and checksum (RFC 1950).
    is_zlib: bool,
}

impl WindowBits {
    /// Converts zlib's `windowBits`. Those that the kernel's deflate accepts are valid, so gzip's (above 15) are not.
    pub(super) fn new(window_bits: i32) -> Result<Self, CodecError> {
        match u8::try_from(window_bits.unsigned_abs()) {
            Ok(log2 @ LOG2_MIN..=LOG2_MAX) => Ok(WindowBits { log2, is_zlib: window_bits > 0 }),
            _ => Err(CodecError::WindowBits { codec: NAME, window_bits, min: LOG2_MIN, max: LOG2_MAX }),
        }
    }
}

/// Deflate with its level, window and format.
pub(super) struct Windowed {
    level: i32,
    window: WindowBits,
}

impl Windowed {
    /// Checks the level, whose default the caller has filled in.
    pub(super) fn new(level: i32, window: WindowBits) -> Result<Self, CodecError> {
        match (LEVELS.min..=LEVEL_MAX).contains(&level) {
            true => Ok(Windowed { level, window }),
            false => Err(no_level(level, LEVEL_MAX)),
        }
    }
}

impl Algorithm for Windowed {
    fn stream(&self) -> Result<Box<dyn Stream>, CodecError> {
        let WindowBits { log2, is_zlib } = self.window;
        let encoder = Deflate::new(self.level, is_zlib, log2);
        Ok(Box::new(WindowedStream { encoder, decoder: Decompressor::new(), is_zlib }))
    }
}

struct WindowedStream {
    encoder: Deflate,
    decoder: Decompressor,
    is_zlib: bool,
}

impl Stream for WindowedStream {
    fn compress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        let dst_len_bytes = dst.len();
        self.encoder.reset();
        match self.encoder.compress(src, dst, DeflateFlush::Finish) {
            Ok(Status::StreamEnd) => Ok(self.encoder.total_out() as usize),
            _ => Err(CodecError::Compress { codec: NAME, dst_len_bytes }),
        }
    }

    fn decompress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        let result = match self.is_zlib {
            true => self.decoder.zlib_decompress(src, dst),
            false => self.decoder.deflate_decompress(src, dst),
        };
        decompressed_len(result, src)
    }
}
