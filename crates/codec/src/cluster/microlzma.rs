//! MicroLZMA by liblzma (vendored by `liblzma-sys`), both ways through its raw LZMA1 decoder.
//!
//! liblzma has a decoder of this very format, but that one must be told the compressed length beforehand,
//! which a stream in pieces does not know. MicroLZMA is LZMA1 whose first byte, always 0, is replaced by the
//! complement of the properties; so the properties are read here, and the raw decoder is given the 0.
//!
//! liblzma copies its output from its dictionary, so there is nothing to gain for contiguous output.

use super::drive::{Outcome, Step, Stepper, drive};
use super::source::Source;
use super::{RangeError, Want};
use crate::CodecError;
use liblzma_sys as sys;
use std::ffi::c_void;
use std::ptr;

pub(super) const NAME: &str = "microlzma";

/// `LZMA_FILTER_LZMA1EXT` of `lzma12.h`: LZMA1 whose output length may be given; not in `liblzma-sys`.
const FILTER_LZMA1EXT: u64 = 0x4000_0000_0000_0002;
/// `LZMA_VLI_UNKNOWN` of `vli.h`: no filter, or no length.
const UNKNOWN: u64 = u64::MAX;
/// Properties are (pb * 5 + lp) * 9 + lc with lc + lp at most 4 and pb at most 4.
const LC_LP_MAX: u32 = 4;
const PB_MAX: u32 = 4;

/// `lzma_options_lzma` of `lzma12.h`, of which `liblzma-sys` hides the fields for the length.
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

// The fields behind the declared ones are of the same types and number.
const _: () = assert!(size_of::<Options>() == size_of::<sys::lzma_options_lzma>());

impl Options {
    /// Options for the decoder: the dictionary, the properties' byte, and the output's length or [`UNKNOWN`].
    /// `None` where there are no such properties.
    fn new(dict_bytes: u32, properties: u8, out_bytes: u64) -> Option<Self> {
        let properties = u32::from(properties);
        let (lc, lp, pb) = (properties % 9, properties / 9 % 5, properties / 45);
        if lc + lp > LC_LP_MAX || pb > PB_MAX {
            return None;
        }
        Some(Options {
            dict_size: dict_bytes,
            preset_dict: ptr::null(),
            preset_dict_size: 0,
            lc,
            lp,
            pb,
            mode: 0,
            nice_len: 0,
            mf: 0,
            depth: 0,
            ext_flags: 0,
            ext_size_low: out_bytes as u32,
            ext_size_high: (out_bytes >> 32) as u32,
            reserved_int: [0; 5],
            reserved_enum: [0; 4],
            reserved_ptr: [ptr::null_mut(); 2],
        })
    }

    /// The chain of this one filter; it points to `self`.
    fn filters(&mut self) -> [sys::lzma_filter; 2] {
        [
            sys::lzma_filter { id: FILTER_LZMA1EXT, options: ptr::from_mut(self).cast() },
            sys::lzma_filter { id: UNKNOWN, options: ptr::null_mut() },
        ]
    }
}

/// What liblzma allocates for a decoder with this dictionary, bytes.
pub(super) fn heap_bytes(dict_bytes: u32) -> usize {
    let Some(mut options) = Options::new(dict_bytes, 0, UNKNOWN) else { return usize::MAX };
    let filters = options.filters();
    // SAFETY: a chain that is ended by its second entry, whose first points to live options of its kind.
    let bytes = unsafe { sys::lzma_raw_decoder_memusage(filters.as_ptr()) };
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// liblzma's stream object; its memory is allocated with the first stream and kept.
pub(super) struct MicroLzma {
    stream: sys::lzma_stream,
    dict_bytes: u32,
}

// SAFETY: what the object points to is plain memory that liblzma ties to no thread; it is owned by this value
// alone, and the pointers to buffers in it are only used in the call that sets them.
unsafe impl Send for MicroLzma {}

impl MicroLzma {
    pub(super) fn new(dict_bytes: u32) -> Self {
        // SAFETY: all zeroes is `LZMA_STREAM_INIT`: null pointers and numbers.
        let stream = unsafe { std::mem::zeroed() };
        MicroLzma { stream, dict_bytes }
    }

    pub(super) fn range<S: Source>(
        &mut self,
        source: &mut S,
        ring: &mut [u8],
        skip: u64,
        dst: &mut [u8],
        want: Want,
    ) -> Result<(), RangeError<S::Error>> {
        let out_bytes = match want {
            Want::All => skip.saturating_add(dst.len() as u64),
            Want::Prefix => UNKNOWN,
        };
        let mut stepper = Stream { lzma: self, out_bytes, begun: false };
        drive(&mut stepper, source, ring, skip, dst, want)
    }

    /// Prepares for a stream with these properties.
    fn begin(&mut self, properties: u8, out_bytes: u64) -> Result<(), CodecError> {
        let corrupt = CodecError::Corrupt { codec: NAME, src_len_bytes: 1 };
        let mut options = Options::new(self.dict_bytes, properties, out_bytes).ok_or(corrupt.clone())?;
        let filters = options.filters();
        // SAFETY: the stream is live, and either new or used by this kind of decoder; the chain is ended by
        // its second entry and its first points to live options, neither of which is kept.
        match unsafe { sys::lzma_raw_decoder(&mut self.stream, filters.as_ptr()) } {
            sys::LZMA_OK => {}
            sys::LZMA_MEM_ERROR => return Err(CodecError::NoMemory { codec: NAME }),
            _ => return Err(corrupt),
        }
        let step = self.code(&[0], &mut []);
        match (step.taken_bytes, step.outcome) {
            (1, Outcome::More) => Ok(()),
            _ => Err(corrupt),
        }
    }

    fn code(&mut self, src: &[u8], dst: &mut [u8]) -> Step {
        self.stream.next_in = src.as_ptr();
        self.stream.avail_in = src.len();
        self.stream.next_out = dst.as_mut_ptr();
        self.stream.avail_out = dst.len();
        // SAFETY: the stream was prepared by `lzma_raw_decoder` (`begin` comes first), and pointers and
        // lengths are those of live slices.
        let result = unsafe { sys::lzma_code(&mut self.stream, sys::LZMA_RUN) };
        let outcome = match result {
            sys::LZMA_OK | sys::LZMA_BUF_ERROR => Outcome::More,
            sys::LZMA_STREAM_END => Outcome::Ended,
            sys::LZMA_MEM_ERROR => Outcome::Failed(CodecError::NoMemory { codec: NAME }),
            _ => Outcome::Failed(CodecError::Corrupt { codec: NAME, src_len_bytes: src.len() }),
        };
        Step {
            taken_bytes: src.len() - self.stream.avail_in,
            made_bytes: dst.len() - self.stream.avail_out,
            outcome,
        }
    }
}

impl Drop for MicroLzma {
    fn drop(&mut self) {
        // SAFETY: the stream is live; frees what was allocated for it, or nothing.
        unsafe { sys::lzma_end(&mut self.stream) };
    }
}

/// A stream in the decoder.
struct Stream<'a> {
    lzma: &'a mut MicroLzma,
    out_bytes: u64,
    /// Whether the properties are read and the decoder is prepared.
    begun: bool,
}

impl Stepper for Stream<'_> {
    const NAME: &'static str = NAME;

    fn step(&mut self, src: &[u8], dst: &mut [u8]) -> Step {
        match (self.begun, src.first()) {
            (true, _) => self.lzma.code(src, dst),
            (false, None) => Step { taken_bytes: 0, made_bytes: 0, outcome: Outcome::More },
            (false, Some(byte)) => {
                let outcome = match self.lzma.begin(!byte, self.out_bytes) {
                    Ok(()) => Outcome::More,
                    Err(error) => Outcome::Failed(error),
                };
                self.begun = true;
                Step { taken_bytes: 1, made_bytes: 0, outcome }
            }
        }
    }
}
