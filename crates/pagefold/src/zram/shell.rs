//! `zram-shell`: runs a command for which the disks are at the paths of the kernel's zram.
//!
//! Another process serves the tree. In this one, the thread of [`Namespace`] has the mounts of the shell and starts the
//! command, the main thread waits for the command, and others answer the calls of the tree, and look for disks that other
//! commands create and remove.

use super::followed::FollowedDisks;
use super::namespace::{self, Message, Namespace};
use super::{check_privileges, mount_failed, running_disks};
use crate::cli::output;
use crate::disk::command::{exit_code, of_runner, pass_signals_on};
use clap::{Args, ValueHint};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::instance::RuntimeDir;
use pagefold_sys::signal::Termination;
use pagefold_sys::{fusedev, mounts};
use pagefold_zram::disks::RunningDisks;
use pagefold_zram::tree::{Sysfs, TreeProcess};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// The sysfs of this machine.
const SYS: &str = "/sys";
/// The directory of the private mounts, in the runtime folder. No disk can have this name.
const PRIVATE: &str = ".shell";
/// How often, and how long each time, to wait until the kernel has unmounted what the shell had mounted.
const REMOVE_TRIES: u32 = 30;
const REMOVE_PAUSE: Duration = Duration::from_millis(100);

/// The arguments of `zram-shell`.
#[derive(Debug, Args)]
pub struct ShellArgs {
    /// Remove the disks of this shell when the command has ended. Those that were created in it and are not in use.
    /// Other disks stay, with their contents
    #[arg(long)]
    pub rm: bool,
    /// The command and its arguments [default: $SHELL, or /bin/sh]
    #[arg(last = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// Runs the command, and returns its exit code. A failure of the shell itself has a code that commands do not use.
pub fn run(args: &ShellArgs) -> Result<ExitCode> {
    run_command(args).map_err(of_runner)
}

fn run_command(args: &ShellArgs) -> Result<ExitCode> {
    check_privileges("zram-shell")?;
    let signals = Arc::new(Termination::listen()?);
    let private = private_directory()?;
    let command = match args.command.as_slice() {
        [] => vec![std::env::var_os("SHELL").filter(|s| !s.is_empty()).unwrap_or_else(|| "/bin/sh".into())],
        command => command.to_vec(),
    };
    let disks = Arc::new(running_disks(signals.clone()));
    let mut shell = Shell::start(Namespace { private, command }, disks.clone())?;
    let ended = pass_signals_on(&shell.child, &signals)
        .and_then(|()| shell.child.wait().map_err(|e| CliError::io("waiting for the command", &e)));
    let created = shell.end();
    if args.rm {
        remove_idle(&disks, created);
    }
    Ok(ExitCode::from(exit_code(ended?)))
}

/// The existing directory for the private mounts. It stays: other shells may use it at the same time.
fn private_directory() -> Result<PathBuf> {
    let path = RuntimeDir::open_or_create()?.path().join(PRIVATE);
    match std::fs::create_dir(&path) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(CliError::io(format!("making '{}'", path.display()), &e));
        }
        _ => {}
    }
    match mounts::at(&path)? {
        None => Ok(path),
        Some(_) => Err(CliError::new(Exit::Busy, "this is a zram shell already; run the command itself")),
    }
}

/// A running command with its namespace.
struct Shell {
    child: Child,
    messages: Sender<Message>,
    disks: Arc<FollowedDisks<RunningDisks>>,
    namespace: JoinHandle<()>,
    /// Serves the tree until this is dropped.
    _process: TreeProcess,
}

impl Shell {
    fn start(namespace: Namespace, disks: Arc<RunningDisks>) -> Result<Self> {
        let channel_file = fusedev::open().map_err(|e| mount_failed(&pagefold_fuse::FuseError::Open(e)))?;
        let mounted = channel_file.try_clone().map_err(|e| CliError::io("using /dev/fuse", &e))?;
        let sysfs = Sysfs { real: SYS.into(), links_to: namespace.sysfs() };
        let process = TreeProcess::start(channel_file, sysfs)?;
        let (messages, received) = channel();
        let (devices, listed) = channel();
        let (report, steps) = sync_channel(0);
        let run = move || {
            let entered = namespace.enter(&mounted);
            drop(mounted);
            let is_entered = entered.is_ok();
            // The main thread waits for each step, or has ended with an error.
            let _ = report.send(entered.map(|()| None));
            let Some(devices) = is_entered.then(|| listed.recv().ok()).flatten() else { return };
            match namespace.start(devices) {
                Ok((child, devices)) => {
                    let _ = report.send(Ok(Some(child)));
                    namespace::serve(devices, &received);
                }
                Err(e) => drop(report.send(Err(e))),
            }
        };
        let namespace = std::thread::Builder::new().name("namespace".into()).spawn(run);
        let namespace = namespace.map_err(|e| CliError::io("starting a thread", &e))?;
        next_step(&steps).map_err(|e| match e.exit {
            Exit::Unavailable => e,
            _ => CliError::new(
                Exit::Unavailable,
                format!("the mounts of a zram shell cannot be made here: {e}"),
            ),
        })?;
        let followed = Arc::new(FollowedDisks::new(disks, messages.clone()));
        process.serve(followed.clone(), Path::new(SYS))?;
        // If it cannot be sent, the next step is an error.
        let _ = devices.send(followed.list());
        let child = next_step(&steps)?.ok_or_else(|| CliError::failed("the command was not started"))?;
        let disks = followed.clone();
        let look = std::thread::Builder::new().name("look".into()).spawn(move || followed.keep_looking());
        // Without this thread, the shell learns of new disks when it creates one itself.
        look.err()
            .iter()
            .for_each(|e| output::note(&format!("disks of other commands will appear late: {e}")));
        Ok(Shell { child, messages, disks, namespace, _process: process })
    }

    /// Ends the thread of the namespace, which is the last to see the mounts if no process is left in it. Returns the
    /// numbers of the disks that were created in the shell and are left.
    fn end(self) -> BTreeSet<u32> {
        // The thread may have ended by a panic.
        let _ = self.messages.send(Message::End);
        let _ = self.namespace.join();
        self.disks.created()
    }
}

fn next_step(steps: &Receiver<Result<Option<Child>>>) -> Result<Option<Child>> {
    steps.recv().unwrap_or_else(|_| Err(CliError::failed("the thread of the mounts has ended early")))
}

/// Removes those of the disks that are not in use. The kernel unmounts a moment later than the shell ends: until then,
/// a disk that was mounted in it is in use.
fn remove_idle(disks: &RunningDisks, numbers: BTreeSet<u32>) {
    for number in numbers {
        let mut tries = REMOVE_TRIES;
        loop {
            match disks.remove(number) {
                Err(e) if e.exit == Exit::Busy && tries > 0 => std::thread::sleep(REMOVE_PAUSE),
                Err(e) if e.exit != Exit::NotFound => {
                    break output::note(&format!("zram{number} was not removed: {e}"));
                }
                _ => break,
            }
            tries -= 1;
        }
    }
}
