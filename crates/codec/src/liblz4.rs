//! What the two LZ4 back ends share of liblz4: owned stream objects, dictionaries, the decoder.
//!
//! Functions are declared by hand, here and in the back ends: lz4-sys binds neither the state-keeping nor
//! the dictionary functions. Signatures are those of `lz4.h` and `lz4hc.h` of LZ4 1.10, which lz4-sys 1.11
//! vendors.

use crate::CodecError;
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

/// liblz4 looks back 64 KiB at most, so only the end of a longer dictionary is of use.
const DICTIONARY_LEN_MAX: usize = 64 << 10;

/// A function of liblz4 that makes a stream object, null where there is no memory.
pub(crate) type Create = unsafe extern "C" fn() -> *mut c_void;
/// The function that frees what a [`Create`] made.
pub(crate) type Free = unsafe extern "C" fn(*mut c_void) -> c_int;
/// A function that makes a dictionary's table in a stream; the table points into the bytes.
pub(crate) type Load = unsafe extern "C" fn(*mut c_void, *const c_char, c_int) -> c_int;

/// A stream object of liblz4, owned.
pub(crate) struct RawStream {
    object: NonNull<c_void>,
    free: Free,
}

// SAFETY: the object is plain memory that liblz4 ties to no thread; it is owned by this value alone.
unsafe impl Send for RawStream {}
// SAFETY: a shared RawStream is only used as a const dictionary, which liblz4 reads and never writes.
unsafe impl Sync for RawStream {}

impl RawStream {
    /// A stream object of the kind that `create` makes and `free` frees.
    ///
    /// # Safety
    /// The two belong together: `free` frees what `create` makes.
    pub(crate) unsafe fn new(codec: &'static str, create: Create, free: Free) -> Result<Self, CodecError> {
        // SAFETY: no arguments; returns null or an initialised object that the caller frees.
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
        // SAFETY: made by the function that belongs to `free` (see `new`), freed once.
        unsafe { (self.free)(self.object.as_ptr()) };
    }
}

/// A dictionary and the table liblz4 made of it.
pub(crate) struct Dictionary {
    // First, so that it is dropped before the bytes it points into.
    pub(crate) table: RawStream,
    pub(crate) bytes: Box<[u8]>,
}

impl Dictionary {
    /// Makes the table in `stream`.
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

/// A length as C takes it; longer buffers are offered in part, which liblz4 treats as a short buffer.
pub(crate) fn c_len(len: usize) -> c_int {
    c_int::try_from(len).unwrap_or(c_int::MAX)
}

/// liblz4's convention: the compressed length, or 0 where the destination was too short.
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

/// Decompresses an LZ4 block, with the dictionary it was made with.
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
