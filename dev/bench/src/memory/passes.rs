//! Work over all pages: writes them in order, reads them in order or at random.
//!
//! Reads compute a checksum, which must be the same on both sides; afterwards all pages are compared with the source.

use crate::pages::PageSet;
use crate::random::{Random, SEED};
use crate::stats::Clock;
use pagefold_page::{PAGE_SIZE, Page};

/// Words of 8 bytes in a page.
const PAGE_WORDS: usize = PAGE_SIZE / 8;
/// Words in 64 bytes; the sequential read reads one of them.
const LINE_WORDS: usize = 8;

/// The page at this index of the data, which consists of the source's pages, repeated.
fn source_page(source: &PageSet, index: usize) -> &Page {
    &source.pages()[index % source.len()]
}

/// Fills the memory. Returns the pages, and the elapsed time and CPU time of each.
pub fn fill<'m>(memory: &'m mut [u8], source: &PageSet) -> (&'m [Page], [f64; 2]) {
    let pages: &mut [Page] = memory.as_chunks_mut().0;
    let clock = Clock::of_process();
    for (i, page) in pages.iter_mut().enumerate() {
        page.copy_from_slice(source_page(source, i));
    }
    let took = clock.stop(pages.len());
    (pages, took)
}

/// Reads one word of every 64 bytes in order. Returns the time of each page, and a checksum.
pub fn read_in_order(pages: &[Page]) -> ([f64; 2], u64) {
    read(pages.len(), pages.iter().flat_map(|page| page.as_chunks().0.iter().step_by(LINE_WORDS)))
}

/// Reads random words, as many as there are pages. Returns the time of each, and a checksum.
pub fn read_at_random(pages: &[Page]) -> ([f64; 2], u64) {
    read(pages.len(), random_words(pages.len()).map(|(page, word)| &pages[page].as_chunks().0[word]))
}

fn read<'a>(count: usize, words: impl Iterator<Item = &'a [u8; 8]>) -> ([f64; 2], u64) {
    let clock = Clock::of_process();
    let sum = words.fold(0, |sum, word| combine(sum, u64::from_le_bytes(*word)));
    (clock.stop(count), sum)
}

/// Compares every byte with the source.
pub fn compare(pages: &[Page], source: &PageSet) -> anyhow::Result<()> {
    let different = pages.iter().enumerate().position(|(i, page)| page != source_page(source, i));
    anyhow::ensure!(different.is_none(), "page {different:?} is not what was written");
    Ok(())
}

/// Adds the next word to a checksum that depends on the order of the words.
fn combine(sum: u64, next: u64) -> u64 {
    sum.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(next)
}

/// A fixed sequence of random words, as many as there are pages: indexes of a page and of a word in it.
fn random_words(pages: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut random = Random(SEED);
    (0..pages).map(move |_| {
        let page = random.below(pages as u64) as usize;
        (page, random.below(PAGE_WORDS as u64) as usize)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_differ_after_a_changed_word_or_swapped_pages() {
        let (zero, mut one) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
        one[64] = 1;
        let sum = |pages: &[Page]| read_in_order(pages).1;
        assert_ne!(sum(&[zero]), sum(&[one]));
        assert_ne!(sum(&[zero, one]), sum(&[one, zero]));
    }

    #[test]
    fn a_changed_byte_is_detected() {
        let source = PageSet::read(None, crate::pages::LARGE_PAGES).unwrap();
        let mut memory = vec![0; 300 * PAGE_SIZE];
        compare(fill(&mut memory, &source).0, &source).unwrap();
        memory[299 * PAGE_SIZE + 4095] ^= 1;
        assert!(compare(memory.as_chunks().0, &source).is_err());
    }

    #[test]
    fn random_words_are_the_same_each_time_and_spread_over_all_pages() {
        let drawn: Vec<_> = random_words(500).collect();
        assert!(drawn.iter().copied().eq(random_words(500)));
        assert!(drawn.iter().all(|(page, word)| *page < 500 && *word < PAGE_WORDS));
        let distinct: std::collections::BTreeSet<_> = drawn.iter().map(|(page, _)| page).collect();
        assert!(distinct.len() > 250);
    }
}
