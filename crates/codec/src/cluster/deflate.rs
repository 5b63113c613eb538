//! Raw deflate: libdeflate for whole streams, zlib-rs for prefixes and ranges.
//!
//! Two libraries because no one is good at both: libdeflate is the fastest but only decodes from one buffer
//! to another; zlib-rs stops and goes on anywhere, in memory-safe Rust, at about half that speed.

use super::drive::{Outcome, Step, Stepper, drive};
use super::source::Source;
use super::{RangeError, Want};
use crate::CodecError;
use libdeflate_sys as sys;
use std::ptr::{self, NonNull};
use zlib_rs::{Inflate, InflateError, InflateFlush, Status};

pub(super) const NAME: &str = "deflate";

/// libdeflate's decoding tables are 11 KiB.
pub(super) const CONTIGUOUS_BYTES: usize = 16 << 10;
/// And zlib-rs' state is a window of 32 KiB and tables of 10 KiB.
pub(super) const WINDOWED_BYTES: usize = CONTIGUOUS_BYTES + (48 << 10);

/// log2 of the longest window that deflate has.
const WINDOW_BITS: u8 = 15;

pub(super) struct Deflate {
    whole: Decompressor,
    stream: Option<Box<Inflate>>,
}

impl Deflate {
    pub(super) fn new() -> Result<Self, CodecError> {
        Ok(Deflate { whole: Decompressor::new()?, stream: None })
    }

    /// Decodes `src`, all of it, to all of `dst`.
    pub(super) fn all(&mut self, src: &[u8], dst: &mut [u8]) -> Result<(), CodecError> {
        self.whole.decompress(src, dst)
    }

    pub(super) fn range<S: Source>(
        &mut self,
        source: &mut S,
        ring: &mut [u8],
        skip: u64,
        dst: &mut [u8],
        want: Want,
    ) -> Result<(), RangeError<S::Error>> {
        let stream = self.stream.get_or_insert_with(|| Box::new(Inflate::new(false, WINDOW_BITS)));
        stream.reset(false);
        drive(stream.as_mut(), source, ring, skip, dst, want)
    }
}

impl Stepper for Inflate {
    const NAME: &'static str = NAME;

    fn step(&mut self, src: &[u8], dst: &mut [u8]) -> Step {
        let (taken_before, made_before) = (self.total_in(), self.total_out());
        let outcome = match self.decompress(src, dst, InflateFlush::NoFlush) {
            Ok(Status::Ok | Status::BufError) => Outcome::More,
            Ok(Status::StreamEnd) => Outcome::Ended,
            Err(InflateError::MemError) => Outcome::Failed(CodecError::NoMemory { codec: NAME }),
            Err(_) => Outcome::Failed(CodecError::Corrupt { codec: NAME, src_len_bytes: src.len() }),
        };
        Step {
            taken_bytes: (self.total_in() - taken_before) as usize,
            made_bytes: (self.total_out() - made_before) as usize,
            outcome,
        }
    }
}

/// libdeflate's decoder, owned. Its Rust wrapper does not say how much input was taken, which
/// [`Want::All`] needs.
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
        let mut taken_bytes = 0;
        // SAFETY: the object is live and borrowed mutably; pointers and lengths are those of live slices;
        // a null `actual_out_nbytes_ret` asks for the output to fill `dst` exactly.
        let result = unsafe {
            sys::libdeflate_deflate_decompress_ex(
                self.0.as_ptr(),
                src.as_ptr().cast(),
                src.len(),
                dst.as_mut_ptr().cast(),
                dst.len(),
                &mut taken_bytes,
                ptr::null_mut(),
            )
        };
        match result == sys::libdeflate_result_LIBDEFLATE_SUCCESS && taken_bytes == src.len() {
            true => Ok(()),
            false => Err(CodecError::Corrupt { codec: NAME, src_len_bytes: src.len() }),
        }
    }
}

impl Drop for Decompressor {
    fn drop(&mut self) {
        // SAFETY: made by `libdeflate_alloc_decompressor`, freed once.
        unsafe { sys::libdeflate_free_decompressor(self.0.as_ptr()) };
    }
}
