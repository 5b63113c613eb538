//! From which use of memory on pages are parked, and down to which.

use super::engine::Memory;

/// Hysteresis that is kept even if both marks are set to the same share: 1/256 of the limit, so that parking
/// does not start and end with every page.
const STEP_SHARE: u64 = 256;

/// The marks of a limit, bytes in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Marks {
    /// From here on pages are parked.
    pub(crate) high_bytes: u64,
    /// Down to here.
    pub(crate) low_bytes: u64,
    /// From here on whatever the machine is doing and whenever pages were accessed: halfway between the high
    /// mark and the limit.
    pub(crate) urgent_bytes: u64,
}

impl Marks {
    /// The marks; `None` if there is no limit to take a share of.
    pub(crate) fn of(memory: Memory, (high_percent, low_percent): (u32, u32)) -> Option<Self> {
        let limit = memory.limit_bytes;
        if limit == u64::MAX {
            return None;
        }
        let share = |percent: u32| (u128::from(limit) * u128::from(percent.min(100)) / 100) as u64;
        let high_bytes = share(high_percent);
        let step = (limit / STEP_SHARE).max(1);
        Some(Marks {
            high_bytes,
            low_bytes: share(low_percent).min(high_bytes.saturating_sub(step)),
            urgent_bytes: high_bytes + limit.saturating_sub(high_bytes) / 2,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(limit_bytes: u64, percents: (u32, u32)) -> Option<Marks> {
        Marks::of(Memory { used_bytes: 0, limit_bytes }, percents)
    }

    #[test]
    fn marks_are_shares_of_the_limit() {
        let marks = Marks { high_bytes: 900, low_bytes: 800, urgent_bytes: 950 };
        assert_eq!(of(1000, (90, 80)), Some(marks));
        assert_eq!(of(u64::MAX, (90, 80)), None);
        let all = of(25_600, (100, 100));
        assert_eq!(all, Some(Marks { high_bytes: 25_600, low_bytes: 25_500, urgent_bytes: 25_600 }));
    }

    proptest! {
        #[test]
        fn low_is_below_high_and_high_below_the_limit(
            limit in 1..u64::MAX, high in 1..=100u32, low in 1..=100u32,
        ) {
            let marks = of(limit, (high, low.min(high))).unwrap();
            prop_assert!(marks.low_bytes < marks.high_bytes || marks.high_bytes == 0);
            prop_assert!(marks.high_bytes <= marks.urgent_bytes && marks.urgent_bytes <= limit);
        }
    }
}
