//! Limiting the freed memory that the C library's allocator keeps, and blocks in huge pages.
//!
//! glibc returns a large block to the kernel when it is freed, but then raises its threshold of large to the size of
//! that block (mallopt(3), "M_MMAP_THRESHOLD"). The next block of that size comes from the heap of an arena, and its
//! memory stays there when it is freed. There are eight arenas per CPU, so a process whose threads sometimes use
//! buffers of some MiB permanently keeps tens of MiB.

/// Blocks of this size or more are returned to the kernel when they are freed.
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

/// Shorter blocks do not have a huge page inside them for sure.
const HUGE_BYTES_MIN: usize = 4 << 20;
/// The alignment of ranges of madvise(2). A kernel with larger pages refuses the call, which is harmless.
const PAGE_BYTES: usize = 4096;

/// Allocates a block of `len` zeroes, which the kernel may back with huge pages (madvise(2), "MADV_HUGEPAGE") if it is
/// long: the first access to each page of a new block is a fault, which takes longer than filling the page. Memory is
/// only used for what is accessed, in steps of a huge page.
pub fn large_zeroed_block(len: usize) -> Vec<u8> {
    let block = vec![0; len];
    allow_huge_pages(block.as_ptr(), len);
    block
}

/// Allows huge pages in the pages that are whole within `len` bytes.
fn allow_huge_pages(begin: *const u8, len: usize) {
    if len < HUGE_BYTES_MIN {
        return;
    }
    let skipped = begin.align_offset(PAGE_BYTES);
    let whole = len.saturating_sub(skipped) / PAGE_BYTES * PAGE_BYTES;
    // SAFETY: the range is inside memory of the caller, since `skipped` is less than a page and `len` is more than one.
    // The advice does not change what the range contains, or whether it can be accessed. It is not required: a failure
    // is ignored.
    unsafe { libc::madvise(begin.wrapping_add(skipped).cast_mut().cast(), whole, libc::MADV_HUGEPAGE) };
}

#[cfg(test)]
mod block_tests {
    use super::*;

    #[test]
    fn blocks_of_all_lengths_are_zeroed() {
        for len in [0, 1, 4095, HUGE_BYTES_MIN - 1, HUGE_BYTES_MIN, HUGE_BYTES_MIN + 1, (16 << 20) + 777] {
            let zeroed = large_zeroed_block(len);
            assert!(zeroed.len() == len && zeroed.iter().all(|byte| *byte == 0), "{len}");
        }
    }
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
