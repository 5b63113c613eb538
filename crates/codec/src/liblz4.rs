//! liblz4: its functions, and the parts that both LZ4 back ends share: stream objects, dictionaries, the decoder, and the
//! algorithm over one of its encoders.
//!
//! Most functions are declared by hand, because lz4-sys binds neither those that keep state nor those for dictionaries.
//! The signatures are those of `lz4.h` and `lz4hc.h` of LZ4 1.10, which lz4-sys 1.11 vendors.

use crate::backend::Stream;
use crate::error::CodecError;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

pub(crate) use lz4_sys::LZ4_decompress_safe;

unsafe extern "C" {
    fn LZ4_createStream() -> *mut c_void;
    fn LZ4_freeStream(stream: *mut c_void) -> c_int;
    fn LZ4_resetStream_fast(stream: *mut c_void);
    fn LZ4_loadDict(stream: *mut c_void, dictionary: *const c_char, len: c_int) -> c_int;
    fn LZ4_attach_dictionary(working: *mut c_void, dictionary: *const c_void);
    pub(crate) fn LZ4_compress_fast_extState(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        dst_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_compress_fast_extState_fastReset(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        dst_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_compress_fast_continue(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        dst_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
    pub(crate) fn LZ4_compress_destSize_extState(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_len: *mut c_int,
        dst_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
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
    pub(crate) fn LZ4_decompress_safe_partial(
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        target_len: c_int,
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

/// An encoder of liblz4. Each has stream objects of its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoder {
    /// The fast one. Its hash table takes 16 KiB.
    Fast,
    /// The dense one. Its chain table takes 256 KiB.
    High,
}

/// A stream object of liblz4, freed on drop.
pub(crate) struct RawStream {
    object: NonNull<c_void>,
    encoder: Encoder,
}

// SAFETY: the object is plain memory that liblz4 ties to no thread; it is owned by this value alone.
unsafe impl Send for RawStream {}
// SAFETY: a shared RawStream is only used as a const dictionary, which liblz4 reads and never writes.
unsafe impl Sync for RawStream {}

impl RawStream {
    /// Allocates a stream object for an encoder.
    pub(crate) fn new(codec: &'static str, encoder: Encoder) -> Result<Self, CodecError> {
        // SAFETY: the functions take no arguments and return null or an initialised object, which the value made below
        // frees.
        let object = unsafe {
            match encoder {
                Encoder::Fast => LZ4_createStream(),
                Encoder::High => LZ4_createStreamHC(),
            }
        };
        let object = NonNull::new(object).ok_or(CodecError::NoMemory { codec })?;
        Ok(RawStream { object, encoder })
    }

    /// The object, for calls into liblz4.
    pub(crate) fn as_ptr(&self) -> *mut c_void {
        self.object.as_ptr()
    }

    /// Makes the stream ready for a dictionary, or for one call with a dictionary.
    fn reset(&mut self, level: c_int) {
        // SAFETY: the object is live, initialised, of the encoder's kind, and borrowed mutably.
        unsafe {
            match self.encoder {
                Encoder::Fast => LZ4_resetStream_fast(self.as_ptr()),
                Encoder::High => LZ4_resetStreamHC_fast(self.as_ptr(), level),
            }
        }
    }
}

impl Drop for RawStream {
    fn drop(&mut self) {
        // SAFETY: the object comes from the function that belongs to this one (see `new`), and is freed once.
        unsafe {
            match self.encoder {
                Encoder::Fast => LZ4_freeStream(self.as_ptr()),
                Encoder::High => LZ4_freeStreamHC(self.as_ptr()),
            }
        };
    }
}

/// A dictionary and the table that liblz4 built from it.
struct Dictionary {
    // The first field, so that it is dropped before the bytes that it points into.
    table: RawStream,
    bytes: Box<[u8]>,
}

impl Dictionary {
    fn new(codec: &'static str, encoder: Encoder, level: c_int, bytes: &[u8]) -> Result<Self, CodecError> {
        let tail: Box<[u8]> = bytes[bytes.len().saturating_sub(DICTIONARY_LEN_MAX)..].into();
        let mut table = RawStream::new(codec, encoder)?;
        table.reset(level);
        let (stream, start, len) = (table.as_ptr(), tail.as_ptr().cast(), c_len(tail.len()));
        // SAFETY: the stream is live, of the encoder's kind, and just reset; the bytes stay where they are as long as it,
        // because both are fields of one value and the bytes are on the heap.
        let used = unsafe {
            match encoder {
                Encoder::Fast => LZ4_loadDict(stream, start, len),
                Encoder::High => LZ4_loadDictHC(stream, start, len),
            }
        };
        match used {
            0 => Err(CodecError::BadDictionary { codec, len_bytes: bytes.len() }),
            _ => Ok(Dictionary { table, bytes: tail }),
        }
    }
}

/// An encoder of liblz4 with its level and dictionary.
#[derive(Clone)]
pub(crate) struct Library {
    codec: &'static str,
    encoder: Encoder,
    level: c_int,
    dictionary: Option<Arc<Dictionary>>,
}

impl Library {
    /// Prepares the dictionary, if there is one.
    pub(crate) fn new(
        codec: &'static str,
        encoder: Encoder,
        level: c_int,
        dictionary: Option<&[u8]>,
    ) -> Result<Self, CodecError> {
        let prepare = |bytes| Ok(Arc::new(Dictionary::new(codec, encoder, level, bytes)?));
        let dictionary = dictionary.map(prepare).transpose()?;
        Ok(Library { codec, encoder, level, dictionary })
    }

    /// Allocates a working state.
    pub(crate) fn open(&self) -> Result<LibraryStream, CodecError> {
        Ok(LibraryStream { state: RawStream::new(self.codec, self.encoder)?, library: self.clone() })
    }
}

/// Working state of a [`Library`].
pub(crate) struct LibraryStream {
    // The first field, so that it is dropped before the dictionary that it may point into.
    state: RawStream,
    library: Library,
}

impl Stream for LibraryStream {
    fn compress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        let Library { codec, encoder, level, ref dictionary } = self.library;
        let state = self.state.as_ptr();
        let (from, to) = (src.as_ptr().cast(), dst.as_mut_ptr().cast());
        let (src_len, dst_len) = (c_len(src.len()), c_len(dst.len()));
        if dictionary.is_some() {
            self.state.reset(level);
        }
        let table = dictionary.as_ref().map(|dictionary| dictionary.table.as_ptr());
        // SAFETY: the state is live, initialised, of the encoder's kind, and used by no other kind of call (a stream
        // either has a dictionary or not, for life); the slices are live and their lengths are passed. With a dictionary,
        // the state is prepared for one call (just reset); the dictionary is only read, and outlives the state: this
        // value holds an Arc of it.
        let len = unsafe {
            match (encoder, table) {
                (Encoder::Fast, None) => {
                    LZ4_compress_fast_extState_fastReset(state, from, to, src_len, dst_len, level)
                }
                (Encoder::High, None) => {
                    LZ4_compress_HC_extStateHC_fastReset(state, from, to, src_len, dst_len, level)
                }
                (Encoder::Fast, Some(table)) => {
                    LZ4_attach_dictionary(state, table);
                    LZ4_compress_fast_continue(state, from, to, src_len, dst_len, level)
                }
                (Encoder::High, Some(table)) => {
                    LZ4_attach_HC_dictionary(state, table);
                    LZ4_compress_HC_continue(state, from, to, src_len, dst_len)
                }
            }
        };
        match usize::try_from(len) {
            Ok(len) if len > 0 => Ok(len),
            _ => Err(CodecError::Compress { codec, dst_len_bytes: dst.len() }),
        }
    }

    fn decompress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        let dictionary = self.library.dictionary.as_ref().map(|dictionary| &*dictionary.bytes);
        decompress_block(self.library.codec, src, dst, dictionary)
    }
}

/// Converts a length to a C `int`. A longer buffer is passed with the greatest `int`, and so in part.
pub(crate) fn c_len(len: usize) -> c_int {
    c_int::try_from(len).unwrap_or(c_int::MAX)
}

/// Decompresses an LZ4 block with the dictionary that it was compressed with, and returns the length.
pub(crate) fn decompress_block(
    codec: &'static str,
    src: &[u8],
    dst: &mut [u8],
    dictionary: Option<&[u8]>,
) -> Result<usize, CodecError> {
    let (from, to) = (src.as_ptr().cast(), dst.as_mut_ptr().cast());
    let (src_len, dst_len) = (c_len(src.len()), c_len(dst.len()));
    let len = match dictionary {
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
