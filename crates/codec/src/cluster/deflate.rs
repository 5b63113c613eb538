//! Raw deflate: libdeflate for whole streams, zlib-rs for prefixes and ranges.
//!
//! There are two libraries because neither serves both: libdeflate is the fastest but only decodes from one buffer to
//! another; zlib-rs, written in safe Rust, can stop and go on at any byte, at about half the speed.

use super::source::{RangeError, Source, Target};
use super::streaming::{Step, StepStatus, StreamingDecoder, decode_stream};
use crate::error::CodecError;
use libdeflate_sys as sys;
use std::ptr::{self, NonNull};
use zlib_rs::{Inflate, InflateError, InflateFlush, Status};

pub(super) const NAME: &str = "deflate";

/// Bound of the heap memory for whole streams: libdeflate's decoding tables are 11 KiB.
pub(super) const CONTIGUOUS_BYTES: usize = 16 << 10;
/// Bound of the heap memory with zlib-rs, whose state is a window of 32 KiB and tables of 10 KiB.
pub(super) const WINDOWED_BYTES: usize = CONTIGUOUS_BYTES + (48 << 10);

/// log2 of deflate's longest window.
const WINDOW_BITS: u8 = 15;

pub(super) struct Deflate {
    whole: Decompressor,
    stream: Option<Box<Inflate>>,
}

impl Deflate {
    pub(super) fn new() -> Result<Self, CodecError> {
        Ok(Deflate { whole: Decompressor::new()?, stream: None })
    }

    /// Decodes `src`, which is one stream, to all of `dst`.
    pub(super) fn decode_whole(&mut self, src: &[u8], dst: &mut [u8]) -> Result<(), CodecError> {
        self.whole.decompress(src, dst)
    }

    /// Decodes the stream of `source` to `target`.
    pub(super) fn decode_range<S: Source>(
        &mut self,
        source: &mut S,
        target: Target<'_>,
    ) -> Result<(), RangeError<S::Error>> {
        let stream = self.stream.get_or_insert_with(|| Box::new(Inflate::new(false, WINDOW_BITS)));
        stream.reset(false);
        decode_stream(stream.as_mut(), source, target)
    }
}

impl StreamingDecoder for Inflate {
    const NAME: &'static str = NAME;

    fn step(&mut self, src: &[u8], dst: &mut [u8]) -> Step {
        let (taken_before, made_before) = (self.total_in(), self.total_out());
        let status = match self.decompress(src, dst, InflateFlush::NoFlush) {
            Ok(Status::Ok | Status::BufError) => StepStatus::More,
            Ok(Status::StreamEnd) => StepStatus::StreamEnd,
            Err(InflateError::MemError) => StepStatus::Failed(CodecError::NoMemory { codec: NAME }),
            Err(_) => StepStatus::Failed(CodecError::Corrupt { codec: NAME, src_len_bytes: src.len() }),
        };
        Step {
            consumed_bytes: (self.total_in() - taken_before) as usize,
            produced_bytes: (self.total_out() - made_before) as usize,
            status,
        }
    }
}

/// libdeflate's decoder, freed on drop. The wrapper crate `libdeflater` does not return how much input was consumed,
/// which [`Want::All`] needs.
struct Decompressor(NonNull<sys::libdeflate_decompressor>);

// SAFETY: the object is plain memory that libdeflate ties to no thread; it is owned by this value alone.
unsafe impl Send for Decompressor {}

impl Decompressor {
    fn new() -> Result<Self, CodecError> {
        // SAFETY: no arguments; returns null or an initialised object that the caller frees.
        let object = unsafe { sys::libdeflate_alloc_decompressor() };
        NonNull::new(object).map(Decompressor).ok_or(CodecError::NoMemory { codec: NAME })
    }

    fn decompress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<(), CodecError> {
        let mut consumed_bytes = 0;
        // SAFETY: the object is live and borrowed mutably; pointers and lengths are those of live slices;
        // a null `actual_out_nbytes_ret` asks for the output to fill `dst` exactly.
        let result = unsafe {
            sys::libdeflate_deflate_decompress_ex(
                self.0.as_ptr(),
                src.as_ptr().cast(),
                src.len(),
                dst.as_mut_ptr().cast(),
                dst.len(),
                &mut consumed_bytes,
                ptr::null_mut(),
            )
        };
        match result == sys::libdeflate_result_LIBDEFLATE_SUCCESS && consumed_bytes == src.len() {
            true => Ok(()),
            false => Err(CodecError::Corrupt { codec: NAME, src_len_bytes: src.len() }),
        }
    }
}

impl Drop for Decompressor {
    fn drop(&mut self) {
        // SAFETY: the object comes from `libdeflate_alloc_decompressor`, and is freed once.
        unsafe { sys::libdeflate_free_decompressor(self.0.as_ptr()) };
    }
}
