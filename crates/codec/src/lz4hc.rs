//! LZ4 block format by liblz4's high-compression encoder: slower to compress than lz4, as fast to decompress.
//!
//! The kernel's lz4hc has 16 levels, of which the last ones search longer. liblz4 since 1.8 has 12, of which the last
//! finds the shortest encoding; levels above 12 are valid and are the same as 12.

use crate::backend::{Algorithm, Backend, Levels, Stream};
use crate::error::CodecError;
use crate::liblz4::{Dictionary, RawStream, c_len, compressed_len, decompress_block};
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

const NAME: &str = "lz4hc";

/// liblz4's highest level.
const LIBRARY_LEVEL_MAX: c_int = 12;

pub(crate) const BACKEND: Backend = Backend {
    name: NAME,
    summary: "denser than lz4 at several times its cost to write; reads as fast",
    levels: Some(Levels { min: 1, max: 16, default: 9 }),
    dictionary: true,
    window_bits: false,
    in_zram: true,
    open: |params| Ok(Box::new(Lz4Hc::new(params.level, params.dictionary)?)),
};

unsafe extern "C" {
    fn LZ4_createStreamHC() -> *mut c_void;
    fn LZ4_freeStreamHC(stream: *mut c_void) -> c_int;
    fn LZ4_resetStreamHC_fast(stream: *mut c_void, level: c_int);
    fn LZ4_loadDictHC(stream: *mut c_void, dictionary: *const c_char, len: c_int) -> c_int;
    fn LZ4_attach_HC_dictionary(working: *mut c_void, dictionary: *const c_void);
    fn LZ4_compress_HC_extStateHC_fastReset(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        dst_capacity: c_int,
        level: c_int,
    ) -> c_int;
    fn LZ4_compress_HC_continue(
        stream: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        dst_capacity: c_int,
    ) -> c_int;
}

fn raw_stream() -> Result<RawStream, CodecError> {
    // SAFETY: `LZ4_freeStreamHC` frees the objects that `LZ4_createStreamHC` makes.
    unsafe { RawStream::new(NAME, LZ4_createStreamHC, LZ4_freeStreamHC) }
}

struct Lz4Hc {
    level: c_int,
    dictionary: Option<Arc<Dictionary>>,
}

impl Lz4Hc {
    fn new(level: i32, dictionary: Option<&[u8]>) -> Result<Self, CodecError> {
        let level = level.min(LIBRARY_LEVEL_MAX);
        let prepare = |bytes| {
            let stream = raw_stream()?;
            // SAFETY: the stream is live.
            unsafe { LZ4_resetStreamHC_fast(stream.as_ptr(), level) };
            // SAFETY: the function is for streams of this kind, and one just reset is ready for it.
            Ok(Arc::new(unsafe { Dictionary::new(NAME, stream, LZ4_loadDictHC, bytes) }?))
        };
        let dictionary = dictionary.map(prepare).transpose()?;
        Ok(Lz4Hc { level, dictionary })
    }
}

impl Algorithm for Lz4Hc {
    fn stream(&self) -> Result<Box<dyn Stream>, CodecError> {
        let (level, dictionary) = (self.level, self.dictionary.clone());
        Ok(Box::new(Lz4HcStream { state: raw_stream()?, level, dictionary }))
    }
}

/// Working state: liblz4's chain table, 256 KiB.
struct Lz4HcStream {
    state: RawStream,
    level: c_int,
    dictionary: Option<Arc<Dictionary>>,
}

impl Stream for Lz4HcStream {
    fn compress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        let state = self.state.as_ptr();
        let (from, to) = (src.as_ptr().cast(), dst.as_mut_ptr().cast());
        let (src_len, dst_len) = (c_len(src.len()), c_len(dst.len()));
        let len = match &self.dictionary {
            // SAFETY: the state is live, initialised and used by no other kind of call; the slices are
            // live and their lengths are passed.
            None => unsafe {
                LZ4_compress_HC_extStateHC_fastReset(state, from, to, src_len, dst_len, self.level)
            },
            Some(dictionary) => {
                // SAFETY: the state is live and only ever used as a stream.
                unsafe { LZ4_resetStreamHC_fast(state, self.level) };
                // SAFETY: the dictionary outlives the state: this value holds an Arc of it.
                unsafe { LZ4_attach_HC_dictionary(state, dictionary.table.as_ptr()) };
                // SAFETY: the state is live, initialised and, with the dictionary attached, prepared for one call (just
                // reset); the slices are live and their lengths are passed, and the dictionary is only read.
                unsafe { LZ4_compress_HC_continue(state, from, to, src_len, dst_len) }
            }
        };
        compressed_len(NAME, len, dst.len())
    }

    fn decompress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        decompress_block(NAME, src, dst, self.dictionary.as_deref())
    }
}
