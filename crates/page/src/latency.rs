//! How long requests took: a histogram in fixed memory, whose bounds are powers of two of nanoseconds.
//!
//! Requests add to [`LatencyCounters`], on any thread and without a lock; a [`Latency`] is a snapshot of them. Every
//! request is counted. A server of many CPUs has one set of counters for each, and adds them up.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Buckets of a latency histogram. Bucket `b` counts requests of `2^b` to `2^(b+1) - 1` ns; the
/// first also those below, the last also those above (half an hour and more).
pub const BUCKETS: usize = 41;

/// A latency histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// Requests per bucket; see [`BUCKETS`].
    pub buckets: [u64; BUCKETS],
    /// The longest request, ns.
    pub max_ns: u64,
}

impl Default for Latency {
    fn default() -> Self {
        Latency { buckets: [0; BUCKETS], max_ns: 0 }
    }
}

impl Latency {
    /// Requests counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// A time that at least `per_mille` thousandths of the requests did not exceed, ns.
    ///
    /// It is the upper bound of the bucket that holds the wanted request (at most the longest
    /// request), so it is never too low and less than twice too high. `None` without requests.
    pub fn quantile_ns(&self, per_mille: u32) -> Option<u64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let wanted = (u128::from(count) * u128::from(per_mille.min(1000))).div_ceil(1000).max(1) as u64;
        let mut seen = 0;
        for (b, n) in self.buckets.iter().enumerate() {
            seen += n;
            if seen >= wanted {
                return Some(bucket_end_ns(b).saturating_sub(1).min(self.max_ns));
            }
        }
        Some(self.max_ns)
    }
}

/// The first nanosecond that belongs to the bucket after `bucket`.
pub fn bucket_end_ns(bucket: usize) -> u64 {
    if bucket + 1 >= BUCKETS { u64::MAX } else { 1 << (bucket + 1) }
}

fn bucket_of(ns: u64) -> usize {
    (ns.max(1).ilog2() as usize).min(BUCKETS - 1)
}

/// A latency histogram that requests add to.
#[derive(Debug)]
pub struct LatencyCounters {
    max_ns: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Default for LatencyCounters {
    fn default() -> Self {
        LatencyCounters { max_ns: AtomicU64::new(0), buckets: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl LatencyCounters {
    /// Counts a request that took so long.
    pub fn record(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket_of(ns)].fetch_add(1, Relaxed);
        // A load first: a new maximum is rare, and an exclusive cache line is not free.
        if ns > self.max_ns.load(Relaxed) {
            self.max_ns.fetch_max(ns, Relaxed);
        }
    }

    /// Returns a snapshot. Requests that are being counted at the same time may be missing.
    pub fn snapshot(&self) -> Latency {
        let mut sum = Latency::default();
        self.add_to(&mut sum);
        sum
    }

    /// Adds what they hold to `sum`.
    pub fn add_to(&self, sum: &mut Latency) {
        sum.max_ns = sum.max_ns.max(self.max_ns.load(Relaxed));
        for (total, n) in sum.buckets.iter_mut().zip(&self.buckets) {
            *total += n.load(Relaxed);
        }
    }

    /// Empties them.
    pub fn reset(&self) {
        self.max_ns.store(0, Relaxed);
        self.buckets.iter().for_each(|n| n.store(0, Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slow twin: sort all times and pick.
    fn exact_quantile(times: &[u64], per_mille: u32) -> u64 {
        let mut sorted = times.to_vec();
        sorted.sort_unstable();
        let wanted = (sorted.len() * per_mille as usize).div_ceil(1000).max(1);
        sorted[wanted - 1]
    }

    #[test]
    fn quantiles_are_never_low_and_less_than_double() {
        let mut x = 1u64;
        let times: Vec<u64> = (0..5000)
            .map(|_| {
                x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (x >> 33) % (1 << ((x >> 59) + 3)) + 1
            })
            .collect();
        let counters = LatencyCounters::default();
        times.iter().for_each(|&ns| counters.record(Duration::from_nanos(ns)));
        let latency = counters.snapshot();
        for per_mille in [1, 500, 990, 999, 1000] {
            let exact = exact_quantile(&times, per_mille);
            let got = latency.quantile_ns(per_mille).unwrap();
            assert!(got >= exact && got < exact * 2, "{per_mille}: {got} for {exact}");
        }
        assert_eq!(latency.max_ns, *times.iter().max().unwrap());
        assert_eq!(latency.count(), 5000);
        counters.reset();
        assert_eq!(counters.snapshot(), Latency::default());
    }

    #[test]
    fn buckets_meet_without_gap() {
        for b in 0..BUCKETS - 1 {
            assert_eq!(bucket_of(bucket_end_ns(b) - 1), b);
            assert_eq!(bucket_of(bucket_end_ns(b)), b + 1);
        }
        assert_eq!(bucket_of(0), 0);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        assert_eq!(Latency::default().quantile_ns(500), None);
    }
}
