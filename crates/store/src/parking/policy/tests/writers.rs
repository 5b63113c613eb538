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
    assert!(!throttle.wait_for_room(&|| false));
    assert!(throttle.begin() && !throttle.begin());
    throttle.set_open(false);
    assert!(!throttle.wait_for_room(&|| false));
    assert!(throttle.wait_for_room(&|| true));
    throttle.end();
    throttle.set_open(true);
    assert!(!throttle.wait_for_room(&|| false), "it is gone, whatever it says");
    assert_eq!(throttle.counted().writes, 0);
}

#[test]
fn patience_ends_once_for_all_until_there_is_news() {
    let throttle = Throttle::with_patience(Duration::ZERO, Duration::ZERO);
    assert!(throttle.begin());
    assert!(!throttle.wait_for_room(&|| false));
    assert_eq!(throttle.counted().writes, 1);
    assert!(!throttle.wait_for_room(&|| false));
    assert_eq!(throttle.counted().writes, 1, "the second did not begin to wait");
    throttle.tell_of_room();
    assert!(!throttle.wait_for_room(&|| false));
    assert_eq!(throttle.counted().writes, 2);
}

#[test]
fn a_call_before_the_parker_sleeps_is_not_lost() {
    let throttle = Throttle::with_patience(Duration::ZERO, Duration::ZERO);
    assert!(throttle.begin());
    assert!(!throttle.wait_for_room(&|| false));
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
                        while !take(&room) {
                            assert!(throttle.wait_for_room(&|| room.load(SeqCst) > 0));
                        }
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
    for end in [Throttle::stop, Throttle::end, |t: &Throttle| t.set_open(false)] {
        let throttle = Throttle::with_patience(FOREVER, FOREVER);
        assert!(throttle.begin());
        thread::scope(|scope| {
            let writer = scope.spawn(|| throttle.wait_for_room(&|| false));
            while !throttle.is_awaited() {
                thread::yield_now();
            }
            end(&throttle);
            assert!(!writer.join().unwrap());
        });
    }
}

#[test]
fn hope_follows_the_condition() {
    let world = World::new(1000, 1000 * LEN * 100 / 95);
    world.write_all((0..1000).map(|_| 100));
    let throttle = world.policy.state().throttle();
    assert!(throttle.begin());
    let waits = || throttle.wait_for_room(&|| false) || throttle.counted().writes > 0;
    let mut load = calm();
    let mut driver = Driver::new(&world, &world.policy, &mut load);
    for (set, condition) in [
        (&(|| world.room_bytes.set(0)) as &dyn Fn(), Condition::Full),
        (&|| world.limit_left.set(Some(0)), Condition::Full),
        (&|| world.pass(Duration::from_secs(2)), Condition::LimitSpent),
    ] {
        set();
        driver.step();
        assert_eq!(world.condition(), condition);
        assert!(!waits(), "{condition:?}");
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
    thread::scope(|scope| {
        let writer = scope.spawn(|| throttle.wait_for_room(&|| has_room.load(SeqCst)));
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
    assert!(world.used_bytes.get() <= world.limit_bytes.get() * 80 / 100);
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
