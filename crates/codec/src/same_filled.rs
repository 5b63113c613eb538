//! Finds out whether a page repeats one 8-byte word.
//!
//! The check compares the last word first, because a forward scan is slowest on a page that differs only at its end.
//! Then it scans in blocks and stops at the first that differs, which on most pages is the first block. There are
//! variants for several instruction sets, of which the best that the CPU has is chosen at run time. The tests
//! compare all of them with a plain loop.

use pagefold_page::{PAGE_SIZE, Page};

/// Bytes compared between two tests of the result.
const BLOCK_LEN: usize = 256;
const _: () = assert!(PAGE_SIZE.is_multiple_of(BLOCK_LEN));

/// Returns the word that fills the page, as a native-endian number in memory order, or `None` if no word does.
#[inline]
pub fn same_filled(page: &Page) -> Option<u64> {
    let word = word_at(page, 0);
    // Most pages return here, after three loads and two compares.
    if word_at(page, PAGE_SIZE - 8) != word || word_at(page, 8) != word {
        return None;
    }
    repeats(page, word).then_some(word)
}

#[inline]
fn word_at(page: &Page, at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&page[at..at + 8]);
    u64::from_ne_bytes(bytes)
}

#[inline]
fn repeats(page: &Page, word: u64) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: AVX-512F was detected on this CPU.
            return unsafe { x86::repeats_avx512(page, word) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: AVX2 was detected on this CPU.
            return unsafe { x86::repeats_avx2(page, word) };
        }
        x86::repeats_sse2(page, word)
    }
    #[cfg(not(target_arch = "x86_64"))]
    repeats_portable(page, word)
}

/// Combines each block's words with XOR and OR, a loop that the compiler vectorises for the target.
#[cfg_attr(target_arch = "x86_64", allow(dead_code, reason = "used where there is no vector variant"))]
fn repeats_portable(page: &Page, word: u64) -> bool {
    page.chunks_exact(BLOCK_LEN).all(|block| {
        let differs = block.chunks_exact(8).fold(0, |acc, bytes| {
            let mut w = [0; 8];
            w.copy_from_slice(bytes);
            acc | (u64::from_ne_bytes(w) ^ word)
        });
        differs == 0
    })
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{BLOCK_LEN, Page};
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx512f")]
    pub(super) fn repeats_avx512(page: &Page, word: u64) -> bool {
        /// `a | (b ^ c)` as the truth table that the instruction takes: one bit for each of the eight
        /// combinations, `a` the highest bit of the index.
        const OR_XOR: i32 = 0b1111_0110;
        let want = _mm512_set1_epi64(word as i64);
        page.chunks_exact(BLOCK_LEN).all(|block| {
            let mut differs = _mm512_setzero_si512();
            for lane in block.chunks_exact(64) {
                // SAFETY: the lane is 64 readable bytes and the load needs no alignment.
                let have = unsafe { _mm512_loadu_si512(lane.as_ptr().cast()) };
                differs = _mm512_ternarylogic_epi64::<OR_XOR>(differs, have, want);
            }
            _mm512_test_epi64_mask(differs, differs) == 0
        })
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn repeats_avx2(page: &Page, word: u64) -> bool {
        let want = _mm256_set1_epi64x(word as i64);
        page.chunks_exact(BLOCK_LEN).all(|block| {
            let mut differs = _mm256_setzero_si256();
            for lane in block.chunks_exact(32) {
                // SAFETY: the lane is 32 readable bytes and the load needs no alignment.
                let have = unsafe { _mm256_loadu_si256(lane.as_ptr().cast()) };
                differs = _mm256_or_si256(differs, _mm256_xor_si256(have, want));
            }
            _mm256_testz_si256(differs, differs) == 1
        })
    }

    pub(super) fn repeats_sse2(page: &Page, word: u64) -> bool {
        // SAFETY: SSE2 is part of every x86-64 CPU.
        let want = unsafe { _mm_set1_epi64x(word as i64) };
        page.chunks_exact(BLOCK_LEN).all(|block| {
            // SAFETY: SSE2 is part of every x86-64 CPU; each lane is 16 readable bytes and the load
            // needs no alignment.
            unsafe {
                let mut equal = _mm_set1_epi8(-1);
                for lane in block.chunks_exact(16) {
                    let have = _mm_loadu_si128(lane.as_ptr().cast());
                    equal = _mm_and_si128(equal, _mm_cmpeq_epi32(have, want));
                }
                _mm_movemask_epi8(equal) == 0xffff
            }
        })
    }
}

/// A variant of the check: its name, and the function that says whether a page repeats a word.
#[cfg(test)]
type Variant = (&'static str, fn(&Page, u64) -> bool);

/// Lists the variants that this CPU can run.
#[cfg(test)]
fn variants() -> Vec<Variant> {
    let mut list: Vec<Variant> = vec![("portable", repeats_portable)];
    #[cfg(target_arch = "x86_64")]
    {
        list.push(("sse2", x86::repeats_sse2));
        if is_x86_feature_detected!("avx512f") {
            list.push(("avx512", |page, word| {
                // SAFETY: AVX-512F was detected on this CPU.
                unsafe { x86::repeats_avx512(page, word) }
            }));
        }
        if is_x86_feature_detected!("avx2") {
            list.push(("avx2", |page, word| {
                // SAFETY: AVX2 was detected on this CPU.
                unsafe { x86::repeats_avx2(page, word) }
            }));
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A plain loop, for comparison.
    fn reference(page: &Page) -> Option<u64> {
        let words: Vec<u64> = page.chunks(8).map(|b| u64::from_ne_bytes(b.try_into().unwrap())).collect();
        words.iter().all(|w| *w == words[0]).then_some(words[0])
    }

    fn filled(word: u64) -> Page {
        let mut page = [0; PAGE_SIZE];
        page.chunks_mut(8).for_each(|c| c.copy_from_slice(&word.to_ne_bytes()));
        page
    }

    fn check(page: &Page) {
        assert_eq!(same_filled(page), reference(page));
        for (name, repeats) in variants() {
            assert_eq!(repeats(page, word_at(page, 0)), reference(page).is_some(), "{name}");
        }
    }

    #[test]
    fn same_filled_detects_every_single_bit_flip() {
        for word in [0, u64::MAX, 0x0123_4567_89ab_cdef] {
            let mut page = filled(word);
            check(&page);
            for bit in 0..PAGE_SIZE * 8 {
                page[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(same_filled(&page), None);
                for (name, repeats) in variants() {
                    assert!(!repeats(&page, word_at(&page, 0)), "{name} missed bit {bit}");
                }
                page[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    #[test]
    fn same_filled_accepts_shorter_periods_and_rejects_longer_ones() {
        check(&filled(0x5555_5555_5555_5555));
        let mut two_words = [0u8; PAGE_SIZE];
        two_words.chunks_mut(16).for_each(|c| c[0] = 1);
        check(&two_words);
        assert_eq!(same_filled(&two_words), None);
    }

    proptest! {
        #[test]
        fn same_filled_agrees_with_the_reference(
            word: u64,
            edits in prop::collection::vec((0..PAGE_SIZE, any::<u8>()), 0..4),
        ) {
            let mut page = filled(word);
            edits.into_iter().for_each(|(at, byte)| page[at] = byte);
            check(&page);
        }
    }
}
