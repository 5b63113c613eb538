//! The parts of liblz4 that both LZ4 back ends use: owned stream objects, dictionaries, the decoder.
//!
//! The functions are declared by hand, here and in the back ends, because lz4-sys binds neither those that keep
//! state nor those for dictionaries. The signatures are those of `lz4.h` and `lz4hc.h` of LZ4 1.10, which lz4-sys
//! 1.11 vendors.

use crate::error::CodecError;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;

// Links liblz4, whose functions are declared below and in the back ends.
use lz4_sys as _;

unsafe extern "C" {
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

/// Bytes of a dictionary that are used, its last: liblz4's matches reach back 64 KiB at most.
const DICTIONARY_LEN_MAX: usize = 64 << 10;

/// A function of liblz4 that allocates a stream object; it returns null where there is no memory.
pub(crate) type Create = unsafe extern "C" fn() -> *mut c_void;
/// The function that frees the objects of a [`Create`].
pub(crate) type Free = unsafe extern "C" fn(*mut c_void) -> c_int;
/// A function that builds a dictionary's table in a stream object; the table points into the dictionary's bytes.
pub(crate) type Load = unsafe extern "C" fn(*mut c_void, *const c_char, c_int) -> c_int;

/// A stream object of liblz4, freed on drop.
pub(crate) struct RawStream {
    object: NonNull<c_void>,
    free: Free,
}

// SAFETY: the object is plain memory that liblz4 ties to no thread; it is owned by this value alone.
unsafe impl Send for RawStream {}
// SAFETY: a shared RawStream is only used as a const dictionary, which liblz4 reads and never writes.
unsafe impl Sync for RawStream {}

impl RawStream {
    /// Allocates a stream object with `create`; dropping it calls `free`.
    ///
    /// # Safety
    /// `create` returns null or an initialised object, and `free` frees the objects of `create`.
    pub(crate) unsafe fn new(codec: &'static str, create: Create, free: Free) -> Result<Self, CodecError> {
        // SAFETY: `create` takes no arguments and returns null or an initialised object (the caller's duty), which the
        // value made below frees.
        let object = unsafe { create() };
        let object = NonNull::new(object).ok_or(CodecError::NoMemory { codec })?;
        Ok(RawStream { object, free })
    }

    /// The object, for calls into liblz4.
    pub(crate) fn as_ptr(&self) -> *mut c_void {
        self.object.as_ptr()
    }
}

impl Drop for RawStream {
    fn drop(&mut self) {
        // SAFETY: the object comes from the `create` that `free` belongs to (see `new`), and is freed once.
        unsafe { (self.free)(self.object.as_ptr()) };
    }
}

/// A dictionary and the table that liblz4 built from it.
pub(crate) struct Dictionary {
    // The first field, so that it is dropped before the bytes that it points into.
    pub(crate) table: RawStream,
    pub(crate) bytes: Box<[u8]>,
}

impl Dictionary {
    /// Builds the table in `stream` with `load`.
    ///
    /// # Safety
    /// `load` is for streams of this kind, and the stream is ready for it.
    pub(crate) unsafe fn new(
        codec: &'static str,
        stream: RawStream,
        load: Load,
        bytes: &[u8],
    ) -> Result<Self, CodecError> {
        let tail: Box<[u8]> = bytes[bytes.len().saturating_sub(DICTIONARY_LEN_MAX)..].into();
        // SAFETY: the stream is live and of the right kind (the caller's duty); the bytes stay where they
        // are as long as it, because both are fields of one value and the bytes are on the heap.
        let used = unsafe { load(stream.as_ptr(), tail.as_ptr().cast(), c_len(tail.len())) };
        match used {
            0 => Err(CodecError::BadDictionary { codec, len_bytes: bytes.len() }),
            _ => Ok(Dictionary { table: stream, bytes: tail }),
        }
    }
}

/// Converts a length to a C `int`. A longer buffer is passed with the greatest `int`, and so in part.
pub(crate) fn c_len(len: usize) -> c_int {
    c_int::try_from(len).unwrap_or(c_int::MAX)
}

/// Converts the return value of a liblz4 compressor: the compressed length, or 0 where the destination was too short.
pub(crate) fn compressed_len(
    codec: &'static str,
    len: c_int,
    dst_len_bytes: usize,
) -> Result<usize, CodecError> {
    match usize::try_from(len) {
        Ok(len) if len > 0 => Ok(len),
        _ => Err(CodecError::Compress { codec, dst_len_bytes }),
    }
}

/// Decompresses an LZ4 block with the dictionary that it was compressed with, and returns the length.
pub(crate) fn decompress_block(
    codec: &'static str,
    src: &[u8],
    dst: &mut [u8],
    dictionary: Option<&Dictionary>,
) -> Result<usize, CodecError> {
    let (from, to) = (src.as_ptr().cast(), dst.as_mut_ptr().cast());
    let (src_len, dst_len) = (c_len(src.len()), c_len(dst.len()));
    let len = match dictionary.map(|d| &d.bytes) {
        // SAFETY: the pointers and lengths are those of live slices; the safe decoder stays inside them
        // whatever the bytes are.
        None => unsafe { LZ4_decompress_safe(from, to, src_len, dst_len) },
        // SAFETY: the pointers and lengths are those of three live slices (the dictionary's, at most 64 KiB, is kept by
        // the reference); the safe decoder reads inside the first and the third and writes inside the second
        // whatever the bytes are.
        Some(d) => unsafe {
            LZ4_decompress_safe_usingDict(from, to, src_len, dst_len, d.as_ptr().cast(), c_len(d.len()))
        },
    };
    usize::try_from(len).map_err(|_| CodecError::Corrupt { codec, src_len_bytes: src.len() })
}
