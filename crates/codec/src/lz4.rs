//! LZ4 block format: this crate's encoder for whole pages, and liblz4 (vendored by `lz4-sys`) for everything else.
//!
//! Compressing pages costs the program more time than anything else. So [`page`] handles the usual case, a whole page
//! at level 1 without dictionary: it takes a sixth less time than liblz4, and its output is no longer. liblz4 handles
//! other lengths, dictionaries, short destinations, all decompression, and other levels, which are liblz4's
//! acceleration factor. Factors above 65537 are refused, because liblz4 treats them as 65537. A stream keeps liblz4's
//! state between calls, so that each call initialises only its hash table, 16 KiB. Format: `lz4_Block_format.md` of the
//! LZ4 project.

mod load;
mod output;
mod page;

use crate::backend::{Algorithm, Backend, Levels, Stream};
use crate::error::CodecError;
use crate::liblz4::{Dictionary, RawStream, c_len, compressed_len, decompress_block};
use pagefold_page::Page;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

const NAME: &str = "lz4";

pub(crate) const BACKEND: Backend = Backend {
    name: NAME,
    summary: "fast both ways; the default",
    levels: Some(Levels { min: 1, max: 65537, default: 1 }),
    dictionary: true,
    window_bits: false,
    in_zram: true,
    open: |params| Ok(Box::new(Lz4::new(params.level, params.dictionary)?)),
};

unsafe extern "C" {
    fn LZ4_createStream() -> *mut c_void;
    fn LZ4_freeStream(stream: *mut c_void) -> c_int;
    fn LZ4_resetStream_fast(stream: *mut c_void);
    fn LZ4_loadDict(stream: *mut c_void, dictionary: *const c_char, len: c_int) -> c_int;
    fn LZ4_attach_dictionary(working: *mut c_void, dictionary: *const c_void);
    fn LZ4_compress_fast_extState_fastReset(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        dst_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_compress_fast_continue(
        stream: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        dst_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
}

fn raw_stream() -> Result<RawStream, CodecError> {
    // SAFETY: `LZ4_freeStream` frees the objects that `LZ4_createStream` makes.
    unsafe { RawStream::new(NAME, LZ4_createStream, LZ4_freeStream) }
}

/// LZ4 with its acceleration factor and dictionary.
pub struct Lz4 {
    acceleration: c_int,
    dictionary: Option<Arc<Dictionary>>,
}

impl Lz4 {
    /// Prepares the dictionary, if there is one.
    pub fn new(acceleration: i32, dictionary: Option<&[u8]>) -> Result<Self, CodecError> {
        let prepare = |bytes| {
            // SAFETY: the function is for streams of this kind, and a new one is ready for it.
            Ok(Arc::new(unsafe { Dictionary::new(NAME, raw_stream()?, LZ4_loadDict, bytes) }?))
        };
        let dictionary = dictionary.map(prepare).transpose()?;
        Ok(Lz4 { acceleration, dictionary })
    }

    /// Allocates a working state, as a concrete type.
    pub fn open(&self) -> Result<Lz4Stream, CodecError> {
        Ok(Lz4Stream {
            state: raw_stream()?,
            acceleration: self.acceleration,
            dictionary: self.dictionary.clone(),
        })
    }
}

impl Algorithm for Lz4 {
    fn stream(&self) -> Result<Box<dyn Stream>, CodecError> {
        Ok(Box::new(self.open()?))
    }
}

/// Working state: liblz4's hash table, 16 KiB.
pub struct Lz4Stream {
    state: RawStream,
    acceleration: c_int,
    dictionary: Option<Arc<Dictionary>>,
}

impl Lz4Stream {
    /// Converts the buffers to those of the page compressor; `None` if liblz4 must handle the call.
    #[inline]
    fn as_page<'s, 'd>(
        &self,
        src: &'s [u8],
        dst: &'d mut [u8],
    ) -> Option<(&'s Page, &'d mut [u8; page::DST_LEN])> {
        if self.acceleration != 1 || self.dictionary.is_some() {
            return None;
        }
        Some((src.try_into().ok()?, dst.first_chunk_mut()?))
    }
}

impl Stream for Lz4Stream {
    #[inline]
    fn compress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        if let Some((page, room)) = self.as_page(src, dst) {
            let len = page::compress(page, room);
            return len.ok_or(CodecError::Compress { codec: NAME, dst_len_bytes: page::DST_LEN });
        }
        let state = self.state.as_ptr();
        let (from, to) = (src.as_ptr().cast(), dst.as_mut_ptr().cast());
        let (src_len, dst_len) = (c_len(src.len()), c_len(dst.len()));
        let len = match &self.dictionary {
            // SAFETY: the state is live, initialised and used by no other kind of call (a stream either
            // has a dictionary or not, for life); the slices are live and their lengths are passed.
            None => unsafe {
                LZ4_compress_fast_extState_fastReset(state, from, to, src_len, dst_len, self.acceleration)
            },
            Some(dictionary) => {
                // SAFETY: the state is live and only ever used as a stream.
                unsafe { LZ4_resetStream_fast(state) };
                // SAFETY: the dictionary outlives the state: this value holds an Arc of it.
                unsafe { LZ4_attach_dictionary(state, dictionary.table.as_ptr()) };
                // SAFETY: the state is live, initialised and, with the dictionary attached, prepared for one call (just
                // reset); the slices are live and their lengths are passed, and the dictionary is only read.
                unsafe { LZ4_compress_fast_continue(state, from, to, src_len, dst_len, self.acceleration) }
            }
        };
        compressed_len(NAME, len, dst.len())
    }

    #[inline]
    fn decompress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        decompress_block(NAME, src, dst, self.dictionary.as_deref())
    }
}
