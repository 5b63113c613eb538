//! Loads and comparisons of whole words at any position.
//!
//! A checked load past the end of the slice returns zero instead of panicking. Callers stay inside the slice because the
//! result would be wrong otherwise; memory safety does not depend on it. Each compiles to a compare and a load.
//!
//! The LZ4 encoders make several loads for each probe or byte, and checks would take back a quarter of the time that the
//! page compressor saves over liblz4. So their loads are unchecked, and all `unsafe` of these encoders is for them. Debug
//! builds, tests and the fuzz targets `lz4_page` and `cluster_encode` check every load.

/// Loads the 4 bytes at `at` as a little-endian number; 0 when they are not all inside `bytes`.
#[inline(always)]
pub(crate) fn load_u32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|tail| tail.first_chunk()).map_or(0, |word| u32::from_le_bytes(*word))
}

/// Loads the 8 bytes at `at` as a little-endian number; 0 when they are not all inside `bytes`.
#[inline(always)]
pub(crate) fn load_u64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|tail| tail.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word))
}

/// Counts the bytes from `later` on that equal those from `earlier` on, up to the end of `bytes`.
///
/// The two ranges may overlap. `earlier` must be less than `later`.
#[inline(always)]
pub(crate) fn common_prefix(bytes: &[u8], earlier: usize, later: usize) -> usize {
    let Some(tail) = bytes.get(later..) else { return 0 };
    let Some(head) = bytes.get(earlier..earlier + tail.len()) else { return 0 };
    let (tail_words, tail_rest) = tail.as_chunks::<16>();
    let (head_words, head_rest) = head.as_chunks::<16>();
    for (index, (a, b)) in tail_words.iter().zip(head_words).enumerate() {
        let differ = u128::from_le_bytes(*a) ^ u128::from_le_bytes(*b);
        if differ != 0 {
            return index * 16 + (differ.trailing_zeros() / 8) as usize;
        }
    }
    let rest = tail_rest.iter().zip(head_rest).take_while(|(a, b)| a == b).count();
    tail_words.len() * 16 + rest
}

/// Counts the bytes before `later` that equal those before `earlier`: at most 8, and at most those that `bytes` has
/// before `earlier`.
#[inline(always)]
pub(crate) fn common_suffix(bytes: &[u8], earlier: usize, later: usize) -> usize {
    if earlier >= 8 {
        let differ = load_u64(bytes, earlier - 8) ^ load_u64(bytes, later - 8);
        return (differ.leading_zeros() / 8) as usize;
    }
    (1..=earlier).take_while(|back| bytes.get(earlier - back) == bytes.get(later - back)).count()
}

/// Counts the zero bytes at the beginning of `bytes`.
#[inline(always)]
pub(crate) fn leading_zeros(bytes: &[u8]) -> usize {
    let (words, rest) = bytes.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        if word != 0 {
            return index * 8 + (word.trailing_zeros() / 8) as usize;
        }
    }
    words.len() * 8 + rest.iter().take_while(|byte| **byte == 0).count()
}

/// Loads the `N` bytes at `at`.
///
/// # Safety
/// `at + N` is at most the length of `src`.
#[inline(always)]
unsafe fn load_unchecked<const N: usize>(src: &[u8], at: usize) -> [u8; N] {
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
pub(crate) unsafe fn load_u32_unchecked(src: &[u8], at: usize) -> u32 {
    // SAFETY: the caller's duty.
    u32::from_le_bytes(unsafe { load_unchecked(src, at) })
}

/// Loads the 8 bytes at `at` as a little-endian number.
///
/// # Safety
/// `at` is at least 8 before the end of `src`.
#[inline(always)]
pub(crate) unsafe fn load_u64_unchecked(src: &[u8], at: usize) -> u64 {
    // SAFETY: the caller's duty.
    u64::from_le_bytes(unsafe { load_unchecked(src, at) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_past_the_end_are_zero() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!(load_u32(&bytes, 5), 0x0908_0706);
        assert_eq!(load_u32(&bytes, 6), 0);
        assert_eq!(load_u64(&bytes, 1), 0x0908_0706_0504_0302);
        assert_eq!(load_u64(&bytes, 2), 0);
        assert_eq!(load_u64(&bytes, usize::MAX), 0);
    }

    #[test]
    fn prefix_lengths_equal_those_of_a_plain_loop() {
        for len in 0..40 {
            for wrong in 0..=len {
                let mut bytes = vec![0; 3 + len];
                if wrong < len {
                    bytes[3 + wrong] = 1;
                }
                let slow = (0..len).take_while(|at| bytes[*at] == bytes[at + 3]).count();
                assert_eq!(common_prefix(&bytes, 0, 3), slow);
                assert_eq!(leading_zeros(&bytes[3..]), wrong);
            }
        }
    }
}
