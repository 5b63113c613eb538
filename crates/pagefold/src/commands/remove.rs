//! `disk remove`.
//!
//! The server gives its device up when nobody uses it, and ends. What it has no
//! right to take away, the mount of a loop door, this command does with its own.

use crate::cli::args::RemoveArgs;
use crate::cli::output;
use crate::commands::Found;
use crate::failure::{Exit, Failure, Outcome};
use crate::runtime::{Cleared, DiskDir, Runtime};
use crate::service::client::Client;
use crate::service::door;
use pagefold_sys::pidfd::{Identity, Process};
use std::time::Duration;

/// How long a server may take to end after it gave its device up.
const END_PATIENCE: Duration = Duration::from_secs(30);
/// How long it may with `--force`. A backing that does not answer may hold it up for ever.
const FORCE_PATIENCE: Duration = Duration::from_secs(5);
/// How long the kernel may take to end it then.
const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// Removes a disk.
pub fn run(args: &RemoveArgs) -> Outcome<()> {
    let (runtime, dir) = match super::find(&args.name)? {
        Found::Running(runtime, dir) => (runtime, dir),
        // It is what was asked for, if not how.
        Found::Cleared => return Ok(()),
    };
    let process = server_of(&dir)?;
    let mut died = false;
    let kept = |e: Failure| Failure::new(e.exit, format!("disk '{}' was not removed: {e}", dir.name()));
    if args.force {
        stop_swapping(&dir).map_err(kept)?;
    }
    match ask(&dir, args.force) {
        Ok(()) => {}
        // It died meanwhile: clear what it left.
        Err(e) if e.exit == Exit::NotFound => died = true,
        Err(e) if e.exit == Exit::Failed && args.force => end_by_force(&dir, process.as_ref(), &e)?,
        Err(e) => return Err(kept(e)),
    }
    if let Some(process) = &process {
        wait_for_the_end(&dir, process, args.force)?;
    }
    let note = clear(&runtime, &dir)?;
    if died {
        note.iter().for_each(|note| output::note(note));
    }
    Ok(())
}

/// Stops swapping to the disk, if the kernel does.
fn stop_swapping(dir: &DiskDir) -> Outcome<()> {
    match dir.read_state().and_then(|s| s.loop_device()) {
        Some(device) => door::stop_swapping(&device),
        None => Ok(()),
    }
}

/// Asks the server to give the device up.
pub fn ask(dir: &DiskDir, force: bool) -> Outcome<()> {
    Client::connect(dir)?.remove(force)
}

/// The server's process, held before it is asked to end.
fn server_of(dir: &DiskDir) -> Outcome<Option<Process>> {
    match dir.read_state().and_then(|s| s.server) {
        Some(server) => Ok(Process::open(&Identity::from(&server))?),
        None => Ok(None),
    }
}

/// Waits for a server that gave its device up, and so holds nothing that anybody can reach: it may be
/// ended by force.
fn wait_for_the_end(dir: &DiskDir, process: &Process, force: bool) -> Outcome<()> {
    let patience = if force { FORCE_PATIENCE } else { END_PATIENCE };
    if process.wait(patience)? {
        return Ok(());
    }
    let why = format!(
        "the server of disk '{}' gave its device up but has not ended after {} s; perhaps its backing does \
         not answer",
        dir.name(),
        patience.as_secs()
    );
    if !force {
        return Err(Failure::failed(format!("{why}; 'disk remove --force' ends it")));
    }
    output::note(&format!("{why}; ending the server"));
    process.kill()?;
    match process.wait(KILL_PATIENCE)? {
        true => Ok(()),
        false => Err(Failure::failed(format!("{why}; it was killed, and ends when the backing answers"))),
    }
}

/// For a server that does not answer. A device in use keeps it alive.
fn end_by_force(dir: &DiskDir, process: Option<&Process>, why: &Failure) -> Outcome<()> {
    if let Some(device) = dir.read_state().and_then(|s| s.loop_device()) {
        door::refuse_if_claimed(&device)?;
    }
    let process = process.ok_or_else(|| why.clone())?;
    output::note(&format!("{why}; ending the server"));
    Ok(process.kill()?)
}

/// Clears what is left, and says what that was. The name may belong to a new disk by now, which is
/// left alone.
fn clear(runtime: &Runtime, dir: &DiskDir) -> Outcome<Option<String>> {
    let locked = runtime.lock()?;
    if !dir.exists() || dir.is_alive() {
        return Ok(None);
    }
    let Cleared { outcome, note, .. } = locked.clear(dir);
    match outcome {
        Ok(()) => Ok(Some(note)),
        Err(e) => Err(Failure::new(e.exit, note)),
    }
}
