//! Writers at the limit, and the thread.

use super::simulated::{FOREVER, LEN, World, calm};
use crate::engine::{Store, StoreConfig};
use crate::parking::policy::condition::Condition;
use crate::parking::policy::driver::Driver;
use crate::parking::policy::parker::Parker;
use crate::parking::policy::quiet::Load;
use crate::parking::policy::throttle::Throttle;
use crate::parking::{LayoutKind, ParkConfig};
use pagefold_backing::MemoryBacking;
use pagefold_sys::pressure::Stall;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

#[test]
fn nobody_waits_where_nobody_parks() {
    let throttle = Throttle::with_patience(FOREVER, FOREVER);
    assert!(!throttle.wait_for_room(LEN, &mut || false));
    assert!(throttle.begin() && !throttle.begin());
    assert!(throttle.wait_for_room(LEN, &mut || true));
    throttle.end();
    throttle.set_open(true);
    assert!(!throttle.wait_for_room(LEN, &mut || false), "it is gone, whatever it says");
    assert_eq!(throttle.counted().writes, 0);
}

#[test]
fn patience_ends_once_for_all_until_there_is_news() {
    let throttle = Throttle::with_patience(Duration::ZERO, Duration::ZERO);
    assert!(throttle.begin());
    assert!(!throttle.wait_for_room(LEN, &mut || false));
    assert_eq!(throttle.counted().writes, 1);
    assert!(!throttle.wait_for_room(LEN, &mut || false));
    assert_eq!(throttle.counted().writes, 1, "the second did not begin to wait");
    throttle.tell_of_room();
    assert!(!throttle.wait_for_room(LEN, &mut || false));
    assert_eq!(throttle.counted().writes, 2);
}

#[test]
fn a_call_before_the_parker_sleeps_is_not_lost() {
    let throttle = Throttle::with_patience(Duration::ZERO, Duration::ZERO);
    assert!(throttle.begin());
    assert!(!throttle.wait_for_room(LEN, &mut || false));
    // Returns at once, or the test hangs.
    throttle.wait_for_work(FOREVER);
    throttle.stop();
    throttle.wait_for_work(FOREVER);
    assert!(throttle.is_stopping());
}

/// Takes one from a count, if there is one.
fn take(room: &AtomicU64) -> bool {
    room.fetch_update(SeqCst, SeqCst, |room| room.checked_sub(1)).is_ok()
}

/// With these times, a wake-up that is lost hangs the test or fails a write.
#[test]
fn no_wake_up_is_lost_between_many_writers_and_the_parker() {
    const WRITERS: u64 = 6;
    const WRITES: u64 = 3000;
    let throttle = Throttle::with_patience(FOREVER, FOREVER);
    let room = AtomicU64::new(0);
    assert!(throttle.begin());
    thread::scope(|scope| {
        let parker = scope.spawn(|| {
            while !throttle.is_stopping() {
                throttle.wait_for_work(FOREVER);
                while throttle.is_awaited() && !throttle.is_stopping() {
                    room.fetch_add(2, SeqCst);
                    throttle.tell_of_room();
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
        parker.join().unwrap();
    });
    assert!(throttle.counted().writes > 0);
}

#[test]
fn writers_that_wait_are_let_go_when_hope_ends() {
    let refuse = |throttle: &Throttle| {
        throttle.set_open(false);
        // That was of a look that the writer may have come after.
        assert!(throttle.is_awaited());
        throttle.wait_for_work(FOREVER);
        throttle.set_open(false);
    };
    for end in [Throttle::stop, Throttle::end, refuse] {
        let throttle = Throttle::with_patience(FOREVER, FOREVER);
        assert!(throttle.begin());
        thread::scope(|scope| {
            let writer = scope.spawn(|| throttle.wait_for_room(LEN, &mut || false));
            while !throttle.is_awaited() {
                thread::yield_now();
            }
            end(&throttle);
            assert!(!writer.join().unwrap());
        });
    }
}

/// What a writer needs for which there is no room.
fn more_than_there_is(world: &World) -> u64 {
    world.limit_bytes.get() - world.used_bytes.get() + LEN
}

/// What a writer is answered whom the driver steps for until there is an answer.
pub(super) fn answer(world: &World, take_room: &mut (dyn FnMut() -> bool + Send)) -> bool {
    let throttle = world.policy.state().throttle();
    let needed_bytes = more_than_there_is(world);
    let mut load = calm();
    let mut driver = Driver::new(world, &world.policy, &mut load);
    thread::scope(|scope| {
        let writer = scope.spawn(move || throttle.wait_for_room(needed_bytes, take_room));
        while !writer.is_finished() {
            throttle.wait_for_work(Duration::from_millis(1));
            let wait = driver.step();
            world.pass(wait.max(Duration::from_micros(10)));
        }
        writer.join().unwrap()
    })
}

#[test]
fn a_writer_is_refused_where_something_hinders_and_for_that_reason() {
    for (hinder, condition) in [
        ((|world: &World| world.room_bytes.set(0)) as fn(&World), Condition::Full),
        (|world| world.limit_left.set(Some(0)), Condition::LimitSpent),
    ] {
        let world = World::new(1000, 1000 * LEN);
        world.write_all((0..1000).map(|_| 100));
        assert!(world.policy.state().throttle().begin());
        hinder(&world);
        assert!(!answer(&world, &mut || false));
        assert_eq!(world.condition(), condition);
    }
}

/// The verdict was right when it was made; a discard makes room on the backing after it.
#[test]
fn a_verdict_from_before_the_write_refuses_nothing() {
    let world = World::new(1000, 1000 * LEN);
    world.write_all((0..1000).map(|_| 100));
    let throttle = world.policy.state().throttle();
    assert!(throttle.begin());
    world.room_bytes.set(0);
    assert!(!answer(&world, &mut || false));
    world.room_bytes.set(u64::MAX);
    let (used_bytes, limit_bytes) = (AtomicU64::new(0), world.limit_bytes.get());
    let mut load = calm();
    let mut driver = Driver::new(&world, &world.policy, &mut load);
    thread::scope(|scope| {
        used_bytes.store(world.used_bytes.get(), SeqCst);
        let writer =
            scope.spawn(|| throttle.wait_for_room(LEN, &mut || used_bytes.load(SeqCst) + LEN <= limit_bytes));
        while !writer.is_finished() {
            throttle.wait_for_work(Duration::from_millis(1));
            driver.step();
            used_bytes.store(world.used_bytes.get(), SeqCst);
            throttle.tell_of_room();
        }
        assert!(writer.join().unwrap());
    });
}

/// Of three frames one is in use and two are needed in a row, or both are in use: neither is above the low mark or
/// leaves anything to be parked below it.
#[test]
fn room_is_made_below_the_marks_for_what_a_writer_needs() {
    for (limit, used) in [(2, 1), (2, 2), (3, 2)] {
        let world = World::new(used, limit * LEN);
        world.write_all((0..used).map(|_| 100));
        assert!(world.policy.state().throttle().begin());
        let throttle = world.policy.state().throttle();
        let used_bytes = AtomicU64::new(world.used_bytes.get());
        let mut load = calm();
        let mut driver = Driver::new(&world, &world.policy, &mut load);
        thread::scope(|scope| {
            let mut is_room = || used_bytes.load(SeqCst) + 2 * LEN <= limit * LEN;
            let writer = scope.spawn(move || throttle.wait_for_room(2 * LEN, &mut is_room));
            while !writer.is_finished() {
                throttle.wait_for_work(Duration::from_millis(1));
                let wait = driver.step();
                world.pass(wait);
                used_bytes.store(world.used_bytes.get(), SeqCst);
            }
            assert!(writer.join().unwrap(), "{used} of {limit}");
        });
    }
}

/// Between the marks and on a busy machine, where nothing would be parked if nobody waited.
#[test]
fn a_writer_that_waits_starts_parking_and_makes_it_urgent() {
    let world = World::new(2000, 2000 * LEN * 100 / 85);
    world.write_all((0..2000).map(|i| i as u16));
    (0..2000).for_each(|i| world.access(i, i as u16));
    let throttle = world.policy.state().throttle();
    assert!(throttle.begin());
    let mut busy = || {
        let total_us = world.now.get().as_micros() as u64;
        let stall = Stall { avg10_centipercent: 10_000, total_us };
        Some(Load { io: stall, cpu: stall })
    };
    world.run_with(Duration::from_secs(2), &mut busy, &mut || {});
    assert!(world.parked.borrow().is_empty());
    let has_room = AtomicBool::new(false);
    let needed_bytes = more_than_there_is(&world);
    thread::scope(|scope| {
        let has_room = &has_room;
        let writer = scope.spawn(move || throttle.wait_for_room(needed_bytes, &mut || has_room.load(SeqCst)));
        while !throttle.is_awaited() {
            thread::yield_now();
        }
        world.run_with(Duration::from_secs(2), &mut busy, &mut || {
            let sweeps = world.sweeps.borrow();
            assert!(sweeps.is_empty() || world.is_parked(1999), "the oldest, accessed or not");
        });
        has_room.store(true, SeqCst);
        throttle.tell_of_room();
        assert!(writer.join().unwrap());
    });
    assert!(world.used_bytes.get() + needed_bytes <= world.limit_bytes.get());
}

#[test]
fn stopping_breaks_a_burst_off() {
    let world = World::new(100_000, 100_000 * LEN * 100 / 95);
    world.write_all((0..100_000).map(|_| 100));
    let throttle = world.policy.state().throttle();
    assert!(throttle.begin());
    throttle.stop();
    let mut load = calm();
    Driver::new(&world, &world.policy, &mut load).step();
    assert_eq!(world.parked.borrow().len() as u64, super::simulated::BATCH);
}

#[test]
fn a_store_has_one_parker_at_a_time_and_none_after_it_is_dropped() {
    let mut store = Store::new(StoreConfig::new(1 << 20)).unwrap();
    let backing = Arc::new(MemoryBacking::new(16 << 20));
    store.attach(ParkConfig { backing, layout: LayoutKind::Log }).unwrap();
    let store = Arc::new(store);
    for _ in 0..3 {
        let parker = Parker::start(store.clone()).unwrap();
        let second = Parker::start(store.clone()).err().unwrap();
        assert_eq!(second.kind(), std::io::ErrorKind::AlreadyExists);
        drop(parker);
        assert_eq!(store.parking().unwrap().policy().condition(), Condition::Off);
    }
    assert!(Parker::start(Arc::new(Store::new(StoreConfig::new(4096)).unwrap())).is_ok());
}
