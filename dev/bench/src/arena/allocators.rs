//! The two allocators that are compared, and blocks of one of them.
//!
//! The arena is used through the functions of C that programs call. An allocator is a trait here, so that both do the
//! same work, compiled separately for each.

use anyhow::ensure;
use pagefold::{pf_arena, pf_region, pf_region_config};
use std::ffi::c_void;
use std::ptr::null_mut;

/// An allocator of C: a pair of functions.
pub trait Allocator {
    /// Returns a block, or null.
    fn allocate(&self, size: usize) -> *mut u8;
    /// Frees a block that this allocator returned.
    fn free(&self, block: *mut u8);
}

/// The system's malloc.
pub struct System;

impl Allocator for System {
    fn allocate(&self, size: usize) -> *mut u8 {
        // SAFETY: the call has no conditions.
        unsafe { libc::malloc(size) }.cast()
    }

    fn free(&self, block: *mut u8) {
        // SAFETY: this allocator returned the block, and its owner gives it up.
        unsafe { libc::free(block.cast()) };
    }
}

/// An arena on a whole region.
pub struct Arena {
    region: *mut pf_region,
    arena: *mut pf_arena,
}

impl Arena {
    /// An arena of `len_bytes`; as is the default, the threads that cause its faults serve them.
    pub fn new(len_bytes: usize, limit_bytes: usize) -> anyhow::Result<Self> {
        let (mut region, mut arena) = (null_mut(), null_mut());
        // SAFETY: each call gets structures of its types, and places for its results.
        unsafe {
            let mut config = std::mem::zeroed::<pf_region_config>();
            check(pagefold::pf_region_config_init(&mut config, size_of::<pf_region_config>()))?;
            (config.len_bytes, config.limit_bytes) = (len_bytes as u64, limit_bytes as u64);
            check(pagefold::pf_region_create(&config, &mut region))?;
            let start: *mut c_void = pagefold::pf_region_address(region);
            check(pagefold::pf_arena_create(region, start, len_bytes, &mut arena))?;
        }
        Ok(Arena { region, arena })
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: nobody uses the handles or blocks afterwards: blocks are freed by the works that allocate them.
        unsafe {
            pagefold::pf_arena_destroy(self.arena);
            pagefold::pf_region_destroy(self.region);
        }
    }
}

impl Allocator for Arena {
    fn allocate(&self, size: usize) -> *mut u8 {
        // SAFETY: the arena exists.
        unsafe { pagefold::pf_arena_malloc(self.arena, size) }.cast()
    }

    fn free(&self, block: *mut u8) {
        // SAFETY: this arena returned the block, and its owner gives it up.
        unsafe { pagefold::pf_arena_free(self.arena, block.cast()) };
    }
}

fn check(code: i32) -> anyhow::Result<()> {
    // SAFETY: the library returns a string, which no other call of this thread replaces meanwhile.
    let message = || unsafe { std::ffi::CStr::from_ptr(pagefold::pf_error_message()) }.to_string_lossy();
    ensure!(code == 0, "libpagefold: {}", message());
    Ok(())
}

/// Blocks that are freed when this is dropped.
pub struct Blocks<'a, A: Allocator> {
    allocator: &'a A,
    /// The blocks; a null pointer is none.
    pub blocks: Vec<*mut u8>,
}

impl<'a, A: Allocator> Blocks<'a, A> {
    /// Allocates blocks, at least one.
    pub fn new(allocator: &'a A, count: usize, size: usize) -> anyhow::Result<Self> {
        let blocks = (0..count.max(1)).map(|_| allocator.allocate(size)).collect();
        let blocks = Blocks { allocator, blocks };
        ensure!(blocks.blocks.iter().all(|block| !block.is_null()), "no memory for {count} blocks");
        Ok(blocks)
    }
}

impl<A: Allocator> Drop for Blocks<'_, A> {
    fn drop(&mut self) {
        self.blocks.iter().filter(|block| !block.is_null()).for_each(|block| self.allocator.free(*block));
    }
}
