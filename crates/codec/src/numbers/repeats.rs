//! Estimates how short an LZ4 block of a page of numbers can be, from the words at its beginning that occur again.
//!
//! LZ4 writes three bytes for each match. If hardly any two neighbouring words occur again, a match is hardly longer than
//! two words, and a page has some hundred of them. So a small sample excludes that LZ4 is better than packing, in a
//! twentieth of the time that it would take to try.

use pagefold_page::Page;

/// Words of the sample, from the beginning of a page: a period of up to half of this shows.
const SAMPLE: usize = 64;
/// Words of a page.
const WORDS: usize = size_of::<Page>() / 8;
const HASH_BITS: u32 = 8;
/// Bytes that LZ4 takes at least for a word that has not occurred: a match with the bytes that it has in common with
/// others, and the other bytes.
const NEW_WORD_BYTES: f32 = 4.0;
/// The same for one whose lower half has not occurred either, which are literals.
const NEW_HALF_BYTES: f32 = 6.0;
/// The same for a word that has occurred after another one: a match, of which a part may belong to its neighbours.
const REPEATED_WORD_BYTES: f32 = 2.0;

/// Returns a length in bytes that an LZ4 block of the page hardly goes below.
pub(super) fn lz4_len_min(page: &Page) -> usize {
    let (words, _) = page.as_chunks::<8>();
    let word = |at: usize| u64::from_le_bytes(words[at]);
    let mut last_word = [0_u8; 1 << HASH_BITS];
    let mut last_half = [0_u8; 1 << HASH_BITS];
    let (mut old_halves, mut old_words, mut old_pairs) = (0, 0, 0);
    for at in 1..SAMPLE {
        let (current, before) = (word(at), word(at - 1));
        let half = current as u32;
        let earlier = usize::from(std::mem::replace(&mut last_word[hash(current)], at as u8));
        let earlier_half = usize::from(std::mem::replace(&mut last_half[hash(half.into())], at as u8));
        let is_old = word(earlier) == current;
        old_words += u32::from(is_old);
        old_pairs += u32::from(is_old && word(earlier.saturating_sub(1)) == before);
        old_halves += u32::from(word(earlier_half) as u32 == half);
    }
    let share = |count: u32| count as f32 / (SAMPLE - 1) as f32;
    let new_word_bytes = if share(old_halves) < 0.05 { NEW_HALF_BYTES } else { NEW_WORD_BYTES };
    let bytes =
        (1.0 - share(old_words)) * new_word_bytes + share(old_words - old_pairs) * REPEATED_WORD_BYTES;
    (bytes * WORDS as f32) as usize
}

fn hash(word: u64) -> usize {
    (word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - HASH_BITS)) as usize
}
