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

/// Removes a disk.
pub fn run(args: &RemoveArgs) -> Outcome<()> {
    let (runtime, dir) = match super::find(&args.name)? {
        Found::Running(runtime, dir) => (runtime, dir),
        // It is what was asked for, if not how.
        Found::Cleared => return Ok(()),
    };
    let process = server_of(&dir)?;
    let mut died = false;
    match ask_and_swapoff(&dir, args.force, args.force) {
        Ok(()) => {}
        // It died meanwhile: clear what it left.
        Err(e) if e.exit == Exit::NotFound => died = true,
        Err(e) if e.exit == Exit::Failed && args.force => end_by_force(&dir, process.as_ref(), &e)?,
        Err(e) => return Err(Failure::new(e.exit, format!("disk '{}' was not removed: {e}", dir.name()))),
    }
    if let Some(process) = &process
        && !process.wait(END_PATIENCE)?
    {
        return Err(Failure::failed(format!(
            "the server of disk '{}' gave its device up but has not ended after {} s",
            dir.name(),
            END_PATIENCE.as_secs()
        )));
    }
    let note = clear(&runtime, &dir)?;
    if died {
        note.iter().for_each(|note| output::note(note));
    }
    Ok(())
}

/// Asks the server to give the device up; with `swapoff`, stops swapping to it first.
pub fn ask_and_swapoff(dir: &DiskDir, force: bool, swapoff: bool) -> Outcome<()> {
    if let (true, Some(device)) = (swapoff, dir.read_state().and_then(|s| s.loop_device())) {
        door::stop_swapping(&device)?;
    }
    Client::connect(dir)?.remove(force)
}

/// The server's process, held before it is asked to end.
fn server_of(dir: &DiskDir) -> Outcome<Option<Process>> {
    match dir.read_state().and_then(|s| s.server) {
        Some(server) => Ok(Process::open(&Identity::from(&server))?),
        None => Ok(None),
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
    let Cleared { outcome, note } = locked.clear(dir);
    match outcome {
        Ok(()) => Ok(Some(note)),
        Err(e) => Err(Failure::new(e.exit, note)),
    }
}
