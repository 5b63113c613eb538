//! Bytes per second, by a token bucket.
//!
//! The bucket holds at most a quarter of a second's worth. What a burst wrote beyond what
//! was there (a batch is completed, and a batch has its size) is a debt that later bursts
//! wait for, so the rate holds over any longer time.

use std::time::Duration;

/// What the bucket holds at most, as time.
const BURST_NS: i128 = 250_000_000;
const NS_PER_S: i128 = 1_000_000_000;

/// What a bucket for a rate holds at most; a byte at least, or nothing would ever be written.
fn size(rate: i128) -> i128 {
    (rate * BURST_NS).max(NS_PER_S)
}

/// Tokens are byte-nanoseconds per second, so that no rate is rounded.
#[derive(Debug, Clone, Default)]
pub(crate) struct TokenBucket {
    tokens: i128,
    filled_at: Duration,
}

impl TokenBucket {
    /// Brings the bucket up to `now`. A rate of 0 is none: it forgets debts.
    pub(crate) fn fill(&mut self, now: Duration, rate_bytes_per_s: u64) {
        let rate = i128::from(rate_bytes_per_s);
        let passed_ns = now.saturating_sub(self.filled_at).as_nanos() as i128;
        self.filled_at = now;
        let filled = self.tokens.saturating_add(rate.saturating_mul(passed_ns));
        self.tokens = if rate == 0 { 0 } else { filled.min(size(rate)) };
    }

    /// Bytes that may be written now; 0 if it is better to wait. `u64::MAX` without a rate.
    pub(crate) fn available_bytes(&self, rate_bytes_per_s: u64) -> u64 {
        match rate_bytes_per_s {
            0 => u64::MAX,
            _ if self.wait(rate_bytes_per_s).is_zero() => (self.tokens / NS_PER_S) as u64,
            _ => 0,
        }
    }

    /// How long until a burst is worth its while: the bucket half full, and a byte in it.
    pub(crate) fn wait(&self, rate_bytes_per_s: u64) -> Duration {
        let rate = i128::from(rate_bytes_per_s);
        let missing = (rate * BURST_NS / 2).max(NS_PER_S) - self.tokens;
        if rate == 0 || missing <= 0 {
            return Duration::ZERO;
        }
        let wait_ns = missing / rate + i128::from(missing % rate != 0);
        Duration::from_nanos(u64::try_from(wait_ns).unwrap_or(u64::MAX))
    }

    /// Takes bytes that were written; what is not there is a debt.
    pub(crate) fn take(&mut self, len_bytes: u64) {
        self.tokens = self.tokens.saturating_sub(i128::from(len_bytes) * NS_PER_S);
    }

    /// Takes bytes that others wrote, as far as there are tokens: their debts are not ours.
    pub(crate) fn take_free(&mut self, len_bytes: u64) {
        let rest = self.tokens.saturating_sub(i128::from(len_bytes) * NS_PER_S);
        self.tokens = rest.max(self.tokens.min(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_burst_is_a_quarter_second_and_debts_are_waited_for() {
        let mut bucket = TokenBucket::default();
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
            let mut bucket = TokenBucket::default();
            let (mut now, mut written) = (Duration::ZERO, 0u128);
            for _ in 0..steps {
                bucket.fill(now, rate);
                let wait = bucket.wait(rate);
                if wait.is_zero() {
                    let len = bucket.available_bytes(rate).min(1 << 40) + batch;
                    bucket.take(len);
                    written += u128::from(len);
                    let fair = u128::from(rate) * (now.as_nanos() + BURST_NS as u128) / NS_PER_S as u128;
                    prop_assert!(written <= fair + u128::from(batch) + 1, "{written} {fair}");
                }
                // The wait is never too short to help, nor needed twice.
                now = now.saturating_add(wait);
            }
        }
    }
}
