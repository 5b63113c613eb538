//! Bytes per second, by a token bucket.
//!
//! A bucket holds at most what the rate gives in a time that its user names: a burst. Bytes taken beyond what
//! was there (a batch is completed, and a batch has its size) are a debt that later takers
//! wait for, so the rate holds over any longer time.

use std::time::Duration;

const NS_PER_S: i128 = 1_000_000_000;

/// Tokens are byte-nanoseconds per second, so that no rate is rounded.
#[derive(Debug, Clone)]
pub struct TokenBucket {
    tokens: i128,
    /// The time in which the rate fills it, ns.
    burst_ns: i128,
    filled_at: Duration,
}

impl TokenBucket {
    /// A bucket that is empty at `now`, and holds at most what the rate gives in `burst`.
    pub const fn new(now: Duration, burst: Duration) -> Self {
        TokenBucket { tokens: 0, burst_ns: burst.as_nanos() as i128, filled_at: now }
    }

    /// The capacity of a bucket for a rate: at least one byte, because otherwise nothing would ever be written.
    fn size(&self, rate: i128) -> i128 {
        rate.saturating_mul(self.burst_ns).max(NS_PER_S)
    }

    /// Brings the bucket up to `now`. A rate of 0 is none: it forgets debts.
    pub fn fill(&mut self, now: Duration, rate_bytes_per_s: u64) {
        let rate = i128::from(rate_bytes_per_s);
        let passed_ns = now.saturating_sub(self.filled_at).as_nanos() as i128;
        self.filled_at = now;
        let filled = self.tokens.saturating_add(rate.saturating_mul(passed_ns));
        self.tokens = if rate == 0 { 0 } else { filled.min(self.size(rate)) };
    }

    /// Bytes that may be written now; 0 if it is better to wait. `u64::MAX` without a rate.
    pub fn available_bytes(&self, rate_bytes_per_s: u64) -> u64 {
        match rate_bytes_per_s {
            0 => u64::MAX,
            _ if self.wait(rate_bytes_per_s).is_zero() => (self.tokens / NS_PER_S) as u64,
            _ => 0,
        }
    }

    /// How long until half a burst, and at least a byte, is available.
    pub fn wait(&self, rate_bytes_per_s: u64) -> Duration {
        let rate = i128::from(rate_bytes_per_s);
        let level = (rate.saturating_mul(self.burst_ns) / 2).max(NS_PER_S);
        let missing = level.saturating_sub(self.tokens);
        if rate == 0 || missing <= 0 {
            return Duration::ZERO;
        }
        let wait_ns = missing / rate + i128::from(missing % rate != 0);
        Duration::from_nanos(u64::try_from(wait_ns).unwrap_or(u64::MAX))
    }

    /// Takes bytes that were written; the balance may become negative.
    pub fn take(&mut self, len_bytes: u64) {
        self.tokens = self.tokens.saturating_sub(i128::from(len_bytes) * NS_PER_S);
    }

    /// Takes bytes that others wrote, as far as there are tokens: they do not make the balance negative.
    pub fn take_free(&mut self, len_bytes: u64) {
        let rest = self.tokens.saturating_sub(i128::from(len_bytes) * NS_PER_S);
        self.tokens = rest.max(self.tokens.min(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BURST: Duration = Duration::from_millis(250);

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_burst_is_bounded_and_debts_are_waited_for() {
        let mut bucket = TokenBucket::new(Duration::ZERO, BURST);
        bucket.fill(at(10_000), 1000);
        assert_eq!(bucket.available_bytes(1000), 250);
        bucket.take(1250);
        assert_eq!((bucket.available_bytes(1000), bucket.wait(1000)), (0, at(1125)));
        bucket.fill(at(11_125), 1000);
        assert_eq!((bucket.available_bytes(1000), bucket.wait(1000)), (125, at(0)));
        bucket.take_free(1 << 60);
        assert_eq!(bucket.wait(1000), at(125));
        bucket.fill(at(11_125), 0);
        assert_eq!(bucket.available_bytes(0), u64::MAX);
    }

    proptest! {
        #[test]
        fn no_more_is_written_than_rate_burst_and_one_batch(
            rate in 1..u64::MAX >> 20, batch in 1..1u64 << 30, steps in 1..200usize,
        ) {
            let mut bucket = TokenBucket::new(Duration::ZERO, BURST);
            let (mut now, mut written) = (Duration::ZERO, 0u128);
            for _ in 0..steps {
                bucket.fill(now, rate);
                let wait = bucket.wait(rate);
                if wait.is_zero() {
                    let len = bucket.available_bytes(rate).min(1 << 40) + batch;
                    bucket.take(len);
                    written += u128::from(len);
                    let fair = u128::from(rate) * (now.as_nanos() + BURST.as_nanos()) / NS_PER_S as u128;
                    prop_assert!(written <= fair + u128::from(batch) + 1, "{written} {fair}");
                }
                // The wait is never too short to help, nor needed twice.
                now = now.saturating_add(wait);
            }
        }
    }
}
