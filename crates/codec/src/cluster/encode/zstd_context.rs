//! A libzstd context in memory of this crate, which can return to an earlier state of a frame.
//!
//! libzstd cannot take back a block. But a static context keeps all of its state in the memory that it was made in,
//! with pointers into that memory only, and a copy that is put back at the same place is the earlier state. Between
//! calls a context refers to no source and no destination: the source is copied to a buffer in the same memory.

use crate::cluster::zstd::NAME;
use crate::error::CodecError;
use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;
use zstd_safe::zstd_sys::{
    self as sys, ZSTD_EndDirective, ZSTD_ErrorCode, ZSTD_ResetDirective, ZSTD_cParameter,
    ZSTD_compressionParameters,
};

/// The alignment that libzstd asks for is 8; vector instructions copy cache lines faster.
const ALIGN: usize = 64;

/// Compression without checksum and dictionary.
pub(super) struct Context {
    /// The context, at the front of its memory.
    context: NonNull<sys::ZSTD_CCtx>,
    memory: Memory,
    saved: Memory,
    /// The part of the memory that the context uses, from the front.
    used_bytes: usize,
}

/// The result of [`Context::flush`].
pub(super) enum Flushed {
    /// The destination's length with the blocks.
    Complete(usize),
    /// The destination is full. Of the source `consumed_bytes` were compressed, to at least `produced_bytes`.
    Full { consumed_bytes: usize, produced_bytes: usize },
}

// SAFETY: the context is plain memory that libzstd ties to no thread; it is owned by this value alone.
unsafe impl Send for Context {}

impl Context {
    /// Returns the heap bytes for sources of these parameters.
    pub(super) fn heap_bytes(parameters: ZSTD_compressionParameters) -> usize {
        2 * workspace_bytes(parameters)
    }

    /// Makes a context that is large enough for these parameters.
    pub(super) fn new(parameters: &[ZSTD_compressionParameters]) -> Result<Self, CodecError> {
        let len = parameters.iter().map(|parameters| workspace_bytes(*parameters)).max().unwrap_or_default();
        let (memory, saved) = (Memory::new(len)?, Memory::new(len)?);
        let context = init(&memory, len)?;
        Ok(Context { context, memory, saved, used_bytes: len })
    }

    /// Prepares the context for a new frame, which is compressed in one call of [`compress`](Self::compress).
    pub(super) fn begin_whole(
        &mut self,
        level: i32,
        parameters: ZSTD_compressionParameters,
    ) -> Result<(), CodecError> {
        let needed_bytes = workspace_bytes(parameters);
        if self.used_bytes < needed_bytes {
            self.resize(needed_bytes)?;
        }
        self.begin(level, parameters, true)
    }

    /// Prepares the context for a new frame, which is compressed by calls of [`flush`](Self::flush).
    ///
    /// The context uses no more memory than it needs, because all that it uses is saved.
    pub(super) fn begin_blocks(
        &mut self,
        level: i32,
        parameters: ZSTD_compressionParameters,
    ) -> Result<(), CodecError> {
        let needed_bytes = workspace_bytes(parameters);
        if self.used_bytes != needed_bytes {
            self.resize(needed_bytes)?;
        }
        self.begin(level, parameters, false)
    }

    /// Makes a new context of this length in the same memory.
    fn resize(&mut self, len: usize) -> Result<(), CodecError> {
        self.context = init(&self.memory, len)?;
        self.used_bytes = len;
        Ok(())
    }

    fn begin(
        &mut self,
        level: i32,
        parameters: ZSTD_compressionParameters,
        content_size: bool,
    ) -> Result<(), CodecError> {
        let session = ZSTD_ResetDirective::ZSTD_reset_session_only;
        // SAFETY: the context is live.
        check(unsafe { sys::ZSTD_CCtx_reset(self.context.as_ptr(), session) }, 0)?;
        use ZSTD_cParameter as P;
        for (parameter, value) in [
            (P::ZSTD_c_compressionLevel, level),
            (P::ZSTD_c_windowLog, parameters.windowLog as i32),
            (P::ZSTD_c_hashLog, parameters.hashLog as i32),
            (P::ZSTD_c_chainLog, parameters.chainLog as i32),
            (P::ZSTD_c_searchLog, parameters.searchLog as i32),
            (P::ZSTD_c_minMatch, parameters.minMatch as i32),
            (P::ZSTD_c_targetLength, parameters.targetLength as i32),
            (P::ZSTD_c_strategy, parameters.strategy as i32),
            (P::ZSTD_c_contentSizeFlag, i32::from(content_size)),
        ] {
            // SAFETY: the context is live.
            check(unsafe { sys::ZSTD_CCtx_setParameter(self.context.as_ptr(), parameter, value) }, 0)?;
        }
        Ok(())
    }

    /// Compresses all of `src` to one frame. Returns its length, or `None` if it does not fit.
    pub(super) fn compress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<Option<usize>, CodecError> {
        let (to, from) = (dst.as_mut_ptr().cast(), src.as_ptr().cast());
        // SAFETY: the context is live; the slices are live, and their lengths are passed.
        let code = unsafe { sys::ZSTD_compress2(self.context.as_ptr(), to, dst.len(), from, src.len()) };
        match code == error_code(ZSTD_ErrorCode::ZSTD_error_dstSize_tooSmall) {
            true => Ok(None),
            false => check(code, dst.len()).map(Some),
        }
    }

    /// Compresses `src` as further blocks of the frame whose first `written` bytes are in `dst`.
    pub(super) fn flush(
        &mut self,
        src: &[u8],
        dst: &mut [u8],
        written: usize,
    ) -> Result<Flushed, CodecError> {
        let mut input = sys::ZSTD_inBuffer { src: src.as_ptr().cast(), size: src.len(), pos: 0 };
        let mut output = sys::ZSTD_outBuffer { dst: dst.as_mut_ptr().cast(), size: dst.len(), pos: written };
        loop {
            let flush = ZSTD_EndDirective::ZSTD_e_flush;
            // SAFETY: the context is live; the buffers are those of live slices, and the call keeps `pos` within them.
            let code =
                unsafe { sys::ZSTD_compressStream2(self.context.as_ptr(), &mut output, &mut input, flush) };
            let left_bytes = check(code, dst.len())?;
            if left_bytes == 0 && input.pos == src.len() {
                return Ok(Flushed::Complete(output.pos));
            }
            if output.pos == dst.len() {
                let produced_bytes = output.pos - written + left_bytes;
                return Ok(Flushed::Full { consumed_bytes: input.pos, produced_bytes });
            }
        }
    }

    /// Copies the state, for [`restore`](Self::restore).
    pub(super) fn save(&mut self) {
        self.memory.copy_to(&mut self.saved, self.used_bytes);
    }

    /// Returns to the state that was saved last.
    pub(super) fn restore(&mut self) {
        self.saved.copy_to(&mut self.memory, self.used_bytes);
    }
}

fn workspace_bytes(parameters: ZSTD_compressionParameters) -> usize {
    // SAFETY: the function only calculates with its argument.
    unsafe { sys::ZSTD_estimateCStreamSize_usingCParams(parameters) }
}

/// Makes a context in the first `len` bytes of the memory.
fn init(memory: &Memory, len: usize) -> Result<NonNull<sys::ZSTD_CCtx>, CodecError> {
    let no_memory = CodecError::NoMemory { codec: NAME };
    if len > memory.layout.size() {
        return Err(no_memory);
    }
    // SAFETY: the memory has this length, and its alignment is more than the 8 bytes that libzstd asks for. The caller
    // keeps it with the context, and replaces a context that was in it before.
    let context = unsafe { sys::ZSTD_initStaticCCtx(memory.start.as_ptr().cast(), len) };
    NonNull::new(context).ok_or(no_memory)
}

fn error_code(error: ZSTD_ErrorCode) -> usize {
    (error as usize).wrapping_neg()
}

/// Converts a return value of libzstd.
fn check(code: usize, dst_len_bytes: usize) -> Result<usize, CodecError> {
    // SAFETY: the function only calculates with its argument.
    match unsafe { sys::ZSTD_isError(code) } {
        0 => Ok(code),
        _ if code == error_code(ZSTD_ErrorCode::ZSTD_error_memory_allocation) => {
            Err(CodecError::NoMemory { codec: NAME })
        }
        _ => Err(CodecError::Compress { codec: NAME, dst_len_bytes }),
    }
}

/// Memory that is freed on drop. It is reached by pointers only, because libzstd keeps some.
struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

impl Memory {
    fn new(len: usize) -> Result<Self, CodecError> {
        let no_memory = CodecError::NoMemory { codec: NAME };
        let layout = Layout::from_size_align(len.max(1), ALIGN).map_err(|_| no_memory.clone())?;
        // SAFETY: the layout's length is not 0.
        let start = NonNull::new(unsafe { alloc(layout) }).ok_or(no_memory)?;
        // libzstd does not write all of it, but all of it is copied.
        // SAFETY: the memory was just allocated with this length.
        unsafe { start.as_ptr().write_bytes(0, layout.size()) };
        Ok(Memory { start, layout })
    }

    /// Copies the first `len` bytes to other memory.
    fn copy_to(&self, to: &mut Memory, len: usize) {
        let len = len.min(self.layout.size()).min(to.layout.size());
        // SAFETY: both are live, initialised, of at least this length, and different allocations.
        unsafe { to.start.as_ptr().copy_from_nonoverlapping(self.start.as_ptr(), len) };
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the memory comes from `alloc` with this layout, and is freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}
