//! Random numbers.

/// Seed of every random choice.
pub const SEED: u64 = 0x7061_6765_666f_6c64;

/// A deterministic generator of random numbers (splitmix64, after Vigna; public domain).
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A random number below `n`; `n` must not be 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_stay_below_the_bound_and_differ() {
        let mut random = Random(1);
        let drawn: std::collections::BTreeSet<_> = (0..1000).map(|_| random.below(100)).collect();
        assert!(drawn.len() > 90 && drawn.iter().all(|n| *n < 100));
    }
}
