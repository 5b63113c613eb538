//! Disturbs a load on a disk: commands of all kinds, signals that stop and continue the server, and the deaths of servers
//! and keepers.

use super::config::Config;
use super::recompress;
use super::server::Server;
use crate::model::FRAME;
use crate::process;
use crate::random::Random;
use crate::verdict::Fault;
use rustix::process::Signal;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Least time between two changes of the limit, so that the sampler sees each limit.
const LIMIT_LASTS: Duration = Duration::from_millis(600);

/// Least time between two kills of a server: after four within a minute, none follows.
const KILL_INTERVAL: Duration = Duration::from_secs(21);

/// Disturbs the load until `stop` is set. A command that hangs is a fault; a command that fails is not, because its
/// failure may be justified. Only those of recompression have nothing that could justify a failure.
pub fn run(config: &Config, server: &Server, stop: &AtomicBool) -> Result<(), Fault> {
    let mut random = Random::new(config.disturb_seed);
    let mut killed: Option<Instant> = None;
    while !stop.load(Relaxed) {
        std::thread::sleep(Duration::from_millis(random.between(20, 400)));
        if config.changes_limit && random.percent(30) {
            change_limit(config, server, &mut random)?;
        }
        if config.stops_server && random.percent(30) {
            process::signal(server.pid(), Signal::STOP);
            std::thread::sleep(Duration::from_millis(random.between(50, 1500)));
            process::signal(server.pid(), Signal::CONT);
        }
        if config.kills_server && random.percent(20) {
            // More deaths would hold the disk.
            let may_kill = killed.is_none_or(|at| at.elapsed() > KILL_INTERVAL);
            match random.below(3) {
                0 if may_kill => {
                    killed = Some(Instant::now());
                    server.replace(false)?;
                }
                1 => server.replace_keeper()?,
                _ => server.replace(true)?,
            }
        }
        if config.is_disturbed {
            disturb(config, server, &mut random)?;
        }
    }
    Ok(())
}

/// Lowers the limit for a while, or sets the same limit again.
fn change_limit(config: &Config, server: &Server, random: &mut Random) -> Result<(), Fault> {
    let Some(bytes) = config.memory else { return Ok(()) };
    let lower = bytes / random.between(1, 8) / FRAME * FRAME;
    for limit in [lower.max(2 * FRAME), bytes] {
        server.set(&format!("mem_limit={limit}"))?;
        std::thread::sleep(LIMIT_LASTS);
    }
    Ok(())
}

fn disturb(config: &Config, server: &Server, random: &mut Random) -> Result<(), Fault> {
    let size_pages = config.size_bytes / 4096;
    if !config.further_codecs.is_empty() && random.percent(50) || random.percent(2) {
        return match random.percent(25) {
            true => recompress::mark_idle(server, random),
            false => recompress::run(config, server, random),
        };
    }
    let first = random.below(size_pages);
    let (name, words) = match random.below(if config.backing.is_some() { 8 } else { 3 }) {
        0 => ("set", "compact=1".to_string()),
        1 => ("set", "latency=0".to_string()),
        2 => ("set", format!("same_filled_pages_enabled={}", random.below(2))),
        3 => ("set", format!("writeback_batch_size={}", random.doubling(1, 1024))),
        4 => ("set", format!("promote={}", random.below(2))),
        5 => ("writeback", "--json --all".to_string()),
        6 => ("writeback", "--json --huge".to_string()),
        _ => ("writeback", format!("--json --pages {first}-{}", random.between(first, size_pages - 1))),
    };
    server.command(name, &words).map(drop)
}
