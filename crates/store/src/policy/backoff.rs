//! Reasons to wait before writing back: failures of the medium, pressure on the machine, and the cost of walks.
//!
//! - [`RetryBackoff`]: the medium failed or was full. The pages stay where they are. The first wait is one second and
//!   each further one twice the last, up to a minute (exponential backoff); a page that was written back in between
//!   resets it. A full backing is retried earlier when it has more room than it had, free or after cleaning.
//! - [`PressureGate`]: the machine is busy; see there.
//! - [`ScanPacer`]: how often all slots may be walked. A walk takes some ten nanoseconds per allocated slot: 40 ms
//!   for 16 GiB. After a walk that took d, the next one waits for a multiple of d, so that walks take at most 5 % of
//!   the writeback thread's time below the marks, 25 % above the high mark and 50 % when memory is urgent. In
//!   practice they take far less, because above the marks there is one walk per plan, and below them one when the
//!   oldest page is due.

use super::settings::Condition;
use pagefold_backing::BackingError;
use pagefold_sys::pressure::Stall;
use std::time::Duration;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// The cause of a wait.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Cause {
    /// The backing had no room for a write; `room_bytes` were free or could be freed by cleaning.
    Full { room_bytes: u64 },
    /// The medium failed.
    Failing(BackingError),
}

/// Exponential backoff after a failure of the medium or a full backing.
#[derive(Debug, Clone, Default)]
pub(crate) struct RetryBackoff {
    cause: Option<Cause>,
    until: Duration,
    /// Length of the last wait.
    pause: Duration,
}

impl RetryBackoff {
    /// Records that the backing was full, with `room_bytes` of room. `written_back` means that pages were written
    /// back before, which resets the wait.
    pub(crate) fn full(&mut self, now: Duration, room_bytes: u64, written_back: bool) {
        self.begin(now, Cause::Full { room_bytes }, written_back);
    }

    /// Records that the medium failed. `written_back` as for [`RetryBackoff::full`].
    pub(crate) fn failing(&mut self, now: Duration, error: BackingError, written_back: bool) {
        self.begin(now, Cause::Failing(error), written_back);
    }

    fn begin(&mut self, now: Duration, cause: Cause, written_back: bool) {
        self.pause = match written_back || self.pause.is_zero() {
            true => FIRST,
            false => (self.pause * 2).min(LONGEST),
        };
        self.until = now.saturating_add(self.pause);
        self.cause = Some(cause);
    }

    /// Records a success: ends the wait and resets it.
    pub(crate) fn end(&mut self) {
        *self = RetryBackoff::default();
    }

    /// Returns the condition and the remaining wait if it is too early to retry. `room_bytes` is called for a full
    /// backing only.
    pub(crate) fn blocks(
        &self,
        now: Duration,
        room_bytes: &dyn Fn() -> u64,
    ) -> Option<(Condition, Duration)> {
        let wait = self.until.saturating_sub(now);
        if wait.is_zero() {
            return None;
        }
        match self.cause.as_ref()? {
            Cause::Full { room_bytes: before } if room_bytes() > *before => None,
            Cause::Full { .. } => Some((Condition::Full, wait)),
            Cause::Failing(error) => Some((Condition::Failing(error.clone()), wait)),
        }
    }

    /// Whether the medium failed and it is too early to retry.
    pub(crate) fn is_failing(&self, now: Duration) -> bool {
        matches!(self.cause, Some(Cause::Failing(_))) && now < self.until
    }
}

/// The shortest time between two reads of the kernel's pressure files, and the length of a pause.
const SAMPLE_TIME: Duration = Duration::from_secs(1);
/// How long the average is ignored after the pressure was found to be writeback's own.
const TRUST_TIME: Duration = Duration::from_secs(10);
/// A measurement over more time than this is discarded.
const STALE_TIME: Duration = Duration::from_secs(10);

/// The pressure on the machine: time that tasks waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Load {
    /// For a CPU.
    pub(crate) cpu: Stall,
    /// For I/O.
    pub(crate) io: Stall,
}

impl Load {
    /// Whether the averages are above a share.
    pub(crate) fn is_above(&self, percent: u32) -> bool {
        self.cpu.avg10_centipercent.max(self.io.avg10_centipercent) > percent.saturating_mul(100)
    }

    /// Whether the stalled time since `before` is more than a share of `passed`.
    fn grew_above(&self, before: &Load, passed: Duration, percent: u32) -> bool {
        let grown = |now: Stall, then: Stall| now.total_us.saturating_sub(then.total_us);
        let stalled_us = grown(self.cpu, before.cpu).max(grown(self.io, before.io));
        u128::from(stalled_us) * 100 > passed.as_micros() * u128::from(percent)
    }
}

/// Delays writeback while the machine is busy.
///
/// It uses the kernel's ten-second average of the time that tasks waited for a CPU or for I/O. Memory pressure is
/// left out, because writeback reduces it.
///
/// Writeback itself waits for I/O, so the average includes it, and writeback that obeyed the average alone would stop
/// itself for as long as the average remembers. So a high average only starts a test: writeback pauses for a second,
/// and the kernel's counter of stalled time over this second shows the pressure without writeback. If the machine is
/// still busy, the pause continues for another second; if not, the pressure was writeback's own, and the average is
/// ignored for ten seconds. Hence:
///
/// - On an otherwise idle machine, writeback loses at most one second in eleven to its own pressure, and never stops
///   permanently.
/// - On a machine that other programs keep busy, it waits without end, but only while memory is below the urgent
///   mark. Above the mark, and while writers wait, the gate is not used, so pressure never blocks memory and
///   writeback together.
///
/// A medium with its own write cache may still be busy with writeback's data during that second; then pauses follow
/// until it is done, as intended.
#[derive(Debug, Clone)]
pub(crate) enum PressureGate {
    /// Writeback may run; the pressure is not read before this time.
    Open(Duration),
    /// Writeback pauses since this time, when the pressure was this.
    Paused(Duration, Load),
}

impl Default for PressureGate {
    fn default() -> Self {
        PressureGate::Open(Duration::ZERO)
    }
}

impl PressureGate {
    /// Returns how long to wait before the next call if the machine may be busy. The caller writes nothing back in
    /// the meantime, unless it calls `forget`. `percent` 0 disables the gate.
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
            PressureGate::Open(until) if now < *until => return None,
            PressureGate::Paused(since, _) if now < *since + SAMPLE_TIME => {
                return Some(*since + SAMPLE_TIME - now);
            }
            _ => {}
        }
        let Some(load) = read() else {
            *self = PressureGate::Open(now + SAMPLE_TIME);
            return None;
        };
        let trust = match self {
            PressureGate::Paused(since, before) if now - *since <= STALE_TIME => {
                (!load.grew_above(before, now - *since, percent)).then_some(TRUST_TIME)
            }
            _ => (!load.is_above(percent)).then_some(SAMPLE_TIME),
        };
        *self = match trust {
            Some(trust) => PressureGate::Open(now + trust),
            None => PressureGate::Paused(now, load),
        };
        trust.is_none().then_some(SAMPLE_TIME)
    }

    /// Ends a pause, because pages are written back in spite of it and invalidate the measurement.
    pub(crate) fn forget(&mut self) {
        if self.is_paused() {
            *self = PressureGate::default();
        }
    }

    /// Whether writeback pauses.
    pub(crate) fn is_paused(&self) -> bool {
        matches!(self, PressureGate::Paused(..))
    }
}

/// How urgent a walk over all slots is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Memory is below the marks.
    None,
    /// Memory is above the high mark.
    Above,
    /// Memory is nearly used up, or a writer waits.
    Urgent,
}

impl Urgency {
    /// The time between walks, as a multiple of the last walk's.
    fn pause_factor(self) -> u32 {
        match self {
            Urgency::None => 19,
            Urgency::Above => 3,
            Urgency::Urgent => 1,
        }
    }
}

/// The time of the last walk, to space walks out.
#[derive(Debug, Clone, Default)]
pub(crate) struct ScanPacer {
    ended: Duration,
    took: Duration,
}

impl ScanPacer {
    /// How long the next walk has to wait.
    pub(crate) fn wait(&self, now: Duration, urgency: Urgency) -> Duration {
        let allowed = self.ended.saturating_add(self.took.saturating_mul(urgency.pause_factor()));
        allowed.saturating_sub(now)
    }

    /// Records a walk.
    pub(crate) fn note(&mut self, began: Duration, ended: Duration) {
        *self = ScanPacer { ended, took: ended.saturating_sub(began) };
    }

    /// Adds a sweep that wrote back nothing to the last walk, because it costs as much.
    pub(crate) fn add(&mut self, began: Duration, ended: Duration) {
        *self = ScanPacer { ended, took: self.took + ended.saturating_sub(began) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error() -> BackingError {
        BackingError::Io { operation: "write", offset: 0, len_bytes: 4096, errno: libc::EIO }
    }

    #[test]
    fn waits_double_up_to_a_minute_and_start_anew_after_a_success() {
        let (mut backoff, mut now, mut waits) = (RetryBackoff::default(), Duration::ZERO, Vec::new());
        for _ in 0..9 {
            backoff.failing(now, error(), false);
            let (condition, wait) = backoff.blocks(now, &|| 0).unwrap();
            assert_eq!(condition, Condition::Failing(error()));
            assert!(backoff.is_failing(now));
            now += wait;
            assert_eq!(backoff.blocks(now, &|| 0), None);
            waits.push(wait.as_secs());
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        backoff.failing(now, error(), true);
        assert_eq!(backoff.blocks(now, &|| 0).unwrap().1, FIRST);
        backoff.end();
        assert_eq!(backoff.blocks(now, &|| 0), None);
    }

    #[test]
    fn a_full_backing_is_retried_when_it_has_more_room() {
        let mut backoff = RetryBackoff::default();
        backoff.full(Duration::ZERO, 100, false);
        assert_eq!(backoff.blocks(Duration::ZERO, &|| 100), Some((Condition::Full, FIRST)));
        assert_eq!(backoff.blocks(Duration::ZERO, &|| 101), None);
        assert!(!backoff.is_failing(Duration::ZERO));
    }

    fn s(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    fn io(avg10_percent: u32, total_us: u64) -> Load {
        let io = Stall { avg10_centipercent: avg10_percent * 100, total_us };
        Load { io, ..Load::default() }
    }

    #[test]
    fn own_pressure_costs_a_second_and_the_average_is_then_ignored() {
        let mut gate = PressureGate::default();
        assert_eq!(gate.wait(s(1), 40, &mut || Some(io(90, 5_000_000))), Some(s(1)));
        let early = gate.wait(Duration::from_millis(1500), 40, &mut || panic!("read too often"));
        assert_eq!(early, Some(Duration::from_millis(500)));
        // The average still includes writeback, but no task stalled during the pause.
        assert_eq!(gate.wait(s(2), 40, &mut || Some(io(80, 5_400_000))), None);
        assert_eq!(gate.wait(s(11), 40, &mut || panic!("read too early")), None);
        assert_eq!(gate.wait(s(12), 40, &mut || Some(io(90, 14_000_000))), Some(s(1)));
    }

    #[test]
    fn the_pause_on_a_busy_machine_is_renewed_each_second() {
        let mut gate = PressureGate::default();
        for second in 0..100 {
            let load = Some(io(50, second * 410_000));
            assert_eq!(gate.wait(s(second), 40, &mut || load), Some(s(1)), "{second}");
        }
        assert_eq!(gate.wait(s(100), 40, &mut || Some(io(50, 99 * 410_000 + 400_000))), None);
    }

    #[test]
    fn cpus_count_too_and_zero_switches_it_off() {
        let cpu = Load { cpu: io(50, 0).io, ..Load::default() };
        assert_eq!(PressureGate::default().wait(s(1), 40, &mut || Some(cpu)), Some(s(1)));
        assert_eq!(PressureGate::default().wait(s(1), 50, &mut || Some(cpu)), None);
        assert_eq!(PressureGate::default().wait(s(1), 0, &mut || panic!("read")), None);
    }

    #[test]
    fn without_pressure_files_the_machine_counts_as_idle_and_they_are_tried_once_a_second() {
        let (mut gate, mut reads) = (PressureGate::default(), 0);
        for ms in (0..10_000).step_by(100) {
            let wait = gate.wait(Duration::from_millis(ms), 40, &mut || {
                reads += 1;
                None
            });
            assert_eq!(wait, None);
        }
        assert_eq!(reads, 10);
    }

    #[test]
    fn a_pause_that_was_long_ago_begins_anew() {
        let mut gate = PressureGate::default();
        assert_eq!(gate.wait(s(0), 40, &mut || Some(io(90, 0))), Some(s(1)));
        assert_eq!(gate.wait(s(60), 40, &mut || Some(io(90, 1_000_000))), Some(s(1)));
        gate.forget();
        assert!(!gate.is_paused());
    }

    #[test]
    fn walks_are_paced_by_urgency() {
        let ms = Duration::from_millis;
        let mut pacer = ScanPacer::default();
        assert_eq!(pacer.wait(ms(0), Urgency::None), ms(0));
        pacer.note(ms(100), ms(110));
        for (urgency, pause) in [(Urgency::None, 190), (Urgency::Above, 30), (Urgency::Urgent, 10)] {
            assert_eq!(pacer.wait(ms(110), urgency), ms(pause));
            assert_eq!(pacer.wait(ms(110 + pause), urgency), ms(0));
        }
        pacer.add(ms(120), ms(150));
        assert_eq!(pacer.wait(ms(150), Urgency::Above), ms(120));
    }
}
