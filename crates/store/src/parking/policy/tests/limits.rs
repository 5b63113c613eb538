//! Rate, budgets, and a medium that is full or fails.

use super::simulated::{BATCH, LEN, World, error};
use crate::parking::policy::condition::Condition;
use std::time::Duration;

const S: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// All of memory is used and old, and more is written for all that is parked, so parking never ends.
fn endless() -> World {
    let world = World::new(2000, 2000 * LEN * 100 / 95);
    world.write_all((0..2000).map(|_| 1000));
    world
}

fn refill(world: &World) {
    (0..2000).filter(|i| world.is_parked(*i)).for_each(|i| world.write(i, LEN, 1000));
}

fn written_within(world: &World, from: Duration, to: Duration) -> u64 {
    let parked = world.parked.borrow();
    parked.iter().filter(|e| from < e.at && e.at <= to).map(|e| e.len_bytes).sum()
}

#[test]
fn the_rate_holds_over_a_minute_and_over_each_second() {
    for rate in [50_000, 1_000_000, 20_000_000] {
        let world = endless();
        world.policy.set_rate_bytes_per_s(rate);
        let began = world.now.get();
        world.run_with(S * 60, &mut || None, &mut || refill(&world));
        let slack = rate / 4 + BATCH * LEN;
        let written = written_within(&world, began, began + S * 60);
        assert!((rate * 60 - slack..=rate * 60 + slack).contains(&written), "{rate}: {written}");
        for second in 0..59 {
            let from = began + S * second;
            let written = written_within(&world, from, from + S);
            assert!(written <= rate + slack, "{rate}: {written} in second {second}");
        }
    }
}

#[test]
fn the_cleaner_has_its_part_of_the_rate() {
    let world = endless();
    world.policy.set_rate_bytes_per_s(1_000_000);
    world.cleaning_bytes.set(100_000);
    let began = world.now.get();
    world.run_with(S * 60, &mut || None, &mut || refill(&world));
    let all = world.written_bytes.get();
    assert!((59_000_000..=60_400_000).contains(&all), "{all}");
    let parked = written_within(&world, began, began + S * 60);
    assert!((20_000_000..50_000_000).contains(&parked), "{parked}");
}

#[test]
fn a_cleaner_that_writes_more_than_the_rate_is_waited_for() {
    let world = endless();
    world.policy.set_rate_bytes_per_s(1_000_000);
    world.cleaning_bytes.set(600_000);
    world.run_with(S * 60, &mut || None, &mut || refill(&world));
    let all = world.written_bytes.get();
    assert!((58_000_000..=60_900_000).contains(&all), "{all}");
}

#[test]
fn what_was_written_before_does_not_count() {
    let world = endless();
    world.written_bytes.set(1 << 40);
    world.policy.set_daily_bytes(1 << 30);
    world.run(S);
    assert_eq!(world.condition(), Condition::Idle);
    assert!(!world.parked.borrow().is_empty());
}

#[test]
fn a_few_failures_among_many_pages_do_not_hold_it_up() {
    let world = endless();
    world.fails_every.set(5);
    // About a second, in bursts of four batches.
    world.speed.set(400_000);
    world.run(S * 3 / 2);
    assert_eq!(world.condition(), Condition::Idle);
    assert!(world.used_bytes.get() <= world.limit_bytes.get() * 80 / 100);
}

#[test]
fn without_a_rate_the_medium_is_used_to_the_full() {
    let world = endless();
    world.speed.set(10_000_000);
    world.run_with(S * 60, &mut || None, &mut || refill(&world));
    assert!(world.written_bytes.get() > 590_000_000, "{}", world.written_bytes.get());
}

#[test]
fn the_budget_of_a_day_is_not_exceeded_by_more_than_a_batch_and_comes_back() {
    let world = endless();
    let budget = 50_000_000;
    world.policy.set_daily_bytes(budget);
    world.policy.set_rate_bytes_per_s(20_000);
    let (began, mut conditions) = (world.now.get(), Vec::new());
    world.run_with(DAY * 3, &mut || None, &mut || {
        refill(&world);
        if conditions.last() != Some(&world.condition()) {
            conditions.push(world.condition());
        }
    });
    assert!(conditions.contains(&Condition::DailySpent));
    assert_eq!(conditions.iter().filter(|c| **c == Condition::Off).count(), 1);
    let parked = world.parked.borrow();
    let (mut first, mut sum) = (0, 0);
    for event in parked.iter() {
        sum += event.len_bytes;
        while parked[first].at + DAY < event.at {
            sum -= parked[first].len_bytes;
            first += 1;
        }
        assert!(sum <= budget + BATCH * LEN, "{sum} in the day before {:?}", event.at);
    }
    let total = written_within(&world, began, began + DAY * 3);
    assert!(total > budget * 29 / 10, "what is old comes back: {total}");
    // When it was spent the cleaner had to rest too.
    assert!(world.tends.borrow().iter().any(|(_, clean)| !clean));
}

#[test]
fn a_failing_medium_is_tried_less_and_less_often_and_pages_stay() {
    let world = endless();
    world.fails.set(true);
    let (began, used) = (world.now.get(), world.used_bytes.get());
    world.run(S * 200);
    assert_eq!(world.condition(), Condition::Failing(error()));
    assert_eq!((world.used_bytes.get(), world.parked.borrow().len()), (used, 0));
    // A try is a burst, so it takes up to a quarter of a second, and so does noticing.
    let tries: Vec<_> = world.sweeps.borrow().iter().map(|at| (*at - began).as_secs_f64()).collect();
    let pauses: Vec<_> = tries.windows(2).map(|w| (w[1] - w[0]).round() as u64).collect();
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    let cleanings = world.tends.borrow().iter().filter(|(_, clean)| *clean).count();
    assert!(cleanings <= tries.len() + 1, "the cleaner leaves it alone too: {cleanings}");
}

#[test]
fn a_medium_that_works_again_is_used_again() {
    let world = endless();
    world.fails.set(true);
    let began = world.now.get();
    let mut was_failing = false;
    world.run_with(S * 30, &mut || None, &mut || {
        was_failing |= matches!(world.condition(), Condition::Failing(_));
        world.fails.set(world.now.get() < began + S * 10);
    });
    assert!(was_failing);
    assert_eq!(world.condition(), Condition::Idle);
    assert!(world.used_bytes.get() <= world.limit_bytes.get() * 80 / 100);
}

#[test]
fn a_later_failure_is_a_first_one_again() {
    let world = endless();
    let began = world.now.get();
    let until = |s: u32| world.now.get() < began + S * s;
    world.run_with(S * 40, &mut || None, &mut || {
        refill(&world);
        world.fails.set(until(10) || !until(20));
    });
    let sweeps = world.sweeps.borrow();
    let tries: Vec<_> = sweeps.iter().map(|at| *at - began).filter(|at| *at > S * 20).collect();
    let pauses: Vec<_> = tries.windows(2).map(|w| (w[1] - w[0]).as_secs_f64().round() as u64).collect();
    assert_eq!(pauses[..4], [1, 2, 4, 8], "{pauses:?}");
}

#[test]
fn a_full_backing_is_tried_when_something_is_freed() {
    let world = endless();
    world.room_bytes.set(100 * LEN);
    let mut steps = 0;
    world.run_with(S * 20, &mut || None, &mut || steps += 1);
    assert_eq!(world.condition(), Condition::Full);
    assert_eq!(world.parked.borrow().len(), 100);
    assert!(world.sweeps.borrow().len() < 10, "{}", world.sweeps.borrow().len());
    let began = world.now.get();
    world.run_with(S * 20, &mut || None, &mut || {
        if world.now.get() < began + S * 15 || world.room_bytes.get() > 0 {
            return;
        }
        assert_eq!(world.condition(), Condition::Full);
        world.room_bytes.set(u64::MAX);
    });
    assert_eq!(world.condition(), Condition::Idle);
    let first = world.parked.borrow()[100].at - began;
    assert!(first < S * 16, "{first:?}");
}

#[test]
fn writeback_limit_stops_it_and_raising_it_goes_on() {
    let world = endless();
    world.limit_left.set(Some(50));
    world.run_with(S * 5, &mut || None, &mut || {});
    assert_eq!(world.condition(), Condition::LimitSpent);
    assert_eq!(world.parked.borrow().len(), 50);
    let sweeps = world.sweeps.borrow().len();
    assert!(sweeps <= 2, "{sweeps}");
    world.limit_left.set(None);
    world.run_with(S * 5, &mut || None, &mut || {});
    assert_eq!(world.condition(), Condition::Idle);
}
