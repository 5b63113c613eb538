//! Writeback on a busy machine, and writeback that causes pressure itself.

use super::simulated::{LEN, SimulatedStore};
use crate::policy::backoff::Load;
use crate::policy::settings::Condition;
use pagefold_sys::pressure::Stall;
use std::cell::Cell;
use std::time::Duration;

const S: Duration = Duration::from_secs(1);

fn load(percent: u64, total_us: u64) -> Option<Load> {
    let io = Stall { avg10_centipercent: percent as u32 * 100, total_us };
    Some(Load { io, ..Load::default() })
}

/// The load of a machine where tasks wait for I/O for `percent` of the time.
fn pressed(sim: &SimulatedStore, percent: u64) -> Option<Load> {
    load(percent, sim.now.get().as_micros() as u64 * percent / 100)
}

/// Just above the high mark.
fn above_high() -> SimulatedStore {
    let sim = SimulatedStore::new(2000, 2000 * LEN * 100 / 92);
    sim.write_all((0..2000).map(|i| i as u16));
    sim
}

#[test]
fn writeback_waits_while_the_machine_is_busy() {
    let (sim, reads) = (above_high(), Cell::new(0));
    let began = sim.now.get();
    let mut is_waiting = true;
    sim.run_with(
        S * 90,
        &mut || {
            reads.set(reads.get() + 1);
            pressed(&sim, if sim.now.get() < began + S * 60 { 80 } else { 5 })
        },
        &mut || {
            if sim.now.get() > began && sim.now.get() < began + S * 60 {
                is_waiting &= sim.condition() == Condition::Busy;
            }
        },
    );
    assert!(is_waiting);
    let cleanings = sim.maintenance_runs.borrow().iter().filter(|t| t.1 && t.0 < began + S * 60).count();
    assert_eq!(cleanings, 1, "the cleaner waits too");
    assert!(sim.written_back.borrow().iter().all(|e| e.at >= began + S * 60));
    assert_eq!(sim.condition(), Condition::Idle);
    assert!((60..=91).contains(&reads.get()), "once a second: {}", reads.get());
}

#[test]
fn above_the_urgent_mark_pressure_is_ignored() {
    let sim = above_high();
    sim.limit_bytes.set(2000 * LEN * 100 / 96);
    sim.run_with(S * 30, &mut || pressed(&sim, 100), &mut || {});
    // Memory goes down to the urgent mark; then writeback waits.
    let urgent = sim.limit_bytes.get() * 95 / 100;
    assert!(sim.used_bytes.get() < urgent && sim.used_bytes.get() > sim.limit_bytes.get() * 80 / 100);
    assert_eq!(sim.condition(), Condition::Busy);
    sim.policy.busy_percent.store(0);
    sim.run_with(S * 30, &mut || pressed(&sim, 100), &mut || {});
    assert_eq!(sim.condition(), Condition::Idle);
}

#[test]
fn its_own_pressure_costs_little_and_never_stops_writeback() {
    let sim = SimulatedStore::new(2000, 2000 * LEN * 100 / 92);
    sim.write_all((0..2000).map(|_| 1000));
    sim.speed.set(1_000_000);
    // The average is always high; time is stalled only while pages are written.
    let mut own = || load(95, sim.written_bytes.get());
    sim.run_with(S * 100, &mut own, &mut || {
        (0..2000).filter(|i| sim.is_written_back(*i)).for_each(|i| sim.write(i, LEN, 1000));
    });
    let written = sim.written_bytes.get();
    assert!(written > 88_000_000, "{written}");
}

#[test]
fn its_own_pressure_and_a_rate_work_together() {
    let sim = SimulatedStore::new(2000, 2000 * LEN * 100 / 92);
    sim.write_all((0..2000).map(|_| 1000));
    sim.policy.rate_bytes_per_s.store(100_000);
    let mut own = || load(95, sim.written_bytes.get() * 10);
    sim.run_with(S * 100, &mut own, &mut || {
        (0..2000).filter(|i| sim.is_written_back(*i)).for_each(|i| sim.write(i, LEN, 1000));
    });
    assert!(sim.written_bytes.get() > 8_500_000, "{}", sim.written_bytes.get());
}
