//! `disk remove`.
//!
//! The server closes its device if that is not in use, and exits. It has no privilege to unmount, so this command
//! removes the mount of a loop export.

use super::device;
use super::find::{self, Found};
use crate::cli::each::each;
use crate::cli::output;
use clap::{Args, ValueHint};
use pagefold_control::client::Client;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::instance::loop_device::{describe_use, in_use, refuse_if_open};
use pagefold_control::instance::{InstanceDir, Processes};
use pagefold_control::removal;
use pagefold_sys::blockuse::{self, BlockUse};
use std::path::Path;
use std::time::Duration;

/// The arguments of `disk remove`.
#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// Name, device or mount point of the disk. Can be repeated
    #[arg(value_name = "DISK", value_hint = ValueHint::AnyPath)]
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub disks: Vec<String>,
    /// Remove all disks
    #[arg(long)]
    pub all: bool,
    /// Also remove a disk in use. Runs swapoff if it is used as swap (refused if memory has no space for the swapped
    /// pages), disconnects NBD clients, takes the device from processes that merely have it open, and kills a server
    /// that does not respond. A mounted disk is not removed while its server responds
    #[arg(long)]
    pub force: bool,
}

/// How long a server may take to exit after it closed its device.
const END_TIMEOUT: Duration = Duration::from_secs(30);
/// The same with `--force`, which then kills it: a backing that does not respond can block it for ever.
const FORCE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a killed server may take to exit.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// How the server of the disk ended, or begins to end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ServerEnd {
    /// It closed its device, and exits.
    DeviceClosed,
    /// It had died before the request, or died meanwhile: it does not listen, or closed the connection.
    Died,
    /// This command has killed it.
    Killed,
}

impl ServerEnd {
    /// The end as the predicate of a sentence.
    fn in_words(self) -> &'static str {
        match self {
            ServerEnd::DeviceClosed => "closed its device",
            ServerEnd::Died => "accepts no commands any more",
            ServerEnd::Killed => "was killed",
        }
    }
}

/// Removes disks. A failure does not stop the removal of the others.
pub fn run(args: &RemoveArgs) -> Result<()> {
    let disks = if args.all { find::all_names()? } else { args.disks.clone() };
    each(&disks, "disks were not removed", |disk| remove(disk, args.force))
}

fn remove(disk: &str, force: bool) -> Result<()> {
    let (runtime, dir) = match find::find(disk)? {
        Found::Running(runtime, dir) => (runtime, dir),
        // The disk does not exist any more, as the user wants.
        Found::Dead => return Ok(()),
    };
    let processes = dir.processes()?;
    let not_removed =
        |e: CliError| CliError::new(e.exit, format!("disk '{}' was not removed: {e}", dir.name()));
    if force && !dir.is_held() {
        stop_swapping(&dir).map_err(not_removed)?;
    }
    let mut left = Vec::new();
    let requested = match force {
        _ if dir.is_held() => {
            left = end_held(&dir, &processes, force).map_err(not_removed)?;
            Ok(())
        }
        true => removal::request(&dir, force),
        false => refuse_if_open(&dir).and_then(|()| removal::request(&dir, force)),
    };
    let end = match requested {
        Ok(()) => ServerEnd::DeviceClosed,
        // The server died meanwhile: clean up after it.
        Err(e) if e.exit == Exit::NotFound => ServerEnd::Died,
        // No usable response, or the server could not close its device.
        Err(e) if e.exit == Exit::Failed && force => {
            left = kill_unless_served(&dir, &processes, &e).map_err(not_removed)?;
            ServerEnd::Killed
        }
        Err(e) => return Err(not_removed(e)),
    };
    left.extend(wait_for_exit(&dir, &processes, end, force)?);
    let note = removal::clean_up(&runtime, &dir)
        .map_err(|e| if left.is_empty() { e } else { left_behind(dir.name(), &left, &e) })?;
    if end == ServerEnd::Died {
        note.iter().for_each(|note| output::note(note));
    }
    Ok(())
}

/// Ends the keeper of a disk without a server, and returns the uses of the device that are left. Fails as busy if it is in use,
/// unless `force`.
fn end_held(dir: &InstanceDir, processes: &Processes, force: bool) -> Result<Vec<BlockUse>> {
    let device = dir.read_state().and_then(|s| s.loop_device());
    let uses = device.as_deref().map(blockuse::claims).transpose()?.unwrap_or_default();
    match &device {
        Some(device) if uses.iter().any(|claim| matches!(claim, BlockUse::Swap { .. })) => {
            return Err(held_in_use(dir, device, &uses, "processes with pages there would be killed"));
        }
        Some(device) if !force && !uses.is_empty() => {
            let way = "'disk remove --force' gives the contents up, and a file system is unmounted with 'umount -l' then";
            return Err(held_in_use(dir, device, &uses, way));
        }
        Some(_) if !force => refuse_if_open(dir)?,
        _ => {}
    }
    processes.kill()?;
    Ok(uses)
}

/// The error for a held disk in use. Unmounting it or swapoff would wait for a server.
fn held_in_use(dir: &InstanceDir, device: &Path, uses: &[BlockUse], otherwise: &str) -> CliError {
    let users: Vec<_> = uses.iter().map(describe_use).collect();
    let message = format!(
        "its servers have died too often, and {} is {}, which waits for one; 'disk restart {}' starts one again; \
         {otherwise}",
        device.display(),
        users.join(", "),
        dir.name()
    );
    CliError::new(Exit::Busy, message)
}

/// Runs swapoff on the disk, if it is used as swap. Fails as busy if the server does not answer: swapoff would wait for
/// it, and no signal would end that.
fn stop_swapping(dir: &InstanceDir) -> Result<()> {
    let Some(device) = dir.read_state().and_then(|s| s.loop_device()) else { return Ok(()) };
    if blockuse::swap_area(&device)?.is_some() && !Client::answers(dir)? {
        let pid = dir.server_pid().map_or_else(|| "PID".to_string(), |pid| pid.to_string());
        return Err(CliError::new(
            Exit::Busy,
            format!(
                "{} is used as swap, and swapoff would wait for its server (process {pid}), which does not answer; \
                 'kill -CONT {pid}' continues a server that is stopped",
                device.display()
            ),
        ));
    }
    device::stop_swapping(&device)
}

/// Waits until the server has exited, after it closed its device, died or was killed. With `force` it is killed after
/// a timeout, unless it still serves a device that is in use. Returns the uses of its device that are left.
fn wait_for_exit(
    dir: &InstanceDir,
    processes: &Processes,
    end: ServerEnd,
    force: bool,
) -> Result<Vec<BlockUse>> {
    let timeout = if force { FORCE_TIMEOUT } else { END_TIMEOUT };
    if processes.wait(timeout)? {
        return Ok(Vec::new());
    }
    let (name, ended, seconds) = (dir.name(), end.in_words(), timeout.as_secs());
    let reason = format!(
        "the server of disk '{name}' {ended} but has not exited after {seconds} s; perhaps its backing does not respond"
    );
    if !force {
        return Err(CliError::failed(format!("{reason}; 'disk remove --force' kills it")));
    }
    let left = match end {
        ServerEnd::Killed => Vec::new(),
        // The device is closed, so nobody loses anything.
        ServerEnd::DeviceClosed => {
            output::note(&format!("{reason}; killing the server"));
            processes.kill()?;
            Vec::new()
        }
        // It may only be unable to start a thread for the command, and serve the device on.
        ServerEnd::Died => kill_unless_served(dir, processes, &CliError::failed(&reason))?,
    };
    match processes.wait(KILL_TIMEOUT)? {
        true => Ok(left),
        false => Err(CliError::failed(format!("{reason}; the kill takes effect when the backing responds"))),
    }
}

/// Kills a server that could not close its device, and returns the uses of its device that are left. Fails as busy if the
/// device is in use and the server answers, because then it still serves its users, or if the device is swap: its
/// processes would be killed.
fn kill_unless_served(dir: &InstanceDir, processes: &Processes, reason: &CliError) -> Result<Vec<BlockUse>> {
    let device = dir.read_state().and_then(|s| s.loop_device());
    let uses = device.as_deref().map(blockuse::claims).transpose()?.unwrap_or_default();
    let is_swap = uses.iter().any(|claim| matches!(claim, BlockUse::Swap { .. }));
    if let Some(device) = &device
        && !uses.is_empty()
        && (is_swap || Client::answers(dir)?)
    {
        return Err(in_use(device, &uses));
    }
    if processes.server.is_none() && processes.keeper.is_none() {
        return Err(reason.clone());
    }
    output::note(&format!("{reason}; killing the server"));
    processes.kill()?;
    Ok(uses)
}

/// The error for a disk whose server was killed and whose device still has these users, so that cleaning up failed with
/// `cause`.
fn left_behind(name: impl std::fmt::Display, uses: &[BlockUse], cause: &CliError) -> CliError {
    let users = uses.iter().map(describe_use).collect::<Vec<_>>().join(", ");
    let unmount = uses.iter().filter_map(|claim| match claim {
        BlockUse::Mounted { mount_point } => Some(format!("umount -l '{}'", mount_point.display())),
        _ => None,
    });
    let unmount = unmount.collect::<Vec<_>>().join("; ");
    let end = if unmount.is_empty() { "end its users".to_string() } else { unmount };
    CliError::new(
        Exit::Busy,
        format!(
            "the server of disk '{name}' was killed and the contents are lost, but its device is still in use ({users}), and \
             every request to it fails; next: {end}; then any command, such as 'pagefold disk list', removes the rest; cleaning up failed now: {cause}"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_for_what_is_left_behind_names_the_users_and_the_cause() {
        let uses = [BlockUse::Mounted { mount_point: "/mnt/a".into() }];
        let cause = CliError::new(Exit::Unavailable, "detaching /dev/loop7: EPERM");
        let e = left_behind("x", &uses, &cause);
        assert_eq!(e.exit, Exit::Busy);
        assert!(e.message.contains("umount -l '/mnt/a'") && e.message.contains(&cause.message), "{e}");
    }
}
