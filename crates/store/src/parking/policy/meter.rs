//! The bytes that parking writes, against the rate and the budget of the day.
//!
//! The store says how much was written in all. What the driver itself caused is charged
//! in full, as a debt if need be. The rest comes from passes that somebody asked for: it
//! counts for the day and uses up what the rate has to give, but leaves no debt, or
//! automatic parking would stand still for an hour after a large one.

use super::daily::Daily;
use super::rate::TokenBucket;
use super::settings::Policy;
use std::time::Duration;

/// The counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Meter {
    bucket: TokenBucket,
    daily: Daily,
    seen_bytes: u64,
}

/// Whose bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// Written by what the driver called, as many as this; more are others'.
    Ours(u64),
    /// Written by others.
    Others,
}

impl Meter {
    /// Begins with what was written before.
    pub(crate) fn begin(&mut self, now: Duration, written_bytes: u64) {
        self.bucket.fill(now, 0);
        self.seen_bytes = written_bytes;
    }

    /// Notes that it is `now` and that `written_bytes` were written since the beginning.
    pub(crate) fn note(&mut self, now: Duration, policy: &Policy, written_bytes: u64, whose: Whose) {
        self.bucket.fill(now, policy.rate_bytes_per_s());
        self.daily.advance(now);
        let new_bytes = written_bytes.saturating_sub(self.seen_bytes);
        self.seen_bytes = self.seen_bytes.max(written_bytes);
        self.daily.add(new_bytes);
        let ours = match whose {
            Whose::Ours(len_bytes) => len_bytes.min(new_bytes),
            Whose::Others => 0,
        };
        self.bucket.take_free(new_bytes - ours);
        self.bucket.take(ours);
    }

    /// Whether the budget of the day is used up.
    pub(crate) fn is_day_spent(&self, policy: &Policy) -> bool {
        self.daily.left_bytes(policy.daily_bytes()) == 0
    }

    /// How long the rate makes the next burst wait.
    pub(crate) fn wait(&self, policy: &Policy) -> Duration {
        self.bucket.wait(policy.rate_bytes_per_s())
    }

    /// Bytes that may be written now.
    pub(crate) fn allowance_bytes(&self, policy: &Policy) -> u64 {
        let by_rate = self.bucket.available_bytes(policy.rate_bytes_per_s());
        by_rate.min(self.daily.left_bytes(policy.daily_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_bytes_become_debts_and_all_count_for_the_day() {
        let policy = Policy::default();
        policy.set_rate_bytes_per_s(1000);
        policy.set_daily_bytes(2_000_000);
        let mut meter = Meter::default();
        let now = Duration::from_secs(10);
        meter.note(now, &policy, 1_000_000, Whose::Others);
        assert_eq!(meter.wait(&policy), Duration::from_millis(125));
        // 1000 of these 5000 are ours.
        meter.note(now, &policy, 1_005_000, Whose::Ours(1000));
        assert_eq!(meter.wait(&policy), Duration::from_millis(1125));
        assert!(!meter.is_day_spent(&policy));
        policy.set_rate_bytes_per_s(0);
        meter.note(now, &policy, 1_005_000, Whose::Ours(1000));
        assert_eq!(meter.allowance_bytes(&policy), 995_000);
        meter.note(now, &policy, 2_000_000, Whose::Ours(995_000));
        assert!(meter.is_day_spent(&policy));
    }
}
