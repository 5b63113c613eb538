//! How old pages must be for parking to free enough, and no more.
//!
//! All slots are looked at once and their bytes counted by age, in buckets that are a
//! tick wide up to eight seconds and about a sixteenth of the age beyond. From the
//! oldest bucket on, bytes are added up until there are enough; the age at which they
//! are is the threshold. So the choice costs one walk, no sorting and no list, and is
//! off by less than a bucket. What is older than the threshold's own bucket goes in a
//! stage before it, because a bucket can hold everything there is (all pages written
//! at once) and be left half done.

use super::engine::Engine;
use crate::slot::Stamp;
use std::ops::ControlFlow;

/// Ages below this have a bucket each.
const EXACT: u16 = 32;
/// Buckets per doubling beyond.
const PER_DOUBLING: usize = 16;
const BUCKETS: usize = EXACT as usize + 11 * PER_DOUBLING;
/// A stamp this little ahead of now (4 minutes) belongs to an access during the walk: age 0, not the oldest of
/// all. Ages so near the wrap do not occur, because stamps are moved on before.
const AHEAD_TICKS: u16 = 1024;

/// The age of a slot, ticks, in the sense of all of automatic parking.
pub(crate) fn age_ticks(stamp: Stamp, now: Stamp) -> u16 {
    let age = stamp.age_ticks(now);
    if age > u16::MAX - AHEAD_TICKS { 0 } else { age }
}

/// Bytes of objects by age.
#[derive(Debug, Clone)]
pub(crate) struct Ages {
    /// Without the accessed mark, and with it.
    buckets: [[u64; 2]; BUCKETS],
    oldest_ticks: u16,
}

/// Which pages are to be parked, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    /// First those at least this old, ticks, which are all to go.
    pub(crate) older: Option<u16>,
    /// Then those at least this old, of which some are to go.
    pub(crate) age_ticks_min: u16,
    /// Whether pages with the accessed mark are counted on.
    pub(crate) accessed_too: bool,
}

impl Ages {
    fn empty() -> Self {
        Ages { buckets: [[0; 2]; BUCKETS], oldest_ticks: 0 }
    }

    /// Looks at all slots, or as many as `go_on` lets it.
    pub(crate) fn of(engine: &dyn Engine, go_on: &dyn Fn() -> bool) -> Self {
        let mut ages = Ages::empty();
        let now = engine.stamp_now();
        let mut seen = 0u64;
        engine.peeks(&mut |peek| {
            if peek.is_object() {
                let age = age_ticks(peek.stamp(), now);
                ages.add(age, peek.object_len_bytes() as u64, peek.is_accessed());
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

    /// How to free `need_bytes`: without the accessed pages if the others have as much, else with them, and
    /// with them if `accessed_too`. All there is, if that is not enough. `None` if there is nothing.
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
    use proptest::prelude::*;
    use std::time::Duration;

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
        let now = Stamp::at(Duration::from_secs(100));
        let ahead = Stamp::at(Duration::from_secs(102));
        assert_eq!(age_ticks(ahead, now), 0);
        assert_eq!(age_ticks(now, ahead), 8);
        assert_eq!(age_ticks(now.before(Stamp::AGE_MAX), now), Stamp::AGE_MAX);
    }

    #[test]
    fn the_last_bucket_is_a_stage_of_its_own() {
        let mut ages = Ages::empty();
        assert_eq!(ages.plan(1, false), None);
        ages.add(10, 1000, false);
        let same = Plan { older: None, age_ticks_min: 10, accessed_too: false };
        assert_eq!(ages.plan(300, false), Some(same));
        ages.add(20, 100, false);
        assert_eq!(ages.plan(300, false), Some(Plan { older: Some(11), ..same }));
        assert_eq!(ages.plan(0, false), Some(Plan { age_ticks_min: 20, ..same }));
    }

    #[test]
    fn accessed_pages_are_counted_on_only_if_need_be() {
        let mut ages = Ages::empty();
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
        /// The twin sorts: pages from the oldest on, until there are enough.
        #[test]
        fn the_threshold_is_the_sorted_one_to_within_a_bucket(
            pages in proptest::collection::vec((0u16..40_000, 1u64..4097), 1..300),
            share in 0.0..1.0f64,
        ) {
            let mut ages = Ages::empty();
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
