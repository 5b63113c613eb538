//! How many bytes automatic writeback may write: the rate, and the budget of 24 hours.
//!
//! The store counts all bytes written to the backing. Bytes that the driver caused are charged in full, and may make
//! a debt. The others come from passes on request: they count for the daily budget and use up tokens of the rate, but
//! make no debt, because a large one would stop automatic writeback for as long as an hour.
//!
//! The rate is a token bucket that holds at most a quarter of a second's worth. The daily budget is a ring of
//! quarters of an hour, the current one and the 96 before it: they cover any 24 hours, so the bound holds for each.
//! Bytes are forgotten up to a quarter of an hour late.

use super::settings::Policy;
use pagefold_page::TokenBucket;
use std::time::Duration;

/// The capacity of the rate's token bucket, as time.
const BURST: Duration = Duration::from_millis(250);

/// The quota: the rate's token bucket and the daily budget.
#[derive(Debug, Clone)]
pub(crate) struct Meter {
    bucket: TokenBucket,
    daily: DailyWindow,
    seen_bytes: u64,
}

impl Default for Meter {
    fn default() -> Self {
        Meter {
            bucket: TokenBucket::new(Duration::ZERO, BURST),
            daily: DailyWindow::default(),
            seen_bytes: 0,
        }
    }
}

/// The origin of the bytes written since the last call of [`Meter::note`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WrittenBy {
    /// At most this many bytes were written by the driver's own call; the rest by others.
    Driver(u64),
    /// All were written by others.
    Others,
}

impl Meter {
    /// Starts counting at `written_bytes`.
    pub(crate) fn begin(&mut self, now: Duration, written_bytes: u64) {
        self.bucket.fill(now, 0);
        self.seen_bytes = written_bytes;
    }

    /// Advances to `now` and charges the bytes by which `written_bytes`, the store's total, has grown.
    pub(crate) fn note(&mut self, now: Duration, policy: &Policy, written_bytes: u64, written_by: WrittenBy) {
        self.bucket.fill(now, policy.rate_bytes_per_s.load());
        self.daily.advance(now);
        let new_bytes = written_bytes.saturating_sub(self.seen_bytes);
        self.seen_bytes = self.seen_bytes.max(written_bytes);
        self.daily.add(new_bytes);
        let own_bytes = match written_by {
            WrittenBy::Driver(len_bytes) => len_bytes.min(new_bytes),
            WrittenBy::Others => 0,
        };
        self.bucket.take_free(new_bytes - own_bytes);
        self.bucket.take(own_bytes);
    }

    /// Whether the daily budget is used up.
    pub(crate) fn is_day_spent(&self, policy: &Policy) -> bool {
        self.daily.left_bytes(policy.daily_bytes.load()) == 0
    }

    /// How long the next burst has to wait for the rate.
    pub(crate) fn wait(&self, policy: &Policy) -> Duration {
        self.bucket.wait(policy.rate_bytes_per_s.load())
    }

    /// Bytes that may be written now.
    pub(crate) fn allowance_bytes(&self, policy: &Policy) -> u64 {
        let by_rate = self.bucket.available_bytes(policy.rate_bytes_per_s.load());
        by_rate.min(self.daily.left_bytes(policy.daily_bytes.load()))
    }
}

const QUARTER_S: u64 = 15 * 60;
const QUARTERS: usize = 97;

/// Bytes written in the last 24 hours, as a ring of quarters of an hour.
#[derive(Debug, Clone)]
pub(crate) struct DailyWindow {
    ring: [u64; QUARTERS],
    /// The current quarter, counted from time zero.
    quarter: u64,
    sum_bytes: u64,
}

impl Default for DailyWindow {
    fn default() -> Self {
        DailyWindow { ring: [0; QUARTERS], quarter: 0, sum_bytes: 0 }
    }
}

impl DailyWindow {
    /// Advances to `now` and forgets older quarters.
    pub(crate) fn advance(&mut self, now: Duration) {
        let quarter = now.as_secs() / QUARTER_S;
        let passed = quarter.saturating_sub(self.quarter).min(QUARTERS as u64);
        for back in 0..passed {
            let place = &mut self.ring[((quarter - back) % QUARTERS as u64) as usize];
            self.sum_bytes -= std::mem::take(place);
        }
        self.quarter = self.quarter.max(quarter);
    }

    /// Counts bytes written now.
    pub(crate) fn add(&mut self, len_bytes: u64) {
        let place = &mut self.ring[(self.quarter % QUARTERS as u64) as usize];
        let room = len_bytes.min(u64::MAX - self.sum_bytes);
        *place += room;
        self.sum_bytes += room;
    }

    /// Bytes that are left of a budget; `u64::MAX` for the budget 0, which means none.
    pub(crate) fn left_bytes(&self, budget_bytes: u64) -> u64 {
        match budget_bytes {
            0 => u64::MAX,
            _ => budget_bytes.saturating_sub(self.sum_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_the_drivers_bytes_make_debts_and_all_count_for_the_day() {
        let policy = Policy::default();
        policy.rate_bytes_per_s.store(1000);
        policy.daily_bytes.store(2_000_000);
        let mut meter = Meter::default();
        let now = Duration::from_secs(10);
        meter.note(now, &policy, 1_000_000, WrittenBy::Others);
        assert_eq!(meter.wait(&policy), Duration::from_millis(125));
        // The driver wrote 1000 of these 5000 bytes.
        meter.note(now, &policy, 1_005_000, WrittenBy::Driver(1000));
        assert_eq!(meter.wait(&policy), Duration::from_millis(1125));
        assert!(!meter.is_day_spent(&policy));
        policy.rate_bytes_per_s.store(0);
        meter.note(now, &policy, 1_005_000, WrittenBy::Driver(1000));
        assert_eq!(meter.allowance_bytes(&policy), 995_000);
        meter.note(now, &policy, 2_000_000, WrittenBy::Driver(995_000));
        assert!(meter.is_day_spent(&policy));
    }

    proptest! {
        /// The reference model records every write with its time.
        #[test]
        fn bytes_of_the_last_day_count_and_older_ones_are_forgotten_within_a_quarter(
            writes in proptest::collection::vec((0u64..40_000, 1u64..1000), 1..100),
        ) {
            let (mut daily, mut log, mut now_s) = (DailyWindow::default(), Vec::new(), 0);
            for (pause_s, len) in writes {
                now_s += pause_s;
                daily.advance(Duration::from_secs(now_s));
                daily.add(len);
                log.push((now_s, len));
                let within = |s: u64| log.iter().filter(|w| now_s - w.0 <= s).map(|w| w.1).sum::<u64>();
                let counted = (1 << 40) - daily.left_bytes(1 << 40);
                prop_assert!(within(86_400) <= counted, "{counted}");
                prop_assert!(counted <= within(86_400 + QUARTER_S), "{counted}");
            }
        }
    }

    #[test]
    fn the_sum_saturates() {
        let mut daily = DailyWindow::default();
        daily.add(u64::MAX);
        daily.add(5);
        assert_eq!(daily.left_bytes(u64::MAX), 0);
        daily.advance(Duration::from_secs(90_000));
        assert_eq!(daily.left_bytes(10), 10);
    }
}
