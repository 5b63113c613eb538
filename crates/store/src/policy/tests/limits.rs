//! Rate, budgets, and a medium that is full or fails.

use super::simulated::{BATCH, LEN, SimulatedStore, error};
use crate::policy::settings::Condition;
use std::time::Duration;

const S: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// All pages are old and memory is full; tests rewrite pages as they are written back, so writeback never ends.
fn endless() -> SimulatedStore {
    let sim = SimulatedStore::new(2000, 2000 * LEN * 100 / 95);
    sim.write_all((0..2000).map(|_| 1000));
    sim
}

fn refill(sim: &SimulatedStore) {
    (0..2000).filter(|i| sim.is_written_back(*i)).for_each(|i| sim.write(i, LEN, 1000));
}

fn written_within(sim: &SimulatedStore, from: Duration, to: Duration) -> u64 {
    let written_back = sim.written_back.borrow();
    written_back.iter().filter(|e| from < e.at && e.at <= to).map(|e| e.len_bytes).sum()
}

#[test]
fn the_rate_holds_over_a_minute_and_over_each_second() {
    for rate in [50_000, 1_000_000, 20_000_000] {
        let sim = endless();
        sim.policy.rate_bytes_per_s.store(rate);
        let began = sim.now.get();
        sim.run_with(S * 60, &mut || None, &mut || refill(&sim));
        let slack = rate / 4 + BATCH * LEN;
        let written = written_within(&sim, began, began + S * 60);
        assert!((rate * 60 - slack..=rate * 60 + slack).contains(&written), "{rate}: {written}");
        for second in 0..59 {
            let from = began + S * second;
            let written = written_within(&sim, from, from + S);
            assert!(written <= rate + slack, "{rate}: {written} in second {second}");
        }
    }
}

#[test]
fn the_cleaner_counts_against_the_rate() {
    let sim = endless();
    sim.policy.rate_bytes_per_s.store(1_000_000);
    sim.cleaning_bytes.set(100_000);
    let began = sim.now.get();
    sim.run_with(S * 60, &mut || None, &mut || refill(&sim));
    let all = sim.written_bytes.get();
    assert!((59_000_000..=60_400_000).contains(&all), "{all}");
    let written_back = written_within(&sim, began, began + S * 60);
    assert!((20_000_000..50_000_000).contains(&written_back), "{written_back}");
}

#[test]
fn a_cleaner_that_writes_more_than_the_rate_is_waited_for() {
    let sim = endless();
    sim.policy.rate_bytes_per_s.store(1_000_000);
    sim.cleaning_bytes.set(600_000);
    sim.run_with(S * 60, &mut || None, &mut || refill(&sim));
    let all = sim.written_bytes.get();
    assert!((58_000_000..=60_900_000).contains(&all), "{all}");
}

#[test]
fn bytes_written_before_the_start_do_not_count() {
    let sim = endless();
    sim.written_bytes.set(1 << 40);
    sim.policy.daily_bytes.store(1 << 30);
    sim.run(S);
    assert_eq!(sim.condition(), Condition::Idle);
    assert!(!sim.written_back.borrow().is_empty());
}

#[test]
fn a_few_failures_among_many_pages_do_not_delay_writeback() {
    let sim = endless();
    sim.fails_every.set(5);
    // About a second, in bursts of four batches.
    sim.speed.set(400_000);
    sim.run(S * 3 / 2);
    assert_eq!(sim.condition(), Condition::Idle);
    assert!(sim.used_bytes.get() <= sim.limit_bytes.get() * 80 / 100);
}

#[test]
fn without_a_rate_the_medium_is_used_to_the_full() {
    let sim = endless();
    sim.speed.set(10_000_000);
    sim.run_with(S * 60, &mut || None, &mut || refill(&sim));
    assert!(sim.written_bytes.get() > 590_000_000, "{}", sim.written_bytes.get());
}

#[test]
fn the_budget_of_a_day_is_not_exceeded_by_more_than_a_batch_and_comes_back() {
    let sim = endless();
    let budget = 50_000_000;
    sim.policy.daily_bytes.store(budget);
    sim.policy.rate_bytes_per_s.store(20_000);
    let (began, mut conditions) = (sim.now.get(), Vec::new());
    sim.run_with(DAY * 3, &mut || None, &mut || {
        refill(&sim);
        if conditions.last() != Some(&sim.condition()) {
            conditions.push(sim.condition());
        }
    });
    assert!(conditions.contains(&Condition::DailySpent));
    assert_eq!(conditions.iter().filter(|c| **c == Condition::Off).count(), 1);
    let written_back = sim.written_back.borrow();
    let (mut first, mut sum) = (0, 0);
    for event in written_back.iter() {
        sum += event.len_bytes;
        while written_back[first].at + DAY < event.at {
            sum -= written_back[first].len_bytes;
            first += 1;
        }
        assert!(sum <= budget + BATCH * LEN, "{sum} in the day before {:?}", event.at);
    }
    let total = written_within(&sim, began, began + DAY * 3);
    assert!(total > budget * 29 / 10, "what is old comes back: {total}");
    // While the budget was used up, the cleaner had to pause too.
    assert!(sim.maintenance_runs.borrow().iter().any(|(_, clean)| !clean));
}

#[test]
fn a_failing_medium_is_retried_with_exponential_backoff_and_pages_stay() {
    let sim = endless();
    sim.fails.set(true);
    let (began, used) = (sim.now.get(), sim.used_bytes.get());
    sim.run(S * 200);
    assert_eq!(sim.condition(), Condition::Failing(error()));
    assert_eq!((sim.used_bytes.get(), sim.written_back.borrow().len()), (used, 0));
    // A try is a burst of up to a quarter of a second; noticing the failure may take as long.
    let tries: Vec<_> = sim.sweeps.borrow().iter().map(|at| (*at - began).as_secs_f64()).collect();
    let pauses: Vec<_> = tries.windows(2).map(|w| (w[1] - w[0]).round() as u64).collect();
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    let cleanings = sim.maintenance_runs.borrow().iter().filter(|(_, clean)| *clean).count();
    assert!(cleanings <= tries.len() + 1, "the cleaner leaves it alone too: {cleanings}");
}

#[test]
fn a_medium_that_works_again_is_used_again() {
    let sim = endless();
    sim.fails.set(true);
    let began = sim.now.get();
    let mut was_failing = false;
    sim.run_with(S * 30, &mut || None, &mut || {
        was_failing |= matches!(sim.condition(), Condition::Failing(_));
        sim.fails.set(sim.now.get() < began + S * 10);
    });
    assert!(was_failing);
    assert_eq!(sim.condition(), Condition::Idle);
    assert!(sim.used_bytes.get() <= sim.limit_bytes.get() * 80 / 100);
}

#[test]
fn a_success_resets_the_backoff() {
    let sim = endless();
    let began = sim.now.get();
    let until = |s: u32| sim.now.get() < began + S * s;
    sim.run_with(S * 40, &mut || None, &mut || {
        refill(&sim);
        sim.fails.set(until(10) || !until(20));
    });
    let sweeps = sim.sweeps.borrow();
    let tries: Vec<_> = sweeps.iter().map(|at| *at - began).filter(|at| *at > S * 20).collect();
    let pauses: Vec<_> = tries.windows(2).map(|w| (w[1] - w[0]).as_secs_f64().round() as u64).collect();
    assert_eq!(pauses[..4], [1, 2, 4, 8], "{pauses:?}");
}

#[test]
fn a_full_backing_is_retried_when_space_is_freed() {
    let sim = endless();
    sim.room_bytes.set(100 * LEN);
    let mut steps = 0;
    sim.run_with(S * 20, &mut || None, &mut || steps += 1);
    assert_eq!(sim.condition(), Condition::Full);
    assert_eq!(sim.written_back.borrow().len(), 100);
    assert!(sim.sweeps.borrow().len() < 10, "{}", sim.sweeps.borrow().len());
    let began = sim.now.get();
    sim.run_with(S * 20, &mut || None, &mut || {
        if sim.now.get() < began + S * 15 || sim.room_bytes.get() > 0 {
            return;
        }
        assert_eq!(sim.condition(), Condition::Full);
        sim.room_bytes.set(u64::MAX);
    });
    assert_eq!(sim.condition(), Condition::Idle);
    let first = sim.written_back.borrow()[100].at - began;
    assert!(first < S * 16, "{first:?}");
}

#[test]
fn writeback_stops_at_writeback_limit_and_continues_when_it_is_raised() {
    let sim = endless();
    sim.limit_left.set(Some(50));
    sim.run_with(S * 5, &mut || None, &mut || {});
    assert_eq!(sim.condition(), Condition::LimitSpent);
    assert_eq!(sim.written_back.borrow().len(), 50);
    let sweeps = sim.sweeps.borrow().len();
    assert!(sweeps <= 2, "{sweeps}");
    sim.limit_left.set(None);
    sim.run_with(S * 5, &mut || None, &mut || {});
    assert_eq!(sim.condition(), Condition::Idle);
}
