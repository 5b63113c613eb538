//! Medians and spread of the rounds of a figure, clocks, and threads that measure together.

use pagefold_sys::cpu;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::time::{Duration, Instant};

/// The values of one figure, one per round. NaN is the value of a round in which it was not measured.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Rounds(Vec<f64>);

impl Rounds {
    /// Adds the value of a round.
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The median; of an even number of rounds the mean of the two middle values; NaN if there are no rounds.
    pub fn median(&self) -> f64 {
        let mut sorted: Vec<f64> = self.0.iter().copied().filter(|value| !value.is_nan()).collect();
        sorted.sort_by(f64::total_cmp);
        match sorted.len() {
            0 => f64::NAN,
            n => (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0,
        }
    }

    /// The smallest and the largest value.
    pub fn range(&self) -> [f64; 2] {
        [f64::min, f64::max].map(|pick| self.0.iter().copied().fold(f64::NAN, pick))
    }

    /// Divides by `peer` round by round: both values of a round were measured under the same conditions.
    pub fn over(&self, peer: &Rounds) -> Rounds {
        Rounds(self.0.iter().zip(&peer.0).map(|(a, b)| a / b).collect())
    }
}

/// A running measurement of elapsed time and of CPU time.
pub struct Clock {
    wall: Instant,
    cpu: Duration,
    cpu_now: fn() -> Duration,
}

impl Clock {
    /// Measures the CPU time of the calling thread, in user space and in the kernel: without that of other programs.
    pub fn of_thread() -> Self {
        Clock::start(cpu::thread_time)
    }

    /// Measures the CPU time of all threads of this process.
    pub fn of_process() -> Self {
        Clock::start(|| Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default())
    }

    fn start(cpu_now: fn() -> Duration) -> Self {
        Clock { wall: Instant::now(), cpu: cpu_now(), cpu_now }
    }

    /// Returns the elapsed time and the CPU time of each of `count` items, nanoseconds.
    pub fn stop(&self, count: usize) -> [f64; 2] {
        let [cpu, wall] = [(self.cpu_now)() - self.cpu, self.wall.elapsed()];
        [wall, cpu].map(|time| time.as_nanos() as f64 / count as f64)
    }
}

/// Does each work in a separate thread, and returns the results.
pub fn in_threads<T: Send>(
    works: impl IntoIterator<Item = impl FnOnce() -> anyhow::Result<T> + Send>,
) -> anyhow::Result<Vec<T>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = works.into_iter().map(|work| scope.spawn(work)).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|end| end.unwrap_or_else(|_| anyhow::bail!("a measuring thread panicked"))).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(values: &[f64]) -> Rounds {
        Rounds(values.to_vec())
    }

    #[test]
    fn the_median_is_right_for_odd_even_and_no_rounds() {
        assert_eq!(rounds(&[3.0, 1.0, 2.0]).median(), 2.0);
        assert_eq!(rounds(&[4.0, 1.0, 2.0, 3.0]).median(), 2.5);
        assert_eq!(rounds(&[4.0, f64::NAN, 1.0, 2.0]).median(), 2.0);
        assert!(rounds(&[f64::NAN]).median().is_nan() && Rounds::default().median().is_nan());
    }

    #[test]
    fn quotients_are_taken_round_by_round() {
        let ratio = rounds(&[1.0, f64::NAN, 4.0]).over(&rounds(&[2.0, 3.0, 4.0]));
        assert_eq!((ratio.median(), ratio.range()), (0.75, [0.5, 1.0]));
    }

    #[test]
    fn an_error_or_a_panic_of_a_thread_is_the_result() {
        let works = |bad: fn() -> anyhow::Result<u32>| in_threads([|| Ok(1), bad]);
        assert_eq!(works(|| Ok(2)).unwrap(), [1, 2]);
        assert_eq!(works(|| anyhow::bail!("no")).unwrap_err().to_string(), "no");
        assert!(works(|| panic!("on purpose")).unwrap_err().to_string().contains("panicked"));
    }
}
