//! A busy machine, and parking that makes it busy.

use super::simulated::{LEN, World};
use crate::parking::policy::condition::Condition;
use crate::parking::policy::quiet::Load;
use pagefold_sys::pressure::Stall;
use std::cell::Cell;
use std::time::Duration;

const S: Duration = Duration::from_secs(1);

fn load(percent: u64, total_us: u64) -> Option<Load> {
    let io = Stall { avg10_centipercent: percent as u32 * 100, total_us };
    Some(Load { io, ..Load::default() })
}

/// A machine whose tasks wait for I/O so many per cent of the time.
fn pressed(world: &World, percent: u64) -> Option<Load> {
    load(percent, world.now.get().as_micros() as u64 * percent / 100)
}

/// Just above the high mark.
fn above_high() -> World {
    let world = World::new(2000, 2000 * LEN * 100 / 92);
    world.write_all((0..2000).map(|i| i as u16));
    world
}

#[test]
fn a_busy_machine_is_left_alone_until_it_is_quiet() {
    let (world, reads) = (above_high(), Cell::new(0));
    let began = world.now.get();
    let mut is_waiting = true;
    world.run_with(
        S * 90,
        &mut || {
            reads.set(reads.get() + 1);
            pressed(&world, if world.now.get() < began + S * 60 { 80 } else { 5 })
        },
        &mut || {
            if world.now.get() > began && world.now.get() < began + S * 60 {
                is_waiting &= world.condition() == Condition::Busy;
            }
        },
    );
    assert!(is_waiting);
    let cleanings = world.tends.borrow().iter().filter(|t| t.1 && t.0 < began + S * 60).count();
    assert_eq!(cleanings, 1, "the cleaner waits too");
    assert!(world.parked.borrow().iter().all(|e| e.at >= began + S * 60));
    assert_eq!(world.condition(), Condition::Idle);
    assert!((60..=91).contains(&reads.get()), "once a second: {}", reads.get());
}

#[test]
fn above_the_urgent_mark_nobody_asks() {
    let world = above_high();
    world.limit_bytes.set(2000 * LEN * 100 / 96);
    world.run_with(S * 30, &mut || pressed(&world, 100), &mut || {});
    // Down to where it is not urgent any more; then it waits.
    let urgent = world.limit_bytes.get() * 95 / 100;
    assert!(world.used_bytes.get() < urgent && world.used_bytes.get() > world.limit_bytes.get() * 80 / 100);
    assert_eq!(world.condition(), Condition::Busy);
    world.policy.set_busy_percent(0);
    world.run_with(S * 30, &mut || pressed(&world, 100), &mut || {});
    assert_eq!(world.condition(), Condition::Idle);
}

#[test]
fn pressure_of_our_own_costs_little_and_never_stops_it() {
    let world = World::new(2000, 2000 * LEN * 100 / 92);
    world.write_all((0..2000).map(|_| 1000));
    world.speed.set(1_000_000);
    // The average is always high; time is stalled only while pages are written.
    let mut own = || load(95, world.written_bytes.get());
    world.run_with(S * 100, &mut own, &mut || {
        (0..2000).filter(|i| world.is_parked(*i)).for_each(|i| world.write(i, LEN, 1000));
    });
    let written = world.written_bytes.get();
    assert!(written > 88_000_000, "{written}");
}

#[test]
fn a_rate_and_pressure_of_our_own_go_together() {
    let world = World::new(2000, 2000 * LEN * 100 / 92);
    world.write_all((0..2000).map(|_| 1000));
    world.policy.set_rate_bytes_per_s(100_000);
    let mut own = || load(95, world.written_bytes.get() * 10);
    world.run_with(S * 100, &mut own, &mut || {
        (0..2000).filter(|i| world.is_parked(*i)).for_each(|i| world.write(i, LEN, 1000));
    });
    assert!(world.written_bytes.get() > 8_500_000, "{}", world.written_bytes.get());
}
