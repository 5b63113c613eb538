//! Asking the processor for memory that is about to be read.
//!
//! A hint and nothing else: the bytes come into the caches while the thread goes on. Any address will do, mapped or
//! not, because a hint reads nothing and never faults; so these are functions on bare addresses. Where the compiler
//! has no stable way to give the hint they do nothing.

/// Bytes that come in at once.
const LINE_LEN: usize = 64;

/// Asks for the line of this address.
#[inline]
pub fn line(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction is in every x86-64 processor, and it neither reads nor faults, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch(at.cast(), _MM_HINT_T0);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Asks for the lines of `len_bytes` bytes from this address on.
#[inline]
pub fn lines(at: *const u8, len_bytes: usize) {
    for offset in line_offsets(at.addr() % LINE_LEN, len_bytes) {
        line(at.wrapping_add(offset));
    }
}

/// How far behind its first byte to ask for each line of a range that begins `lead_bytes` bytes into one.
#[inline]
fn line_offsets(lead_bytes: usize, len_bytes: usize) -> impl Iterator<Item = usize> {
    let end = if len_bytes == 0 { 0 } else { lead_bytes + len_bytes };
    (0..end).step_by(LINE_LEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_with_a_byte_of_the_range_is_asked_for_once() {
        for start in 0..2 * LINE_LEN {
            for len in 0..4 * LINE_LEN {
                let asked = line_offsets(start % LINE_LEN, len).map(|offset| (start + offset) / LINE_LEN);
                let mut expected: Vec<_> = (start..start + len).map(|byte| byte / LINE_LEN).collect();
                expected.dedup();
                assert_eq!(asked.collect::<Vec<_>>(), expected, "{len} bytes from {start}");
            }
        }
    }

    #[test]
    fn addresses_of_nothing_do_no_harm() {
        for at in [0, 1, 4095, usize::MAX / 2, usize::MAX - 3] {
            lines(std::ptr::without_provenance(at), 0);
            lines(std::ptr::without_provenance(at), 4096);
        }
    }
}
