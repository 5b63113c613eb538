//! Blocks with contents, of which more than may be resident are changed.
//!
//! The contents compress to about a third or a half with lz4, as records of programs do. Each access checks that it has
//! reached its block; a checksum covers all changes.

use super::{Allocator, Blocks};
use crate::plan::SEED;
use crate::stats::Random;
use crate::zipf::Zipf;
use anyhow::ensure;
use std::time::Instant;

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 1024;
/// The skew of accesses, which is that of the pages of `pagefold-bench memory`.
pub const THETA: f64 = 0.99;

/// Blocks that begin with their number, and repeat a few words, as records do.
pub struct Data<'a, A: Allocator>(Blocks<'a, A>);

impl<'a, A: Allocator> Data<'a, A> {
    /// Allocates and fills so many blocks.
    pub fn new(allocator: &'a A, count: usize) -> anyhow::Result<Self> {
        let data = Data(Blocks::new(allocator, count, BLOCK_BYTES)?);
        let mut random = Random(SEED);
        for (number, block) in data.0.blocks.iter().enumerate() {
            let words = [random.next(), random.next(), number as u64];
            for (i, at) in (0..BLOCK_BYTES).step_by(8).enumerate() {
                let word = if i % 4 == 3 { random.next() } else { words[i % 3] };
                let word = if i == 0 { number as u64 } else { word };
                // SAFETY: the block has so many bytes, aligned to 16.
                unsafe { block.add(at).cast::<u64>().write(word) };
            }
        }
        Ok(data)
    }

    /// Changes blocks, which `seed` draws. Returns the nanoseconds of an access.
    pub fn change(&self, zipf: &Zipf, accesses: usize, seed: u64) -> anyhow::Result<f64> {
        let mut random = Random(SEED + seed);
        let began = Instant::now();
        for _ in 0..accesses {
            let number = zipf.draw(&mut random);
            let block = self.0.blocks[number as usize].cast::<u64>();
            // SAFETY: the block has so many words, which only this thread uses.
            unsafe {
                ensure!(block.read() == u64::from(number), "block {number} has other contents");
                let last = block.add(BLOCK_BYTES / 8 - 1);
                last.write(last.read().wrapping_add(1));
            }
        }
        Ok(began.elapsed().as_nanos() as f64 / accesses as f64)
    }

    /// Reads all blocks. Returns a checksum of the words that accesses change.
    pub fn checksum(&self) -> anyhow::Result<u64> {
        let mut sum = 0u64;
        for (number, block) in self.0.blocks.iter().enumerate() {
            let block = block.cast::<u64>();
            // SAFETY: the block has so many words, which only this thread uses.
            let (first, last) = unsafe { (block.read(), block.add(BLOCK_BYTES / 8 - 1).read()) };
            ensure!(first == number as u64, "block {number} has other contents");
            sum = sum.rotate_left(5) ^ last;
        }
        Ok(sum)
    }
}
