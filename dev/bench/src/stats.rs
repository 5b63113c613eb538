//! Medians and spread of the rounds of a figure, and a generator of random numbers.

use serde::Serialize;

/// The values of one figure, one per round.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Rounds(Vec<f64>);

impl Rounds {
    /// Adds the value of a round.
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The median; of an even number of rounds the mean of the two middle values; NaN if there are no rounds.
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

    /// Divides by `peer` round by round: both values of a round were measured under the same conditions.
    pub fn over(&self, peer: &Rounds) -> Rounds {
        Rounds(self.0.iter().zip(&peer.0).map(|(a, b)| a / b).collect())
    }
}

impl FromIterator<f64> for Rounds {
    fn from_iter<T: IntoIterator<Item = f64>>(values: T) -> Self {
        Rounds(values.into_iter().collect())
    }
}

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
    fn the_median_is_right_for_odd_even_and_no_rounds() {
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
    fn random_numbers_stay_below_the_bound_and_differ() {
        let mut random = Random(1);
        let drawn: std::collections::BTreeSet<_> = (0..1000).map(|_| random.below(100)).collect();
        assert!(drawn.len() > 90 && drawn.iter().all(|n| *n < 100));
    }
}
