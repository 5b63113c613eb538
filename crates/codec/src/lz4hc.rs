//! LZ4 block format by liblz4's high-compression encoder: slower to write, as fast to read as lz4.

use crate::codec::{Algorithm, Stream};
use crate::lz4::{c_len, decompress_block, dictionary_tail};
use crate::table::{Backend, Levels};
use crate::{CodecError, error};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

const NAME: &str = "lz4hc";

pub(crate) const BACKEND: Backend = Backend {
    name: NAME,
    summary: "denser than lz4 at several times its cost to write; reads as fast",
    levels: Some(Levels { min: 1, max: 12, default: 9 }),
    dictionary: true,
    open: |level, dictionary| Ok(Box::new(Lz4Hc::new(level, dictionary)?)),
};

// Signatures from lz4hc.h of LZ4 1.10; see `lz4.rs` for why they are declared here.
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

/// A liblz4 high-compression stream object, owned.
struct RawStream(NonNull<c_void>);

// SAFETY: plain memory owned by this value; liblz4 ties it to no thread.
unsafe impl Send for RawStream {}
// SAFETY: shared only as a const dictionary, which liblz4 reads and never writes.
unsafe impl Sync for RawStream {}

impl RawStream {
    fn new() -> Result<Self, CodecError> {
        // SAFETY: no arguments; returns null or an initialised stream that the caller frees.
        let stream = unsafe { LZ4_createStreamHC() };
        NonNull::new(stream).map(RawStream).ok_or(CodecError::NoMemory { codec: NAME })
    }
}

impl Drop for RawStream {
    fn drop(&mut self) {
        // SAFETY: made by LZ4_createStreamHC, freed once.
        unsafe { LZ4_freeStreamHC(self.0.as_ptr()) };
    }
}

/// A dictionary and the table liblz4 made of it. The table points into the bytes.
struct Dictionary {
    table: RawStream,
    bytes: Arc<[u8]>,
}

struct Lz4Hc {
    level: c_int,
    dictionary: Option<Arc<Dictionary>>,
}

impl Lz4Hc {
    fn new(level: i32, dictionary: Option<&[u8]>) -> Result<Self, CodecError> {
        let dictionary = match dictionary {
            None => None,
            Some(bytes) => {
                let (table, tail) = (RawStream::new()?, dictionary_tail(bytes));
                // SAFETY: the stream is live.
                unsafe { LZ4_resetStreamHC_fast(table.0.as_ptr(), level) };
                // SAFETY: the stream is live and the bytes stay where they are as long as it: both are
                // fields of one value and the bytes are on the heap.
                let used =
                    unsafe { LZ4_loadDictHC(table.0.as_ptr(), tail.as_ptr().cast(), c_len(tail.len())) };
                if used == 0 {
                    return Err(CodecError::BadDictionary { codec: NAME, len_bytes: bytes.len() });
                }
                Some(Arc::new(Dictionary { table, bytes: tail }))
            }
        };
        Ok(Lz4Hc { level, dictionary })
    }
}

impl Algorithm for Lz4Hc {
    fn stream(&self) -> Result<Box<dyn Stream>, CodecError> {
        let (level, dictionary) = (self.level, self.dictionary.clone());
        Ok(Box::new(Lz4HcStream { state: RawStream::new()?, level, dictionary }))
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
        let state = self.state.0.as_ptr();
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
                unsafe { LZ4_attach_HC_dictionary(state, dictionary.table.0.as_ptr()) };
                // SAFETY: as for the call without dictionary.
                unsafe { LZ4_compress_HC_continue(state, from, to, src_len, dst_len) }
            }
        };
        error::positive(NAME, len, dst.len())
    }

    fn decompress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        decompress_block(NAME, src, dst, self.dictionary.as_ref().map(|d| &*d.bytes))
    }
}
