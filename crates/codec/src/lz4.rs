//! LZ4 block format by liblz4 (vendored by `lz4-sys`). The level is liblz4's acceleration.
//!
//! A stream keeps liblz4's state between pages, so that a call sets up nothing but the
//! 16 KiB hash table, which liblz4 1.10 clears for any source of 4 KiB or more.
//! Format: `lz4_Block_format.md` of the LZ4 project.

use crate::codec::{Algorithm, Stream};
use crate::table::{Backend, Levels};
use crate::{CodecError, error};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

// Links liblz4, whose functions are declared below.
use lz4_sys as _;

pub(crate) const NAME: &str = "lz4";

pub(crate) const BACKEND: Backend = Backend {
    name: NAME,
    summary: "fast both ways; the default",
    levels: Some(Levels { min: 1, max: 65537, default: 1 }),
    dictionary: true,
    open: |level, dictionary| Ok(Box::new(Lz4::new(level, dictionary)?)),
};

/// liblz4 looks back 64 KiB at most, so only the end of a longer dictionary is of use.
pub(crate) const DICTIONARY_LEN_MAX: usize = 64 << 10;

// Declared by hand: lz4-sys binds neither the state-keeping nor the dictionary functions. Signatures
// from lz4.h of LZ4 1.10, which lz4-sys 1.11 vendors; all have been in the library since 1.9.
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
    fn LZ4_decompress_safe(
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        dst_capacity: c_int,
    ) -> c_int;
    fn LZ4_decompress_safe_usingDict(
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        dst_capacity: c_int,
        dictionary: *const c_char,
        dictionary_len: c_int,
    ) -> c_int;
}

/// A length as C takes it; longer buffers are offered in part, which liblz4 treats as a short buffer.
pub(crate) fn c_len(len: usize) -> c_int {
    c_int::try_from(len).unwrap_or(c_int::MAX)
}

/// The usable end of a dictionary.
pub(crate) fn dictionary_tail(bytes: &[u8]) -> Arc<[u8]> {
    Arc::from(&bytes[bytes.len().saturating_sub(DICTIONARY_LEN_MAX)..])
}

/// Decompresses an LZ4 block, with the dictionary it was made with.
pub(crate) fn decompress_block(
    codec: &'static str,
    src: &[u8],
    dst: &mut [u8],
    dictionary: Option<&[u8]>,
) -> Result<usize, CodecError> {
    let (from, to) = (src.as_ptr().cast(), dst.as_mut_ptr().cast());
    let len = match dictionary {
        // SAFETY: the pointers and lengths are those of live slices; the safe decoder stays inside them
        // whatever the bytes are.
        None => unsafe { LZ4_decompress_safe(from, to, c_len(src.len()), c_len(dst.len())) },
        // SAFETY: as above, for three slices; the dictionary is at most 64 KiB.
        Some(d) => unsafe {
            LZ4_decompress_safe_usingDict(
                from,
                to,
                c_len(src.len()),
                c_len(dst.len()),
                d.as_ptr().cast(),
                c_len(d.len()),
            )
        },
    };
    usize::try_from(len).map_err(|_| CodecError::Corrupt { codec, src_len_bytes: src.len() })
}

/// A liblz4 stream object, owned.
struct RawStream(NonNull<c_void>);

// SAFETY: the object is plain memory that liblz4 ties to no thread; it is owned by this value alone.
unsafe impl Send for RawStream {}
// SAFETY: a shared RawStream is only used as a const dictionary, which liblz4 reads and never writes.
unsafe impl Sync for RawStream {}

impl RawStream {
    fn new() -> Result<Self, CodecError> {
        // SAFETY: no arguments; returns null or an initialised stream that the caller frees.
        let stream = unsafe { LZ4_createStream() };
        NonNull::new(stream).map(RawStream).ok_or(CodecError::NoMemory { codec: NAME })
    }
}

impl Drop for RawStream {
    fn drop(&mut self) {
        // SAFETY: made by LZ4_createStream, freed once.
        unsafe { LZ4_freeStream(self.0.as_ptr()) };
    }
}

/// A dictionary and the table liblz4 made of it. The table points into the bytes.
struct Dictionary {
    table: RawStream,
    bytes: Arc<[u8]>,
}

/// LZ4 with its acceleration and dictionary.
pub struct Lz4 {
    acceleration: c_int,
    dictionary: Option<Arc<Dictionary>>,
}

impl Lz4 {
    /// Prepares the dictionary.
    pub fn new(acceleration: i32, dictionary: Option<&[u8]>) -> Result<Self, CodecError> {
        let dictionary = match dictionary {
            None => None,
            Some(bytes) => {
                let (table, tail) = (RawStream::new()?, dictionary_tail(bytes));
                // SAFETY: the stream is live and the slice stays where it is as long as the stream:
                // both are fields of one value and the bytes are on the heap.
                let used = unsafe { LZ4_loadDict(table.0.as_ptr(), tail.as_ptr().cast(), c_len(tail.len())) };
                if used == 0 {
                    return Err(CodecError::BadDictionary { codec: NAME, len_bytes: bytes.len() });
                }
                Some(Arc::new(Dictionary { table, bytes: tail }))
            }
        };
        Ok(Lz4 { acceleration, dictionary })
    }

    /// A working state, by its own type.
    pub fn open(&self) -> Result<Lz4Stream, CodecError> {
        Ok(Lz4Stream {
            state: RawStream::new()?,
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

impl Stream for Lz4Stream {
    #[inline]
    fn compress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        let state = self.state.0.as_ptr();
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
                unsafe { LZ4_attach_dictionary(state, dictionary.table.0.as_ptr()) };
                // SAFETY: as for the call without dictionary.
                unsafe { LZ4_compress_fast_continue(state, from, to, src_len, dst_len, self.acceleration) }
            }
        };
        error::positive(NAME, len, dst.len())
    }

    #[inline]
    fn decompress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        decompress_block(NAME, src, dst, self.dictionary.as_ref().map(|d| &*d.bytes))
    }
}
