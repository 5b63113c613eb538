//! `disk create --run`: runs a command while the disk exists.
//!
//! The command is in the process group of this process, so Ctrl-C reaches it directly, and this process waits for its
//! end. Other signals (SIGTERM, SIGHUP, and SIGINT of another process) are passed on to it. If this process is killed, the
//! server ends too, unless its loop device is in use.

use crate::cli::output;
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::instance::InstanceDir;
use pagefold_control::removal;
use pagefold_control::startup::StartedServer;
use pagefold_sys::pidfd::{Identity, Process};
use pagefold_sys::ready;
use pagefold_sys::signal::{Received, Termination, unblock_termination_in};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};

/// Runs `command` with `sh -c`, and the name and the device of the disk in its environment. Returns its exit code, or
/// 128 plus the number of the signal that killed it.
pub fn run(command: &str, dir: &InstanceDir, device: &str, signals: &Termination) -> Result<u8> {
    let failed = |e| CliError::io("running 'sh'", &e);
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).env("PAGEFOLD_NAME", dir.name().as_str()).env("PAGEFOLD_DEVICE", device);
    let mut child = unblock_termination_in(&mut shell).spawn().map_err(failed)?;
    pass_signals_on(&child, signals)?;
    child.wait().map(exit_code).map_err(failed)
}

/// Passes termination signals on until the command has ended.
pub fn pass_signals_on(child: &Child, signals: &Termination) -> Result<()> {
    // The child was not waited for, so its process id cannot have been reused.
    let identity = Identity::of(child.id() as i32);
    let Some(process) = identity.map(|identity| Process::open(&identity)).transpose()?.flatten() else {
        return Ok(());
    };
    loop {
        match ready::wait([process.as_fd(), signals.as_fd()], None)? {
            [true, _] => return Ok(()),
            _ => match signals.take_received() {
                // The terminal has sent the signal of Ctrl-C to the command too.
                Some(Received { number: libc::SIGINT, is_of_kernel: true }) | None => {}
                Some(Received { number, .. }) => process.send(number)?,
            },
        }
    }
}

/// The error of a command that runs another one: its exit code is none of those that the other may have for its reasons.
pub fn of_runner(e: CliError) -> CliError {
    let exit = match e.exit {
        Exit::NotExecutable | Exit::NoCommand => e.exit,
        _ => Exit::RunnerFailed,
    };
    CliError { exit, ..e }
}

/// The exit code of a command, or 128 plus the number of the signal that killed it.
pub fn exit_code(status: ExitStatus) -> u8 {
    let killed = || 128 + status.signal().unwrap_or(0);
    u8::try_from(status.code().unwrap_or_else(killed)).unwrap_or(u8::MAX)
}

/// Removes the disk after the command, and returns how its server has ended; `None` if the disk is in use and stays,
/// which is printed.
pub fn remove_disk(
    dir: &InstanceDir,
    mut server: StartedServer,
    signals: &Termination,
) -> Result<Option<Result<()>>> {
    match removal::request(dir, true) {
        Ok(()) => {}
        // Somebody has removed the disk, or its folder with the control socket.
        Err(_) if !dir.control_path().exists() => server.terminate()?,
        // The server has died.
        Err(e) if e.exit == Exit::NotFound => {}
        Err(e) => {
            let name = dir.name();
            output::error(&format!("{e}; the disk stays, and 'pagefold disk remove {name}' removes it"));
            return Ok(None);
        }
    }
    loop {
        if let Some(ended) = server.wait(signals)? {
            return Ok(Some(ended));
        }
    }
}
