//! Waiting while the machine is busy.
//!
//! The kernel's ten-second average of the time that tasks waited for a CPU or for I/O
//! says when to hold back. Memory pressure is left out: parking is what relieves it.
//!
//! Parking itself waits for I/O, so the average counts it, and parking that obeyed the
//! average alone would stop itself for as long as the average remembers. So the average
//! only raises a suspicion. Then nothing is parked for a second, and the kernel's
//! counter of stalled time over just this second says what the machine is like without
//! us: if it is still busy, another second passes; if not, it was our own pressure, and
//! parking goes on for ten seconds before the average is asked again. Hence:
//!
//! - On a machine that nobody else loads, parking loses at most one second in eleven to
//!   its own pressure, and never stops for good.
//! - On a machine that others keep busy for ever, it waits for ever, but only as long as
//!   memory is below the urgent mark. Above, this is not asked (nor is it while writers
//!   wait), so there is no state in which both memory and parking stand still because
//!   of pressure.
//!
//! A medium with a write cache of its own may still be busy with our writes during that
//! second; then the pauses add up until it is done, which is what one wants.

use pagefold_sys::pressure::Stall;
use std::time::Duration;

/// The files are read, and a pause lasts, no less than this.
const LOOK: Duration = Duration::from_secs(1);
/// How long a pressure that was found to be our own is not asked for again.
const TRUST: Duration = Duration::from_secs(10);
/// A pause that was measured over longer than this says nothing about now.
const STALE: Duration = Duration::from_secs(10);

/// How much tasks of the machine wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Load {
    /// For a CPU.
    pub(crate) cpu: Stall,
    /// For I/O.
    pub(crate) io: Stall,
}

impl Load {
    /// Whether the averages are above a share.
    fn is_above(&self, percent: u32) -> bool {
        self.cpu.avg10_centipercent.max(self.io.avg10_centipercent) > percent.saturating_mul(100)
    }

    /// Whether the stalled time since `before` is more than a share of `passed`.
    fn grew_above(&self, before: &Load, passed: Duration, percent: u32) -> bool {
        let grown = |now: Stall, then: Stall| now.total_us.saturating_sub(then.total_us);
        let stalled_us = grown(self.cpu, before.cpu).max(grown(self.io, before.io));
        u128::from(stalled_us) * 100 > passed.as_micros() * u128::from(percent)
    }
}

/// What is known of the machine.
#[derive(Debug, Clone)]
pub(crate) enum Quiet {
    /// Not to be looked at before this.
    Calm(Duration),
    /// Pausing since then, when it looked like this.
    Pausing(Duration, Load),
}

impl Default for Quiet {
    fn default() -> Self {
        Quiet::Calm(Duration::ZERO)
    }
}

impl Quiet {
    /// How long to wait before asking again, if the machine may be busy. Nothing may be parked meanwhile, unless
    /// `forget` is called. `percent` 0 switches this off.
    pub(crate) fn wait(
        &mut self,
        now: Duration,
        percent: u32,
        read: &mut dyn FnMut() -> Option<Load>,
    ) -> Option<Duration> {
        if percent == 0 {
            self.forget();
            return None;
        }
        match self {
            Quiet::Calm(until) if now < *until => return None,
            Quiet::Pausing(since, _) if now < *since + LOOK => return Some(*since + LOOK - now),
            _ => {}
        }
        let Some(load) = read() else {
            *self = Quiet::Calm(now + LOOK);
            return None;
        };
        let trust = match self {
            Quiet::Pausing(since, before) if now - *since <= STALE => {
                (!load.grew_above(before, now - *since, percent)).then_some(TRUST)
            }
            _ => (!load.is_above(percent)).then_some(LOOK),
        };
        *self = match trust {
            Some(trust) => Quiet::Calm(now + trust),
            None => Quiet::Pausing(now, load),
        };
        trust.is_none().then_some(LOOK)
    }

    /// Ends a pause: something is parked all the same, so what was measured is not the machine's own.
    pub(crate) fn forget(&mut self) {
        if self.is_pausing() {
            *self = Quiet::default();
        }
    }

    /// Whether it is waiting.
    pub(crate) fn is_pausing(&self) -> bool {
        matches!(self, Quiet::Pausing(..))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    fn io(avg10_percent: u32, total_us: u64) -> Load {
        let io = Stall { avg10_centipercent: avg10_percent * 100, total_us };
        Load { io, ..Load::default() }
    }

    #[test]
    fn our_own_pressure_costs_a_second_and_is_then_trusted() {
        let mut quiet = Quiet::default();
        assert_eq!(quiet.wait(s(1), 40, &mut || Some(io(90, 5_000_000))), Some(s(1)));
        let early = quiet.wait(Duration::from_millis(1500), 40, &mut || panic!("read too often"));
        assert_eq!(early, Some(Duration::from_millis(500)));
        // The average still remembers us, but nothing stalled while nothing was parked.
        assert_eq!(quiet.wait(s(2), 40, &mut || Some(io(80, 5_400_000))), None);
        assert_eq!(quiet.wait(s(11), 40, &mut || panic!("read too early")), None);
        assert_eq!(quiet.wait(s(12), 40, &mut || Some(io(90, 14_000_000))), Some(s(1)));
    }

    #[test]
    fn a_busy_machine_is_waited_for_second_by_second() {
        let mut quiet = Quiet::default();
        for second in 0..100 {
            let load = Some(io(50, second * 410_000));
            assert_eq!(quiet.wait(s(second), 40, &mut || load), Some(s(1)), "{second}");
        }
        assert_eq!(quiet.wait(s(100), 40, &mut || Some(io(50, 99 * 410_000 + 400_000))), None);
    }

    #[test]
    fn cpus_count_too_and_zero_switches_it_off() {
        let cpu = Load { cpu: io(50, 0).io, ..Load::default() };
        assert_eq!(Quiet::default().wait(s(1), 40, &mut || Some(cpu)), Some(s(1)));
        assert_eq!(Quiet::default().wait(s(1), 50, &mut || Some(cpu)), None);
        assert_eq!(Quiet::default().wait(s(1), 0, &mut || panic!("read")), None);
    }

    #[test]
    fn a_kernel_that_says_nothing_is_not_busy_and_asked_once_a_second() {
        let (mut quiet, mut reads) = (Quiet::default(), 0);
        for ms in (0..10_000).step_by(100) {
            let wait = quiet.wait(Duration::from_millis(ms), 40, &mut || {
                reads += 1;
                None
            });
            assert_eq!(wait, None);
        }
        assert_eq!(reads, 10);
    }

    #[test]
    fn a_pause_that_was_long_ago_begins_anew() {
        let mut quiet = Quiet::default();
        assert_eq!(quiet.wait(s(0), 40, &mut || Some(io(90, 0))), Some(s(1)));
        assert_eq!(quiet.wait(s(60), 40, &mut || Some(io(90, 1_000_000))), Some(s(1)));
        quiet.forget();
        assert!(!quiet.is_pausing());
    }
}
