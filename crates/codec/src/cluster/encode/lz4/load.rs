//! Loads of words from any position of a source, without bounds checks.
//!
//! All `unsafe` of the dense encoder is for these loads, of which the search for matches makes several per byte. Debug
//! builds, tests and the fuzz target `cluster_encode` check every load.

/// Loads the `N` bytes at `at`.
///
/// # Safety
/// `at + N` is at most the length of `src`.
#[inline(always)]
unsafe fn load<const N: usize>(src: &[u8], at: usize) -> [u8; N] {
    debug_assert!(
        at.checked_add(N).is_some_and(|end| end <= src.len()),
        "{N} bytes at {at} of {}",
        src.len()
    );
    // SAFETY: the bytes are inside the source (the caller's duty), and an array of bytes needs no alignment.
    unsafe { src.as_ptr().add(at).cast::<[u8; N]>().read() }
}

/// Loads the 4 bytes at `at` as a little-endian number.
///
/// # Safety
/// `at` is at least 4 before the end of `src`.
#[inline(always)]
pub(super) unsafe fn load_u32(src: &[u8], at: usize) -> u32 {
    // SAFETY: the caller's duty.
    u32::from_le_bytes(unsafe { load(src, at) })
}

/// Loads the 8 bytes at `at` as a little-endian number.
///
/// # Safety
/// `at` is at least 8 before the end of `src`.
#[inline(always)]
pub(super) unsafe fn load_u64(src: &[u8], at: usize) -> u64 {
    // SAFETY: the caller's duty.
    u64::from_le_bytes(unsafe { load(src, at) })
}

/// Returns the number of equal bytes from `from` and from `at` on, at most `len_max`, if 4 of them are known to be
/// equal.
///
/// # Safety
/// `from` is before `at`, and `at + len_max` is at most the length of `src`.
#[inline(always)]
pub(super) unsafe fn common_after(src: &[u8], from: usize, at: usize, len_max: usize) -> usize {
    let mut len = 4;
    while len + 8 <= len_max {
        // SAFETY: `at + len + 8` is at most `at + len_max`, the length of `src` at most, and `from` is before `at`.
        let differ = unsafe { load_u64(src, from + len) ^ load_u64(src, at + len) };
        if differ != 0 {
            return len + differ.trailing_zeros() as usize / 8;
        }
        len += 8;
    }
    while len < len_max && src[from + len] == src[at + len] {
        len += 1;
    }
    len
}

/// Returns the number of equal bytes before `from` and before `at`, at most `len_max`.
///
/// # Safety
/// `from` is before `at`, and `at` is at most the length of `src`.
#[inline(always)]
pub(super) unsafe fn common_before(src: &[u8], from: usize, at: usize, len_max: usize) -> usize {
    if from >= 8 {
        // SAFETY: the 8 bytes before `from` are there, and so are those before `at`, which is greater.
        let differ = unsafe { load_u64(src, from - 8) ^ load_u64(src, at - 8) };
        if differ != 0 {
            return len_max.min(differ.leading_zeros() as usize / 8);
        }
        if len_max <= 8 {
            return len_max;
        }
    }
    common_far_before(src, from, at, len_max)
}

#[inline(never)]
fn common_far_before(src: &[u8], from: usize, at: usize, len_max: usize) -> usize {
    let len_max = len_max.min(from);
    let mut len = 0;
    while len + 8 <= len_max {
        let words = [from, at].map(|end| src[end - len - 8..].first_chunk().copied().map(u64::from_le_bytes));
        let [Some(earlier), Some(later)] = words else { break };
        if earlier != later {
            return len + (earlier ^ later).leading_zeros() as usize / 8;
        }
        len += 8;
    }
    while len < len_max && src[from - len - 1] == src[at - len - 1] {
        len += 1;
    }
    len
}
