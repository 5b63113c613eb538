//! Arenas: blocks of a region, from jemalloc.
//!
//! jemalloc keeps all its metadata outside of the blocks, so that only callers touch the pages of a region. Blocks of a
//! page that was compressed can be freed, and others handed out, without bringing the page back.

mod blocks;
mod caches;
mod freed;
mod hooks;
mod inner;
mod jemalloc;
mod pool;
mod sizes;

use crate::error::Error;
use crate::guard;
use crate::region::{pf_region, shared};
use blocks::no_room;
use inner::Inner;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use tikv_jemalloc_sys::MALLOCX_ZERO;

/// The handle of an arena.
pub struct pf_arena {
    inner: Arc<Inner>,
}

/// Returns what a handle stands for. Refuses null, and handles of the parent process.
///
/// # Safety
/// The handle is null, or one that nobody destroys during `'a`.
#[inline]
unsafe fn inner<'a>(arena: *const pf_arena) -> Result<&'a Arc<Inner>, Error> {
    // SAFETY: the caller guarantees it.
    let handle = unsafe { arena.as_ref() }.ok_or_else(|| Error::invalid("the arena is a null pointer"))?;
    handle.inner.shared.check_process()?;
    Ok(&handle.inner)
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_arena_create(
    region: *mut pf_region,
    start: *mut c_void,
    len_bytes: usize,
    arena: *mut *mut pf_arena,
) -> c_int {
    let make = || {
        // SAFETY: the caller guarantees a handle that nobody destroys meanwhile.
        let shared = unsafe { shared(region) }?;
        Ok(pf_arena { inner: Arc::new(Inner::new(shared, start.addr(), len_bytes)?) })
    };
    // SAFETY: the caller guarantees a place for the handle.
    guard::call(|| unsafe { guard::put(arena, make) })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_arena_destroy(arena: *mut pf_arena) -> c_int {
    guard::call(|| {
        if arena.is_null() {
            return Ok(());
        }
        // SAFETY: the caller guarantees a handle that it no longer uses.
        unsafe { inner(arena) }?.close()?;
        // SAFETY: `put` made it from a box, and the caller gives it up.
        drop(unsafe { Box::from_raw(arena) });
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_arena_malloc(arena: *mut pf_arena, size: usize) -> *mut c_void {
    // SAFETY: the caller guarantees a handle that nobody destroys meanwhile.
    guard::value(|_| null_mut(), || unsafe { inner(arena) }?.allocate(size, 0))
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_arena_calloc(arena: *mut pf_arena, count: usize, size: usize) -> *mut c_void {
    guard::value(
        |_| null_mut(),
        || {
            let bytes = count.checked_mul(size).ok_or_else(|| no_room(usize::MAX))?;
            // SAFETY: the caller guarantees a handle that nobody destroys meanwhile.
            unsafe { inner(arena) }?.allocate(bytes, MALLOCX_ZERO)
        },
    )
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_arena_aligned_alloc(
    arena: *mut pf_arena,
    alignment: usize,
    size: usize,
) -> *mut c_void {
    guard::value(
        |_| null_mut(),
        || {
            if !alignment.is_power_of_two() {
                return Err(Error::invalid(format_args!("the alignment {alignment} is not a power of two")));
            }
            // SAFETY: the caller guarantees a handle that nobody destroys meanwhile.
            let arena = unsafe { inner(arena) }?;
            // jemalloc's flag for an alignment is its logarithm.
            arena.allocate(size, alignment.trailing_zeros() as c_int)
        },
    )
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_arena_realloc(
    arena: *mut pf_arena,
    block: *mut c_void,
    size: usize,
) -> *mut c_void {
    guard::value(
        |_| null_mut(),
        || {
            // SAFETY: the caller guarantees a handle that nobody destroys meanwhile.
            let arena = unsafe { inner(arena) }?;
            if block.is_null() {
                return arena.allocate(size, 0);
            }
            arena.check(block)?;
            // SAFETY: the caller guarantees a block of the arena that nobody uses meanwhile.
            unsafe { arena.reallocate(block, size) }
        },
    )
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_arena_free(arena: *mut pf_arena, block: *mut c_void) {
    guard::value(
        |_| (),
        || {
            if block.is_null() {
                return Ok(());
            }
            // SAFETY: the caller guarantees a handle that nobody destroys meanwhile.
            let arena = unsafe { inner(arena) }?;
            arena.check(block)?;
            // SAFETY: the caller guarantees a block of the arena that it no longer uses.
            unsafe { arena.free(block) };
            Ok(())
        },
    );
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_arena_usable_size(arena: *const pf_arena, block: *const c_void) -> usize {
    guard::value(
        |_| 0,
        || {
            if block.is_null() {
                return Ok(0);
            }
            // SAFETY: the caller guarantees a handle that nobody destroys meanwhile.
            let arena = unsafe { inner(arena) }?;
            arena.check(block)?;
            // SAFETY: the caller guarantees a block of the arena.
            Ok(unsafe { arena.usable(block) })
        },
    )
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pf_arena_trim(arena: *mut pf_arena) -> c_int {
    guard::call(|| {
        // SAFETY: the caller guarantees a handle that nobody destroys meanwhile.
        unsafe { inner(arena) }?.trim()
    })
}
