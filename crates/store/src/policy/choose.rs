//! Which pages are written back: how many bytes, and from which age on.
//!
//! The marks of the memory limit determine how many bytes to free ([`Marks`]). To find the age from which on pages
//! add up to that, one walk over all slots counts the bytes of objects by age ([`AgeHistogram`]). Buckets are one
//! tick wide below eight seconds, and about a sixteenth of the age wide above. Starting from the oldest bucket, bytes
//! are summed until there are enough; the age of that bucket is the threshold. So the choice takes one walk, no
//! sorting and no list, and is exact to within a bucket.
//!
//! Pages older than the threshold's bucket are written back in a first stage, and the pages of that bucket in a
//! second one. Without stages, a bucket that contains most pages (all written at once) could fill the burst while
//! older pages stay.

use super::backoff::Urgency;
use super::target::{Memory, WritebackTarget};
use std::ops::ControlFlow;

/// The least distance of the marks, even if both are set to the same share: 1/256 of the limit, so that writeback
/// does not start and stop with each page.
const STEP_SHARE: u64 = 256;

/// The marks of the memory limit, in bytes in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Marks {
    /// Writeback starts here.
    pub(crate) high_bytes: u64,
    /// Writeback stops here.
    pub(crate) low_bytes: u64,
    /// From here on pages are written back even if the machine is busy or they were accessed recently: halfway
    /// between the high mark and the limit.
    pub(crate) urgent_bytes: u64,
}

impl Marks {
    /// The marks of a store; `None` if it has no limit.
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

/// The goal of automatic writeback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// Reduce memory to `target_bytes`; `awaited` means that a writer waits for it.
    FreeMemory { used_bytes: u64, target_bytes: u64, urgent: bool, awaited: bool },
    /// Write back pages of at least this age.
    WriteOldPages { age_ticks_min: u16 },
}

impl Goal {
    pub(super) fn is_awaited(self) -> bool {
        matches!(self, Goal::FreeMemory { awaited: true, .. })
    }

    pub(super) fn is_urgent(self) -> bool {
        matches!(self, Goal::FreeMemory { urgent: true, .. })
    }

    pub(super) fn urgency(self) -> Urgency {
        match self {
            Goal::WriteOldPages { .. } => Urgency::None,
            Goal::FreeMemory { urgent: false, .. } => Urgency::Above,
            Goal::FreeMemory { urgent: true, .. } => Urgency::Urgent,
        }
    }
}

/// Ages below this have one bucket each.
const EXACT: u16 = 32;
/// Buckets per doubling of the age above.
const PER_DOUBLING: usize = 16;
const BUCKETS: usize = EXACT as usize + 11 * PER_DOUBLING;
/// A histogram of the bytes of objects by age.
#[derive(Debug, Clone)]
pub(crate) struct AgeHistogram {
    /// Bytes without the accessed mark, and with it.
    buckets: [[u64; 2]; BUCKETS],
    oldest_ticks: u16,
}

/// Which pages are written back, in two stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    /// First stage: all pages of at least this age, ticks.
    pub(crate) older: Option<u16>,
    /// Second stage: pages of at least this age, ticks, until the goal is reached.
    pub(crate) age_ticks_min: u16,
    /// Whether the plan needs pages with the accessed mark.
    pub(crate) accessed_too: bool,
}

impl AgeHistogram {
    fn empty() -> Self {
        AgeHistogram { buckets: [[0; 2]; BUCKETS], oldest_ticks: 0 }
    }

    /// Counts the objects of all slots; stops early when `go_on` returns false.
    pub(crate) fn scan(target: &dyn WritebackTarget, go_on: &dyn Fn() -> bool) -> Self {
        let mut ages = AgeHistogram::empty();
        let now = target.access_time_now();
        let mut seen = 0u64;
        target.each_snapshot(&mut |snapshot| {
            if snapshot.is_object() {
                let age = snapshot.last_access().age_ticks(now);
                ages.add(age, snapshot.object_len_bytes() as u64, snapshot.is_accessed());
            }
            seen += 1;
            match seen.is_multiple_of(1 << 16) && !go_on() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        ages
    }

    fn add(&mut self, age_ticks: u16, len_bytes: u64, is_accessed: bool) {
        self.buckets[bucket(age_ticks)][usize::from(is_accessed)] += len_bytes;
        self.oldest_ticks = self.oldest_ticks.max(age_ticks);
    }

    /// The age of the oldest object; 0 if there is none.
    pub(crate) fn oldest_ticks(&self) -> u16 {
        self.oldest_ticks
    }

    /// Plans how to free `need_bytes`. Accessed pages are included if `accessed_too` is set or the other pages are
    /// not enough. If all pages together are not enough, the plan is to write back all; `None` if there is no object.
    pub(crate) fn plan(&self, need_bytes: u64, accessed_too: bool) -> Option<Plan> {
        let others = if accessed_too { None } else { self.threshold(need_bytes, false) };
        if others.is_some() {
            return others;
        }
        let nothing = self.buckets.iter().all(|bytes| *bytes == [0, 0]);
        let all = Plan { older: None, age_ticks_min: 0, accessed_too: true };
        self.threshold(need_bytes, true).or(if nothing { None } else { Some(all) })
    }

    fn threshold(&self, need_bytes: u64, accessed_too: bool) -> Option<Plan> {
        let mut sum_bytes = 0;
        for (index, [others, accessed]) in self.buckets.iter().enumerate().rev() {
            let older_bytes = sum_bytes;
            sum_bytes += others + if accessed_too { *accessed } else { 0 };
            if sum_bytes >= need_bytes.max(1) {
                let older = (older_bytes > 0).then(|| floor(index + 1));
                return Some(Plan { older, age_ticks_min: floor(index), accessed_too });
            }
        }
        None
    }
}

fn bucket(age_ticks: u16) -> usize {
    if age_ticks < EXACT {
        return usize::from(age_ticks);
    }
    let doubling = age_ticks.ilog2();
    let part = usize::from(age_ticks >> (doubling - 4)) % PER_DOUBLING;
    usize::from(EXACT) + (doubling - EXACT.ilog2()) as usize * PER_DOUBLING + part
}

/// The youngest age in a bucket.
fn floor(bucket: usize) -> u16 {
    let Some(beyond) = bucket.checked_sub(usize::from(EXACT)) else { return bucket as u16 };
    let shift = EXACT.ilog2() as usize + beyond / PER_DOUBLING - 4;
    ((PER_DOUBLING + beyond % PER_DOUBLING) << shift) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot::AccessTime;
    use proptest::prelude::*;
    use std::time::Duration;

    fn marks_of(limit_bytes: u64, percents: (u32, u32)) -> Option<Marks> {
        Marks::of(Memory { used_bytes: 0, limit_bytes }, percents)
    }

    #[test]
    fn marks_are_shares_of_the_limit() {
        let marks = Marks { high_bytes: 900, low_bytes: 800, urgent_bytes: 950 };
        assert_eq!(marks_of(1000, (90, 80)), Some(marks));
        assert_eq!(marks_of(u64::MAX, (90, 80)), None);
        let all = marks_of(25_600, (100, 100));
        assert_eq!(all, Some(Marks { high_bytes: 25_600, low_bytes: 25_500, urgent_bytes: 25_600 }));
    }

    proptest! {
        #[test]
        fn low_is_below_high_and_high_below_the_limit(
            limit in 1..u64::MAX, high in 1..=100u32, low in 1..=100u32,
        ) {
            let marks = marks_of(limit, (high, low.min(high))).unwrap();
            prop_assert!(marks.low_bytes < marks.high_bytes || marks.high_bytes == 0);
            prop_assert!(marks.high_bytes <= marks.urgent_bytes && marks.urgent_bytes <= limit);
        }
    }

    #[test]
    fn buckets_are_in_order_and_narrow() {
        assert_eq!((bucket(0), bucket(u16::MAX)), (0, BUCKETS - 1));
        for age in 0..=u16::MAX {
            let at = bucket(age);
            assert!(floor(at) <= age, "{age}");
            assert!(at + 1 == BUCKETS || age < floor(at + 1), "{age}");
            assert!(age - floor(at) <= age / 16, "{age}");
        }
    }

    #[test]
    fn an_access_during_the_walk_is_young() {
        let now = AccessTime::at(Duration::from_secs(100));
        let ahead = AccessTime::at(Duration::from_secs(102));
        assert_eq!(ahead.age_ticks(now), 0);
        assert_eq!(now.age_ticks(ahead), 8);
        assert_eq!(now.before(AccessTime::AGE_MAX).age_ticks(now), AccessTime::AGE_MAX);
    }

    #[test]
    fn the_last_bucket_is_a_separate_stage() {
        let mut ages = AgeHistogram::empty();
        assert_eq!(ages.plan(1, false), None);
        ages.add(10, 1000, false);
        let same = Plan { older: None, age_ticks_min: 10, accessed_too: false };
        assert_eq!(ages.plan(300, false), Some(same));
        ages.add(20, 100, false);
        assert_eq!(ages.plan(300, false), Some(Plan { older: Some(11), ..same }));
        assert_eq!(ages.plan(0, false), Some(Plan { age_ticks_min: 20, ..same }));
    }

    #[test]
    fn accessed_pages_are_planned_only_if_necessary() {
        let mut ages = AgeHistogram::empty();
        ages.add(30, 1000, true);
        ages.add(10, 1000, false);
        ages.add(5, 1000, false);
        let without = Plan { older: Some(6), age_ticks_min: 5, accessed_too: false };
        assert_eq!(ages.plan(2000, false), Some(without));
        let with = Plan { older: Some(11), age_ticks_min: 10, accessed_too: true };
        assert_eq!(ages.plan(2000, true), Some(with));
        assert_eq!(
            ages.plan(2001, false),
            Some(Plan { older: Some(6), age_ticks_min: 5, accessed_too: true })
        );
        assert_eq!(ages.plan(9999, false), Some(Plan { older: None, age_ticks_min: 0, accessed_too: true }));
    }

    proptest! {
        /// The reference model sorts the pages by age and sums from the oldest until there are enough.
        #[test]
        fn the_threshold_is_the_sorted_one_to_within_a_bucket(
            pages in proptest::collection::vec((0u16..40_000, 1u64..4097), 1..300),
            share in 0.0..1.0f64,
        ) {
            let mut ages = AgeHistogram::empty();
            pages.iter().for_each(|(age, len)| ages.add(*age, *len, false));
            let total: u64 = pages.iter().map(|(_, len)| len).sum();
            let need = ((total as f64 * share) as u64).max(1);
            let mut sorted = pages.clone();
            sorted.sort_by_key(|(age, _)| std::cmp::Reverse(*age));
            let mut sum = 0;
            let exact = sorted.iter().find(|(_, len)| { sum += len; sum >= need }).unwrap().0;
            let plan = ages.plan(need, false).unwrap();
            prop_assert_eq!(plan.age_ticks_min, floor(bucket(exact)));
            prop_assert!(!plan.accessed_too);
            let at_least = |age: u16| pages.iter().filter(|p| p.0 >= age).map(|p| p.1).sum::<u64>();
            prop_assert!(at_least(plan.age_ticks_min) >= need);
            if let Some(older) = plan.older {
                prop_assert!((1..need).contains(&at_least(older)));
            }
        }
    }
}
