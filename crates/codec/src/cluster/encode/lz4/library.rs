//! LZ4 blocks by liblz4's fast encoder, for the format's longest window.
//!
//! It fills a destination in one pass, whatever the source's length: it stops at the sequence that does not fit.

use crate::cluster::encode::Fit;
use crate::cluster::lz4::NAME;
use crate::error::CodecError;
use crate::liblz4::{RawStream, c_len};
use std::ffi::{c_char, c_int, c_void};

/// Bound of the encoder's memory, a table of 16 KiB.
pub(super) const HEAP_BYTES: usize = 17 << 10;

/// The source that liblz4 gets first, as a multiple of the cluster's length. The encoder is faster and denser for sources
/// of up to 64 KiB.
const HEAD_RATIO: usize = 16;

unsafe extern "C" {
    fn LZ4_createStream() -> *mut c_void;
    fn LZ4_freeStream(stream: *mut c_void) -> c_int;
    fn LZ4_compress_destSize_extState(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_len: *mut c_int,
        dst_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_compress_fast_extState(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        dst_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
}

/// liblz4's fast encoder.
pub(super) struct Fast(RawStream);

impl Fast {
    pub(super) fn new() -> Result<Self, CodecError> {
        // SAFETY: `LZ4_freeStream` frees the objects that `LZ4_createStream` makes.
        unsafe { RawStream::new(NAME, LZ4_createStream, LZ4_freeStream) }.map(Fast)
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
        fit_of(consumed, written, dst)
    }

    pub(super) fn whole(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        let (from, to) = (src.as_ptr().cast(), dst.as_mut_ptr().cast());
        // SAFETY: see `fit`.
        let written = unsafe {
            LZ4_compress_fast_extState(self.0.as_ptr(), from, to, c_len(src.len()), c_len(dst.len()), 1)
        };
        whole_of(written)
    }
}

fn fit_of(consumed: c_int, written: c_int, dst: &[u8]) -> Result<Fit, CodecError> {
    match (usize::try_from(consumed), usize::try_from(written)) {
        (Ok(consumed_bytes), Ok(written_bytes)) if consumed_bytes > 0 && written_bytes > 0 => {
            Ok(Fit { consumed_bytes, written_bytes })
        }
        _ => Err(CodecError::Compress { codec: NAME, dst_len_bytes: dst.len() }),
    }
}

fn whole_of(written: c_int) -> Option<usize> {
    usize::try_from(written).ok().filter(|written| *written > 0)
}
