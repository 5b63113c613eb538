//! Writers at the memory limit, and the writeback thread.

use super::simulated::{FOREVER, LEN, SimulatedStore, calm};
use crate::engine::WritebackThread;
use crate::engine::{Store, StoreConfig};
use crate::policy::backoff::Load;
use crate::policy::driver::Driver;
use crate::policy::settings::Condition;
use crate::policy::throttle::Throttle;
use crate::writeback::{LayoutKind, WritebackConfig};
use pagefold_backing::MemoryBacking;
use pagefold_sys::pressure::Stall;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

#[test]
fn writers_do_not_wait_without_a_writeback_thread() {
    let throttle = Throttle::with_timeouts(FOREVER, FOREVER);
    assert!(!throttle.wait_for_room(LEN, &mut || false));
    assert!(throttle.register_thread() && !throttle.register_thread());
    assert!(throttle.wait_for_room(LEN, &mut || true));
    throttle.unregister_thread();
    throttle.end_round(true);
    assert!(!throttle.wait_for_room(LEN, &mut || false), "it is gone, whatever it says");
    assert_eq!(throttle.stats().writes, 0);
}

#[test]
fn after_a_timeout_writers_do_not_wait_until_there_is_progress() {
    let throttle = Throttle::with_timeouts(Duration::ZERO, Duration::ZERO);
    assert!(throttle.register_thread());
    assert!(!throttle.wait_for_room(LEN, &mut || false));
    assert_eq!(throttle.stats().writes, 1);
    assert!(!throttle.wait_for_room(LEN, &mut || false));
    assert_eq!(throttle.stats().writes, 1, "the second did not begin to wait");
    throttle.report_progress();
    assert!(!throttle.wait_for_room(LEN, &mut || false));
    assert_eq!(throttle.stats().writes, 2);
}

#[test]
fn a_work_request_before_the_writeback_thread_sleeps_is_not_lost() {
    let throttle = Throttle::with_timeouts(Duration::ZERO, Duration::ZERO);
    assert!(throttle.register_thread());
    assert!(!throttle.wait_for_room(LEN, &mut || false));
    // Must return at once; otherwise the test hangs.
    throttle.wait_for_work(FOREVER);
    throttle.stop();
    throttle.wait_for_work(FOREVER);
    assert!(throttle.is_stopping());
}

/// Decrements a count if it is not zero.
fn take(room: &AtomicU64) -> bool {
    room.fetch_update(SeqCst, SeqCst, |room| room.checked_sub(1)).is_ok()
}

/// With these timeouts, a lost wake-up hangs the test or fails a write.
#[test]
fn no_wake_up_is_lost_between_many_writers_and_the_writeback_thread() {
    const WRITERS: u64 = 6;
    const WRITES: u64 = 3000;
    let throttle = Throttle::with_timeouts(FOREVER, FOREVER);
    let room = AtomicU64::new(0);
    assert!(throttle.register_thread());
    thread::scope(|scope| {
        let writeback_thread = scope.spawn(|| {
            while !throttle.is_stopping() {
                throttle.wait_for_work(FOREVER);
                while throttle.has_waiters() && !throttle.is_stopping() {
                    room.fetch_add(2, SeqCst);
                    throttle.report_progress();
                }
            }
        });
        let writers: Vec<_> = (0..WRITERS)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..WRITES {
                        assert!(throttle.wait_for_room(LEN, &mut || take(&room)));
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|w| w.join().unwrap());
        throttle.stop();
        writeback_thread.join().unwrap();
    });
    assert!(throttle.stats().writes > 0);
}

#[test]
fn waiting_writers_give_up_when_writeback_ends_or_cannot_free_memory() {
    let refuse = |throttle: &Throttle| {
        throttle.end_round(false);
        // The writer may have come after the beginning of that round.
        assert!(throttle.has_waiters());
        throttle.wait_for_work(FOREVER);
        throttle.end_round(false);
    };
    for end in [Throttle::stop, Throttle::unregister_thread, refuse] {
        let throttle = Throttle::with_timeouts(FOREVER, FOREVER);
        assert!(throttle.register_thread());
        thread::scope(|scope| {
            let writer = scope.spawn(|| throttle.wait_for_room(LEN, &mut || false));
            while !throttle.has_waiters() {
                thread::yield_now();
            }
            end(&throttle);
            assert!(!writer.join().unwrap());
        });
    }
}

/// A need that exceeds the free memory.
fn more_than_free(sim: &SimulatedStore) -> u64 {
    sim.limit_bytes.get() - sim.used_bytes.get() + LEN
}

/// Runs the driver until a waiting writer returns. Returns the writer's result.
pub(super) fn run_until_returned(
    sim: &SimulatedStore,
    try_charge: &mut (dyn FnMut() -> bool + Send),
) -> bool {
    let throttle = sim.policy.throttle();
    let needed_bytes = more_than_free(sim);
    let mut load = calm();
    let mut driver = Driver::new(sim, &sim.policy, &mut load);
    thread::scope(|scope| {
        let writer = scope.spawn(move || throttle.wait_for_room(needed_bytes, try_charge));
        while !writer.is_finished() {
            throttle.wait_for_work(Duration::from_millis(1));
            let wait = driver.step();
            sim.pass(wait.max(Duration::from_micros(10)));
        }
        writer.join().unwrap()
    })
}

#[test]
fn a_writer_is_refused_while_writeback_is_blocked_and_the_condition_is_the_reason() {
    for (block, condition) in [
        ((|sim: &SimulatedStore| sim.room_bytes.set(0)) as fn(&SimulatedStore), Condition::Full),
        (|sim| sim.limit_left.set(Some(0)), Condition::LimitSpent),
    ] {
        let sim = SimulatedStore::new(1000, 1000 * LEN);
        sim.write_all((0..1000).map(|_| 100));
        assert!(sim.policy.throttle().register_thread());
        block(&sim);
        assert!(!run_until_returned(&sim, &mut || false));
        assert_eq!(sim.condition(), condition);
    }
}

/// The decision was right when it was made; then a discard frees space on the backing.
#[test]
fn a_decision_from_before_the_write_refuses_nothing() {
    let sim = SimulatedStore::new(1000, 1000 * LEN);
    sim.write_all((0..1000).map(|_| 100));
    let throttle = sim.policy.throttle();
    assert!(throttle.register_thread());
    sim.room_bytes.set(0);
    assert!(!run_until_returned(&sim, &mut || false));
    sim.room_bytes.set(u64::MAX);
    let (used_bytes, limit_bytes) = (AtomicU64::new(0), sim.limit_bytes.get());
    let mut load = calm();
    let mut driver = Driver::new(&sim, &sim.policy, &mut load);
    thread::scope(|scope| {
        used_bytes.store(sim.used_bytes.get(), SeqCst);
        let writer =
            scope.spawn(|| throttle.wait_for_room(LEN, &mut || used_bytes.load(SeqCst) + LEN <= limit_bytes));
        while !writer.is_finished() {
            throttle.wait_for_work(Duration::from_millis(1));
            driver.step();
            used_bytes.store(sim.used_bytes.get(), SeqCst);
            throttle.report_progress();
        }
        assert!(writer.join().unwrap());
    });
}

/// Of three frames one is in use and two adjacent ones are needed, or both of two are in use. Memory is below the low
/// mark, or freeing down to the low mark is not enough.
#[test]
fn memory_is_freed_below_the_marks_if_a_writer_needs_it() {
    for (limit, used) in [(2, 1), (2, 2), (3, 2)] {
        let sim = SimulatedStore::new(used, limit * LEN);
        sim.write_all((0..used).map(|_| 100));
        assert!(sim.policy.throttle().register_thread());
        let throttle = sim.policy.throttle();
        let used_bytes = AtomicU64::new(sim.used_bytes.get());
        let mut load = calm();
        let mut driver = Driver::new(&sim, &sim.policy, &mut load);
        thread::scope(|scope| {
            let mut is_room = || used_bytes.load(SeqCst) + 2 * LEN <= limit * LEN;
            let writer = scope.spawn(move || throttle.wait_for_room(2 * LEN, &mut is_room));
            while !writer.is_finished() {
                throttle.wait_for_work(Duration::from_millis(1));
                let wait = driver.step();
                sim.pass(wait);
                used_bytes.store(sim.used_bytes.get(), SeqCst);
            }
            assert!(writer.join().unwrap(), "{used} of {limit}");
        });
    }
}

/// Between the marks and on a busy machine, where nothing is written back unless a writer waits.
#[test]
fn a_writer_that_waits_starts_writeback_and_makes_it_urgent() {
    let sim = SimulatedStore::new(2000, 2000 * LEN * 100 / 85);
    sim.write_all((0..2000).map(|i| i as u16));
    (0..2000).for_each(|i| sim.access(i, i as u16));
    let throttle = sim.policy.throttle();
    assert!(throttle.register_thread());
    let mut busy = || {
        let total_us = sim.now.get().as_micros() as u64;
        let stall = Stall { avg10_centipercent: 10_000, total_us };
        Some(Load { io: stall, cpu: stall })
    };
    sim.run_with(Duration::from_secs(2), &mut busy, &mut || {});
    assert!(sim.written_back.borrow().is_empty());
    let has_room = AtomicBool::new(false);
    let needed_bytes = more_than_free(&sim);
    thread::scope(|scope| {
        let has_room = &has_room;
        let writer = scope.spawn(move || throttle.wait_for_room(needed_bytes, &mut || has_room.load(SeqCst)));
        while !throttle.has_waiters() {
            thread::yield_now();
        }
        sim.run_with(Duration::from_secs(2), &mut busy, &mut || {
            let sweeps = sim.sweeps.borrow();
            assert!(sweeps.is_empty() || sim.is_written_back(1999), "the oldest, accessed or not");
        });
        has_room.store(true, SeqCst);
        throttle.report_progress();
        assert!(writer.join().unwrap());
    });
    assert!(sim.used_bytes.get() + needed_bytes <= sim.limit_bytes.get());
}

#[test]
fn stopping_ends_a_burst() {
    let sim = SimulatedStore::new(100_000, 100_000 * LEN * 100 / 95);
    sim.write_all((0..100_000).map(|_| 100));
    let throttle = sim.policy.throttle();
    assert!(throttle.register_thread());
    throttle.stop();
    let mut load = calm();
    Driver::new(&sim, &sim.policy, &mut load).step();
    assert_eq!(sim.written_back.borrow().len() as u64, super::simulated::BATCH);
}

#[test]
fn a_store_has_one_writeback_thread_at_a_time_and_none_after_it_is_dropped() {
    let mut store = Store::new(StoreConfig::new(1 << 20)).unwrap();
    let backing = Arc::new(MemoryBacking::new(16 << 20));
    store.attach(WritebackConfig { backing, layout: LayoutKind::Log }).unwrap();
    let store = Arc::new(store);
    for _ in 0..3 {
        let writeback_thread = WritebackThread::start(store.clone()).unwrap();
        let second = WritebackThread::start(store.clone()).err().unwrap();
        assert_eq!(second.kind(), std::io::ErrorKind::AlreadyExists);
        drop(writeback_thread);
        assert_eq!(store.writeback().unwrap().policy().condition(), Condition::Off);
    }
    assert!(WritebackThread::start(Arc::new(Store::new(StoreConfig::new(4096)).unwrap())).is_ok());
}
