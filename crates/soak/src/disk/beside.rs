//! What comes beside a load: commands of all kinds, and a server that is stopped and continued.

use super::config::Config;
use super::server::Server;
use crate::part::Fault;
use crate::process;
use crate::random::Random;
use rustix::process::Signal;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Disturbs the load until told to stop. A command that hangs is a fault; one that is refused is none, because it may
/// be right to.
pub fn run(config: &Config, server: &Server, stop: &AtomicBool) -> Result<(), Fault> {
    let mut random = Random::new(config.beside_seed);
    while !stop.load(Relaxed) {
        std::thread::sleep(Duration::from_millis(random.between(20, 400)));
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
