//! A page made of one 8-byte word: what undoes [`same_filled`](crate::same_filled()).
//!
//! It runs before the access to a page goes on, and is bound by how much one store writes; so it has variants by
//! instruction set, chosen at run time, of one loop that the compiler makes the widest stores of. The obvious loop
//! is their twin in the tests.

use pagefold_page::Page;

/// Fills a page with a word in memory order.
#[inline]
pub fn fill(page: &mut Page, fill_word: u64) {
    if fill_word == 0 {
        page.fill(0);
        return;
    }
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: AVX-512F was detected on this CPU.
            return unsafe { fill_avx512(page, fill_word) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: AVX2 was detected on this CPU.
            return unsafe { fill_avx2(page, fill_word) };
        }
    }
    fill_portable(page, fill_word);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn fill_avx512(page: &mut Page, fill_word: u64) {
    fill_portable(page, fill_word);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn fill_avx2(page: &mut Page, fill_word: u64) {
    fill_portable(page, fill_word);
}

/// Blocks of 64 bytes, each in one store or more by the instructions of the function that this becomes part of.
#[inline(always)]
fn fill_portable(page: &mut Page, fill_word: u64) {
    let mut block = [0; 64];
    block.as_chunks_mut().0.fill(fill_word.to_ne_bytes());
    page.as_chunks_mut().0.fill(block);
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagefold_page::PAGE_SIZE;
    use proptest::prelude::*;

    /// The slow, obvious twin.
    fn twin(word: u64) -> Page {
        let mut page = [0; PAGE_SIZE];
        page.iter_mut().zip(word.to_ne_bytes().into_iter().cycle()).for_each(|(to, byte)| *to = byte);
        page
    }

    fn check(word: u64) {
        type Fill = fn(&mut Page, u64);
        let mut fills: Vec<(&str, Fill)> = vec![("chosen", fill), ("portable", fill_portable)];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                // SAFETY: AVX-512F was detected on this CPU.
                fills.push(("avx512", |page, word| unsafe { fill_avx512(page, word) }));
            }
            if is_x86_feature_detected!("avx2") {
                // SAFETY: AVX2 was detected on this CPU.
                fills.push(("avx2", |page, word| unsafe { fill_avx2(page, word) }));
            }
        }
        for (name, fill) in fills {
            let mut page = [0xa5; PAGE_SIZE];
            fill(&mut page, word);
            assert!(page == twin(word), "{name}, {word:#x}");
            assert_eq!(crate::same_filled(&page), Some(word), "{name}");
        }
    }

    #[test]
    fn fill_writes_all_of_zero_and_of_one_bit() {
        check(0);
        (0..64).for_each(|bit| check(1 << bit));
    }

    proptest! {
        #[test]
        fn fill_agrees_with_twin(word: u64) {
            check(word);
        }
    }
}
