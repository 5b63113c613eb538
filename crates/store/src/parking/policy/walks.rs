//! How often all slots may be looked at.
//!
//! A walk costs some ten nanoseconds per slot that exists: 40 ms for 16 GiB. After one
//! that took d, the next waits for a multiple of d, so that walks have at most
//! 5 % of the parker's time below the marks, 25 % above the high mark and 50 % when it
//! is urgent. In practice they have far less, because above the marks there is one walk
//! per plan and below them one when the oldest page is due.

use std::time::Duration;

/// How much walking is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Haste {
    /// Nobody waits for the result.
    None,
    /// Memory is above the high mark.
    Above,
    /// It is nearly used up.
    Urgent,
}

impl Haste {
    /// Time between walks, as a multiple of the last one's.
    fn pause_factor(self) -> u32 {
        match self {
            Haste::None => 19,
            Haste::Above => 3,
            Haste::Urgent => 1,
        }
    }
}

/// The last walk.
#[derive(Debug, Clone, Default)]
pub(crate) struct Walks {
    ended: Duration,
    took: Duration,
}

impl Walks {
    /// How long the next walk has to wait.
    pub(crate) fn wait(&self, now: Duration, haste: Haste) -> Duration {
        let allowed = self.ended.saturating_add(self.took.saturating_mul(haste.pause_factor()));
        allowed.saturating_sub(now)
    }

    /// Notes a walk.
    pub(crate) fn note(&mut self, began: Duration, ended: Duration) {
        *self = Walks { ended, took: ended.saturating_sub(began) };
    }

    /// Notes a sweep after it that parked nothing, which is as much as another walk.
    pub(crate) fn add(&mut self, began: Duration, ended: Duration) {
        *self = Walks { ended, took: self.took + ended.saturating_sub(began) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_have_their_share() {
        let ms = Duration::from_millis;
        let mut walks = Walks::default();
        assert_eq!(walks.wait(ms(0), Haste::None), ms(0));
        walks.note(ms(100), ms(110));
        for (haste, pause) in [(Haste::None, 190), (Haste::Above, 30), (Haste::Urgent, 10)] {
            assert_eq!(walks.wait(ms(110), haste), ms(pause));
            assert_eq!(walks.wait(ms(110 + pause), haste), ms(0));
        }
        walks.add(ms(120), ms(150));
        assert_eq!(walks.wait(ms(150), Haste::Above), ms(120));
    }
}
