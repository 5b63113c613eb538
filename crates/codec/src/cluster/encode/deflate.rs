//! Raw deflate by libdeflate, cut to a cluster.
//!
//! libdeflate compresses a whole buffer, and cannot fill a destination. Here it compresses somewhat more than the
//! cluster will hold, and the result is cut after the last symbol that fits (`deflate_cut`). How much the cluster will
//! hold is estimated by compressing a beginning of the source at level 1, which takes a small part of the time.

use super::deflate_cut::{Cut, Cutter, READ_AHEAD_BYTES};
use super::fit::Fit;
use crate::cluster::deflate::NAME;
use crate::error::CodecError;
use libdeflater::{CompressionLvl, Compressor};

pub(super) const LEVEL_MIN: i32 = 1;
pub(super) const LEVEL_MAX: i32 = 12;

/// Longest cluster.
const CLUSTER_MAX_BYTES: usize = 1 << 20;
/// The scratch buffer's length as a multiple of the cluster's.
const SCRATCH_RATIO: usize = 2;
/// The beginning of the source that the estimate compresses, as a multiple of the cluster's length.
const PROBE_RATIO: usize = 1;

/// Returns an upper bound of the heap bytes of an encoder, for clusters of 1 MiB.
pub(super) fn heap_bytes(level: i32) -> usize {
    let scratch = CLUSTER_MAX_BYTES * SCRATCH_RATIO + READ_AHEAD_BYTES;
    encoder_bytes(LEVEL_MIN) + encoder_bytes(level) + Cutter::HEAP_BYTES + scratch
}

/// Returns an upper bound of the memory of a libdeflate encoder.
fn encoder_bytes(level: i32) -> usize {
    match level {
        ..=1 => 700 << 10,
        2..=9 => 1 << 20,
        _ => 9 << 20,
    }
}

pub(super) struct Deflate {
    encoder: Compressor,
    /// The encoder of estimates.
    probe: Compressor,
    cutter: Cutter,
    /// Where streams are written before they are cut.
    scratch: Vec<u8>,
}

impl Deflate {
    pub(super) fn new(level: i32) -> Result<Self, CodecError> {
        let encoder = |level| {
            let (codec, min, max) = (NAME, LEVEL_MIN, LEVEL_MAX);
            let valid = CompressionLvl::new(level).map_err(|_| CodecError::Level { codec, level, min, max });
            valid.map(Compressor::new)
        };
        Ok(Deflate {
            encoder: encoder(level)?,
            probe: encoder(LEVEL_MIN)?,
            cutter: Cutter::new(),
            scratch: Vec::new(),
        })
    }

    pub(super) fn whole(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        let len = self.encoder.deflate_compress(src, dst).ok()?;
        mark_stored(dst);
        Some(len)
    }

    /// Fills `dst`, and adds the number of bytes that it compresses to `input_bytes`.
    pub(super) fn fit(
        &mut self,
        src: &[u8],
        dst: &mut [u8],
        input_bytes: &mut u64,
    ) -> Result<Fit, CodecError> {
        let scratch_len = dst.len() * SCRATCH_RATIO + READ_AHEAD_BYTES;
        if self.scratch.len() < scratch_len {
            self.scratch.resize(scratch_len, 0);
        }
        let failed = CodecError::Compress { codec: NAME, dst_len_bytes: dst.len() };
        let mut input_len = self.estimate(src, dst.len(), input_bytes);
        // Each round but the last finds that the input was too short or too long by much.
        let mut short = 0;
        loop {
            *input_bytes += input_len as u64;
            let scratch = &mut self.scratch[..scratch_len - READ_AHEAD_BYTES];
            let Ok(len) = self.encoder.deflate_compress(&src[..input_len], scratch) else {
                // Data after the estimate compresses less than before; some of it fits, if the round before was too
                // short.
                input_len -= (input_len - short) / 2;
                continue;
            };
            if len <= dst.len() && input_len < src.len() {
                short = input_len;
                let expected = input_len * dst.len() / len;
                input_len = (expected + expected / 16).max(input_len + input_len / 8 + 1).min(src.len());
                continue;
            }
            let cut = match len <= dst.len() {
                true => Cut { plain_bytes: input_len, stream_bytes: len },
                false => self.cutter.cut(&mut self.scratch[..scratch_len], dst.len()).ok_or(failed)?,
            };
            dst[..cut.stream_bytes].copy_from_slice(&self.scratch[..cut.stream_bytes]);
            mark_stored(dst);
            return Ok(Fit { consumed_bytes: cut.plain_bytes, written_bytes: cut.stream_bytes });
        }
    }

    /// Returns the length of a beginning of `src` that is somewhat longer than what fits.
    fn estimate(&mut self, src: &[u8], dst_len: usize, input_bytes: &mut u64) -> usize {
        let probe_len = src.len().min(dst_len * PROBE_RATIO);
        if probe_len == src.len() {
            return src.len();
        }
        *input_bytes += probe_len as u64;
        let scratch = &mut self.scratch[..dst_len * SCRATCH_RATIO];
        // It fits in any case that matters: data that does not compress is longer by less than the probe is.
        let Ok(len) = self.probe.deflate_compress(&src[..probe_len], scratch) else { return probe_len };
        let expected = probe_len * dst_len / len.max(1);
        // Level 1 is less dense, and the rest of the source may compress better than the beginning.
        (expected + expected / 4).min(src.len())
    }
}

/// Changes the first byte of a stream if it is 0, because leading zeroes are a cluster's padding.
///
/// Such a stream begins with a stored block that is not the last. The bit that is set is one of those that fill the
/// byte before the block's length, which decoders ignore.
fn mark_stored(stream: &mut [u8]) {
    if let Some(first @ 0) = stream.first_mut() {
        *first = 0x08;
    }
}
