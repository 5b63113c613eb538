//! The time of a slot's last access, in 16 bits.
//!
//! Time is counted in ticks of a quarter of a second and wraps after four and a half
//! hours. An age is the distance from a stamp to now, so one older than that looks
//! younger than it is; a walk every half an hour moves stamps that are about to wrap
//! (`parking::upkeep`), which keeps old pages old.

use std::time::Duration;

/// Ticks per second.
const TICKS_PER_S: u64 = 4;

/// A moment, in ticks modulo 2^16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stamp(u16);

impl Stamp {
    /// The longest age that can be told, ticks; older pages are given this one.
    pub const AGE_MAX: u16 = 1 << 15;

    /// The moment this long after a store's beginning.
    pub fn at(since_start: Duration) -> Self {
        Stamp((since_start.as_millis() as u64 * TICKS_PER_S / 1000) as u16)
    }

    /// The moment of this number.
    #[inline]
    pub fn from_ticks(ticks: u16) -> Self {
        Stamp(ticks)
    }

    /// Its number, ticks modulo 2^16.
    #[inline]
    pub fn ticks(self) -> u16 {
        self.0
    }

    /// Ticks from here to `now`.
    #[inline]
    pub fn age_ticks(self, now: Stamp) -> u16 {
        now.0.wrapping_sub(self.0)
    }

    /// Whole seconds from here to `now`.
    #[inline]
    pub fn age_s(self, now: Stamp) -> u64 {
        u64::from(self.age_ticks(now)) / TICKS_PER_S
    }

    /// The moment `ticks` before this one.
    pub fn before(self, ticks: u16) -> Self {
        Stamp(self.0.wrapping_sub(ticks))
    }

    pub(super) fn from_halves(high: u8, low: u8) -> Self {
        Stamp(u16::from_be_bytes([high, low]))
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
        let late = Stamp::at(Duration::from_secs(16_380));
        let later = Stamp::at(Duration::from_secs(16_390));
        assert_eq!(late.age_s(later), 10);
        assert_eq!(later.before(40), late);
        let (high, low) = late.halves();
        assert_eq!(Stamp::from_halves(high, low), late);
    }
}
