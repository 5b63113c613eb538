//! A set of numbers as bits in memory that is only backed where one was added.

use crate::SysError;
use crate::mem::Reservation;
use std::sync::atomic::{AtomicU64, Ordering};

/// A set of numbers below a bound, shared by threads. An empty set of any size takes address space and no memory.
#[derive(Debug)]
pub struct LazyBits {
    words: Reservation,
    word_count: usize,
}

impl LazyBits {
    /// An empty set for numbers below `count`.
    pub fn new(count: u64) -> Result<Self, SysError> {
        let word_count = count.div_ceil(64).max(1) as usize;
        let words = Reservation::new(word_count * size_of::<AtomicU64>())?;
        Ok(LazyBits { words, word_count })
    }

    /// Takes the memory of all numbers now, so that adding one never waits for memory.
    pub fn populate(&self) -> Result<(), SysError> {
        self.words.populate(0, self.words.len_bytes())
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the reservation has room for so many numbers, is aligned to pages, lives as long as `self`, reads as
        // zeroes at first, and is only accessed as these atomics.
        unsafe { std::slice::from_raw_parts(self.words.base().as_ptr().cast(), self.word_count) }
    }

    /// Whether the set contains the number. One that is not below the bound is never contained.
    #[inline]
    pub fn contains(&self, number: u64) -> bool {
        let word = self.words().get((number / 64) as usize);
        word.is_some_and(|word| word.load(Ordering::Acquire) >> (number % 64) & 1 == 1)
    }

    /// The numbers of the 64 from `number` on, a multiple of 64, that the set contains, as bits.
    #[inline]
    pub fn word(&self, number: u64) -> u64 {
        self.words().get((number / 64) as usize).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Adds the numbers that [`word`](Self::word) has returned for `number`.
    pub fn insert_word(&self, number: u64, bits: u64) {
        if let Some(word) = self.words().get((number / 64) as usize) {
            word.fetch_or(bits, Ordering::AcqRel);
        }
    }

    /// Adds a number, if it is below the bound.
    pub fn insert(&self, number: u64) {
        if let Some(word) = self.words().get((number / 64) as usize) {
            word.fetch_or(1 << (number % 64), Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_contains_what_was_added_and_nothing_else() {
        // A tebibyte of pages, and far more: no memory is needed for the rest.
        let bits = LazyBits::new(1 << 34).unwrap();
        let added = [0, 1, 63, 64, 4095, (1 << 34) - 1];
        added.iter().for_each(|number| bits.insert(*number));
        bits.insert(1 << 40);
        let around = added.iter().flat_map(|number| number.saturating_sub(2)..number + 3).chain([1 << 40]);
        for number in around {
            assert_eq!(bits.contains(number), added.contains(&number), "{number}");
        }
        assert_eq!((bits.word(0), bits.word(64), bits.word(1 << 40)), (1 << 63 | 3, 1, 0));
        let other = LazyBits::new(200).unwrap();
        other.insert(2);
        other.insert_word(0, bits.word(0));
        other.insert_word(1 << 40, 1);
        assert_eq!(other.word(0), 1 << 63 | 7);
    }
}
