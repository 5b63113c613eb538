//! Bytes within the last 24 hours.
//!
//! A ring of quarters of an hour: the one that runs and the 96 before it, so that 24
//! hours ending at any moment are covered and the bound holds for each of them; what
//! was written is forgotten up to a quarter of an hour late.

use std::time::Duration;

const QUARTER_S: u64 = 15 * 60;
const QUARTERS: usize = 97;

/// The ring.
#[derive(Debug, Clone)]
pub(crate) struct Daily {
    ring: [u64; QUARTERS],
    /// The quarter that runs, counted from the beginning of time.
    quarter: u64,
    sum_bytes: u64,
}

impl Default for Daily {
    fn default() -> Self {
        Daily { ring: [0; QUARTERS], quarter: 0, sum_bytes: 0 }
    }
}

impl Daily {
    /// Moves on to `now`: forgets what is long ago.
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

    /// What a budget of so many bytes leaves; `u64::MAX` for 0, which is none.
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

    proptest! {
        /// The twin keeps every write with its time.
        #[test]
        fn what_is_younger_than_a_day_counts_and_what_is_older_than_a_quarter_more_does_not(
            writes in proptest::collection::vec((0u64..40_000, 1u64..1000), 1..100),
        ) {
            let (mut daily, mut log, mut now_s) = (Daily::default(), Vec::new(), 0);
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
    fn no_sum_is_too_large() {
        let mut daily = Daily::default();
        daily.add(u64::MAX);
        daily.add(5);
        assert_eq!(daily.left_bytes(u64::MAX), 0);
        daily.advance(Duration::from_secs(90_000));
        assert_eq!(daily.left_bytes(10), 10);
    }
}
