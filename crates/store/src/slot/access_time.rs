//! The time of a slot's last access, in 16 bits.
//!
//! Time is counted in ticks of a quarter of a second and wraps around after four and a half hours, 65 536 ticks. An age
//! is the distance from an access time to now. A distance above 49 151 ticks counts as age 0, because the access may be
//! a little later than the caller's now; so a page that is older than three hours and 24 minutes would look young. A
//! walk over all slots every half an hour (`Pages::tick`) sets the access time of each page older than `AGE_MAX`, half
//! of the range, to that age, so that no age gets there. If the clock has stood still for longer, it goes on in steps
//! with a walk before each.

use std::time::Duration;

/// The longest distance by which an access time can be ahead, ticks: a little more than an hour. Ages stay well below
/// the rest of the range, because a walk clamps them.
const AHEAD_TICKS_MAX: u16 = 1 << 14;
/// Ticks per second.
const TICKS_PER_S: u64 = 4;

/// The whole ticks of a time.
pub fn ticks(time: Duration) -> u64 {
    time.as_millis() as u64 * TICKS_PER_S / 1000
}

/// A moment, in ticks modulo 2^16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AccessTime(u16);

impl AccessTime {
    /// The greatest age, ticks: older pages have this age.
    pub const AGE_MAX: u16 = 1 << 15;

    /// The same in seconds. A user's age above it counts as this one.
    pub const AGE_MAX_S: u64 = Self::AGE_MAX as u64 / TICKS_PER_S;

    /// The access time at `since_start` after the creation of the store.
    pub fn at(since_start: Duration) -> Self {
        AccessTime(ticks(since_start) as u16)
    }

    /// The access time with this number of ticks.
    #[inline]
    pub fn from_ticks(ticks: u16) -> Self {
        AccessTime(ticks)
    }

    /// The ticks, modulo 2^16.
    #[inline]
    pub fn ticks(self) -> u16 {
        self.0
    }

    /// The age at `now`, ticks. A time that is ahead of `now` belongs to an access after `now` was read: its age is 0,
    /// and not the greatest one.
    #[inline]
    pub fn age_ticks(self, now: AccessTime) -> u16 {
        let age = now.0.wrapping_sub(self.0);
        if age > u16::MAX - AHEAD_TICKS_MAX { 0 } else { age }
    }

    /// The age at `now`, whole seconds, at most [`AccessTime::AGE_MAX_S`].
    #[inline]
    pub fn age_s(self, now: AccessTime) -> u64 {
        u64::from(self.age_ticks(now).min(Self::AGE_MAX)) / TICKS_PER_S
    }

    /// The access time `ticks` earlier.
    pub fn before(self, ticks: u16) -> Self {
        AccessTime(self.0.wrapping_sub(ticks))
    }

    /// The time from the creation of the store to this access, for a store that is `elapsed` old.
    ///
    /// An access more than [`AccessTime::AGE_MAX`] ago counts as one at that age, and an access after the caller has
    /// read `elapsed` as one at that moment.
    pub fn since_start(self, elapsed: Duration) -> Duration {
        let now = ticks(elapsed);
        let age = self.age_ticks(AccessTime(now as u16)).min(Self::AGE_MAX);
        let ticks = now.saturating_sub(u64::from(age));
        Duration::from_millis(ticks * (1000 / TICKS_PER_S))
    }

    pub(super) fn from_halves(high: u8, low: u8) -> Self {
        AccessTime(u16::from_be_bytes([high, low]))
    }

    pub(super) fn halves(self) -> (u8, u8) {
        let [high, low] = self.0.to_be_bytes();
        (high, low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_distances_across_the_wrap() {
        let late = AccessTime::at(Duration::from_secs(16_380));
        let later = AccessTime::at(Duration::from_secs(16_390));
        assert_eq!(late.age_s(later), 10);
        assert_eq!(later.before(40), late);
        assert_eq!(later.age_ticks(late), 0, "an access after the clock was read");
        let oldest = AccessTime::AGE_MAX + (1 << 13);
        assert_eq!(late.before(oldest).age_ticks(late), oldest, "not clamped yet");
        assert_eq!(late.before(oldest).age_s(late), AccessTime::AGE_MAX_S);
        let (high, low) = late.halves();
        assert_eq!(AccessTime::from_halves(high, low), late);
    }

    #[test]
    fn the_time_since_the_start_is_exact_up_to_the_greatest_age() {
        let s = Duration::from_secs;
        for (accessed_s, elapsed_s, expected_s) in [
            (0, 0, 0),
            (5, 9, 5),
            (5, 8197, 5),
            // Older: the greatest age.
            (5, 8200, 8),
            (5, 9_000, 808),
            // After several wraps of the 16 bits.
            (100_000, 100_007, 100_000),
            (100_000, 108_192, 100_000),
            (100_000, 110_000, 101_808),
            // A store that does not time accesses.
            (0, 7000, 0),
            // Recorded after `elapsed` was read.
            (101, 100, 100),
            (16_385, 16_383, 16_383),
        ] {
            let found = AccessTime::at(s(accessed_s)).since_start(s(elapsed_s));
            assert_eq!(found, s(expected_s), "{accessed_s} at {elapsed_s}");
        }
        let quarter = AccessTime::at(Duration::from_millis(1_400)).since_start(s(60));
        assert_eq!(quarter, Duration::from_millis(1_250));
    }
}
