//! Pages for tests, and the reference model of a store.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

pub mod gate;
pub mod medium;
pub mod rig;

use pagefold_page::PAGE_SIZE;

/// A small random generator with a seed, so that tests are repeatable.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }
}

/// A page of the kind that `seed` picks: zero, same-filled, compressible to various degrees, random.
pub fn page(seed: u64) -> [u8; PAGE_SIZE] {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut page = [0; PAGE_SIZE];
    match seed % 8 {
        0 => {}
        1 => page.chunks_mut(8).for_each(|c| c.copy_from_slice(&seed.to_le_bytes())),
        2 => page.iter_mut().for_each(|b| *b = random.next() as u8),
        kind => {
            let noise_len = PAGE_SIZE * (kind as usize - 2) / 6;
            page[..noise_len].iter_mut().for_each(|b| *b = random.next() as u8);
            page[noise_len..].iter_mut().enumerate().for_each(|(i, b)| *b = (i / 7) as u8);
        }
    }
    page
}

/// The reference model of a store: plain bytes.
pub struct PlainBytes(pub Vec<u8>);

impl PlainBytes {
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        self.0[offset as usize..offset as usize + data.len()].copy_from_slice(data);
    }

    pub fn write_zeroes(&mut self, offset: u64, len: u64) {
        self.0[offset as usize..(offset + len) as usize].fill(0);
    }

    /// Clears the whole pages in the range; the last page of the device counts as whole if its end is in the range.
    pub fn discard(&mut self, offset: u64, len: u64) {
        let (end, device_end) = ((offset + len) as usize, self.0.len());
        let first = (offset as usize).next_multiple_of(PAGE_SIZE);
        let last = if end == device_end { end } else { end / PAGE_SIZE * PAGE_SIZE };
        if first < last {
            self.0[first..last].fill(0);
        }
    }
}
