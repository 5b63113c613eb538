//! Arenas: blocks of a region, from jemalloc.
//!
//! jemalloc keeps all its metadata outside of the blocks, so that only callers touch the pages of a region. Blocks of a
//! page that was compressed can be freed, and others handed out, without bringing the page back.

mod blocks;
mod caches;
mod freed;
mod hooks;
mod jemalloc;
mod sizes;

use crate::error::{Code, Error};
use crate::guard;
use crate::region::{pf_region, shared};
use crate::shared::Shared;
use blocks::no_room;
use caches::CachePool;
use hooks::Hooks;
use pagefold_page::PAGE_SIZE;
use sizes::BlockSizes;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tikv_jemalloc_sys::MALLOCX_ZERO;

/// The least part: jemalloc's first piece has this size.
const LEN_MIN_BYTES: usize = 2 << 20;
/// Memory of freed blocks of this size is released at once if memory is tight. Otherwise, and for smaller ones,
/// jemalloc releases it after [`KEEP_MS`], once no thread keeps the block.
const LARGE_BYTES: usize = 1 << 20;
const KEEP_MS: isize = 1000;

/// The handle of an arena.
pub struct pf_arena {
    inner: Arc<Inner>,
}

/// An arena: a part of a region, and jemalloc's arena that has its memory from there.
pub(crate) struct Inner {
    shared: Arc<Shared>,
    /// A number that no other arena of the process has had.
    id: u64,
    /// Offsets in the region, whole pages.
    part: Range<usize>,
    hooks: Box<Hooks>,
    /// jemalloc's number of the arena, which others may have later.
    index: u32,
    sizes: BlockSizes,
    caches: CachePool,
}

/// Reserves the whole pages of a part for an arena, and makes them zero.
fn reserve(shared: &Shared, start: usize, len_bytes: usize) -> Result<Range<usize>, Error> {
    // Locked in this order, and by a change of the size too.
    let region = shared.region()?;
    let asked = shared.locate(start, len_bytes)?;
    let part = asked.start.next_multiple_of(PAGE_SIZE)..asked.end / PAGE_SIZE * PAGE_SIZE;
    if part.len() < LEN_MIN_BYTES {
        return Err(Error::invalid(format_args!("an arena needs at least {LEN_MIN_BYTES} bytes")));
    }
    let mut arenas = shared.arenas.lock();
    if arenas.iter().any(|other| part.start < other.end && other.start < part.end) {
        return Err(Error::new(Code::Busy, "another arena has some of these bytes"));
    }
    // SAFETY: the caller gives the part up, and Rust has no references into a region of C.
    unsafe { region.discard_shared(part.clone()) }?;
    arenas.push(part.clone());
    Ok(part)
}

impl Inner {
    fn new(shared: &Arc<Shared>, start: usize, len_bytes: usize) -> Result<Self, Error> {
        let part = reserve(shared, start, len_bytes)?;
        let release = |error| {
            shared.arenas.lock().retain(|other| *other != part);
            error
        };
        let sizes = BlockSizes::new(shared.start + part.start, part.len()).map_err(release)?;
        let hooks = Hooks::new(shared.clone(), &part);
        // SAFETY: the hooks are written for jemalloc, and live as long as this, which destroys the arena.
        let index = unsafe { jemalloc::create_arena(hooks.as_table()) }.map_err(release)?;
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let id = NEXT_ID.fetch_add(1, Relaxed);
        let caches = CachePool::default();
        let arena = Inner { shared: shared.clone(), id, part, hooks, index, sizes, caches };
        if let Err(error) = jemalloc::set_up_arena(index, KEEP_MS) {
            // Nobody has had a block of it. The first error is the one to report.
            let _ = arena.close();
            return Err(error);
        }
        Ok(arena)
    }

    /// Returns all blocks. Nobody uses the arena.
    fn close(&self) -> Result<(), Error> {
        self.caches.close();
        self.hooks.is_closing.store(true, Relaxed);
        // SAFETY: the caches are gone, and the caller guarantees that nobody uses the arena.
        unsafe { jemalloc::destroy_arena(self.index) }?;
        // Pinned pages stay as they are: the part belongs to the caller again.
        let region = self.shared.region()?;
        // SAFETY: the blocks are gone, and Rust has no references into a region of C.
        let _ = unsafe { region.discard_shared(self.part.clone()) };
        drop(region);
        self.shared.arenas.lock().retain(|part| *part != self.part);
        Ok(())
    }

    /// Refuses a block that cannot be of this arena.
    #[inline]
    fn check(&self, block: *const c_void) -> Result<(), Error> {
        match self.part.contains(&block.addr().wrapping_sub(self.shared.start)) {
            true => Ok(()),
            false => Err(Error::new(
                Code::Range,
                format_args!("the block {:#x} is not of this arena", block.addr()),
            )),
        }
    }
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
