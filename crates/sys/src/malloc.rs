//! Limiting the freed memory that the C library's allocator keeps.
//!
//! glibc returns a large block to the kernel when it is freed, but then raises its threshold of large to the size of
//! that block (mallopt(3), "M_MMAP_THRESHOLD"). The next block of that size comes from the heap of an arena, and its
//! memory stays there when it is freed. There are eight arenas per CPU, so a process whose threads sometimes use
//! buffers of some MiB permanently keeps tens of MiB.

/// Blocks of this size or more are returned to the kernel when they are freed.
#[cfg(target_env = "gnu")]
const LARGE_BYTES: i32 = 256 << 10;

/// Makes the allocator return large blocks to the kernel when they are freed, by a fixed threshold. For a long-lived
/// server with a memory limit. Each such block causes page faults when it is used, so hot paths should not allocate
/// any.
///
/// Does nothing if the C library has no such setting.
pub fn return_large_blocks() {
    #[cfg(target_env = "gnu")]
    for parameter in [libc::M_MMAP_THRESHOLD, libc::M_TRIM_THRESHOLD] {
        // SAFETY: the call sets a parameter of the allocator to a valid value, under the allocator's own lock. A
        // failure leaves the parameter as it was.
        unsafe { libc::mallopt(parameter, LARGE_BYTES) };
    }
}

/// Makes all threads that are started from now on allocate from one heap. For a process whose threads keep many small
/// blocks that others free: each heap would have separate gaps. Threads wait for each other when they allocate, so hot
/// paths should allocate little.
///
/// Does nothing if the C library has no such setting.
pub fn share_one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call sets a parameter of the allocator to a valid value, under the allocator's own lock.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1)
    };
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;
    use std::hint::black_box;

    const BLOCK_BYTES: usize = 4 << 20;
    /// Many more blocks than other tests may use at the same time.
    const BLOCKS: usize = 64;

    /// The number of blocks that are separate mappings.
    fn large_blocks() -> usize {
        // SAFETY: the call only reads the allocator's counters.
        unsafe { libc::mallinfo2() }.hblks
    }

    #[test]
    fn large_blocks_stay_separate_mappings_after_others_were_freed() {
        return_large_blocks();
        for _ in 0..10 {
            let before = large_blocks();
            let blocks: Vec<_> =
                (0..BLOCKS).map(|_| black_box(Vec::<u8>::with_capacity(BLOCK_BYTES))).collect();
            assert!(large_blocks() > before + BLOCKS / 2, "of {} blocks many are in heaps", blocks.len());
        }
    }
}
