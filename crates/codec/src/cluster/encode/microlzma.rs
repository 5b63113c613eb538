//! MicroLZMA by liblzma, whose encoder fills a destination by itself.

use super::fit::{DST_MIN_BYTES, Fit};
use crate::cluster::microlzma::NAME;
use crate::error::CodecError;
use liblzma_sys as sys;
use std::ptr;

pub(super) const LEVEL_MAX: i32 = 9;

/// `LZMA_PRESET_EXTREME` of `lzma12.h`.
const EXTREME: u32 = 1 << 31;
/// `LZMA_FILTER_LZMA1` of `lzma12.h`.
const FILTER_LZMA1: u64 = 0x4000_0000_0000_0001;
/// `LZMA_VLI_UNKNOWN` of `vli.h`: no filter.
const UNKNOWN: u64 = u64::MAX;
/// Bound of liblzma's objects around the encoder.
const OBJECTS_BYTES: usize = 4 << 10;

/// Bits of the byte before on which the coding of a literal depends: one more than liblzma's presets have. Clusters of shared
/// libraries become 0.3 % smaller by it.
const LITERAL_CONTEXT_BITS: u32 = 4;

unsafe extern "C" {
    fn lzma_microlzma_encoder(
        stream: *mut sys::lzma_stream,
        options: *const sys::lzma_options_lzma,
    ) -> sys::lzma_ret;
}

/// Returns an upper bound of the heap bytes of an encoder.
pub(super) fn heap_bytes(dict_bytes: u32, level: i32, extreme: bool) -> usize {
    let Ok(mut options) = options(dict_bytes, level, extreme) else { return usize::MAX };
    let filters = [
        sys::lzma_filter { id: FILTER_LZMA1, options: ptr::from_mut(&mut options).cast() },
        sys::lzma_filter { id: UNKNOWN, options: ptr::null_mut() },
    ];
    // SAFETY: the chain ends with its second entry, and its first points to live options of its kind.
    let bytes = unsafe { sys::lzma_raw_encoder_memusage(filters.as_ptr()) };
    usize::try_from(bytes).unwrap_or(usize::MAX).saturating_add(OBJECTS_BYTES)
}

fn options(dict_bytes: u32, level: i32, extreme: bool) -> Result<sys::lzma_options_lzma, CodecError> {
    let preset = (level as u32) | if extreme { EXTREME } else { 0 };
    // SAFETY: all zeroes is a valid value: null pointers and numbers.
    let mut options: sys::lzma_options_lzma = unsafe { std::mem::zeroed() };
    // SAFETY: the options are live and writable; the call only writes them.
    match unsafe { sys::lzma_lzma_preset(&mut options, preset) } {
        0 => {
            options.dict_size = dict_bytes;
            options.lc = LITERAL_CONTEXT_BITS;
            Ok(options)
        }
        _ => Err(CodecError::Level { codec: NAME, level, min: 0, max: LEVEL_MAX }),
    }
}

/// liblzma's stream object with its options. The first stream allocates its memory; dropping the object frees it.
pub(super) struct MicroLzma {
    stream: sys::lzma_stream,
    options: sys::lzma_options_lzma,
}

// SAFETY: both point to plain memory that liblzma ties to no thread, and that is owned by this value alone; the
// pointers to buffers in the stream are only used in the call that sets them, and the options have no preset
// dictionary.
unsafe impl Send for MicroLzma {}

impl MicroLzma {
    pub(super) fn new(dict_bytes: u32, level: i32, extreme: bool) -> Result<Self, CodecError> {
        let options = options(dict_bytes, level, extreme)?;
        // SAFETY: all zeroes is `LZMA_STREAM_INIT`: null pointers and numbers.
        let stream = unsafe { std::mem::zeroed() };
        Ok(MicroLzma { stream, options })
    }

    pub(super) fn whole(&mut self, src: &[u8], dst: &mut [u8]) -> Result<Option<usize>, CodecError> {
        // liblzma refuses destinations in which no stream fits.
        if dst.len() < DST_MIN_BYTES {
            let mut longer = [0; DST_MIN_BYTES];
            let written = self.whole(src, &mut longer)?.filter(|written| *written <= dst.len());
            if let Some(written) = written {
                dst[..written].copy_from_slice(&longer[..written]);
            }
            return Ok(written);
        }
        let fit = self.fit(src, dst)?;
        Ok((fit.consumed_bytes == src.len()).then_some(fit.written_bytes))
    }

    pub(super) fn fit(&mut self, src: &[u8], dst: &mut [u8]) -> Result<Fit, CodecError> {
        let dst_len_bytes = dst.len();
        let error = |code| match code {
            sys::LZMA_MEM_ERROR => CodecError::NoMemory { codec: NAME },
            _ => CodecError::Compress { codec: NAME, dst_len_bytes },
        };
        // SAFETY: the stream is live, and either new or used by this kind of encoder, whose memory is used again; the
        // options are live, and liblzma does not keep them.
        match unsafe { lzma_microlzma_encoder(&mut self.stream, &self.options) } {
            sys::LZMA_OK => {}
            code => return Err(error(code)),
        }
        self.stream.next_in = src.as_ptr();
        self.stream.avail_in = src.len();
        self.stream.next_out = dst.as_mut_ptr();
        self.stream.avail_out = dst.len();
        // SAFETY: the stream has just been prepared, and pointers and lengths are those of live slices.
        match unsafe { sys::lzma_code(&mut self.stream, sys::LZMA_FINISH) } {
            // The encoder counts as read only what the output decodes to.
            sys::LZMA_STREAM_END => Ok(Fit {
                consumed_bytes: self.stream.total_in as usize,
                written_bytes: self.stream.total_out as usize,
            }),
            code => Err(error(code)),
        }
    }
}

impl Drop for MicroLzma {
    fn drop(&mut self) {
        // SAFETY: the stream is live; `lzma_end` frees the memory that was allocated for it, if any.
        unsafe { sys::lzma_end(&mut self.stream) };
    }
}
