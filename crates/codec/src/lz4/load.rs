//! Words of a page at any position, without a check.
//!
//! The only `unsafe` of the page compressor: there are two loads per probe and four more per match, and
//! checking them costs a quarter of what it gains over liblz4.

use pagefold_page::{PAGE_SIZE, Page};

/// The `N` bytes at `at`.
///
/// # Safety
/// `at + N` is at most [`PAGE_SIZE`].
#[inline(always)]
unsafe fn load<const N: usize>(page: &Page, at: usize) -> [u8; N] {
    debug_assert!(at + N <= PAGE_SIZE, "{N} bytes at {at}");
    // SAFETY: the bytes are inside the page (the caller's duty), and an array of bytes needs no alignment.
    unsafe { page.as_ptr().add(at).cast::<[u8; N]>().read() }
}

/// The 4 bytes at `at`, little endian.
///
/// # Safety
/// `at` is at least 4 before the end of the page.
#[inline(always)]
pub(super) unsafe fn load_u32(page: &Page, at: usize) -> u32 {
    // SAFETY: the caller's duty.
    u32::from_le_bytes(unsafe { load(page, at) })
}

/// The 8 bytes at `at`, little endian.
///
/// # Safety
/// `at` is at least 8 before the end of the page.
#[inline(always)]
pub(super) unsafe fn load_u64(page: &Page, at: usize) -> u64 {
    // SAFETY: the caller's duty.
    u64::from_le_bytes(unsafe { load(page, at) })
}
