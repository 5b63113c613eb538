//! Starting a server process and hearing from it.
//!
//! The command runs this program again with the hidden command `serve`, and a
//! socket as its standard input. Over it go the lock of the disk's folder, then what
//! pages are parked on, if anything, as open files, then one line with what to serve; back comes one line, ready or why not; the command
//! answers with a line, and only then does the server stay. If either side ends too
//! early the other sees the end of the socket: the server leaves, or the command
//! cleans up. For a server in the foreground the socket stays open for as long as
//! the command does.

use super::config::Serving;
use super::{images, log, protocol, server};
use crate::failure::{Exit, Failure, Outcome};
use crate::runtime::DiskDir;
use pagefold_sys::signal::Termination;
use pagefold_sys::{detach, handover, malloc, pidfd, ready};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The word that makes this program a server.
pub const SERVE: &str = "serve";
/// How long a server may take until its device is ready.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// Longest line of the exchange: a dictionary of 1 MiB as JSON numbers, and room.
const MAX_LINE: u64 = 8 << 20;

/// What the server is told.
#[derive(Debug, Serialize, Deserialize)]
struct Start {
    config: Serving,
    dir: PathBuf,
    foreground: bool,
}

/// What the server says once.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Said {
    Ready(Ready),
    Failed(Failure),
}

/// A device that is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Device path or NBD URI.
    pub device: String,
    /// `nbd` or `loop`.
    pub door: String,
    /// What the user should know about it.
    pub warnings: Vec<String>,
}

/// The server's end of the socket.
pub struct Line {
    stream: UnixStream,
    foreground: bool,
}

impl Line {
    /// Says that the device is ready, and waits for the command to take it over.
    pub fn ready(&self, ready: &Ready) -> Outcome<()> {
        let gone = |e: std::io::Error| Failure::io("the command that started this server has gone", &e);
        (&self.stream).write_all(&protocol::line(&Said::Ready(ready.clone()))?).map_err(gone)?;
        match protocol::read_line(&mut BufReader::new(&self.stream), MAX_LINE).map_err(gone)? {
            Some(_) => Ok(()),
            None => Err(gone(std::io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// What is readable when a command in the foreground has gone; `None` in the background.
    pub fn into_lifeline(self) -> Option<UnixStream> {
        self.foreground.then_some(self.stream)
    }
}

/// The hidden command `serve`.
///
/// Returns how the server ended, which the log has told. It alone tells it: a standard error that takes nothing
/// must not keep the process from ending.
pub fn serve_from_stdin() -> Outcome<Exit> {
    let not_ours = || Failure::usage("'serve' is started by 'disk create' and 'image mount', not by hand");
    let stream = UnixStream::from(detach::take_stdin()?);
    pagefold_sys::peer::credentials(stream.as_fd()).map_err(|_| not_ours())?;
    detach::new_session();
    detach::set_name(c"pagefold");
    // Buffers of writing back, of some MiB, would stay in the heaps of all threads that ever used some.
    malloc::give_large_blocks_back();
    let lock: OwnedFd = handover::recv_fd(&stream).ok().flatten().ok_or_else(not_ours)?;
    let backing = handover::recv_fd(&stream).ok().flatten().map(File::from);
    let text = protocol::read_line(&mut BufReader::new(&stream), MAX_LINE).ok().flatten();
    let start: Start = text.and_then(|t| serde_json::from_slice(&t).ok()).ok_or_else(not_ours)?;
    let dir = DiskDir::at(start.dir)?;
    let report = stream.try_clone().map_err(|e| Failure::io("duplicating a socket", &e))?;
    let line = Line { stream, foreground: start.foreground };
    let served = match &start.config {
        Serving::Disk(config) => server::run(config, &dir, line, backing),
        Serving::Image(config) => images::server::run(config, &dir, line),
    };
    if let Err(failure) = &served {
        // Before the device was ready, the command hears it; afterwards only the log does.
        let _ = protocol::line(&Said::Failed(failure.clone())).map(|line| (&report).write_all(&line));
        log::error(format_args!("{failure}"));
    }
    log::finish();
    drop(lock);
    Ok(served.map_or_else(|failure| failure.exit, |()| Exit::Ok))
}

/// A server that is ready, as its command sees it.
pub struct Started {
    /// What it serves.
    pub ready: Ready,
    stream: UnixStream,
    child: Child,
    loss: &'static str,
}

/// Open files that a server is handed.
pub struct Handed<'a> {
    /// The held lock of the disk's folder.
    pub lock: &'a File,
    /// What pages are parked on, as the configuration says.
    pub backing: Option<&'a File>,
}

/// Starts a server for the disk of `dir` and waits until its device is ready.
///
/// The server gets duplicates of the descriptors. A failure leaves no process, but perhaps things in the
/// folder, which the caller clears.
pub fn start(
    config: &Serving,
    dir: &DiskDir,
    handed: &Handed,
    foreground: bool,
    signals: &Termination,
) -> Outcome<Started> {
    let (stream, mut child) = spawn(dir, foreground)?;
    let outcome = converse(&stream, config, dir, handed, foreground, signals);
    match outcome {
        Ok(ready) => Ok(Started { ready, stream, child, loss: loss(config) }),
        Err(stop) => {
            drop(stream);
            let status = end(&mut child, matches!(stop, Stop::Died));
            Err(match stop {
                Stop::Said(failure) => failure,
                Stop::Died => died(dir, &status),
                Stop::Interrupted => Failure::failed("interrupted; nothing was left behind"),
                Stop::TimedOut => Failure::failed(format!(
                    "the server of {} was not ready after {} s and was ended{}",
                    dir.title(),
                    START_PATIENCE.as_secs(),
                    quoted_log(dir)
                )),
            })
        }
    }
}

/// What is lost with a server that dies.
fn loss(config: &Serving) -> &'static str {
    match config {
        Serving::Disk(_) => "; the contents are lost",
        Serving::Image(_) => "; the image is as it was, and can be mounted again",
    }
}

enum Stop {
    Said(Failure),
    Died,
    Interrupted,
    TimedOut,
}

fn spawn(dir: &DiskDir, foreground: bool) -> Outcome<(UnixStream, Child)> {
    let failed = |e| Failure::io(format!("starting a server for {}", dir.title()), &e);
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let (out, err) = match foreground {
        true => (Stdio::null(), Stdio::inherit()),
        false => (Stdio::null(), Stdio::from(dir.open_log()?)),
    };
    detach::forbid_inheritance();
    let child = Command::new("/proc/self/exe")
        .arg0("pagefold")
        // The name is for process listings.
        .args([SERVE, dir.name().as_str()])
        .env_remove("RUST_BACKTRACE")
        .stdin(OwnedFd::from(theirs))
        .stdout(out)
        .stderr(err)
        .spawn()
        .map_err(failed)?;
    Ok((ours, child))
}

fn converse(
    mut stream: &UnixStream,
    config: &Serving,
    dir: &DiskDir,
    handed: &Handed,
    foreground: bool,
    signals: &Termination,
) -> Result<Ready, Stop> {
    let start = Start { config: config.clone(), dir: dir.path().to_path_buf(), foreground };
    let line = protocol::line(&start).map_err(Stop::Said)?;
    handover::send_fd(stream, handed.lock).map_err(|_| Stop::Died)?;
    handover::send_optional_fd(stream, handed.backing).map_err(|_| Stop::Died)?;
    stream.write_all(&line).map_err(|_| Stop::Died)?;
    match ready::wait([stream.as_fd(), signals.as_fd()], Some(START_PATIENCE)) {
        Ok([_, true]) => return Err(Stop::Interrupted),
        Ok([true, _]) => {}
        Ok(_) => return Err(Stop::TimedOut),
        Err(e) => return Err(Stop::Said(e.into())),
    }
    let said = protocol::read_line(&mut BufReader::new(stream), MAX_LINE).ok().flatten();
    match said.and_then(|s| serde_json::from_slice(&s).ok()).ok_or(Stop::Died)? {
        Said::Ready(ready) => Ok(ready),
        Said::Failed(failure) => Err(Stop::Said(failure)),
    }
}

/// Waits for a server that was told to leave by closing its socket; one that does not is killed.
fn end(child: &mut Child, is_dead: bool) -> String {
    let identity = pidfd::Identity::of(child.id() as i32);
    let process = identity.and_then(|i| pidfd::Process::open(&i).ok().flatten());
    let patience = Duration::from_secs(if is_dead { 1 } else { 5 });
    if !process.is_some_and(|p| p.wait(patience).unwrap_or(false)) {
        // Our own child, not yet waited for: its id is still its own.
        let _ = child.kill();
    }
    child.wait().map_or_else(|e| e.to_string(), |status| status.to_string())
}

fn died(dir: &DiskDir, status: &str) -> Failure {
    Failure::failed(format!(
        "the server of {} died while it started ({status}){}",
        dir.title(),
        quoted_log(dir)
    ))
}

fn quoted_log(dir: &DiskDir) -> String {
    match dir.log_tail() {
        log if log.is_empty() => String::new(),
        log => format!("; it said:\n{log}"),
    }
}

impl Started {
    /// Makes the server end instead of staying, and waits until it has. What it leaves is the caller's to clear.
    pub fn end(self) {
        let Started { stream, mut child, .. } = self;
        drop(stream);
        end(&mut child, false);
    }

    /// Lets the server stay. From now on it does not depend on this command.
    pub fn release(mut self) -> Outcome<Ready> {
        self.take_over()?;
        Ok(self.ready)
    }

    fn take_over(&mut self) -> Outcome<()> {
        let gone = |e| Failure::io("the server died just after it was ready", &e);
        self.stream.write_all(b"\"stay\"\n").map_err(gone)
    }

    /// Lets the server stay for as long as this command does.
    pub fn attach(mut self) -> Outcome<Attached> {
        self.take_over()?;
        Ok(Attached { stream: self.stream, child: self.child, loss: self.loss })
    }
}

/// A server in the foreground.
pub struct Attached {
    stream: UnixStream,
    child: Child,
    loss: &'static str,
}

impl Attached {
    /// Makes the server end and waits until it has.
    pub fn end(self) {
        let Attached { stream, mut child, .. } = self;
        drop(stream);
        end(&mut child, false);
    }

    /// Asks the server to end as a signal does: it stays while its device is in use.
    pub fn terminate(&self) -> Outcome<()> {
        let identity = pidfd::Identity::of(self.child.id() as i32);
        match identity.map(|identity| pidfd::Process::open(&identity)).transpose()?.flatten() {
            Some(process) => Ok(process.terminate()?),
            // It has ended, which the next wait reports.
            None => Ok(()),
        }
    }

    /// Waits until the server has ended (`Some`: how) or a signal has come (`None`).
    pub fn wait(&mut self, signals: &Termination) -> Outcome<Option<Outcome<()>>> {
        let [ended, _] = ready::wait([self.stream.as_fd(), signals.as_fd()], None)?;
        if !ended {
            signals.take();
            return Ok(None);
        }
        let status = self.child.wait().map_err(|e| Failure::io("waiting for the server", &e))?;
        Ok(Some(match status.success() {
            true => Ok(()),
            false => Err(Failure::failed(format!("the server died ({status}){}", self.loss))),
        }))
    }
}
