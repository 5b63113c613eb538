//! Which pages go, and when there is nothing to do.

use super::simulated::{BATCH, LEN, Random, World};
use crate::parking::policy::condition::Condition;
use crate::parking::policy::engine::Engine;
use crate::slot::Stamp;
use proptest::prelude::*;
use std::cell::Cell;
use std::time::Duration;

const S: Duration = Duration::from_secs(1);

/// 10 000 pages, 95 % of the limit.
fn full_world() -> World {
    World::new(10_000, 10_000 * LEN * 100 / 95)
}

fn low_bytes(world: &World) -> u64 {
    world.limit_bytes.get() / 100 * 80
}

#[test]
fn above_the_high_mark_the_oldest_go_until_memory_is_at_the_low_mark() {
    let (world, mut random) = (full_world(), Random(1));
    world.write_all((0..10_000).map(|_| (random.below(2000)) as u16));
    world.run(S * 5);
    let used = world.used_bytes.get();
    assert!(used <= low_bytes(&world) && used + (BATCH + 1) * LEN > low_bytes(&world), "{used}");
    assert_eq!(world.condition(), Condition::Idle);
    assert_eq!(world.walks.borrow().len(), 1);

    // The twin sorts. What went and should have stayed is no more than a sixteenth younger than what stayed.
    let parked = world.parked.borrow();
    let youngest_gone = parked.iter().map(|e| world.age(e.stamp)).min().unwrap();
    let mut ages: Vec<_> = world.slots.iter().map(|s| world.age(s.peek().stamp())).collect();
    ages.sort_by_key(|age| std::cmp::Reverse(*age));
    let exact = ages[parked.len() - 1];
    assert!(youngest_gone <= exact && exact - youngest_gone <= exact / 16 + 1, "{youngest_gone} {exact}");
    let oldest_left = world.slots.iter().map(|s| s.peek()).filter(|p| p.is_object());
    let oldest_left = oldest_left.map(|p| world.age(p.stamp())).max().unwrap();
    assert!(oldest_left <= exact + exact / 16 + 1, "{oldest_left} {exact}");
}

#[test]
fn pages_of_one_age_go_too() {
    for age in [0, 1, 500, Stamp::AGE_MAX] {
        let world = full_world();
        world.write_all((0..10_000).map(|_| age));
        world.run(S * 5);
        assert!(world.used_bytes.get() <= low_bytes(&world), "age {age}");
        assert!(world.used_bytes.get() + (BATCH + 1) * LEN > low_bytes(&world), "age {age}");
    }
}

#[test]
fn a_few_older_pages_go_before_any_of_many_equal_ones() {
    let world = full_world();
    world.write_all((0..10_000).map(|i| if i >= 9990 { 1000 } else { 100 }));
    world.run(S * 5);
    assert!((9990..10_000).all(|i| world.is_parked(i)));
    assert!(world.parked.borrow()[..10].iter().all(|e| e.index >= 9990));
}

#[test]
fn accessed_pages_have_a_second_chance_and_no_third() {
    let world = full_world();
    // The accessed ones are older, and there is enough without them.
    world.write_all((0..10_000).map(|i| if i % 2 == 0 { 400 } else { 200 }));
    (0..10_000).step_by(2).for_each(|i| world.access(i, 400));
    // Not urgent: just above the high mark.
    world.limit_bytes.set(10_000 * LEN * 100 / 91);
    world.run(S * 5);
    let evens_left = (0..10_000).step_by(2).filter(|i| !world.is_parked(*i)).count();
    assert_eq!(evens_left, 5000);
    assert!(world.used_bytes.get() <= low_bytes(&world));
    let marks = world.slots.iter().filter(|s| s.peek().is_accessed()).count();
    assert!(marks < 5000, "the hand takes marks as it passes: {marks}");

    // Now those without a mark go as their age says: the older half.
    (0..10_000).filter(|i| world.is_parked(*i)).for_each(|i| world.write(i, LEN, 10));
    let before = world.parked.borrow().len();
    world.run(S * 5);
    assert!(world.used_bytes.get() <= low_bytes(&world));
    assert!(world.parked.borrow()[before..].iter().all(|e| e.index % 2 == 0));
}

#[test]
fn accessed_pages_go_if_there_are_no_others() {
    let world = full_world();
    world.write_all((0..10_000).map(|i| i as u16));
    (0..10_000).for_each(|i| world.access(i, i as u16));
    world.run(S * 5);
    assert!(world.used_bytes.get() <= low_bytes(&world));
    let youngest_gone = world.parked.borrow().iter().map(|e| world.age(e.stamp)).min().unwrap();
    assert!(youngest_gone > 7000, "{youngest_gone}");
}

#[test]
fn urgent_takes_the_oldest_whether_accessed_or_not() {
    let world = full_world();
    world.write_all((0..10_000).map(|i| if i < 3000 { 400 } else { 200 }));
    (0..3000).for_each(|i| world.access(i, 400));
    world.limit_bytes.set(10_000 * LEN * 100 / 99);
    world.run(S * 5);
    assert!(world.parked.borrow().iter().all(|e| e.index < 3000));
    assert!(world.used_bytes.get() <= low_bytes(&world));
}

#[test]
fn between_the_marks_nothing_is_begun() {
    let world = full_world();
    world.limit_bytes.set(10_000 * LEN * 100 / 89);
    world.write_all((0..10_000).map(|i| i as u16));
    world.run(S * 600);
    assert!(world.walks.borrow().is_empty() && world.sweeps.borrow().is_empty());
    assert_eq!(world.condition(), Condition::Idle);
}

#[test]
fn upkeep_is_regular_and_an_idle_store_costs_nothing_else() {
    let world = World::new(100, u64::MAX);
    world.write_all((0..100).map(|i| i as u16));
    world.run(S * 60);
    let tends = world.tends.borrow();
    assert!((239..=241).contains(&tends.len()), "{}", tends.len());
    assert!(tends.iter().all(|(_, clean)| *clean));
    assert!(world.walks.borrow().is_empty() && world.sweeps.borrow().is_empty());
}

#[test]
fn an_age_parks_what_becomes_old_and_walks_only_when_something_is_due() {
    let world = World::new(1000, u64::MAX);
    world.policy.set_age_s(60);
    world.write_all((0..1000).map(|i| if i < 100 { 200 } else { 0 }));
    (0..50).for_each(|i| world.access(i, 200));
    let began = world.now.get();
    world.run(S * 9);
    assert!(world.parked.borrow().is_empty());
    // 200 ticks are 50 s: these are due in 10. The accessed ones have a second more.
    world.run(Duration::from_millis(1500));
    let gone = || (0..1000).filter(|i| world.is_parked(*i)).collect::<Vec<_>>();
    assert_eq!(gone(), (50..100).collect::<Vec<_>>());
    world.run(S * 3);
    assert_eq!(gone(), (0..100).collect::<Vec<_>>());
    let walks = world.walks.borrow().len();
    assert!(walks <= 8, "{walks}");
    world.run(began + S * 59 - world.now.get());
    assert_eq!(gone().len(), 100);
    assert!(world.walks.borrow().len() <= walks + 2);
    world.run(S * 3);
    assert_eq!(gone().len(), 1000);
}

#[test]
fn parking_by_age_leaves_the_medium_half_of_the_time() {
    let world = World::new(2000, u64::MAX);
    world.policy.set_age_s(10);
    world.write_all((0..2000).map(|_| 100));
    world.speed.set(1_000_000);
    world.run(S * 3);
    assert!((1000..1700).contains(&world.parked.borrow().len()), "{}", world.parked.borrow().len());
    world.run(S * 3);
    assert_eq!(world.parked.borrow().len(), 2000);
}

#[test]
fn an_age_that_is_made_shorter_holds_at_once() {
    let world = World::new(100, u64::MAX);
    world.policy.set_age_s(8000);
    world.write_all((0..100).map(|_| 400));
    let mut steps = 0;
    world.run_with(S * 4, &mut || None, &mut || {
        steps += 1;
        world.policy.set_age_s(if steps < 5 { 8000 } else { 50 });
    });
    assert_eq!(world.parked.borrow().len(), 100);
}

#[test]
fn looking_for_what_cannot_be_had_has_a_small_share_and_no_writer_waits_long_for_it() {
    let world = full_world();
    world.write_all((0..10_000).map(|_| 100));
    world.held.set(10_000);
    assert!(world.policy.state().throttle().begin());
    world.run(S * 600);
    // 0.1 ms each, so 0.02 % of the time.
    let looks = world.walks.borrow().len() + world.sweeps.borrow().len();
    assert!(looks < 1300, "{looks}");
    // A writer that asks is not kept waiting for more than another few tries.
    let began = world.now.get();
    assert!(!super::writers::answer(&world, &mut || false));
    assert!(world.now.get() - began < S, "{:?}", world.now.get() - began);
    world.held.set(0);
    world.run(S * 5);
    assert!(world.used_bytes.get() <= low_bytes(&world));
}

#[test]
fn walks_over_many_slots_have_a_twentieth_of_the_time() {
    let world = World::new(10_000, u64::MAX);
    world.write_all((0..10_000).map(|_| 100));
    world.policy.set_age_s(10);
    world.held.set(10_000);
    world.look_time.set(Duration::from_micros(10));
    world.run(S * 600);
    // A tenth of a second each.
    let looks = world.walks.borrow().len() + world.sweeps.borrow().len();
    assert!((250..=302).contains(&looks), "{looks}");
}

#[test]
fn accessed_pages_go_if_the_others_cannot_be_had() {
    let world = full_world();
    world.limit_bytes.set(10_000 * LEN * 100 / 92);
    world.held.set(3000);
    world.write_all((0..10_000).map(|_| 100));
    (0..10_000).for_each(|i| world.access(i, 100));
    (0..3000).for_each(|i| world.slots[i].lock().clear_accessed());
    let mut reads = 0;
    world.run_with(S * 10, &mut || None, &mut || {
        // Read again and again.
        reads += 1;
        (3000..10_000).filter(|i| !world.is_parked(*i)).for_each(|i| world.access(i, 100));
    });
    assert!(reads > 10 && world.used_bytes.get() <= low_bytes(&world));
}

#[test]
fn the_hand_goes_on_where_it_was() {
    let world = full_world();
    world.write_all((0..10_000).map(|_| 100));
    let first_count = Cell::new(0);
    world.run_with(S * 5, &mut || None, &mut || {
        if first_count.get() > 0 || world.condition() != Condition::Idle {
            return;
        }
        first_count.set(world.parked.borrow().len());
        (0..10_000).for_each(|i| world.write(i, LEN, 100));
    });
    let parked = world.parked.borrow();
    assert!(first_count.get() > 1000 && parked.len() > first_count.get() + 1000);
    assert!(parked.iter().enumerate().all(|(at, event)| event.index == at));
}

#[test]
fn a_plan_is_made_anew_after_ten_seconds() {
    let world = full_world();
    world.write_all((0..10_000).map(|_| 100));
    world.policy.set_rate_bytes_per_s(10_000);
    world.run(S * 60);
    let walks = world.walks.borrow().len();
    assert!((5..=7).contains(&walks), "{walks}");
}

#[test]
fn an_old_page_that_cannot_be_had_is_looked_for_once_a_second() {
    let world = World::new(10_000, u64::MAX);
    world.write_all((0..10_000).map(|_| 100));
    world.policy.set_age_s(10);
    world.held.set(10_000);
    world.run(S * 600);
    let looks = world.walks.borrow().len() + world.sweeps.borrow().len();
    assert!((600..1300).contains(&looks), "{looks}");
}

proptest! {
    #[test]
    fn never_below_the_low_mark_without_an_age(
        ages in proptest::collection::vec(0u16..30_000, 1..500),
        (high, low) in (1..=100u32).prop_flat_map(|high| (Just(high), 1..=high)),
        use_percent in 1..150u64,
    ) {
        let world = World::new(ages.len(), ages.len() as u64 * LEN * 100 / use_percent);
        prop_assume!(world.policy.set_marks_percent(high, low));
        world.write_all(ages.iter().copied());
        let step = world.limit_bytes.get() / 256 + 1;
        let low_bytes = (u128::from(world.limit_bytes.get()) * u128::from(low) / 100) as u64;
        world.run_with(S * 3, &mut || None, &mut || {});
        // A batch is completed, and an end of a turn is a batch of any length.
        let floor = low_bytes.saturating_sub(step + (BATCH + 1) * LEN);
        prop_assert!(world.parked.borrow().is_empty() || world.used_bytes.get() >= floor);
        if use_percent < u64::from(low) {
            prop_assert!(world.parked.borrow().is_empty() && world.walks.borrow().is_empty());
        }
    }

    #[test]
    fn always_down_to_the_low_mark_if_pages_can_be_parked(
        pages in proptest::collection::vec((0u16..=Stamp::AGE_MAX, 1u64..4096, any::<bool>()), 1..500),
        (high, low) in (1..=100u32).prop_flat_map(|high| (Just(high), 1..=high)),
        rate in prop_oneof![Just(0), 100_000..10_000_000u64],
    ) {
        let total: u64 = pages.iter().map(|p| p.1).sum();
        let world = World::new(pages.len(), total.max(100));
        prop_assume!(world.policy.set_marks_percent(high, low));
        world.policy.set_rate_bytes_per_s(rate);
        for (index, (age, len, accessed)) in pages.iter().enumerate() {
            world.write(index, *len, *age);
            if *accessed {
                world.access(index, *age);
            }
        }
        world.run(S * 40);
        let memory = world.memory();
        let low_bytes = memory.limit_bytes * u64::from(low) / 100;
        prop_assert!(total < memory.limit_bytes || memory.used_bytes <= low_bytes, "{memory:?}");
        prop_assert_eq!(world.condition(), Condition::Idle);
    }
}
