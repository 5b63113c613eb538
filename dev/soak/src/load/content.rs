//! Contents of pages: each page is generated from a number, the stamp, so that a model of a device stores only the
//! stamp.

use crate::random::Random;

/// Bytes of a page.
pub use pagefold_page::PAGE_SIZE as PAGE;

/// Shares of the kinds of pages, and their compressibility, in percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mix {
    /// Pages of zeroes.
    pub zero: u64,
    /// Pages that repeat a word.
    pub same: u64,
    /// Pages that do not compress; the rest compresses.
    pub raw: u64,
    /// In pages that compress, the share of random bytes: minimum and maximum.
    pub random: (u64, u64),
}

impl Mix {
    /// Draws a mix. Mixes with many raw pages are common, because raw pages need the most memory.
    pub fn draw(random: &mut Random) -> Self {
        match random.below(8) {
            0..=2 => Mix { zero: 0, same: 0, raw: 100, random: (100, 100) },
            3 => Mix { zero: 5, same: 10, raw: 50, random: (5, 95) },
            4 => Mix { zero: 0, same: 0, raw: 0, random: (55, 65) },
            5 => Mix { zero: 30, same: 40, raw: 5, random: (1, 50) },
            6 => Mix { zero: 0, same: 0, raw: 10, random: (90, 100) },
            _ => Mix { zero: 2, same: 5, raw: 20, random: (1, 100) },
        }
    }
}

/// Generates the page of a stamp. The stamp 0 is a page of zeroes.
pub fn make(stamp: u64, mix: &Mix, page: &mut [u8]) {
    let mut random = Random::new(stamp);
    let kind = random.below(100);
    if stamp == 0 || kind < mix.zero {
        page.fill(0);
    } else if kind < mix.zero + mix.same {
        let word = random.next().to_le_bytes();
        page.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&word[..chunk.len()]));
    } else if kind < mix.zero + mix.same + mix.raw {
        random.fill(page);
    } else {
        let share = random.between(mix.random.0, mix.random.1) as usize;
        let (noise, rest) = page.split_at_mut(page.len() * share / 100);
        random.fill(noise);
        rest.fill(stamp as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_always_makes_the_same_page_and_kinds_have_their_shares() {
        let mix = Mix { zero: 10, same: 10, raw: 40, random: (20, 30) };
        let (mut zero, mut same, mut raw) = (0, 0, 0);
        for stamp in 1..1000 {
            let (mut page, mut again) = ([1; PAGE], [2; PAGE]);
            make(stamp, &mix, &mut page);
            make(stamp, &mix, &mut again);
            assert!(page == again);
            let is_same = page.chunks(8).all(|c| c == &page[..8]);
            zero += u32::from(is_same && page[0] == 0 && page[1] == 0);
            same += u32::from(is_same);
            raw += u32::from(page[PAGE - 8..].iter().any(|b| *b != page[PAGE - 1]) && !is_same);
        }
        assert!((50..200).contains(&zero) && (100..300).contains(&same) && (300..500).contains(&raw));
    }
}
