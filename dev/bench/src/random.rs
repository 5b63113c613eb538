//! Random numbers: uniform ones, and those with a Zipf distribution, of which a few are drawn often, most seldom.

/// Seed of every random choice.
pub const SEED: u64 = 0x7061_6765_666f_6c64;
/// Exponent of the Zipf distributions of all measurements.
pub const THETA: f64 = 0.99;

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

/// A Zipf distribution over `0..n`, shuffled.
///
/// The method is that of Gray and others, "Quickly generating billion-record synthetic databases", 1994, which YCSB
/// uses too. A shuffle maps ranks to numbers, so that frequent pages are not neighbours.
pub struct Zipf {
    alpha: f64,
    zeta_n: f64,
    eta: f64,
    numbers: Vec<u32>,
}

impl Zipf {
    /// A distribution over `n` numbers, at least 3: rank k is drawn with a probability proportional to 1 / k^[`THETA`].
    pub fn new(n: u32) -> Self {
        let zeta = |n: u32| (1..=n).map(|k| f64::from(k).powf(-THETA)).sum::<f64>();
        let zeta_n = zeta(n);
        let eta = (1.0 - (2.0 / f64::from(n)).powf(1.0 - THETA)) / (1.0 - zeta(2) / zeta_n);
        let mut numbers: Vec<u32> = (0..n).collect();
        let mut random = Random(SEED);
        for i in (1..numbers.len()).rev() {
            numbers.swap(i, random.below(i as u64 + 1) as usize);
        }
        Zipf { alpha: 1.0 / (1.0 - THETA), zeta_n, eta, numbers }
    }

    /// Draws a number.
    pub fn draw(&self, random: &mut Random) -> u32 {
        self.numbers[self.rank(random)]
    }

    fn rank(&self, random: &mut Random) -> usize {
        let u = (random.next() >> 11) as f64 / (1u64 << 53) as f64;
        let uz = u * self.zeta_n;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5f64.powf(THETA) {
            return 1;
        }
        let n = self.numbers.len();
        let rank = (n as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as usize;
        rank.min(n - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_of_ranks_follow_the_distribution() {
        let zipf = Zipf::new(1000);
        let mut random = Random(2);
        let mut counts = [0u32; 1000];
        (0..1_000_000).for_each(|_| counts[zipf.rank(&mut random)] += 1);
        let first = f64::from(counts[0]);
        assert!((first / 1e6 - 1.0 / zipf.zeta_n).abs() < 0.005);
        for (rank, wanted) in [(1, 0.503), (99, 0.0105)] {
            let share = f64::from(counts[rank]) / first;
            assert!((share / wanted - 1.0).abs() < 0.15, "rank {rank}: {share}");
        }
    }

    #[test]
    fn the_shuffle_contains_every_number_once() {
        let mut numbers = Zipf::new(500).numbers;
        assert_ne!(numbers[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        numbers.sort_unstable();
        assert!(numbers.iter().enumerate().all(|(i, number)| i == *number as usize));
    }

    #[test]
    fn random_numbers_stay_below_the_bound_and_differ() {
        let mut random = Random(1);
        let drawn: std::collections::BTreeSet<_> = (0..1000).map(|_| random.below(100)).collect();
        assert!(drawn.len() > 90 && drawn.iter().all(|n| *n < 100));
    }
}
