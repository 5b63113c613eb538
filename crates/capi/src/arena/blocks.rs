//! Allocating blocks and freeing them.

use super::freed::CACHED_MAX_BYTES;
use super::inner::{Inner, LARGE_BYTES};
use super::sizes::{alignment, usable_size};
use super::{caches, jemalloc};
use crate::error::{Code, Error};
use pagefold_page::PAGE_SIZE;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use tikv_jemalloc_sys::{
    MALLOCX_ARENA, MALLOCX_TCACHE, MALLOCX_TCACHE_NONE, MALLOCX_ZERO, mallocx, rallocx, sallocx, sdallocx,
    xallocx,
};

impl Inner {
    /// Returns jemalloc's flags of a call by this thread.
    #[inline]
    fn flags(self: &Arc<Self>) -> c_int {
        MALLOCX_ARENA(self.index as usize) | self.cache_flag()
    }

    #[inline]
    fn cache_flag(self: &Arc<Self>) -> c_int {
        caches::cache(self).map_or(MALLOCX_TCACHE_NONE, |cache| MALLOCX_TCACHE(cache as usize))
    }

    pub(super) fn allocate(self: &Arc<Self>, size: usize, flags: c_int) -> Result<*mut c_void, Error> {
        let size = size.max(1);
        let usable = usable_size(size, flags);
        if usable > CACHED_MAX_BYTES
            && flags & MALLOCX_ZERO == 0
            && let Some(block) = caches::take_freed(self, usable, alignment(flags))
        {
            return Ok(block);
        }
        let flags = flags | self.flags();
        // SAFETY: the size is not zero, and the arena and the cache of the flags exist.
        let mut block = unsafe { mallocx(size, flags) };
        if block.is_null() {
            // Memory of freed blocks, which this thread or jemalloc keeps, may lie between free runs.
            let _ = self.trim();
            // SAFETY: as above.
            block = unsafe { mallocx(size, flags) };
        }
        if block.is_null() {
            return Err(no_room(size));
        }
        self.sizes.set(block.addr(), usable);
        Ok(block)
    }

    /// Returns the usable size of a block.
    ///
    /// # Safety
    /// The block is of this arena.
    #[inline]
    pub(super) unsafe fn usable(&self, block: *const c_void) -> usize {
        // SAFETY: the caller guarantees a block that exists.
        self.sizes.get(block.addr()).unwrap_or_else(|| unsafe { sallocx(block, 0) })
    }

    /// Returns the memory of freed blocks to the free runs, except of those that other threads keep.
    pub(super) fn trim(self: &Arc<Self>) -> Result<(), Error> {
        // SAFETY: the thread has freed these blocks of the arena.
        unsafe { caches::take_all_freed(self).release() };
        if let Some(cache) = caches::cache(self) {
            jemalloc::flush_cache(cache)?;
        }
        jemalloc::purge(self.index)
    }

    /// Frees a block.
    ///
    /// # Safety
    /// The block is of this arena, and nobody uses it.
    #[inline]
    pub(super) unsafe fn free(self: &Arc<Self>, block: *mut c_void) {
        // SAFETY: the caller guarantees a block that exists.
        let usable = unsafe { self.usable(block) };
        if usable > CACHED_MAX_BYTES {
            // SAFETY: the caller guarantees it.
            return unsafe { self.free_large(block, usable) };
        }
        // SAFETY: the caller gives the block up, and its usable size is one that it could have been asked for with.
        unsafe { sdallocx(block, usable, self.cache_flag()) };
    }

    /// Frees a large block, or keeps it for the thread's next one. If memory is tight, releases that of a very large
    /// one: it would be compressed for nothing.
    ///
    /// # Safety
    /// As for [`Inner::free`]; the block has this usable size.
    unsafe fn free_large(self: &Arc<Self>, block: *mut c_void, usable: usize) {
        let region = self.shared.region().ok().filter(|region| region.is_tight());
        let Some(region) = region else {
            // SAFETY: the thread has freed these blocks of the arena.
            return unsafe { caches::keep(self, block, usable).release() };
        };
        if usable >= LARGE_BYTES {
            let offset = block.addr() - self.shared.start;
            let whole = offset.next_multiple_of(PAGE_SIZE)..(offset + usable) / PAGE_SIZE * PAGE_SIZE;
            // A page that the caller has pinned stays resident.
            // SAFETY: nobody uses the block, and its whole pages have nothing else.
            let _ = unsafe { region.discard_shared(whole) };
        }
        drop(region);
        // SAFETY: the caller gives the block up; the thread has freed the others.
        unsafe {
            sdallocx(block, usable, MALLOCX_TCACHE_NONE);
            caches::take_all_freed(self).release();
        }
    }

    /// Changes the size of a block, and returns where it is now. After an error the block is as before.
    ///
    /// # Safety
    /// The block is of this arena, and nobody else uses it.
    pub(super) unsafe fn reallocate(
        self: &Arc<Self>,
        block: *mut c_void,
        size: usize,
    ) -> Result<*mut c_void, Error> {
        let size = size.max(1);
        // SAFETY: the caller guarantees a block that exists.
        let usable = unsafe { self.usable(block) };
        if usable < LARGE_BYTES && size < LARGE_BYTES {
            // SAFETY: as above, and the size is not zero.
            let moved = unsafe { rallocx(block, size, self.flags()) };
            if moved.is_null() {
                return Err(no_room(size));
            }
            // SAFETY: the block has just been returned.
            self.sizes.set(moved.addr(), unsafe { sallocx(moved, 0) });
            return Ok(moved);
        }
        // SAFETY: as above.
        let changed = unsafe { xallocx(block, size, 0, self.flags()) };
        self.sizes.set(block.addr(), changed);
        if changed >= size && size > usable / 2 {
            return Ok(block);
        }
        let moved = self.allocate(size, 0)?;
        // SAFETY: both blocks have so many bytes and do not overlap; the old one is given up.
        unsafe {
            let len_bytes = self.usable(block).min(size);
            moved.cast::<u8>().copy_from_nonoverlapping(block.cast::<u8>(), len_bytes);
            self.free(block);
        }
        Ok(moved)
    }
}

pub(super) fn no_room(size: usize) -> Error {
    Error::new(Code::NoMemory, format_args!("the arena has no space for {size} bytes in one piece"))
}
