//! Work over all pages: writes them in order, reads them in order or at random.
//!
//! Reads compute a checksum, which is compared with the checksum of the pages that were written.

use super::child::{ChildReport, Clock, Source};
use crate::plan::SEED;
use crate::stats::Random;
use pagefold_page::{PAGE_SIZE, Page};

/// Words of 8 bytes in a page.
const PAGE_WORDS: usize = PAGE_SIZE / 8;
/// Words in 64 bytes; the sequential read reads one of them.
const LINE_WORDS: usize = 8;

/// Fills the memory and reads one word of every 64 bytes in order.
pub fn fill_and_read(memory: &mut [u8], source: &Source, report: &mut ChildReport) -> anyhow::Result<()> {
    let sums: Vec<u64> = source.pages().iter().map(sum).collect();
    let pages = fill(memory, source, report);
    let clock = Clock::start();
    let read = pages.iter().map(sum).fold(0, combine);
    clock.record_ns("sequential", pages.len(), report);
    let wanted = (0..pages.len()).map(|i| sums[i % sums.len()]).fold(0, combine);
    anyhow::ensure!(read == wanted, "the pages read in order are not those that were written");
    report.checksum = read;
    Ok(())
}

/// Fills the memory and reads random words, as many as there are pages.
pub fn fill_and_read_at_random(
    memory: &mut [u8],
    source: &Source,
    report: &mut ChildReport,
) -> anyhow::Result<()> {
    let pages = fill(memory, source, report);
    let clock = Clock::start();
    let read = random_words(pages.len()).map(|(page, word)| word_at(&pages[page], word)).fold(0, combine);
    clock.record_ns("random", pages.len(), report);
    let wanted =
        random_words(pages.len()).map(|(page, word)| word_at(source.page(page), word)).fold(0, combine);
    anyhow::ensure!(read == wanted, "the words read at random are not those that were written");
    report.checksum = read;
    Ok(())
}

/// Fills the memory with the source's pages, repeated.
pub fn fill<'m>(memory: &'m mut [u8], source: &Source, report: &mut ChildReport) -> &'m [Page] {
    let pages: &mut [Page] = memory.as_chunks_mut().0;
    let clock = Clock::start();
    for (i, page) in pages.iter_mut().enumerate() {
        page.copy_from_slice(source.page(i));
    }
    clock.record_ns("fill", pages.len(), report);
    pages
}

/// Compares every byte with the source.
pub fn compare(memory: &[u8], source: &Source) -> anyhow::Result<()> {
    let pages: &[Page] = memory.as_chunks().0;
    let different = pages.iter().enumerate().position(|(i, page)| page != source.page(i));
    anyhow::ensure!(different.is_none(), "page {different:?} is not what was written");
    Ok(())
}

fn word_at(page: &Page, word: usize) -> u64 {
    u64::from_le_bytes(page.as_chunks().0[word])
}

/// Sum of every eighth word.
fn sum(page: &Page) -> u64 {
    let words = page.as_chunks().0.iter().step_by(LINE_WORDS);
    words.fold(0, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)))
}

/// Adds the next sum to a checksum that depends on the order of the sums.
fn combine(sums: u64, next: u64) -> u64 {
    sums.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(next)
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
        assert_ne!(sum(&zero), sum(&one));
        let order = |pages: [&Page; 2]| pages.into_iter().map(sum).fold(0, combine);
        assert_ne!(order([&zero, &one]), order([&one, &zero]));
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
