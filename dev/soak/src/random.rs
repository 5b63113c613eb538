//! A random number generator whose numbers depend on the seed only, not on the machine or the version.
//!
//! A case's configuration and load are drawn from its seed alone, so a seed replays a case. This is not a crate from
//! crates.io, because a new version of such a crate may generate other numbers from the same seed.

/// The generator splitmix64, by Sebastiano Vigna.
#[derive(Debug, Clone)]
pub struct Random(u64);

const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Derives the seed number `index` from `seed`: of a case from the run's, of a thread from the load's.
pub fn derive(seed: u64, index: u64) -> u64 {
    mix(mix(seed.wrapping_add(STEP)) ^ index.wrapping_mul(STEP).wrapping_add(1))
}

impl Random {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// Draws any number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// Draws a number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Draws a number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// Draws a number from `low` (at least 1) to `high`, on a logarithmic scale: every doubling has the same
    /// probability.
    pub fn doubling(&mut self, low: u64, high: u64) -> u64 {
        let doublings = (high / low.max(1)).max(1).ilog2();
        let from = low << self.below(u64::from(doublings) + 1);
        self.between(from, (from * 2 - 1).min(high).max(from))
    }

    /// Draws true with a probability of `chance` percent.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// Draws one of the choices.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// Fills a buffer with bytes that do not compress.
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
    fn a_seed_always_draws_the_same_numbers() {
        let mut random = Random::new(1);
        assert_eq!([random.next(), random.next()], [0x910a_2dec_8902_5cc1, 0xbeeb_8da1_658e_ec67]);
        assert_eq!(derive(1, 2), derive(1, 2));
        assert_ne!(derive(1, 2), derive(1, 3));
        assert_ne!(derive(1, 2), derive(2, 2));
    }

    #[test]
    fn numbers_stay_within_their_bounds_and_reach_both() {
        let mut random = Random::new(7);
        let drawn: Vec<_> = (0..2000).map(|_| random.between(3, 6)).collect();
        assert!((3..=6).all(|n| drawn.contains(&n)) && drawn.iter().all(|n| (3..=6).contains(n)));
        let drawn: Vec<_> = (0..4000).map(|_| random.doubling(1, 1000)).collect();
        assert!(drawn.iter().all(|n| (1..=1000).contains(n)));
        assert!(drawn.contains(&1) && drawn.iter().any(|n| *n > 900));
        assert!((0..1000).all(|_| !random.percent(0) && random.percent(100)));
    }
}
