//! The keeper's process: one thread that waits for messages, deaths and signals.
//!
//! A server is started in the same way whether it is the first, replaces a dead one, or replaces a living one: it
//! prepares, reports that, and waits. Then the keeper lets it serve, and both kill the living one, if there is one. Until
//! then that one serves, so that a program that cannot take over harms nothing.
//!
//! A server may have been taken over. So its messages name neither the process that is killed nor the folder that is written
//! to: the first is a child, or the server that the broker names, and the second is that of the request to start.

use super::link::{Link, Message, State};
use super::status::{Status, log};
use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::instance::keeper::{
    HELD_WITHIN, PREPARE_TIMEOUT, PROGRAM, RESTART_SIGNAL, RESTARTS_MAX, ServerEnd,
};
use pagefold_control::startup::{KEPT, KeptKind, SERVE};
use pagefold_sys::pidfd::{Identity, Process};
use pagefold_sys::privileges::{self, CapabilitySet};
use pagefold_sys::respawn::{self, End, Program, Started};
use pagefold_sys::signal::Termination;
use pagefold_sys::{detach, harden, ready, rundir};
use rustix::fs::{AtFlags, Mode, OFlags};
use serde::Deserialize;
use std::fs::File;
use std::io::{Cursor, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The capabilities of the keeper of root's mount, and of the brokers of its servers: to mount and unmount, to end servers,
/// which are other users', and to let servers become those users. Those of a disk do without the first as soon as it serves.
pub const KEPT_BY_ROOT: CapabilitySet = CapabilitySet::SYS_ADMIN
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID);
/// The place of a channel of FUSE, if there is one, among the descriptors of a state.
const CHANNEL: usize = 2;
/// The pause before another attempt to start a server.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A server, and the connection to it.
struct Server {
    started: Started,
    link: Link,
    /// Descriptors that came before their state.
    arriving: Vec<OwnedFd>,
    payload: Vec<u8>,
}

/// A server that prepares to serve.
struct Candidate {
    server: Server,
    /// The program, if it is not that of the last server.
    program: Option<File>,
    /// Whether a command wants it.
    is_requested: bool,
    deadline: Instant,
}

struct Keeper {
    kind: KeptKind,
    arguments: Program,
    program: File,
    signals: Termination,
    /// The request to start, from the first server before it parsed foreign bytes. It is not replaced.
    start: Vec<u8>,
    /// The folder of the instance, which that request names.
    folder: Option<OwnedFd>,
    state: Option<State>,
    serving: Option<Server>,
    candidate: Option<Candidate>,
    /// The last restarts, the oldest first.
    restarts: [Option<Instant>; RESTARTS_MAX],
    status: Status,
    /// Whether the FUSE mount has ended, so that there is nothing to keep.
    is_disconnected: bool,
    /// Whether a signal asked for the end of a mount. The server of a disk that is in use serves on after a signal.
    is_ending: bool,
    /// Whether a server has begun to serve. Until then its death is reported by the command that has started it.
    has_served: bool,
    /// Whether the server that serves was requested by a command that waits for it.
    is_requested: bool,
    /// The program of the server that has been let serve, until it says that it does. Before that, the former program is
    /// the one that works.
    new_program: Option<File>,
    /// Whether a server has been let serve and has not said yet that it does.
    is_beginning: bool,
    /// A signal that asked for the end of a disk while no server served it, for the next one: it knows whether the disk is
    /// in use.
    signal: Option<i32>,
    /// Whether the server is about to end in an orderly way.
    is_done: bool,
    /// When to try again to start a server, if that was impossible.
    retry_at: Option<Instant>,
}

/// Keeps the instance `name` of a new server, which it starts, and which gets `command`, the socket to the command. Returns
/// the exit code of this process.
pub fn keep(name: &str, kind: KeptKind, command: UnixStream) -> Result<u8> {
    let mut keeper = Keeper::new(name, kind)?;
    let server = Server::start(&keeper.arguments, &keeper.program)?;
    // The server is in the process group of the command.
    detach::new_session();
    server.link.send(Message::New, &[command.as_fd()], &[])?;
    // The command sees its end as the end of the server.
    drop(command);
    keeper.serving = Some(server);
    Ok(keeper.run())
}

/// Keeps the instance `name` of the server `pid` that has lost its keeper, at the other end of `stream`. The process that has
/// started this one names it, with its start time, and has written the request to start to the file that is standard output.
pub fn adopt(name: &str, kind: KeptKind, stream: UnixStream, pid: i32, start_ticks: u64) -> Result<u8> {
    let identity = Identity::of(pid).filter(|identity| identity.start_ticks == start_ticks);
    let process = identity.map(|identity| Process::open(&identity)).transpose()?.flatten();
    let process = process.ok_or_else(|| CliError::failed("the server has ended"))?;
    let mut keeper = Keeper::new(name, kind)?;
    let mut start = Vec::new();
    File::from(detach::take_stdout()?)
        .read_to_end(&mut start)
        .map_err(|e| CliError::io("reading the request", &e))?;
    let link = Link::over(stream)?;
    keeper.take_start(start);
    let started = Started { pid, process };
    keeper.serving = Some(Server { started, link, arriving: Vec::new(), payload: Vec::new() });
    keeper.has_served = true;
    Ok(keeper.run())
}

impl Server {
    fn start(arguments: &Program, program: &File) -> Result<Self> {
        let (link, theirs) = Link::pair()?;
        let started = arguments.start(program, theirs.as_fd())?;
        Ok(Server { started, link, arriving: Vec::new(), payload: Vec::new() })
    }

    /// Receives a message. `None` if there will be none: the server has ended, or is not one of ours.
    fn receive(&mut self) -> Option<Message> {
        match self.link.receive(&mut self.arriving, &mut self.payload) {
            Ok(message) => message,
            Err(e) => {
                log(format_args!("killing process {}: {e}", self.started.pid));
                let _ = self.started.process.kill();
                None
            }
        }
    }

    /// Kills it, unless it has ended, and returns how it ended.
    fn kill(self) -> ServerEnd {
        let _ = self.started.process.kill();
        match self.started.wait() {
            End::Code(code) => ServerEnd::Code(code),
            End::Signal(number) => ServerEnd::Signal(number),
            End::Unknown => ServerEnd::Unknown,
        }
    }
}

/// The part of a request to start that the keeper reads.
#[derive(Deserialize)]
struct Place {
    #[serde(with = "pagefold_control::path")]
    dir: PathBuf,
}

impl Place {
    /// Opens the folder of the instance.
    fn open(start: &[u8]) -> Result<OwnedFd> {
        let place: Self = serde_json::from_slice(start).map_err(|e| CliError::failed(e.to_string()))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::open(&place.dir, flags, Mode::empty());
        opened.map_err(|e| CliError::io(format!("opening '{}'", place.dir.display()), &e.into()))
    }
}

/// Whether the keeper goes on; the exit code otherwise.
type Step = std::result::Result<(), u8>;

impl Keeper {
    fn new(name: &str, kind: KeptKind) -> Result<Self> {
        privileges::set_private_umask();
        privileges::forbid_dumps()?;
        if kind.is_for_swap() {
            // Servers inherit it, but for the lock of their memory, and report what was refused.
            let _ = harden::for_swap();
        }
        Ok(Keeper {
            kind,
            arguments: Program::new(&["pagefold", SERVE, name, KEPT, kind.name()])?,
            program: respawn::open_program("/proc/self/exe".as_ref())?,
            signals: Termination::listen_also(&[RESTART_SIGNAL])?,
            start: Vec::new(),
            folder: None,
            state: None,
            serving: None,
            candidate: None,
            restarts: [None; RESTARTS_MAX],
            status: Status::new(),
            is_disconnected: false,
            is_ending: false,
            has_served: false,
            is_requested: false,
            new_program: None,
            is_beginning: false,
            signal: None,
            is_done: false,
            retry_at: None,
        })
    }

    fn run(mut self) -> u8 {
        loop {
            if let Err(exit) = self.step() {
                return exit;
            }
        }
    }

    /// Waits for the next event, and acts on it.
    fn step(&mut self) -> Step {
        let [signalled, disconnected, sent, ended, candidate_sent, candidate_ended] = self.wait();
        if disconnected && !self.is_disconnected {
            // A living server notices this too, and ends.
            self.is_disconnected = true;
            self.candidate.take().into_iter().for_each(|candidate| _ = candidate.server.kill());
            return self.serving.as_ref().map(drop).ok_or(0);
        }
        if signalled {
            self.signalled()?;
        }
        // The messages of a process that has ended come first: then the connection is at its end.
        if candidate_sent || candidate_ended {
            self.candidate_event()?;
        } else if self.candidate.as_ref().is_some_and(|candidate| Instant::now() >= candidate.deadline) {
            self.candidate_failed(Some(ServerEnd::TimedOut), None)?;
        }
        if sent || ended {
            self.server_event(sent)?;
        }
        if self.retry_at.is_some_and(|at| Instant::now() >= at) {
            self.retry();
        }
        Ok(())
    }

    /// Which of the descriptors have something: the signals, the end of the mount, and the messages and ends of both
    /// servers.
    fn wait(&self) -> [bool; 6] {
        let none = (self.signals.as_fd(), false);
        let channel = self.state.as_ref().filter(|_| self.kind.has_channels());
        let channel = channel.and_then(|state| state.fds.get(CHANNEL));
        let channel = channel.filter(|_| !self.is_disconnected).map_or(none, |fd| (fd.as_fd(), false));
        let (serving, candidate) = (self.serving.as_ref(), self.candidate.as_ref());
        let preparing = candidate.map(|candidate| &candidate.server);
        let fds = [
            (self.signals.as_fd(), true),
            channel,
            serving.filter(|_| !self.is_done).map_or(none, |server| (server.link.as_fd(), true)),
            serving.map_or(none, |server| (server.started.process.as_fd(), true)),
            preparing.map_or(none, |server| (server.link.as_fd(), true)),
            preparing.map_or(none, |server| (server.started.process.as_fd(), true)),
        ];
        let next = candidate.map(|candidate| candidate.deadline).or(self.retry_at);
        let limit = next.map(|at| at.saturating_duration_since(Instant::now()));
        ready::wait_for(fds, limit).unwrap_or_default()
    }

    fn signalled(&mut self) -> Step {
        match self.signals.take() {
            Some(RESTART_SIGNAL) => self.request(),
            Some(number) => {
                self.is_ending = self.kind == KeptKind::Image;
                if self.is_ending {
                    let candidate = self.candidate.as_ref().map(|candidate| &candidate.server);
                    for server in self.serving.iter().chain(candidate) {
                        let _ = server.started.process.send(number);
                    }
                    return if self.serving.is_none() && self.candidate.is_none() { Err(0) } else { Ok(()) };
                }
                match &self.serving {
                    Some(server) if !self.is_beginning => _ = server.started.process.send(number),
                    _ => self.signal = Some(number),
                }
            }
            None => {}
        }
        Ok(())
    }

    /// A command wants another program to serve, or a held server to be tried again.
    fn request(&mut self) {
        let refused = match () {
            () if self.state.is_none() => Some("it has not started yet"),
            () if self.is_ending || self.is_disconnected || self.is_done => Some("it is about to end"),
            () if self.candidate.is_some() => Some("another server is being started"),
            () => None,
        };
        let started = match refused {
            Some(why) => Err(CliError::failed(why)),
            None => self.requested_program().and_then(|program| self.start_candidate(Some(program), true)),
        };
        if let Err(e) = started {
            self.fail_request(e.to_string().as_bytes());
        }
    }

    fn requested_program(&self) -> Result<File> {
        let folder = self.folder.as_ref();
        let folder = folder.ok_or_else(|| CliError::failed("the folder of the instance is missing"))?;
        let failed = |e: rustix::io::Errno| {
            CliError::failed(format!("opening the program: {}", std::io::Error::from(e)))
        };
        let program = rustix::fs::openat(folder, PROGRAM, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let program = program.map_err(failed)?;
        let _ = rustix::fs::unlinkat(folder, PROGRAM, AtFlags::empty());
        Ok(program.into())
    }

    fn fail_request(&mut self, why: &[u8]) {
        self.status.note_request(Some(why));
        self.write_status();
    }

    /// Starts a server that prepares to serve.
    fn start_candidate(&mut self, program: Option<File>, is_requested: bool) -> Result<()> {
        let Some(state) = &self.state else { return Err(CliError::failed("there is nothing to serve")) };
        let server = Server::start(&self.arguments, program.as_ref().unwrap_or(&self.program))?;
        let alone = self.serving.is_none().then(|| server.link.send(Message::Alone, &[], &[]));
        let begun = alone.unwrap_or(Ok(())).and_then(|()| server.link.send(Message::Start, &[], &self.start));
        let sent = begun.and_then(|()| server.link.send_state(state));
        if let Err(e) = sent {
            server.kill();
            return Err(e);
        }
        let deadline = Instant::now() + PREPARE_TIMEOUT;
        self.candidate = Some(Candidate { server, program, is_requested, deadline });
        Ok(())
    }

    /// Reads a message of the candidate, or notices its end.
    fn candidate_event(&mut self) -> Step {
        let Some(candidate) = &mut self.candidate else { return Ok(()) };
        match candidate.server.receive() {
            Some(Message::Prepared) => self.let_serve(),
            Some(Message::Failed) => {
                let reason = std::mem::take(&mut candidate.server.payload);
                self.candidate_failed(None, Some(&reason))
            }
            _ => self.candidate_failed(None, None),
        }
    }

    /// Gives the candidate up, and reports why: `reason`, or else how it ended.
    fn candidate_failed(&mut self, end: Option<ServerEnd>, reason: Option<&[u8]>) -> Step {
        let Some(candidate) = self.candidate.take() else { return Ok(()) };
        let killed = candidate.server.kill();
        let end = end.unwrap_or(killed);
        log(format_args!("another server did not start: {end}"));
        if candidate.is_requested {
            self.note_failed_request(reason, end);
        }
        match self.serving {
            None if !self.status.is_held => self.start_after_death(end)?,
            _ => {}
        }
        self.write_status();
        Ok(())
    }

    /// Notes why a request failed: for a reason of the server, or else because of its end.
    fn note_failed_request(&mut self, reason: Option<&[u8]>, end: ServerEnd) {
        let mut text = Cursor::new([0u8; 128]);
        let _ = write!(text, "{end}");
        let len = text.position() as usize;
        self.status.note_request(Some(reason.unwrap_or(&text.get_ref()[..len])));
    }

    /// Reads a message of the server, or notices its end.
    fn server_event(&mut self, is_sent: bool) -> Step {
        let Some(server) = &mut self.serving else { return Ok(()) };
        if self.is_done {
            return Err(match server.started.wait() {
                End::Code(code) => code as u8,
                End::Signal(_) | End::Unknown => 0,
            });
        }
        // Without a message, the process has ended, and perhaps given its end of the connection to another.
        match is_sent.then(|| server.receive()).flatten() {
            Some(Message::Descriptors) => Ok(()),
            Some(Message::Start) => {
                let start = std::mem::take(&mut server.payload);
                if self.start.is_empty() {
                    self.take_start(start);
                }
                Ok(())
            }
            Some(Message::State) => {
                let (fds, payload) =
                    (std::mem::take(&mut server.arriving), std::mem::take(&mut server.payload));
                self.take_state(State { fds, payload })
            }
            Some(Message::Serving) => {
                (self.has_served, self.is_beginning) = (true, false);
                if let Some(program) = self.new_program.take() {
                    self.program = program;
                }
                if let (Some(number), Some(server)) = (self.signal.take(), &self.serving) {
                    let _ = server.started.process.send(number);
                }
                if std::mem::take(&mut self.is_requested) {
                    self.status.note_request(None);
                    self.write_status();
                }
                Ok(())
            }
            Some(Message::Done) => {
                self.is_done = true;
                Ok(())
            }
            _ => self.server_died(),
        }
    }

    /// Holds the request to start from now on, which no server sent that had parsed foreign bytes.
    fn take_start(&mut self, start: Vec<u8>) {
        let folder =
            Place::open(&start).inspect_err(|e| log(format_args!("the folder of the instance: {e}")));
        (self.folder, self.start) = (folder.ok(), start);
    }

    /// Holds the state from now on, in place of a former one of the same server.
    fn take_state(&mut self, state: State) -> Step {
        if self.state.replace(state).is_none() {
            self.drop_privileges();
            self.folder.iter().for_each(|folder| self.status.continue_from(folder));
            // Before the server goes on: commands find the keeper as soon as the device is ready.
            self.write_status();
        }
        self.serving.iter().for_each(|server| _ = server.link.send(Message::Accepted, &[], &[]));
        // It prepares with the former state.
        match self.candidate.take() {
            None => Ok(()),
            Some(Candidate { server, program, is_requested, .. }) => {
                server.kill();
                let Err(e) = self.start_candidate(program, is_requested) else { return Ok(()) };
                self.fail_request(e.to_string().as_bytes());
                Ok(())
            }
        }
    }

    /// Drops the capabilities that no server needs that takes over.
    fn drop_privileges(&self) {
        if rundir::effective_uid() != 0 {
            // Other users mount with the set-user-id program fusermount3, which must gain privileges.
            return;
        }
        let keep = match self.kind {
            KeptKind::Image => KEPT_BY_ROOT,
            // The brokers of later servers mount nothing.
            KeptKind::Disk(_) => KEPT_BY_ROOT.difference(CapabilitySet::SYS_ADMIN),
        };
        let _ = privileges::set_no_new_privs();
        let _ = privileges::drop_capabilities_except(keep);
    }

    fn server_died(&mut self) -> Step {
        let Some(server) = self.serving.take() else { return Ok(()) };
        let pid = server.started.pid;
        let end = server.kill();
        (self.new_program, self.is_beginning) = (None, false);
        if std::mem::take(&mut self.is_requested) {
            self.note_failed_request(None, end);
        }
        match (&self.state, &self.candidate) {
            (None, _) => Err(exit_as(end)),
            _ if !self.has_served => Err(exit_as(end)),
            _ if self.is_disconnected || self.is_ending => Err(0),
            (_, candidate) => {
                log(format_args!("the server (process {pid}) has died: {end}"));
                match candidate {
                    Some(_) => self.status.note_death(end),
                    None => self.start_after_death(end)?,
                }
                self.write_status();
                Ok(())
            }
        }
    }

    /// Starts another server, unless servers have died too often: then users wait for a command.
    fn start_after_death(&mut self, end: ServerEnd) -> Step {
        self.status.note_death(end);
        if self.is_ending || self.is_disconnected {
            return Err(0);
        }
        let now = Instant::now();
        let is_recent = |restart: &Option<Instant>| restart.is_some_and(|at| now - at < HELD_WITHIN);
        if self.restarts.iter().all(is_recent) {
            let object = if self.kind == KeptKind::Image { "image" } else { "disk" };
            log(format_args!("servers have died too often; 'pagefold {object} restart' tries again"));
            self.status.is_held = true;
            return Ok(());
        }
        self.restarts.rotate_left(1);
        self.restarts[RESTARTS_MAX - 1] = Some(now);
        self.retry();
        Ok(())
    }

    /// Starts a server where none is; tries again later if that is impossible, for lack of memory for example.
    fn retry(&mut self) {
        self.retry_at = None;
        if self.serving.is_some() || self.candidate.is_some() {
            return;
        }
        if let Err(e) = self.start_candidate(None, false) {
            log(format_args!("another server cannot be started yet: {e}"));
            self.retry_at = Some(Instant::now() + RETRY_PAUSE);
        }
    }

    /// Lets the prepared candidate serve. Requests that the living server has not answered come to it.
    fn let_serve(&mut self) -> Step {
        let Some(candidate) = &self.candidate else { return Ok(()) };
        let fd = self.serving.as_ref().map(|former| former.started.process.as_fd());
        // The candidate kills the former server too, and waits for its end: this process may be killed just now.
        if let Err(e) = candidate.server.link.send(Message::Go, fd.as_slice(), &[]) {
            log(format_args!("{e}"));
            return self.candidate_failed(None, None);
        }
        self.serving.take().into_iter().for_each(|former| _ = former.kill());
        let Some(candidate) = self.candidate.take() else { return Ok(()) };
        let Candidate { server, program, is_requested, .. } = candidate;
        log(format_args!("process {} serves", server.started.pid));
        self.serving = Some(server);
        self.is_requested = is_requested;
        (self.new_program, self.is_beginning) = (program, true);
        self.status.is_held = false;
        self.status.restarts += u64::from(!is_requested);
        self.write_status();
        Ok(())
    }

    fn write_status(&self) {
        self.folder.iter().for_each(|folder| self.status.write(folder));
    }
}

/// Ends this process as its server has ended: a command that started both looks at it.
fn exit_as(end: ServerEnd) -> u8 {
    match end {
        ServerEnd::Code(code) => code as u8,
        ServerEnd::Signal(number) => {
            let _ = Started::this().and_then(|this| this.process.send(number));
            Exit::Failed as u8
        }
        ServerEnd::Unknown | ServerEnd::TimedOut => Exit::Failed as u8,
    }
}
