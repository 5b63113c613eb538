//! The contents of pages: words that contain their page, version, thread and index.
//!
//! So a word in a wrong place tells where it came from. Some pages are of the kinds that the engine handles
//! separately: zero, one word repeated, incompressible.

use std::fmt;

/// Words of a page.
pub const WORDS: usize = 512;

/// A page as words.
pub type Words = [u64; WORDS];

/// A page of zeroes.
pub const ZERO: Words = [0; WORDS];

/// A small, fast generator of numbers (SplitMix64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

pub fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// Makes a word. The bits: page 44-63, version 17-43, owner 9-16, place 0-8.
pub fn tag(page: u64, version: u64, owner: u64, place: usize) -> u64 {
    page << 44 | (version & 0x7ff_ffff) << 17 | (owner & 0xff) << 9 | place as u64
}

/// Prints a word as a tag.
pub struct Tag(pub u64);

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tag(word) = *self;
        let (page, version) = (word >> 44, word >> 17 & 0x7ff_ffff);
        let (owner, place) = (word >> 9 & 0xff, word & 0x1ff);
        write!(f, "{word:#018x} (as a tag: page {page} version {version} owner {owner} place {place})")
    }
}

/// Fills a page with one of the kinds.
pub fn fill(words: &mut Words, random: &mut Random, page: u64, version: u64, owner: u64) {
    match random.below(10) {
        0 => *words = ZERO,
        1 => *words = [tag(page, version, owner, 0); WORDS],
        2..=3 => {
            // Incompressible, but for a few tags.
            words.iter_mut().for_each(|word| *word = random.next());
            for place in [0, 1, WORDS / 2, WORDS - 1] {
                words[place] = tag(page, version, owner, place);
            }
        }
        _ => words.iter_mut().enumerate().for_each(|(place, word)| *word = tag(page, version, owner, place)),
    }
}
