//! Prefetching memory into the processor's caches.
//!
//! A prefetch is only a hint: the processor loads the cache line while the thread goes on. It returns no data and never
//! faults, so the functions take plain addresses, mapped or not. On architectures for which Rust has no stable prefetch
//! instruction they do nothing.

/// Bytes of a cache line.
const LINE_LEN: usize = 64;

/// Prefetches the cache line of this address.
#[inline]
pub fn line(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has this instruction, and it neither returns data nor faults, whatever the
    // address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch(at.cast(), _MM_HINT_T0);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Prefetches the cache lines of `len_bytes` bytes from this address on.
#[inline]
pub fn lines(at: *const u8, len_bytes: usize) {
    for offset in line_offsets(at.addr() % LINE_LEN, len_bytes) {
        line(at.wrapping_add(offset));
    }
}

/// For each cache line of a range that begins `lead_bytes` into a line: the offset from the range's start to prefetch
/// at.
#[inline]
fn line_offsets(lead_bytes: usize, len_bytes: usize) -> impl Iterator<Item = usize> {
    let end = if len_bytes == 0 { 0 } else { lead_bytes + len_bytes };
    (0..end).step_by(LINE_LEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_a_range_is_prefetched_once() {
        for start in 0..2 * LINE_LEN {
            for len in 0..4 * LINE_LEN {
                let prefetched =
                    line_offsets(start % LINE_LEN, len).map(|offset| (start + offset) / LINE_LEN);
                let mut expected: Vec<_> = (start..start + len).map(|byte| byte / LINE_LEN).collect();
                expected.dedup();
                assert_eq!(prefetched.collect::<Vec<_>>(), expected, "{len} bytes from {start}");
            }
        }
    }

    #[test]
    fn prefetching_unmapped_addresses_does_not_fault() {
        for at in [0, 1, 4095, usize::MAX / 2, usize::MAX - 3] {
            lines(std::ptr::without_provenance(at), 0);
            lines(std::ptr::without_provenance(at), 4096);
        }
    }
}
