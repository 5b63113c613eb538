//! Medians and spread of a few rounds.

use serde::Serialize;

/// The rounds of one figure.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Rounds(Vec<f64>);

impl Rounds {
    /// Adds a round.
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The middle value; the mean of the two middle ones of an even number; not a number without any.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        match sorted.len() {
            0 => f64::NAN,
            n if n % 2 == 1 => sorted[n / 2],
            n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
        }
    }

    /// The smallest value.
    pub fn min(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::min)
    }

    /// The largest value.
    pub fn max(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::max)
    }

    /// Round by round, this divided by `peer`: both halves of a quotient saw the same machine.
    pub fn over(&self, peer: &Rounds) -> Rounds {
        Rounds(self.0.iter().zip(&peer.0).map(|(a, b)| a / b).collect())
    }
}

impl FromIterator<f64> for Rounds {
    fn from_iter<T: IntoIterator<Item = f64>>(values: T) -> Self {
        Rounds(values.into_iter().collect())
    }
}

/// A small generator of random numbers, the same everywhere (splitmix64, after Vigna; public domain).
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

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_and_even_numbers() {
        assert_eq!(Rounds::from_iter([3.0, 1.0, 2.0]).median(), 2.0);
        assert_eq!(Rounds::from_iter([4.0, 1.0, 2.0, 3.0]).median(), 2.5);
        assert!(Rounds::default().median().is_nan());
    }

    #[test]
    fn quotients_are_taken_round_by_round() {
        let (ours, peer) = (Rounds::from_iter([1.0, 4.0]), Rounds::from_iter([2.0, 4.0]));
        assert_eq!(ours.over(&peer).median(), 0.75);
    }

    #[test]
    fn random_numbers_stay_below_and_differ() {
        let mut random = Random(1);
        let drawn: std::collections::BTreeSet<_> = (0..1000).map(|_| random.below(100)).collect();
        assert!(drawn.len() > 90 && drawn.iter().all(|n| *n < 100));
    }
}
