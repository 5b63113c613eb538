//! Numbers of which few are drawn often and many seldom.
//!
//! The method of Gray and others, "Quickly generating billion-record synthetic
//! databases", 1994, which YCSB uses too. Ranks are spread over the pages by a shuffle, so
//! that pages often used do not lie side by side.

use super::stats::Random;

/// A Zipf distribution over `0..n`, shuffled.
pub struct Zipf {
    theta: f64,
    alpha: f64,
    zeta_n: f64,
    eta: f64,
    places: Vec<u32>,
}

impl Zipf {
    /// `n` numbers, at least 3; rank k is drawn in proportion to 1 / k^theta, with 0 < theta < 1.
    pub fn new(n: u32, theta: f64, seed: u64) -> Self {
        let zeta = |n: u32| (1..=n).map(|k| f64::from(k).powf(-theta)).sum::<f64>();
        let zeta_n = zeta(n);
        let eta = (1.0 - (2.0 / f64::from(n)).powf(1.0 - theta)) / (1.0 - zeta(2) / zeta_n);
        let mut places: Vec<u32> = (0..n).collect();
        let mut random = Random(seed);
        for i in (1..places.len()).rev() {
            places.swap(i, random.below(i as u64 + 1) as usize);
        }
        Zipf { theta, alpha: 1.0 / (1.0 - theta), zeta_n, eta, places }
    }

    /// How many numbers there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// The next number.
    pub fn draw(&self, random: &mut Random) -> u32 {
        self.places[self.rank(random)]
    }

    fn rank(&self, random: &mut Random) -> usize {
        let u = (random.next() >> 11) as f64 / (1u64 << 53) as f64;
        let uz = u * self.zeta_n;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5f64.powf(self.theta) {
            return 1;
        }
        let n = self.places.len();
        let rank = (n as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as usize;
        rank.min(n - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_come_in_proportion() {
        let zipf = Zipf::new(1000, 0.99, 1);
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
    fn every_number_has_one_place() {
        let mut places = Zipf::new(500, 0.99, 3).places;
        assert_ne!(places[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        places.sort_unstable();
        assert!(places.iter().enumerate().all(|(i, place)| i == *place as usize));
    }
}
