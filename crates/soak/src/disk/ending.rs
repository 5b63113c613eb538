//! What is checked when the load is over: rest, memory, and that nothing is left, however the disk ends.

use super::config::{Config, Ending, Export, Medium};
use super::sampler::Sampler;
use super::server::Server;
use crate::leftovers::{self, Leftover};
use crate::part::{Context, Fault, FaultKind};
use crate::process;
use rustix::process::Signal;
use std::ffi::OsString;
use std::time::{Duration, Instant};

/// Time in which a server comes to rest: it writes pages back to its low mark, discards and cleans.
const SETTLING: Duration = Duration::from_secs(20);
/// Rest is this little CPU time in so long a time: the parts that look at the store now and then need some.
const REST: Duration = Duration::from_millis(1500);
const REST_CPU: Duration = Duration::from_millis(60);
/// Memory of a server beside pages, slots and its reserve, bytes: the program and its threads' stacks (10 MiB), streams
/// of two codecs' worth for each CPU (4 MiB), buffers of writing back and reading back (4 MiB and what the kernel
/// registers), FUSE's buffers (17 threads of 1 MiB and more), links of frames. A fixed bound on what may come on top of
/// what users give as memory; measured with every codec and export it is 40 to 65 MiB.
const BESIDE_BYTES: u64 = 96 << 20;
/// Free frames that are kept ready beside a reserve, bytes.
const READY_BYTES: u64 = 4 << 20;
/// How long a server may take to end after a signal.
const ENDING: Duration = Duration::from_secs(60);

/// The server uses no CPU when nothing is asked of it.
pub fn is_idle(server: &Server) -> Result<(), Fault> {
    let began = Instant::now();
    let mut used = Duration::MAX;
    while began.elapsed() < SETTLING {
        let before = process::cpu_time(server.pid).unwrap_or_default();
        std::thread::sleep(REST);
        used = process::cpu_time(server.pid).unwrap_or_default().saturating_sub(before);
        if used <= REST_CPU {
            return Ok(());
        }
    }
    let stacks = process::stacks(server.pid);
    let message =
        format!("{SETTLING:?} after the load the server still uses {used:?} of CPU in {REST:?}\n{stacks}");
    Err(Fault::new(FaultKind::Idle, message))
}

/// The server's memory is what it says, and not more than its limit and a fixed part.
pub fn is_within_memory(config: &Config, server: &Server, sampler: &Sampler) -> Result<(), Fault> {
    let shown = server.show()?;
    let number = |pointer: &str| shown.pointer(pointer).and_then(serde_json::Value::as_u64).unwrap_or(0);
    let peak = sampler.peak_bytes().max(number("/memory/pool_max_bytes"));
    if let Some(limit) = config.limit_bytes()
        && peak > limit
    {
        return Err(Fault::new(
            FaultKind::Memory,
            format!("pages took {peak} bytes of memory, the limit is {limit}"),
        ));
    }
    let rss = process::rss_bytes(server.pid).unwrap_or(0);
    let counted =
        number("/memory/pool_bytes") + number("/memory/slot_table_bytes") + number("/memory/ready_bytes");
    let promised = counted + READY_BYTES + BESIDE_BYTES;
    if rss > promised {
        let message = format!(
            "the server takes {rss} bytes of RAM, {promised} at most are promised: {}",
            shown["memory"]
        );
        return Err(Fault::new(FaultKind::Memory, message));
    }
    Ok(())
}

/// Ends the disk as drawn.
pub fn end(config: &Config, context: &Context, server: &Server, sampler: &Sampler) -> Result<(), Fault> {
    match config.ending {
        Ending::Remove => server.remove(),
        Ending::Reset => {
            server.set("reset=1")?.ok()?;
            sampler.forget();
            let shown = server.show()?;
            let left = [&shown["original_bytes"], &shown["memory"]["pool_bytes"]];
            if left.iter().any(|n| n.as_u64() != Some(0)) {
                return Err(Fault::new(FaultKind::Memory, format!("after a reset there are {left:?} bytes")));
            }
            server.remove()
        }
        Ending::Terminate => {
            process::signal(server.pid, Signal::TERM);
            has_ended(server)?;
            server.list()
        }
        Ending::Kill => {
            kill_under_load(config, context, server)?;
            server.list()
        }
    }
}

/// Kills the server while somebody writes. The writer must get an error, and not wait for ever.
fn kill_under_load(config: &Config, context: &Context, server: &Server) -> Result<(), Fault> {
    if config.export == Export::Loop {
        let to = format!("of={}", server.device);
        let args = ["if=/dev/urandom", &to, "bs=64k", "oflag=direct", "count=20000"];
        std::thread::scope(|scope| {
            // It fails when the server dies, or when the disk is full; only that it ends is asked.
            let writing = scope.spawn(|| process::run(context, "dd", &args, ENDING));
            std::thread::sleep(Duration::from_millis(300));
            process::signal(server.pid, Signal::KILL);
            writing.join().unwrap_or_else(|_| Err(Fault::failed("dd", "its thread panicked")))
        })?;
    }
    process::signal(server.pid, Signal::KILL);
    has_ended(server)
}

fn has_ended(server: &Server) -> Result<(), Fault> {
    let deadline = Instant::now() + ENDING;
    while process::is_running(server.pid) {
        if Instant::now() >= deadline {
            let stacks = process::stacks(server.pid);
            return Err(Fault::new(FaultKind::Hang, format!("the server does not end\n{stacks}")));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Nothing of the disk is left: no process, mount, loop device, file in the runtime folder, or backing.
pub fn is_gone(config: &Config, context: &Context, server: &Server) -> Result<(), Fault> {
    has_ended(server)?;
    let left: Vec<Leftover> = leftovers::find(&context.dir);
    let runtime = std::fs::read_dir(context.runtime().1).into_iter().flatten().flatten();
    // The log of a server that died is kept: it says why.
    let is_kept = |name: &OsString| name == ".lock" || (name == ".logs" && config.ending == Ending::Kill);
    let mut files: Vec<_> = runtime.map(|e| e.file_name()).filter(|name| !is_kept(name)).collect();
    let is_made_by_disk = config.backing.as_ref().is_some_and(|b| b.medium == Medium::File);
    if is_made_by_disk && context.path("backing").exists() {
        files.push("backing".into());
    }
    if left.is_empty() && files.is_empty() {
        return Ok(());
    }
    Err(Fault::new(FaultKind::Leftover, format!("the disk is gone, but there are {left:?} and {files:?}")))
}
