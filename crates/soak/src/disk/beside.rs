//! What comes beside a load: commands of all kinds, and a server that is stopped and continued.

use super::config::{Config, Memory};
use super::server::Server;
use crate::model::FRAME;
use crate::part::Fault;
use crate::process;
use crate::random::Random;
use rustix::process::Signal;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// How long a limit stays at least: the sampler is to see each.
const LIMIT_STAYS: Duration = Duration::from_millis(600);

/// Disturbs the load until told to stop. A command that hangs is a fault; one that is refused is none, because it may
/// be right to.
pub fn run(config: &Config, server: &Server, stop: &AtomicBool) -> Result<(), Fault> {
    let mut random = Random::new(config.beside_seed);
    while !stop.load(Relaxed) {
        std::thread::sleep(Duration::from_millis(random.between(20, 400)));
        if config.moves_limit && random.percent(30) {
            move_limit(config, server, &mut random)?;
        }
        if config.is_stopped && random.percent(30) {
            process::signal(server.pid, Signal::STOP);
            std::thread::sleep(Duration::from_millis(random.between(50, 1500)));
            process::signal(server.pid, Signal::CONT);
        }
        if config.is_disturbed {
            disturb(config, server, &mut random)?;
        }
    }
    Ok(())
}

/// Lowers the limit for a while, or only starts again from what it was.
fn move_limit(config: &Config, server: &Server, random: &mut Random) -> Result<(), Fault> {
    let Memory::Bytes(bytes) = config.memory else { return Ok(()) };
    let lower = bytes / random.between(1, 8) / FRAME * FRAME;
    for limit in [lower.max(2 * FRAME), bytes] {
        server.set(&format!("mem_limit={limit}"))?;
        std::thread::sleep(LIMIT_STAYS);
    }
    Ok(())
}

fn disturb(config: &Config, server: &Server, random: &mut Random) -> Result<(), Fault> {
    let size_pages = config.size_bytes / 4096;
    match random.below(if config.backing.is_some() { 8 } else { 3 }) {
        0 => server.set("compact=1"),
        1 => server.set("latency=0"),
        2 => server.set(&format!("same_filled_pages_enabled={}", random.below(2))),
        3 => server.set(&format!("writeback_batch_size={}", random.doubling(1, 1024))),
        4 => server.set(&format!("promote={}", random.below(2))),
        5 => server.park("--all"),
        6 => server.park("--huge"),
        _ => {
            let first = random.below(size_pages);
            server.park(&format!("--pages {first}-{}", random.between(first, size_pages - 1)))
        }
    }
    .map(drop)
}
