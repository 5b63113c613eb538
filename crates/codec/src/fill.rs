//! Fills a page with one 8-byte word: the reverse of [`same_filled`](crate::same_filled()).
//!
//! The reader of the page waits for it, and its time depends on how many bytes one store instruction writes. So there
//! is one loop, compiled for several instruction sets, of which the widest that the CPU has is chosen at run time. The
//! tests compare all of them with a plain loop.

use crate::isa::{Isa, dispatch};
use pagefold_page::Page;

/// Fills a page with a word, a native-endian number in memory order.
#[inline]
pub fn fill(page: &mut Page, fill_word: u64) {
    if fill_word == 0 {
        page.fill(0);
        return;
    }
    Isa::detect().fill(page, fill_word);
}

dispatch! {
    /// See [`fill_blocks`].
    fill(page: &mut Page, fill_word: u64), fill_blocks
}

/// Writes blocks of 64 bytes. Inlined into each variant, the loop uses the store instructions of its
/// instruction set.
#[inline(always)]
fn fill_blocks(page: &mut Page, fill_word: u64) {
    let mut block = [0; 64];
    block.as_chunks_mut().0.fill(fill_word.to_ne_bytes());
    page.as_chunks_mut().0.fill(block);
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagefold_page::PAGE_SIZE;
    use proptest::prelude::*;

    /// A plain loop, for comparison.
    fn reference(word: u64) -> Page {
        let mut page = [0; PAGE_SIZE];
        page.iter_mut().zip(word.to_ne_bytes().into_iter().cycle()).for_each(|(to, byte)| *to = byte);
        page
    }

    fn check(word: u64) {
        let mut page = [0xa5; PAGE_SIZE];
        fill(&mut page, word);
        assert!(page == reference(word), "{word:#x}");
        for isa in Isa::all() {
            let mut page = [0xa5; PAGE_SIZE];
            isa.fill(&mut page, word);
            assert!(page == reference(word), "{isa:?}, {word:#x}");
            assert_eq!(crate::same_filled(&page), Some(word), "{isa:?}");
        }
    }

    #[test]
    fn fill_writes_zero_and_every_single_bit_to_the_whole_page() {
        check(0);
        (0..64).for_each(|bit| check(1 << bit));
    }

    proptest! {
        #[test]
        fn fill_agrees_with_the_reference(word: u64) {
            check(word);
        }
    }
}
