//! Finds out whether a page repeats one 8-byte word.
//!
//! The check compares the last word first, because a forward scan is slowest on a page that differs only at its end.
//! Then it scans in blocks and stops at the first that differs, which on most pages is the first block. There are
//! variants for several instruction sets, of which the best that the CPU has is chosen at run time. The tests
//! compare all of them with a plain loop.

use crate::isa::{Isa, dispatch};
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
    Isa::detect().repeats(page, word).then_some(word)
}

#[inline]
fn word_at(page: &Page, at: usize) -> u64 {
    u64::from_ne_bytes(page.as_chunks().0[at / 8])
}

dispatch! {
    /// See [`repeats`].
    repeats(page: &Page, word: u64) -> bool, repeats
}

/// Combines each block's words with XOR and OR, a loop that the compiler vectorises for the target.
#[inline(always)]
fn repeats(page: &Page, word: u64) -> bool {
    page.chunks_exact(BLOCK_LEN).all(|block| {
        let (words, _) = block.as_chunks();
        words.iter().fold(0, |differs, bytes| differs | (u64::from_ne_bytes(*bytes) ^ word)) == 0
    })
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
        for isa in Isa::all() {
            assert_eq!(isa.repeats(page, word_at(page, 0)), reference(page).is_some(), "{isa:?}");
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
                for isa in Isa::all() {
                    assert!(!isa.repeats(&page, word_at(&page, 0)), "{isa:?} missed bit {bit}");
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
