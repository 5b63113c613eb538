//! Blocks with contents, of which more than may be resident are changed.
//!
//! The contents compress to about a third or a half with lz4, as records of programs do. Each access checks that it has
//! reached its block.

use super::allocators::{Allocator, Blocks};
use crate::random::{Random, SEED, Zipf};
use crate::stats::Clock;
use anyhow::ensure;

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 1024;

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

    /// Changes blocks, which the round's number draws. Returns the nanoseconds of an access.
    pub fn change(&self, zipf: &Zipf, accesses: usize, round: usize) -> anyhow::Result<Vec<f64>> {
        let mut random = Random(SEED + round as u64);
        let clock = Clock::of_thread();
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
        Ok(vec![clock.stop(accesses)[0]])
    }
}
