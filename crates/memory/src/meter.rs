//! The meter of single pages: measures how long storing or loading a page takes, without the cost of measuring.
//!
//! The difference of two clock readings contains the work and the time of one reading (the end of the first and the
//! beginning of the second). Where storing a page takes as long as a few readings, that is a large part of the result.
//! So the meter measures once, when it is made, the difference of two consecutive readings, and subtracts it each
//! time. The time for memory accesses, interrupts and preemption during the work belongs to the work and is not
//! subtracted.
//!
//! The sums are in the region's counters.

use std::time::{Duration, Instant};

/// Pairs of readings for the calibration. Its result is their median, so that interrupts between some do not count.
const SAMPLES: usize = 1001;

/// Measures single pages, unless it is off.
pub(crate) struct Meter {
    /// The difference of two consecutive readings; `None` if the meter is off.
    overhead: Option<Duration>,
}

impl Meter {
    /// Makes a meter, and calibrates it if it is on.
    pub(crate) fn new(measures: bool) -> Self {
        Meter { overhead: measures.then(calibrate) }
    }

    /// Returns the time at which some work begins; `None` if the meter is off.
    #[inline]
    pub(crate) fn start(&self) -> Option<Instant> {
        self.overhead.map(|_| Instant::now())
    }

    /// Returns the time since `began` without the overhead, ns.
    #[inline]
    pub(crate) fn ns_since(&self, began: Instant) -> u64 {
        self.without_overhead(began.elapsed()).as_nanos() as u64
    }

    fn without_overhead(&self, between: Duration) -> Duration {
        between.saturating_sub(self.overhead.unwrap_or_default())
    }
}

/// Returns the median difference of two consecutive readings.
fn calibrate() -> Duration {
    let mut samples = [Duration::ZERO; SAMPLES];
    samples.fill_with(|| Instant::now().elapsed());
    *samples.select_nth_unstable(SAMPLES / 2).1
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
    fn one_clock_reading_is_subtracted_and_never_more_than_the_time() {
        let meter = Meter { overhead: Some(Duration::from_nanos(30)) };
        let ns = |ns| meter.without_overhead(Duration::from_nanos(ns)).as_nanos();
        assert_eq!([ns(0), ns(29), ns(30), ns(31), ns(1030)], [0, 0, 0, 1, 1000]);
    }

    #[test]
    fn a_meter_that_does_not_measure_reads_no_clock() {
        assert!(Meter::new(false).start().is_none());
        assert!(Meter::new(true).start().is_some());
    }

    #[test]
    fn an_empty_interval_measures_nearly_zero() {
        let (meter, raw) = (Meter::new(true), Meter { overhead: Some(Duration::ZERO) });
        let (nothing_ns, raw_ns) = (median_ns(&meter, || ()), median_ns(&raw, || ()));
        assert!(raw_ns > 0, "the clock is too coarse to measure pages");
        assert!(nothing_ns <= raw_ns / 2, "{nothing_ns} ns of {raw_ns} ns are left");
    }

    #[test]
    fn the_time_of_work_is_not_subtracted() {
        const WORK: Duration = Duration::from_micros(20);
        let meter = Meter::new(true);
        let work = || {
            let began = Instant::now();
            while began.elapsed() < WORK {}
        };
        let ns = median_ns(&meter, work);
        // The work reads the clock itself, at least as often as is subtracted.
        assert!(u128::from(ns) >= WORK.as_nanos() * 9 / 10, "{ns} ns");
    }
}
