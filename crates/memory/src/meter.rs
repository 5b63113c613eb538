//! The meter of single pages: how long storing or loading one takes, without what measuring it takes.
//!
//! Between the two readings of the clock that enclose some work lies the work and the time of one reading: the end
//! of the first and the beginning of the second. Where storing a page takes as long as a few readings, that is much
//! of what would be told. So the meter learns, when it is made, how far two readings with nothing between them are
//! apart, and takes that off each time. What the work costs beside (the memory that it waits for, an interrupt, a
//! turn of another thread) is the work's, and stays.
//!
//! It keeps no sums: these are the region's counters.

use std::time::{Duration, Instant};

/// Pairs of readings to learn from. Their median: whatever came between a few of them does not count.
const PAIRS: usize = 1001;

/// Measures pages, or does not.
pub(crate) struct Meter {
    /// How far two readings in a row are apart; `None` if nothing is measured.
    reading: Option<Duration>,
}

impl Meter {
    /// Learns what a reading takes, if it is to measure.
    pub(crate) fn new(measures: bool) -> Self {
        Meter { reading: measures.then(learn) }
    }

    /// The beginning of some work, where it is measured.
    #[inline]
    pub(crate) fn start(&self) -> Option<Instant> {
        self.reading.map(|_| Instant::now())
    }

    /// The work's time since then, without a reading's, ns.
    #[inline]
    pub(crate) fn ns_since(&self, began: Instant) -> u64 {
        self.without_reading(began.elapsed()).as_nanos() as u64
    }

    fn without_reading(&self, between: Duration) -> Duration {
        between.saturating_sub(self.reading.unwrap_or_default())
    }
}

/// The median distance of two readings with nothing between them.
fn learn() -> Duration {
    let mut pairs = [Duration::ZERO; PAIRS];
    pairs.fill_with(|| Instant::now().elapsed());
    *pairs.select_nth_unstable(PAIRS / 2).1
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    fn median_ns(meter: &Meter, work: impl Fn()) -> u64 {
        let time = |_| {
            let began = meter.start().unwrap();
            work();
            meter.ns_since(began)
        };
        let mut times: Vec<u64> = (0..2001).map(time).collect();
        *times.select_nth_unstable(1000).1
    }

    #[test]
    fn one_reading_is_taken_off_and_never_more_than_there_is() {
        let meter = Meter { reading: Some(Duration::from_nanos(30)) };
        let ns = |ns| meter.without_reading(Duration::from_nanos(ns)).as_nanos();
        assert_eq!([ns(0), ns(29), ns(30), ns(31), ns(1030)], [0, 0, 0, 1, 1000]);
    }

    #[test]
    fn a_meter_that_does_not_measure_reads_no_clock() {
        assert!(Meter::new(false).start().is_none());
        assert!(Meter::new(true).start().is_some());
    }

    #[test]
    fn no_work_takes_next_to_nothing() {
        let (meter, raw) = (Meter::new(true), Meter { reading: Some(Duration::ZERO) });
        let (nothing_ns, raw_ns) = (median_ns(&meter, || ()), median_ns(&raw, || ()));
        assert!(raw_ns > 0, "the clock is too coarse to measure pages");
        assert!(nothing_ns <= raw_ns / 2, "{nothing_ns} ns of {raw_ns} ns are left");
    }

    #[test]
    fn work_takes_its_time() {
        const WORK: Duration = Duration::from_micros(20);
        let meter = Meter::new(true);
        let work = || {
            let began = Instant::now();
            while began.elapsed() < WORK {}
        };
        let ns = median_ns(&meter, work);
        // The work reads the clock itself, at least as often as is taken off.
        assert!(u128::from(ns) >= WORK.as_nanos() * 9 / 10, "{ns} ns");
    }
}
