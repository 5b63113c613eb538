//! MicroLZMA by the raw LZMA1 decoder of liblzma (vendored by `liblzma-sys`), for whole streams and for ranges.
//!
//! liblzma's MicroLZMA decoder needs the compressed length beforehand, which is unknown where the stream comes in
//! pieces. MicroLZMA is LZMA1 whose first byte, always 0, is replaced by the complement of the properties. So this
//! module reads the properties and passes a 0 to the raw decoder instead.
//!
//! liblzma copies all output from its dictionary, so decoding a whole stream into one buffer would be no faster than
//! decoding a range.

use super::source::{RangeError, Source, Target, Want};
use super::streaming::{Step, StepStatus, StreamingDecoder, decode_stream};
use crate::error::CodecError;
use liblzma_sys as sys;
use std::ffi::c_void;
use std::ptr;

pub(super) const NAME: &str = "microlzma";

/// `LZMA_FILTER_LZMA1EXT` of `lzma12.h`, LZMA1 with an optional output length; not in `liblzma-sys`.
const FILTER_LZMA1EXT: u64 = 0x4000_0000_0000_0002;
/// `LZMA_VLI_UNKNOWN` of `vli.h`: no filter, or no length.
const UNKNOWN: u64 = u64::MAX;
/// The properties byte is (pb * 5 + lp) * 9 + lc, with lc + lp at most 4 and pb at most 4.
const LC_LP_MAX: u32 = 4;
const PB_MAX: u32 = 4;

/// `lzma_options_lzma` of `lzma12.h`; `liblzma-sys` keeps its fields for the output length private.
#[repr(C)]
struct Options {
    dict_size: u32,
    preset_dict: *const u8,
    preset_dict_size: u32,
    lc: u32,
    lp: u32,
    pb: u32,
    mode: u32,
    nice_len: u32,
    mf: u32,
    depth: u32,
    ext_flags: u32,
    ext_size_low: u32,
    ext_size_high: u32,
    reserved_int: [u32; 5],
    reserved_enum: [u32; 4],
    reserved_ptr: [*mut c_void; 2],
}

// All fields are declared: the struct is as long as that of `liblzma-sys`.
const _: () = assert!(size_of::<Options>() == size_of::<sys::lzma_options_lzma>());

impl Options {
    /// Makes options for the decoder from the dictionary's length, the properties byte, and the output's length or
    /// [`UNKNOWN`]. Returns `None` for invalid properties.
    fn new(dict_bytes: u32, properties: u8, out_bytes: u64) -> Option<Self> {
        let properties = u32::from(properties);
        let (lc, lp, pb) = (properties % 9, properties / 9 % 5, properties / 45);
        if lc + lp > LC_LP_MAX || pb > PB_MAX {
            return None;
        }
        // SAFETY: all zeroes is a valid value: null pointers and numbers.
        let zeroes: Options = unsafe { std::mem::zeroed() };
        let (ext_size_low, ext_size_high) = (out_bytes as u32, (out_bytes >> 32) as u32);
        Some(Options { dict_size: dict_bytes, lc, lp, pb, ext_size_low, ext_size_high, ..zeroes })
    }

    /// Makes the chain of this one filter; the chain points to `self`.
    fn filters(&mut self) -> [sys::lzma_filter; 2] {
        [
            sys::lzma_filter { id: FILTER_LZMA1EXT, options: ptr::from_mut(self).cast() },
            sys::lzma_filter { id: UNKNOWN, options: ptr::null_mut() },
        ]
    }
}

/// Returns the heap bytes that liblzma allocates for a decoder with this dictionary.
pub(super) fn heap_bytes(dict_bytes: u32) -> usize {
    let Some(mut options) = Options::new(dict_bytes, 0, UNKNOWN) else { return usize::MAX };
    let filters = options.filters();
    // SAFETY: the chain ends with its second entry, and its first points to live options of its kind.
    let bytes = unsafe { sys::lzma_raw_decoder_memusage(filters.as_ptr()) };
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// liblzma's stream object. Decoding the first stream allocates its memory; dropping the object frees it.
pub(super) struct MicroLzma {
    stream: sys::lzma_stream,
    dict_bytes: u32,
}

// SAFETY: the object points to plain memory that liblzma ties to no thread; it is owned by this value alone,
// and the pointers to buffers in it are only used in the call that sets them.
unsafe impl Send for MicroLzma {}

impl MicroLzma {
    pub(super) fn new(dict_bytes: u32) -> Self {
        // SAFETY: all zeroes is `LZMA_STREAM_INIT`: null pointers and numbers.
        let stream = unsafe { std::mem::zeroed() };
        MicroLzma { stream, dict_bytes }
    }

    /// Decodes the stream of `source` to `target`.
    pub(super) fn decode_range<S: Source>(
        &mut self,
        source: &mut S,
        target: Target<'_>,
    ) -> Result<(), RangeError<S::Error>> {
        let out_bytes = match target.want {
            Want::All => target.skip.saturating_add(target.dst.len() as u64),
            Want::Prefix => UNKNOWN,
        };
        let mut stream = Stream { lzma: self, out_bytes, properties_read: false };
        decode_stream(&mut stream, source, target)
    }

    /// Prepares the decoder for a stream with these properties.
    fn start(&mut self, properties: u8, out_bytes: u64) -> Result<(), CodecError> {
        let corrupt = CodecError::Corrupt { codec: NAME, src_len_bytes: 1 };
        let mut options = Options::new(self.dict_bytes, properties, out_bytes).ok_or(corrupt.clone())?;
        let filters = options.filters();
        // SAFETY: the stream is live, and either new or used by this kind of decoder; the chain ends with its second
        // entry and its first points to live options, neither of which liblzma keeps.
        match unsafe { sys::lzma_raw_decoder(&mut self.stream, filters.as_ptr()) } {
            sys::LZMA_OK => {}
            sys::LZMA_MEM_ERROR => return Err(CodecError::NoMemory { codec: NAME }),
            _ => return Err(corrupt),
        }
        let step = self.code(&[0], &mut []);
        match (step.consumed_bytes, step.status) {
            (1, StepStatus::More) => Ok(()),
            _ => Err(corrupt),
        }
    }

    fn code(&mut self, src: &[u8], dst: &mut [u8]) -> Step {
        self.stream.next_in = src.as_ptr();
        self.stream.avail_in = src.len();
        self.stream.next_out = dst.as_mut_ptr();
        self.stream.avail_out = dst.len();
        // SAFETY: the stream was prepared by `lzma_raw_decoder` (`start` comes first), and pointers and
        // lengths are those of live slices.
        let result = unsafe { sys::lzma_code(&mut self.stream, sys::LZMA_RUN) };
        let status = match result {
            sys::LZMA_OK | sys::LZMA_BUF_ERROR => StepStatus::More,
            sys::LZMA_STREAM_END => StepStatus::StreamEnd,
            sys::LZMA_MEM_ERROR => StepStatus::Failed(CodecError::NoMemory { codec: NAME }),
            _ => StepStatus::Failed(CodecError::Corrupt { codec: NAME, src_len_bytes: src.len() }),
        };
        Step {
            consumed_bytes: src.len() - self.stream.avail_in,
            produced_bytes: dst.len() - self.stream.avail_out,
            status,
        }
    }
}

impl Drop for MicroLzma {
    fn drop(&mut self) {
        // SAFETY: the stream is live; `lzma_end` frees the memory that was allocated for it, if any.
        unsafe { sys::lzma_end(&mut self.stream) };
    }
}

/// A stream that the decoder decodes.
struct Stream<'a> {
    lzma: &'a mut MicroLzma,
    out_bytes: u64,
    /// Whether the first byte has been read and passed to [`MicroLzma::start`].
    properties_read: bool,
}

impl StreamingDecoder for Stream<'_> {
    const NAME: &'static str = NAME;

    fn step(&mut self, src: &[u8], dst: &mut [u8]) -> Step {
        match (self.properties_read, src.first()) {
            (true, _) => self.lzma.code(src, dst),
            (false, None) => Step { consumed_bytes: 0, produced_bytes: 0, status: StepStatus::More },
            (false, Some(byte)) => {
                let status = match self.lzma.start(!byte, self.out_bytes) {
                    Ok(()) => StepStatus::More,
                    Err(error) => StepStatus::Failed(error),
                };
                self.properties_read = true;
                Step { consumed_bytes: 1, produced_bytes: 0, status }
            }
        }
    }
}
