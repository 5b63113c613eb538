//! Which pages are written back, and when there is nothing to do.

use super::simulated::{BATCH, LEN, Random, SimulatedStore};
use crate::policy::settings::Condition;
use crate::policy::target::WritebackTarget;
use crate::slot::AccessTime;
use proptest::prelude::*;
use std::cell::Cell;
use std::time::Duration;

const S: Duration = Duration::from_secs(1);

/// 10 000 pages, 95 % of the limit.
fn full_store() -> SimulatedStore {
    SimulatedStore::new(10_000, 10_000 * LEN * 100 / 95)
}

fn low_bytes(sim: &SimulatedStore) -> u64 {
    sim.limit_bytes.get() / 100 * 80
}

#[test]
fn above_the_high_mark_the_oldest_pages_are_written_back_down_to_the_low_mark() {
    let (sim, mut random) = (full_store(), Random(1));
    sim.write_all((0..10_000).map(|_| (random.below(2000)) as u16));
    sim.run(S * 5);
    let used = sim.used_bytes.get();
    assert!(used <= low_bytes(&sim) && used + (BATCH + 1) * LEN > low_bytes(&sim), "{used}");
    assert_eq!(sim.condition(), Condition::Idle);
    assert_eq!(sim.walks.borrow().len(), 1);

    // The reference model sorts. No page was written back that is more than a sixteenth younger than the exact
    // threshold.
    let written_back = sim.written_back.borrow();
    let youngest_gone = written_back.iter().map(|e| sim.age(e.last_access)).min().unwrap();
    let mut ages: Vec<_> = sim.slots.iter().map(|s| sim.age(s.snapshot().last_access())).collect();
    ages.sort_by_key(|age| std::cmp::Reverse(*age));
    let exact = ages[written_back.len() - 1];
    assert!(youngest_gone <= exact && exact - youngest_gone <= exact / 16 + 1, "{youngest_gone} {exact}");
    let oldest_left = sim.slots.iter().map(|s| s.snapshot()).filter(|p| p.is_object());
    let oldest_left = oldest_left.map(|p| sim.age(p.last_access())).max().unwrap();
    assert!(oldest_left <= exact + exact / 16 + 1, "{oldest_left} {exact}");
}

#[test]
fn pages_of_one_age_are_written_back_too() {
    for age in [0, 1, 500, AccessTime::AGE_MAX] {
        let sim = full_store();
        sim.write_all((0..10_000).map(|_| age));
        sim.run(S * 5);
        assert!(sim.used_bytes.get() <= low_bytes(&sim), "age {age}");
        assert!(sim.used_bytes.get() + (BATCH + 1) * LEN > low_bytes(&sim), "age {age}");
    }
}

#[test]
fn a_few_older_pages_are_written_back_before_many_equal_ones() {
    let sim = full_store();
    sim.write_all((0..10_000).map(|i| if i >= 9990 { 1000 } else { 100 }));
    sim.run(S * 5);
    assert!((9990..10_000).all(|i| sim.is_written_back(i)));
    assert!(sim.written_back.borrow()[..10].iter().all(|e| e.index >= 9990));
}

#[test]
fn accessed_pages_have_a_second_chance_and_no_third() {
    let sim = full_store();
    // The accessed pages are older, but the others are enough.
    sim.write_all((0..10_000).map(|i| if i % 2 == 0 { 400 } else { 200 }));
    (0..10_000).step_by(2).for_each(|i| sim.access(i, 400));
    // Not urgent: just above the high mark.
    sim.limit_bytes.set(10_000 * LEN * 100 / 91);
    sim.run(S * 5);
    let evens_left = (0..10_000).step_by(2).filter(|i| !sim.is_written_back(*i)).count();
    assert_eq!(evens_left, 5000);
    assert!(sim.used_bytes.get() <= low_bytes(&sim));
    let marks = sim.slots.iter().filter(|s| s.snapshot().is_accessed()).count();
    assert!(marks < 5000, "the hand takes marks as it passes: {marks}");

    // Now the pages without the mark are written back by age: the older half.
    (0..10_000).filter(|i| sim.is_written_back(*i)).for_each(|i| sim.write(i, LEN, 10));
    let before = sim.written_back.borrow().len();
    sim.run(S * 5);
    assert!(sim.used_bytes.get() <= low_bytes(&sim));
    assert!(sim.written_back.borrow()[before..].iter().all(|e| e.index % 2 == 0));
}

#[test]
fn accessed_pages_are_written_back_if_there_are_no_others() {
    let sim = full_store();
    sim.write_all((0..10_000).map(|i| i as u16));
    (0..10_000).for_each(|i| sim.access(i, i as u16));
    sim.run(S * 5);
    assert!(sim.used_bytes.get() <= low_bytes(&sim));
    let youngest_gone = sim.written_back.borrow().iter().map(|e| sim.age(e.last_access)).min().unwrap();
    assert!(youngest_gone > 7000, "{youngest_gone}");
}

#[test]
fn urgent_writeback_takes_the_oldest_pages_accessed_or_not() {
    let sim = full_store();
    sim.write_all((0..10_000).map(|i| if i < 3000 { 400 } else { 200 }));
    (0..3000).for_each(|i| sim.access(i, 400));
    sim.limit_bytes.set(10_000 * LEN * 100 / 99);
    sim.run(S * 5);
    assert!(sim.written_back.borrow().iter().all(|e| e.index < 3000));
    assert!(sim.used_bytes.get() <= low_bytes(&sim));
}

#[test]
fn between_the_marks_nothing_is_written_back() {
    let sim = full_store();
    sim.limit_bytes.set(10_000 * LEN * 100 / 89);
    sim.write_all((0..10_000).map(|i| i as u16));
    sim.run(S * 600);
    assert!(sim.walks.borrow().is_empty() && sim.sweeps.borrow().is_empty());
    assert_eq!(sim.condition(), Condition::Idle);
}

#[test]
fn an_idle_store_has_regular_maintenance_and_no_walks() {
    let sim = SimulatedStore::new(100, u64::MAX);
    sim.write_all((0..100).map(|i| i as u16));
    sim.run(S * 60);
    let maintenance_runs = sim.maintenance_runs.borrow();
    assert!((239..=241).contains(&maintenance_runs.len()), "{}", maintenance_runs.len());
    assert!(maintenance_runs.iter().all(|(_, clean)| *clean));
    assert!(sim.walks.borrow().is_empty() && sim.sweeps.borrow().is_empty());
}

#[test]
fn with_an_age_pages_are_written_back_when_due_and_walks_are_rare() {
    let sim = SimulatedStore::new(1000, u64::MAX);
    sim.policy.age_s.store(60);
    sim.write_all((0..1000).map(|i| if i < 100 { 200 } else { 0 }));
    (0..50).for_each(|i| sim.access(i, 200));
    let began = sim.now.get();
    sim.run(S * 9);
    assert!(sim.written_back.borrow().is_empty());
    // 200 ticks are 50 s: these pages are due in 10 s, and the accessed ones a second later.
    sim.run(Duration::from_millis(1500));
    let gone = || (0..1000).filter(|i| sim.is_written_back(*i)).collect::<Vec<_>>();
    assert_eq!(gone(), (50..100).collect::<Vec<_>>());
    sim.run(S * 3);
    assert_eq!(gone(), (0..100).collect::<Vec<_>>());
    let walks = sim.walks.borrow().len();
    assert!(walks <= 8, "{walks}");
    sim.run(began + S * 59 - sim.now.get());
    assert_eq!(gone().len(), 100);
    assert!(sim.walks.borrow().len() <= walks + 2);
    sim.run(S * 3);
    assert_eq!(gone().len(), 1000);
}

#[test]
fn writeback_by_age_leaves_the_medium_half_of_the_time() {
    let sim = SimulatedStore::new(2000, u64::MAX);
    sim.policy.age_s.store(10);
    sim.write_all((0..2000).map(|_| 100));
    sim.speed.set(1_000_000);
    sim.run(S * 3);
    assert!((1000..1700).contains(&sim.written_back.borrow().len()), "{}", sim.written_back.borrow().len());
    sim.run(S * 3);
    assert_eq!(sim.written_back.borrow().len(), 2000);
}

#[test]
fn a_shorter_age_takes_effect_at_once() {
    let sim = SimulatedStore::new(100, u64::MAX);
    sim.policy.age_s.store(8000);
    sim.write_all((0..100).map(|_| 400));
    let mut steps = 0;
    sim.run_with(S * 4, &mut || None, &mut || {
        steps += 1;
        sim.policy.age_s.store(if steps < 5 { 8000 } else { 50 });
    });
    assert_eq!(sim.written_back.borrow().len(), 100);
}

#[test]
fn fruitless_walks_take_little_time_and_no_writer_waits_long() {
    let sim = full_store();
    sim.write_all((0..10_000).map(|_| 100));
    sim.skipped.set(10_000);
    assert!(sim.policy.throttle().register_thread());
    sim.run(S * 600);
    // 0.1 ms each: 0.02 % of the time.
    let scans = sim.walks.borrow().len() + sim.sweeps.borrow().len();
    assert!(scans < 1300, "{scans}");
    // A waiting writer is refused after a few more tries.
    let began = sim.now.get();
    assert!(!super::writers::run_until_returned(&sim, &mut || false));
    assert!(sim.now.get() - began < S, "{:?}", sim.now.get() - began);
    sim.skipped.set(0);
    sim.run(S * 5);
    assert!(sim.used_bytes.get() <= low_bytes(&sim));
}

#[test]
fn walks_over_many_slots_have_a_twentieth_of_the_time() {
    let sim = SimulatedStore::new(10_000, u64::MAX);
    sim.write_all((0..10_000).map(|_| 100));
    sim.policy.age_s.store(10);
    sim.skipped.set(10_000);
    sim.slot_time.set(Duration::from_micros(10));
    sim.run(S * 600);
    // A tenth of a second each.
    let scans = sim.walks.borrow().len() + sim.sweeps.borrow().len();
    assert!((250..=302).contains(&scans), "{scans}");
}

#[test]
fn accessed_pages_are_written_back_if_the_others_cannot_be() {
    let sim = full_store();
    sim.limit_bytes.set(10_000 * LEN * 100 / 92);
    sim.skipped.set(3000);
    sim.write_all((0..10_000).map(|_| 100));
    (0..10_000).for_each(|i| sim.access(i, 100));
    (0..3000).for_each(|i| sim.slots[i].lock().clear_accessed());
    let mut reads = 0;
    sim.run_with(S * 10, &mut || None, &mut || {
        // Read the pages repeatedly.
        reads += 1;
        (3000..10_000).filter(|i| !sim.is_written_back(*i)).for_each(|i| sim.access(i, 100));
    });
    assert!(reads > 10 && sim.used_bytes.get() <= low_bytes(&sim));
}

#[test]
fn the_hand_continues_where_it_stopped() {
    let sim = full_store();
    sim.write_all((0..10_000).map(|_| 100));
    let first_count = Cell::new(0);
    sim.run_with(S * 5, &mut || None, &mut || {
        if first_count.get() > 0 || sim.condition() != Condition::Idle {
            return;
        }
        first_count.set(sim.written_back.borrow().len());
        (0..10_000).for_each(|i| sim.write(i, LEN, 100));
    });
    let written_back = sim.written_back.borrow();
    assert!(first_count.get() > 1000 && written_back.len() > first_count.get() + 1000);
    assert!(written_back.iter().enumerate().all(|(at, event)| event.index == at));
}

#[test]
fn a_plan_is_made_anew_after_ten_seconds() {
    let sim = full_store();
    sim.write_all((0..10_000).map(|_| 100));
    sim.policy.rate_bytes_per_s.store(10_000);
    sim.run(S * 60);
    let walks = sim.walks.borrow().len();
    assert!((5..=7).contains(&walks), "{walks}");
}

#[test]
fn an_old_page_that_cannot_be_written_back_is_retried_once_a_second() {
    let sim = SimulatedStore::new(10_000, u64::MAX);
    sim.write_all((0..10_000).map(|_| 100));
    sim.policy.age_s.store(10);
    sim.skipped.set(10_000);
    sim.run(S * 600);
    let scans = sim.walks.borrow().len() + sim.sweeps.borrow().len();
    assert!((600..1300).contains(&scans), "{scans}");
}

proptest! {
    #[test]
    fn never_below_the_low_mark_without_an_age(
        ages in proptest::collection::vec(0u16..30_000, 1..500),
        (high, low) in (1..=100u32).prop_flat_map(|high| (Just(high), 1..=high)),
        use_percent in 1..150u64,
    ) {
        let sim = SimulatedStore::new(ages.len(), ages.len() as u64 * LEN * 100 / use_percent);
        prop_assume!(sim.policy.set_marks_percent(high, low));
        sim.write_all(ages.iter().copied());
        let step = sim.limit_bytes.get() / 256 + 1;
        let low_bytes = (u128::from(sim.limit_bytes.get()) * u128::from(low) / 100) as u64;
        sim.run_with(S * 3, &mut || None, &mut || {});
        // A batch is completed, and at the end of a revolution a batch of any length.
        let floor = low_bytes.saturating_sub(step + (BATCH + 1) * LEN);
        prop_assert!(sim.written_back.borrow().is_empty() || sim.used_bytes.get() >= floor);
        if use_percent < u64::from(low) {
            prop_assert!(sim.written_back.borrow().is_empty() && sim.walks.borrow().is_empty());
        }
    }

    #[test]
    fn always_down_to_the_low_mark_if_pages_can_be_written_back(
        pages in proptest::collection::vec((0u16..=AccessTime::AGE_MAX, 1u64..4096, any::<bool>()), 1..500),
        (high, low) in (1..=100u32).prop_flat_map(|high| (Just(high), 1..=high)),
        rate in prop_oneof![Just(0), 100_000..10_000_000u64],
    ) {
        let total: u64 = pages.iter().map(|p| p.1).sum();
        let sim = SimulatedStore::new(pages.len(), total.max(100));
        prop_assume!(sim.policy.set_marks_percent(high, low));
        sim.policy.rate_bytes_per_s.store(rate);
        for (index, (age, len, accessed)) in pages.iter().enumerate() {
            sim.write(index, *len, *age);
            if *accessed {
                sim.access(index, *age);
            }
        }
        sim.run(S * 40);
        let memory = sim.memory();
        let low_bytes = memory.limit_bytes * u64::from(low) / 100;
        prop_assert!(total < memory.limit_bytes || memory.used_bytes <= low_bytes, "{memory:?}");
        prop_assert_eq!(sim.condition(), Condition::Idle);
    }
}
