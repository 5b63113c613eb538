//! The state of a keeper: the process that holds what must outlive the server of a disk or a mount, and starts the next
//! server.
//!
//! The keeper writes it as the file `keeper` in the folder of the instance, and commands read it. A command that wants
//! another program to serve makes the link `program` in that folder and sends SIGUSR1 to the keeper. `docs/keeper.md`
//! describes the whole.

use super::InstanceDir;
use super::state::Server;
use crate::error::{CliError, Exit, Result};
use pagefold_sys::pidfd::{Identity, Process};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::time::{Duration, Instant};

/// The name of the state file.
pub const STATE: &str = "keeper";
/// Its name until it is complete.
pub const STATE_NEW: &str = "keeper.new";
/// The name of the link to the program that is to serve.
pub const PROGRAM: &str = "program";
/// Longest state file, bytes.
pub const STATE_BYTES_MAX: usize = 4096;
/// The signal that asks the keeper to start the program of the link.
pub const RESTART_SIGNAL: i32 = libc::SIGUSR1;
/// Restarts within [`HELD_WITHIN`] after which a keeper waits for a command.
pub const RESTARTS_MAX: usize = 3;
/// See [`RESTARTS_MAX`].
pub const HELD_WITHIN: Duration = Duration::from_secs(60);
/// How long a new server may prepare.
pub const PREPARE_TIMEOUT: Duration = Duration::from_secs(120);

/// The end of a server, as its keeper saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ServerEnd {
    /// It exited with this code, without having ended in an orderly way.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
    /// It died, and its keeper, which had not started it, could not learn why.
    Unknown,
    /// It did not prepare in time, and its keeper killed it.
    TimedOut,
}

impl std::fmt::Display for ServerEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ServerEnd::Code(code) => write!(f, "it exited with code {code}"),
            ServerEnd::Signal(libc::SIGSYS) => {
                write!(f, "signal {} killed it: a forbidden system call", libc::SIGSYS)
            }
            ServerEnd::Signal(number) => write!(f, "signal {number} killed it"),
            ServerEnd::Unknown => f.write_str("it died"),
            ServerEnd::TimedOut => f.write_str("it was not ready in time"),
        }
    }
}

/// The state file of a keeper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperState<'a> {
    /// The keeper's process.
    pub keeper: Cow<'a, Server>,
    /// How often it has started a server after the death of one.
    pub restarts: u64,
    /// The last death, seconds since 1970.
    pub died_unix_s: Option<u64>,
    /// How the server ended that died last.
    pub end: Option<ServerEnd>,
    /// Whether it waits for a command, because servers have died too often.
    pub is_held: bool,
    /// Requests of commands that are done.
    pub requests: u64,
    /// Why the last of them failed.
    pub failure: Option<Cow<'a, str>>,
}

impl InstanceDir {
    /// Whether servers have died too often, so that the keeper waits for a command.
    pub fn is_held(&self) -> bool {
        self.keeper().is_some_and(|state| state.is_held)
    }

    /// The process of the keeper; `None` if none lives.
    pub fn keeper_process(&self) -> Result<Option<Process>> {
        let keeper = self.keeper().map(|state| Identity::from(state.keeper.as_ref()));
        Ok(keeper.map(|keeper| Process::open(&keeper)).transpose()?.flatten())
    }

    /// The state of the keeper; `None` if the instance has none.
    pub fn keeper(&self) -> Option<KeeperState<'static>> {
        let text = std::fs::read(self.path().join(STATE)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Fails if the server is held.
    pub fn refuse_if_held(&self) -> Result<()> {
        match self.keeper() {
            Some(KeeperState { is_held: true, end, .. }) => {
                let (title, end) = (self.title(), end.unwrap_or(ServerEnd::Unknown));
                let (times, log) = (RESTARTS_MAX + 1, self.log_path());
                let [restart, give_up] = match self.is_mount() {
                    true => ["image restart", "image unmount --force"],
                    false => ["disk restart", "disk remove --force"],
                };
                Err(CliError::failed(format!(
                    "the server of {title} has died {times} times within a minute, at last because {end}; its users wait. \
                     See '{}'. '{restart}' starts it again, and '{give_up}' gives up",
                    log.display()
                )))
            }
            _ => Ok(()),
        }
    }

    /// Lets the keeper replace the server by one of this program, as it is installed now, and waits until the new one serves.
    pub fn restart(&self) -> Result<()> {
        // Not the link to the running file, which is an older one if the program was replaced meanwhile.
        let program = std::env::current_exe().map_err(|e| CliError::io("finding this program", &e))?;
        let title = self.title();
        let none = || {
            CliError::new(
                Exit::Unavailable,
                format!("{title} has no keeper, so its server cannot be replaced"),
            )
        };
        let folder =
            std::fs::File::open(self.path()).map_err(|e| CliError::io("opening the instance", &e))?;
        // One command at a time: the answers do not say to whom.
        folder.lock().map_err(|e| CliError::io("locking the instance", &e))?;
        let before = self.keeper().ok_or_else(none)?;
        let keeper = Process::open(&Identity::from(before.keeper.as_ref()))?.ok_or_else(none)?;
        let link = self.path().join(PROGRAM);
        let failed = |e| CliError::io(format!("making '{}'", link.display()), &e);
        match std::fs::remove_file(&link) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(e)),
            _ => {}
        }
        std::os::unix::fs::symlink(program, &link).map_err(failed)?;
        keeper.send(RESTART_SIGNAL)?;
        let deadline = Instant::now() + PREPARE_TIMEOUT + Duration::from_secs(10);
        loop {
            let now = self.keeper().ok_or_else(|| CliError::failed(format!("{title} has ended")))?;
            if now.requests != before.requests {
                return now.failure.map_or(Ok(()), |why| {
                    let serving = match () {
                        () if now.is_held => "it is still held",
                        // It died after the former one had been killed.
                        () if now.died_unix_s != before.died_unix_s => "another one is started",
                        () => "the former server serves on",
                    };
                    Err(CliError::failed(format!(
                        "the new server of {title} did not start: {why}; {serving}"
                    )))
                });
            }
            if Instant::now() >= deadline || keeper.wait(Duration::from_millis(10))? {
                let why = "its keeper did not answer; the log of the server may say why";
                return Err(CliError::failed(format!("replacing the server of {title}: {why}")));
            }
        }
    }
}
