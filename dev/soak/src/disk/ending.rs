//! Checks after the load: no CPU use at rest, memory, and no leftovers, however the disk ends.

use super::config::{Config, Ending, Export, Medium};
use super::recompress;
use super::sampler::Sampler;
use super::server::Server;
use crate::case::Context;
use crate::leftovers::{self, Leftover};
use crate::model::FRAME;
use crate::process::{self, Rest, number};
use crate::recompression::BEYOND_LIMIT_BYTES;
use crate::verdict::{Fault, FaultKind, join, require};
use rustix::process::Signal;
use serde_json::Value;
use std::ffi::OsString;
use std::time::{Duration, Instant};

/// After the load a server writes pages back to its low mark, discards and cleans; then it is at rest. Its threads
/// that look at the store from time to time still need some CPU time.
const REST: Rest = Rest {
    settling: Duration::from_secs(20),
    interval: Duration::from_millis(1500),
    cpu_max: Duration::from_millis(60),
};
/// How long automatic recompression is waited for: with slow codecs it takes minutes.
const TRYING: Duration = Duration::from_secs(45);
/// Bound on the memory of a server without pages, slots and its reserve, bytes: the program and its threads' stacks
/// (10 MiB), streams of two codecs for each CPU (4 MiB), buffers of writeback and reads from the backing (4 MiB and
/// the kernel's registrations), FUSE buffers (17 threads with 1 MiB and more), links of frames. Measured with all
/// codecs and exports: 40 to 65 MiB.
const OVERHEAD_BYTES: u64 = 96 << 20;
/// Bound on free frames in addition to the reserve, bytes.
const READY_BYTES: u64 = 4 << 20;
/// How long a server may take to end after a signal.
const EXIT_LIMIT: Duration = Duration::from_secs(60);
/// The longest time that the broker of a server lives after it.
const LEFT_LIMIT: Duration = Duration::from_secs(10);

/// Checks that the server uses no CPU time without requests. Automatic recompression goes on until it has tried each
/// page in memory once with each of its codecs.
pub fn check_rest(config: &Config, server: &Server) -> Result<(), Fault> {
    let rules = config.further_codecs.iter().filter(|further| further.after_s.is_some()).count() as u64;
    let shown = server.show()?;
    let (tries_max, first) = (rules * shown["original_bytes"].as_u64().unwrap_or(0) / FRAME, tries(&shown));
    let (began, mut before) = (Instant::now(), first);
    loop {
        let at_rest = REST.wait(server.pid());
        let now = tries(&server.show()?);
        let is_trying = std::mem::replace(&mut before, now) < now;
        let problem = match at_rest {
            Ok(()) => return Ok(()),
            Err(problem) if now - first > tries_max => format!("tries pages again and again, and {problem}"),
            Err(problem) if !is_trying => problem,
            Err(_) if began.elapsed() > TRYING => return Ok(()),
            Err(_) => continue,
        };
        let message = format!("the server {problem}\n{}", process::stacks(server.pid()));
        return Err(Fault::new(FaultKind::Idle, message));
    }
}

/// Pages that recompression has tried.
fn tries(shown: &Value) -> u64 {
    number(shown, "/recompression/recompressed_pages") + number(shown, "/recompression/not_smaller_pages")
}

/// Checks the server's memory: pages within the limit, and the process within its own count and a fixed overhead.
pub fn check_memory(config: &Config, server: &Server, sampler: &Sampler) -> Result<(), Fault> {
    let shown = &server.show()?;
    let peak = sampler.peak_bytes().max(number(shown, "/memory/pool_max_bytes"));
    let (limit, beyond) = (config.limit_bytes().unwrap_or(u64::MAX), BEYOND_LIMIT_BYTES);
    let is_within = peak <= limit.saturating_add(beyond);
    require!(is_within, Memory, "pages took {peak} bytes; the limit is {limit}, and {beyond} beyond it");
    let rss = process::rss_bytes(server.pid()).unwrap_or(0);
    let counted = ["/memory/pool_bytes", "/memory/slot_table_bytes", "/memory/ready_bytes"];
    let counted: u64 = counted.iter().map(|pointer| number(shown, pointer)).sum();
    let (promised, memory) = (counted + READY_BYTES + OVERHEAD_BYTES, &shown["memory"]);
    require!(rss <= promised, Memory, "the server takes {rss} bytes of RAM, not {promised}: {memory}");
    Ok(())
}

/// Ends the disk in the drawn way, perhaps during a pass of recompression, whose command must end too.
pub fn end(config: &Config, context: &Context, server: &Server) -> Result<(), Fault> {
    let pass_ms = config.ends_during_pass_ms.filter(|_| !config.further_codecs.is_empty());
    std::thread::scope(|scope| {
        let pass = pass_ms.map(|_| scope.spawn(|| recompress::run_until_end(server)));
        std::thread::sleep(Duration::from_millis(pass_ms.unwrap_or(0)));
        let ended = match config.ending {
            Ending::Remove => server.remove(),
            Ending::Reset => server.set("reset=1").and_then(|ran| ran.ok().map(drop)),
            Ending::Terminate => {
                process::signal(server.pid(), Signal::TERM);
                wait_for_end(server).and_then(|()| server.list())
            }
            Ending::Kill => kill_under_load(config, context, server).and_then(|()| server.list()),
        };
        let joined = pass.map_or(Ok(()), join);
        ended.and(joined)
    })?;
    match config.ending {
        Ending::Reset => check_reset(server).and_then(|()| server.remove()),
        Ending::Remove | Ending::Terminate | Ending::Kill => Ok(()),
    }
}

/// Checks that a disk without pages takes no memory for pages, and counts none.
pub fn check_reset(server: &Server) -> Result<(), Fault> {
    let shown = server.show()?;
    let codecs = shown["recompression"]["codecs"].as_array().into_iter().flatten();
    let mut left = vec![&shown["original_bytes"], &shown["memory"]["pool_bytes"]];
    left.extend(codecs.map(|codec| &codec["pages"]));
    let is_empty = left.iter().all(|n| n.as_u64() == Some(0));
    require!(is_empty, Memory, "after a reset {left:?} are in use: bytes, and pages of further codecs");
    Ok(())
}

/// Kills the server, with a loop export while dd writes. dd must end, and not wait for ever.
fn kill_under_load(config: &Config, context: &Context, server: &Server) -> Result<(), Fault> {
    if config.export == Export::Loop {
        let to = format!("of={}", server.device);
        let args = ["if=/dev/urandom", &to, "bs=64k", "oflag=direct", "count=20000"];
        std::thread::scope(|scope| {
            // dd fails when the server dies or the disk is full; the check is only that it ends.
            let writing = scope.spawn(|| process::run(context, "dd", &args, EXIT_LIMIT));
            std::thread::sleep(Duration::from_millis(300));
            kill(server);
            join(writing)
        })?;
    }
    kill(server);
    wait_for_end(server)
}

/// Kills the server and its keeper together.
fn kill(server: &Server) {
    let keeper = server.keeper();
    // Stopped first, so that it starts no other server.
    keeper.iter().for_each(|keeper| process::signal(*keeper, Signal::STOP));
    process::signal(server.pid(), Signal::KILL);
    keeper.iter().for_each(|keeper| process::signal(*keeper, Signal::KILL));
}

fn wait_for_end(server: &Server) -> Result<(), Fault> {
    server.keeper().map_or(Ok(()), |keeper| process::wait_for_end(keeper, EXIT_LIMIT))?;
    process::wait_for_end(server.pid(), EXIT_LIMIT)
}

/// Checks that no process, mount, loop device, file in the runtime folder or backing is left.
pub fn check_gone(config: &Config, context: &Context, server: &Server) -> Result<(), Fault> {
    wait_for_end(server)?;
    // The broker of a server ends a moment later.
    let deadline = Instant::now() + LEFT_LIMIT;
    let mut left: Vec<Leftover> = leftovers::find(&context.dir);
    while !left.is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
        left = leftovers::find(&context.dir);
    }
    let runtime = std::fs::read_dir(context.runtime().1).into_iter().flatten().flatten();
    // The log of a server that was killed stays, because it may contain the reason.
    let is_expected = |name: &OsString| {
        name == ".lock"
            || name == ".counter"
            || name == ".shell"
            || (name == ".logs" && config.last_life().ending == Ending::Kill)
    };
    let mut files: Vec<_> = runtime.map(|e| e.file_name()).filter(|name| !is_expected(name)).collect();
    let is_made_by_disk =
        !config.by_attributes && config.backing.as_ref().is_some_and(|b| b.medium == Medium::File);
    if is_made_by_disk && context.path("backing").exists() {
        files.push("backing".into());
    }
    let is_gone = left.is_empty() && files.is_empty();
    require!(is_gone, Leftover, "the disk has ended, but {left:?} and {files:?} are left");
    Ok(())
}
