//! Random numbers that are the same for the same seed, on every machine and in every version.
//!
//! A case's configuration and load are drawn from its seed alone, so a seed replays a case. No crate of random
//! numbers is used, because such crates may change what a seed yields.

/// A generator: splitmix64, by Sebastiano Vigna.
#[derive(Debug, Clone)]
pub struct Random(u64);

const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The seed of the part number `index` of what `seed` draws: a case of a run, a thread of a load.
pub fn derive(seed: u64, index: u64) -> u64 {
    mix(mix(seed.wrapping_add(STEP)) ^ index.wrapping_mul(STEP).wrapping_add(1))
}

impl Random {
    /// The generator of this seed.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// Any number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A number below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// A number from `low` (at least 1) to `high`, small ones as likely as large ones: every doubling has the same chance.
    pub fn doubling(&mut self, low: u64, high: u64) -> u64 {
        let doublings = (high / low.max(1)).max(1).ilog2();
        let from = low << self.below(u64::from(doublings) + 1);
        self.between(from, (from * 2 - 1).min(high).max(from))
    }

    /// True in so many of a hundred cases.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// One of them.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// Fills with bytes that do not compress.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_draws_the_same() {
        let mut random = Random::new(1);
        assert_eq!([random.next(), random.next()], [0x910a_2dec_8902_5cc1, 0xbeeb_8da1_658e_ec67]);
        assert_eq!(derive(1, 2), derive(1, 2));
        assert_ne!(derive(1, 2), derive(1, 3));
        assert_ne!(derive(1, 2), derive(2, 2));
    }

    #[test]
    fn numbers_stay_in_their_bounds_and_reach_them() {
        let mut random = Random::new(7);
        let drawn: Vec<_> = (0..2000).map(|_| random.between(3, 6)).collect();
        assert!((3..=6).all(|n| drawn.contains(&n)) && drawn.iter().all(|n| (3..=6).contains(n)));
        let drawn: Vec<_> = (0..4000).map(|_| random.doubling(1, 1000)).collect();
        assert!(drawn.iter().all(|n| (1..=1000).contains(n)));
        assert!(drawn.contains(&1) && drawn.iter().any(|n| *n > 900));
        assert!((0..1000).all(|_| !random.percent(0) && random.percent(100)));
    }
}
