//! What the C library's allocator keeps of memory that was freed.
//!
//! glibc gives a large block back to the kernel when it is freed, and raises its idea of large to the size of that block
//! (mallopt(3), "M_MMAP_THRESHOLD"): the next one comes from the heap of an arena, of which there are eight for each CPU,
//! and stays there. A process whose threads use buffers of some MiB now and then keeps tens of MiB for good.

/// Blocks of so many bytes or more are given back to the kernel when they are freed.
const LARGE_BYTES: i32 = 256 << 10;

/// Has the allocator give all large blocks back when they are freed, now and later. For a server that lives long and
/// promises how much memory it takes. Each such block costs its page faults anew when it is used: do not allocate in
/// hot paths.
///
/// Does nothing where the C library has no such setting.
pub fn give_large_blocks_back() {
    #[cfg(target_env = "gnu")]
    for parameter in [libc::M_MMAP_THRESHOLD, libc::M_TRIM_THRESHOLD] {
        // SAFETY: sets a parameter of the allocator to a valid value, under the allocator's own lock. A failure leaves it
        // as it was.
        unsafe { libc::mallopt(parameter, LARGE_BYTES) };
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;
    use std::hint::black_box;

    const BLOCK_BYTES: usize = 4 << 20;
    /// So many that those of other tests do not matter.
    const BLOCKS: usize = 64;

    /// Large blocks that the kernel has given.
    fn large_blocks() -> usize {
        // SAFETY: reads the allocator's counters.
        unsafe { libc::mallinfo2() }.hblks
    }

    #[test]
    fn a_large_block_is_one_of_the_kernels_however_often_others_were_freed() {
        give_large_blocks_back();
        for _ in 0..10 {
            let before = large_blocks();
            let blocks: Vec<_> =
                (0..BLOCKS).map(|_| black_box(Vec::<u8>::with_capacity(BLOCK_BYTES))).collect();
            assert!(large_blocks() > before + BLOCKS / 2, "of {} blocks many are in heaps", blocks.len());
        }
    }
}
