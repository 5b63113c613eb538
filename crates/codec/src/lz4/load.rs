//! Loads of words from any position of a page, without bounds checks.
//!
//! All `unsafe` of the page compressor is for these loads. There are two loads per probe and four more per match, and
//! bounds checks on them would take back a quarter of the time that the compressor saves over liblz4. Debug builds,
//! tests and the fuzz target `lz4_page` check every load.

use pagefold_page::{PAGE_SIZE, Page};

/// Loads the `N` bytes at `at`.
///
/// # Safety
/// `at + N` is at most [`PAGE_SIZE`].
#[inline(always)]
unsafe fn load<const N: usize>(page: &Page, at: usize) -> [u8; N] {
    debug_assert!(at + N <= PAGE_SIZE, "{N} bytes at {at}");
    // SAFETY: the bytes are inside the page (the caller's duty), and an array of bytes needs no alignment.
    unsafe { page.as_ptr().add(at).cast::<[u8; N]>().read() }
}

/// Loads the 4 bytes at `at` as a little-endian number.
///
/// # Safety
/// `at` is at least 4 before the end of the page.
#[inline(always)]
pub(super) unsafe fn load_u32(page: &Page, at: usize) -> u32 {
    // SAFETY: the caller's duty.
    u32::from_le_bytes(unsafe { load(page, at) })
}

/// Loads the 8 bytes at `at` as a little-endian number.
///
/// # Safety
/// `at` is at least 8 before the end of the page.
#[inline(always)]
pub(super) unsafe fn load_u64(page: &Page, at: usize) -> u64 {
    // SAFETY: the caller's duty.
    u64::from_le_bytes(unsafe { load(page, at) })
}
