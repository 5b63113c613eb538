//! The commands' side of starting a server process. The servers' side is `pagefold_server::startup`.
//!
//! The command runs this program again, with the hidden command `serve` and a socket as its standard input. That process is
//! the keeper of the instance. It starts the server, which gets the socket. The handshake over the socket:
//!
//! 1. The command passes the held lock of the instance's folder and, if a disk has them, the open backing file and the
//!    saved disk to restore, as descriptors ([`PassedFds`]). Then it sends a [`StartRequest`] as one line.
//! 2. The server sends a [`StartupReply`] as one line: its device is ready, or an error.
//! 3. The command sends a line that confirms the start. A server that does not receive it exits.
//!
//! If a process dies during the handshake, the other sees the end of the socket: the server exits, or the command
//! cleans up. The command of a server in the foreground keeps the socket open: when the command ends, the server ends
//! too, unless its loop device is in use: then it serves on.

use super::config::ServerConfig;
use super::export_kind::ExportKind;
use super::protocol;
use crate::error::{CliError, Result};
use crate::instance::InstanceDir;
use crate::media::SECRET_VARIABLES;
use pagefold_sys::signal::Termination;
use pagefold_sys::{detach, handover, pidfd, ready};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The hidden command that makes this program a server.
pub const SERVE: &str = "serve";
/// Its argument for a keeper, which starts the server.
pub const KEEP: &str = "keep";
/// Its argument for a server that has a keeper.
pub const KEPT: &str = "kept";
/// Its argument for a keeper that a server starts, because it has lost its own.
pub const ADOPT: &str = "adopt";
/// The kind of the instance of a keeper: the last argument of keepers and of their servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptKind {
    /// A mounted image.
    Image,
    /// A disk with this export.
    Disk(ExportKind),
}

impl KeptKind {
    /// That of the instance with this configuration.
    pub fn of(config: &ServerConfig) -> Self {
        match config {
            ServerConfig::Disk(config) => KeptKind::Disk(config.export),
            ServerConfig::Image(_) => KeptKind::Image,
        }
    }

    /// The kind with this name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            IMAGE => Some(KeptKind::Image),
            name => ExportKind::named(name).map(KeptKind::Disk),
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            KeptKind::Image => IMAGE,
            KeptKind::Disk(export) => export.facts().name,
        }
    }

    /// Whether the system may swap to it.
    pub fn is_for_swap(self) -> bool {
        match self {
            KeptKind::Image => false,
            KeptKind::Disk(export) => export.facts().is_for_swap,
        }
    }

    /// Whether requests come through channels of FUSE.
    pub fn has_channels(self) -> bool {
        match self {
            KeptKind::Image => true,
            KeptKind::Disk(export) => export.facts().uses_fuse,
        }
    }
}

/// The name of [`KeptKind::Image`].
const IMAGE: &str = "image";

/// The line that a server with a keeper sends to a command in the foreground when it ends in an orderly way: the process
/// that the command has started is the keeper, which may have been killed and replaced.
pub const ENDED: &[u8] = b"\"ended\"";
/// Time between two looks whether a server has exited.
const EXIT_INTERVAL: Duration = Duration::from_millis(2);
/// Time that a server has until its device is ready. That of a mounted image may wait for servers in addition.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The same time for a disk that is restored.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Longest line of the handshake, bytes: a dictionary of 1 MiB as JSON numbers, and some room.
pub const MAX_LINE: u64 = 8 << 20;

/// The first message to the server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StartRequest {
    /// The configuration of the server.
    pub config: ServerConfig,
    /// The folder of the instance.
    #[serde(with = "crate::path")]
    pub dir: PathBuf,
    /// Whether the server ends when the command does, unless its loop device is in use: then it serves on.
    pub foreground: bool,
}

/// The reply of the server.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartupReply {
    /// The device can be used.
    Ready(Ready),
    /// The server could not start; it exits.
    Failed(CliError),
}

/// A server's device, ready for use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Device path, NBD URI, or the mount point of an image.
    pub device: String,
    /// `nbd`, `loop`, or `fuse` for an image.
    pub export: String,
    /// The reason that swapping to the disk is not safe, if it is not.
    #[serde(default)]
    pub swap_warning: Option<String>,
    /// Other warnings for the user, each a clause.
    pub warnings: Vec<String>,
}

/// A server that is ready, and waits for the confirmation of its command or serves in the foreground.
pub struct StartedServer {
    /// The reply of the server.
    pub ready: Ready,
    stream: UnixStream,
    child: Child,
    consequence: &'static str,
}

/// The open files that a command passes to a server.
pub struct PassedFds<'a> {
    /// The lock of the instance's folder, held.
    pub lock: &'a File,
    /// The backing of a disk; `Some` exactly if the configuration has a backing.
    pub backing: Option<&'a File>,
    /// The saved disk to restore; `Some` exactly if the configuration has one.
    pub restore: Option<&'a File>,
    /// The other files of its chain, as many as the configuration has.
    pub restore_parents: &'a [File],
}

/// How a server depends on the command that starts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// It serves on when the command has ended, and logs to its file.
    Detached,
    /// It ends when the command does, unless its loop device is in use, and logs to its file.
    Attached,
    /// The same, but it logs to the standard error of the command.
    Foreground,
}

/// Starts a server for the instance of `dir` and waits until its device is ready.
///
/// The server gets duplicates of the descriptors. After an error no process is left, but there may be files, a mount
/// and a loop device, which the caller cleans up.
pub fn start(
    config: &ServerConfig,
    dir: &InstanceDir,
    fds: &PassedFds,
    attachment: Attachment,
    signals: &Termination,
) -> Result<StartedServer> {
    let (stream, mut child) = spawn(dir, KeptKind::of(config), attachment)?;
    match handshake(&stream, config, dir, fds, attachment, signals) {
        Ok(ready) => Ok(StartedServer { ready, stream, child, consequence: consequence(config) }),
        Err(failure) => {
            drop(stream);
            let status = reap(&mut child, matches!(failure, StartFailure::Died));
            Err(match failure {
                StartFailure::Reported(error) => error,
                StartFailure::Died => died(dir, &status),
                StartFailure::Interrupted => CliError::failed("interrupted"),
                StartFailure::TimedOut => CliError::failed(format!(
                    "the server of {} was not ready after {} s and was ended{}",
                    dir.title(),
                    start_timeout(config).as_secs(),
                    quote_log(dir)
                )),
            })
        }
    }
}

/// How long the command waits for a server.
fn start_timeout(config: &ServerConfig) -> Duration {
    match config {
        // It reads the whole saved disk first, maybe from a pipe.
        ServerConfig::Disk(config) if config.restore.is_some() => RESTORE_TIMEOUT,
        ServerConfig::Disk(_) => START_TIMEOUT,
        ServerConfig::Image(config) => {
            START_TIMEOUT.saturating_add(Duration::from_millis(config.media.remote.timeout_ms))
        }
    }
}

/// The end of the message about a server that died: the consequence.
fn consequence(config: &ServerConfig) -> &'static str {
    match config {
        ServerConfig::Disk(_) => "; the contents are lost",
        ServerConfig::Image(_) => "; the image is as it was, and can be mounted again",
    }
}

enum StartFailure {
    /// The server, or this process, reported an error.
    Reported(CliError),
    /// The server closed the socket without a reply.
    Died,
    /// A signal came.
    Interrupted,
    TimedOut,
}

fn spawn(dir: &InstanceDir, kind: KeptKind, attachment: Attachment) -> Result<(UnixStream, Child)> {
    let failed = |e| CliError::io(format!("starting a server for {}", dir.title()), &e);
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let err = match attachment {
        Attachment::Foreground => Stdio::inherit(),
        Attachment::Detached | Attachment::Attached => Stdio::from(dir.open_log()?),
    };
    detach::forbid_inheritance();
    let mut command = Command::new("/proc/self/exe");
    SECRET_VARIABLES.iter().for_each(|name| _ = command.env_remove(name));
    let child = command
        .arg0("pagefold")
        // The server does not use the name: it is for process listings.
        .args([SERVE, dir.name().as_str(), KEEP, kind.name()])
        .env_remove("RUST_BACKTRACE")
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(err)
        .spawn()
        .map_err(failed)?;
    Ok((ours, child))
}

fn handshake(
    mut stream: &UnixStream,
    config: &ServerConfig,
    dir: &InstanceDir,
    fds: &PassedFds,
    attachment: Attachment,
    signals: &Termination,
) -> Result<Ready, StartFailure> {
    let foreground = attachment != Attachment::Detached;
    let start = StartRequest { config: config.clone(), dir: dir.path().to_path_buf(), foreground };
    let line = protocol::line(&start).map_err(StartFailure::Reported)?;
    handover::send_fd(stream, fds.lock).map_err(|_| StartFailure::Died)?;
    handover::send_optional_fd(stream, fds.backing).map_err(|_| StartFailure::Died)?;
    handover::send_optional_fd(stream, fds.restore).map_err(|_| StartFailure::Died)?;
    for parent in fds.restore_parents {
        handover::send_fd(stream, parent).map_err(|_| StartFailure::Died)?;
    }
    // The end of the list.
    handover::send_optional_fd(stream, None::<&File>).map_err(|_| StartFailure::Died)?;
    stream.write_all(&line).map_err(|_| StartFailure::Died)?;
    match ready::wait([stream.as_fd(), signals.as_fd()], Some(start_timeout(config))) {
        Ok([_, true]) => return Err(StartFailure::Interrupted),
        Ok([true, _]) => {}
        Ok(_) => return Err(StartFailure::TimedOut),
        Err(e) => return Err(StartFailure::Reported(e.into())),
    }
    let reply = protocol::read_line(&mut BufReader::new(stream), MAX_LINE).ok().flatten();
    match reply.and_then(|line| serde_json::from_slice(&line).ok()).ok_or(StartFailure::Died)? {
        StartupReply::Ready(ready) => Ok(ready),
        StartupReply::Failed(error) => Err(StartFailure::Reported(error)),
    }
}

/// Waits for a server whose socket was closed, which makes it exit, and kills it after a timeout. Returns its exit
/// status in words.
fn reap(child: &mut Child, has_closed_socket: bool) -> String {
    let deadline = Instant::now() + Duration::from_secs(if has_closed_socket { 1 } else { 5 });
    // Not by a pidfd, which some sandboxes refuse: the log of a server that they keep from starting names the call.
    while matches!(child.try_wait(), Ok(None)) {
        if Instant::now() > deadline {
            let _ = child.kill();
            break;
        }
        std::thread::sleep(EXIT_INTERVAL);
    }
    child.wait().map_or_else(|e| e.to_string(), |status| status.to_string())
}

fn died(dir: &InstanceDir, status: &str) -> CliError {
    CliError::failed(format!(
        "the server of {} died while it started ({status}){}",
        dir.title(),
        quote_log(dir)
    ))
}

fn quote_log(dir: &InstanceDir) -> String {
    match dir.log_tail() {
        log if log.is_empty() => String::new(),
        log => format!("; its log:\n{log}"),
    }
}

impl StartedServer {
    /// Makes the server exit, and waits until it has. The caller cleans up after it.
    pub fn end(self) {
        let StartedServer { stream, mut child, .. } = self;
        drop(stream);
        reap(&mut child, false);
    }

    /// Confirms the start: from now on the server does not depend on this command.
    pub fn detach(mut self) -> Result<Ready> {
        self.confirm()?;
        Ok(self.ready)
    }

    /// Confirms the start as [`StartedServer::detach`] does, for a process that lives on: a thread waits for the end of
    /// the server, so that it does not stay as a zombie.
    pub fn detach_and_reap(mut self) -> Result<Ready> {
        self.confirm()?;
        let mut child = self.child;
        // Without the thread, the server is a zombie from its end to the end of this process.
        let _ = std::thread::Builder::new().name("reaper".into()).spawn(move || child.wait());
        Ok(self.ready)
    }

    fn confirm(&mut self) -> Result<()> {
        let gone = |e| CliError::io("the server died just after it was ready", &e);
        self.stream.write_all(b"\"stay\"\n").map_err(gone)
    }

    /// Confirms the start of a server in the foreground: when this command ends, the server ends too, unless its loop
    /// device is in use: then it serves on.
    pub fn into_foreground(mut self) -> Result<Self> {
        self.confirm()?;
        Ok(self)
    }

    /// Sends SIGTERM to the server. It goes on serving while its device is in use.
    pub fn terminate(&self) -> Result<()> {
        let identity = pidfd::Identity::of(self.child.id() as i32);
        match identity.map(|identity| pidfd::Process::open(&identity)).transpose()?.flatten() {
            Some(process) => Ok(process.terminate()?),
            // It has exited; the next call of `wait` reports that.
            None => Ok(()),
        }
    }

    /// Waits until the server has exited, and returns how (`Some`), or until a signal has come (`None`).
    pub fn wait(&mut self, signals: &Termination) -> Result<Option<Result<()>>> {
        let [ended, _] = ready::wait([self.stream.as_fd(), signals.as_fd()], None)?;
        if !ended {
            signals.take();
            return Ok(None);
        }
        let last_words = protocol::read_line(&mut BufReader::new(&self.stream), MAX_LINE).ok().flatten();
        let status = self.child.wait().map_err(|e| CliError::io("waiting for the server", &e))?;
        Ok(Some(match status.success() || last_words.is_some_and(|line| line == ENDED) {
            true => Ok(()),
            false => Err(CliError::failed(format!("the server died ({status}){}", self.consequence))),
        }))
    }
}
