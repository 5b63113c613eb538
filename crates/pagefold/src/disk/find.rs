//! Finds the disk that a user names and connects to its server. On the way, cleans up after dead servers.

use super::resolve;
use crate::cli::output;
use pagefold_control::client::Client;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::instance::{CleanupReport, EndReason, InstanceDir, InstanceName, RuntimeDir};
use std::time::{Duration, Instant};

/// How long a process that was killed may take to exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// After this time, the keeper of a disk whose server has died has started another one.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(1);

/// The result of finding a disk.
pub enum Found {
    /// The disk is running.
    Running(RuntimeDir, InstanceDir),
    /// Its server had died; the command has cleaned up after it.
    Dead,
}

/// Finds the disk that `text` names, and cleans up after all dead servers first, with a note about each.
pub fn find(text: &str) -> Result<Found> {
    let Some(runtime) = RuntimeDir::open()? else {
        return Err(missing(text));
    };
    let locked = runtime.lock()?;
    let dir = resolve::resolve(&locked, text)?;
    let existed = dir.exists();
    let (is_alive, exists) = (locked.sweep(output::note)?.contains(&dir), dir.exists());
    drop(locked);
    match (is_alive, existed, exists) {
        (true, ..) => Ok(Found::Running(runtime, dir)),
        (false, true, false) => Ok(Found::Dead),
        (false, true, true) => {
            let what = format!("{} is dead, but could not be cleaned up yet", dir.title());
            Err(CliError::new(Exit::Busy, what))
        }
        (false, false, _) => Err(missing(text)),
    }
}

/// The error for a disk that does not exist, or for a text that cannot be the name of one.
fn missing(text: &str) -> CliError {
    if text.contains('/') {
        return resolve::no_disk_at(text);
    }
    InstanceName::parse(text).map_or_else(
        |invalid| invalid,
        |name| {
            let what = format!("there is no disk '{name}'; 'pagefold disk list' lists the disks");
            CliError::new(Exit::NotFound, what)
        },
    )
}

/// The names of all running disks, after cleaning up after dead servers.
pub fn all_names() -> Result<Vec<String>> {
    let Some(runtime) = RuntimeDir::open()? else { return Ok(Vec::new()) };
    let alive = runtime.lock()?.sweep(output::note)?;
    Ok(alive.iter().map(|dir| dir.name().to_string()).collect())
}

/// The consequence of most requests whose server has died.
const UNKNOWN: &str = "whether it did what was requested is not known";

/// Connects to the server of a disk and calls `request`. If the server dies meanwhile, cleans up after it.
pub fn with_client<T>(text: &str, request: impl FnOnce(&mut Client) -> Result<T>) -> Result<T> {
    with_client_or(text, UNKNOWN, request)
}

/// The same for a request of which `consequence` says what it means if the server dies and another follows it.
pub fn with_client_or<T>(
    text: &str,
    consequence: &str,
    request: impl FnOnce(&mut Client) -> Result<T>,
) -> Result<T> {
    with_dir(text, consequence, |dir| Client::connect(dir).and_then(|mut client| request(&mut client)))
}

/// The same for a request that changes nothing: if the server dies meanwhile and another follows it, that one is asked.
pub fn ask<T>(text: &str, request: impl FnMut(&mut Client) -> Result<T>) -> Result<T> {
    with_dir(text, UNKNOWN, |dir| Client::ask(dir, request))
}

fn with_dir<T>(text: &str, consequence: &str, request: impl FnOnce(&InstanceDir) -> Result<T>) -> Result<T> {
    let gone = |reason: &str| CliError::new(Exit::NotFound, format!("disk '{text}' is gone{reason}"));
    match find(text)? {
        // A note was printed about it.
        Found::Dead => Err(gone("")),
        Found::Running(runtime, dir) => {
            request(&dir).map_err(|e| match wait_and_clean_up(&runtime, &dir, &e) {
                Some(CleanupReport { result: Ok(()), reason, message }) => {
                    if reason != EndReason::Removed {
                        output::note(&message);
                    }
                    gone(&format!(": {}", reason.in_words()))
                }
                Some(CleanupReport { result: Err(error), message, .. }) => CliError::new(error.exit, message),
                None if is_gone(&e) => CliError::failed(format!("{e}; {consequence}")),
                None => e,
            })
        }
    }
}

/// Whether a request failed because the server has gone. A server that misses something says so with an error number.
fn is_gone(e: &CliError) -> bool {
    e.exit == Exit::NotFound && e.errno.is_none()
}

/// After a request failed because the server has gone: waits until its process has exited, and cleans up after it.
/// `None` if the error is another, the server does not exit, or another one follows it.
pub fn wait_and_clean_up(runtime: &RuntimeDir, dir: &InstanceDir, e: &CliError) -> Option<CleanupReport> {
    let begin = Instant::now();
    while is_gone(e) && begin.elapsed() < EXIT_TIMEOUT {
        let locked = runtime.lock().ok()?;
        if !dir.is_alive() {
            return Some(locked.clean_up(dir));
        }
        drop(locked);
        if begin.elapsed() > FOLLOW_TIMEOUT && dir.keeper_process().is_ok_and(|keeper| keeper.is_some()) {
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    None
}
