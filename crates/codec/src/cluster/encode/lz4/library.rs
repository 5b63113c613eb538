//! LZ4 blocks by liblz4's fast encoder, for the format's longest window.
//!
//! It fills a destination in one pass, whatever the source's length: it stops at the sequence that does not fit.

use crate::cluster::encode::fit::Fit;
use crate::error::CodecError;
use crate::liblz4::{Encoder, LZ4_compress_destSize_extState, LZ4_compress_fast_extState, RawStream, c_len};
use crate::lz4_block::NAME;

/// Bound of the encoder's memory, a table of 16 KiB.
pub(super) const HEAP_BYTES: usize = 17 << 10;

/// The source that liblz4 gets first, as a multiple of the cluster's length. The encoder is faster and denser for sources
/// of up to 64 KiB.
const HEAD_RATIO: usize = 16;

/// liblz4's fast encoder.
pub(super) struct Fast(RawStream);

impl Fast {
    pub(super) fn new() -> Result<Self, CodecError> {
        RawStream::new(NAME, Encoder::Fast).map(Fast)
    }

    pub(super) fn fit(&mut self, src: &[u8], dst: &mut [u8]) -> Result<Fit, CodecError> {
        let head = &src[..src.len().min(dst.len() * HEAD_RATIO)];
        let fit = self.fill(head, dst)?;
        match fit.consumed_bytes < head.len() || head.len() == src.len() {
            true => Ok(fit),
            false => self.fill(src, dst),
        }
    }

    fn fill(&mut self, src: &[u8], dst: &mut [u8]) -> Result<Fit, CodecError> {
        let mut consumed = c_len(src.len());
        let (from, to) = (src.as_ptr().cast(), dst.as_mut_ptr().cast());
        // SAFETY: the state is live and borrowed mutably, and the call initialises it; the slices are live, and their
        // lengths are passed.
        let written = unsafe {
            LZ4_compress_destSize_extState(self.0.as_ptr(), from, to, &mut consumed, c_len(dst.len()), 1)
        };
        match (usize::try_from(consumed), usize::try_from(written)) {
            (Ok(consumed_bytes), Ok(written_bytes)) if consumed_bytes > 0 && written_bytes > 0 => {
                Ok(Fit { consumed_bytes, written_bytes })
            }
            _ => Err(CodecError::Compress { codec: NAME, dst_len_bytes: dst.len() }),
        }
    }

    pub(super) fn whole(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        let (from, to) = (src.as_ptr().cast(), dst.as_mut_ptr().cast());
        // SAFETY: see `fit`.
        let written = unsafe {
            LZ4_compress_fast_extState(self.0.as_ptr(), from, to, c_len(src.len()), c_len(dst.len()), 1)
        };
        usize::try_from(written).ok().filter(|written| *written > 0)
    }
}
