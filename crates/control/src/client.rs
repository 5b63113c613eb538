//! The commands' side of the control socket: one connection to the server of a disk or a mounted image.
//!
//! All calls block in the thread of the command, with a deadline for every message, however slowly its bytes arrive. A
//! broken connection is [`Exit::NotFound`]: the server has gone, and callers clean up after it. A timeout is [`Exit::Failed`].

use super::protocol::{
    self, DeadlineReader, MAX_RESPONSE, Pages, RecompressPass, Request, Response, SaveOptions,
};
use super::report::disk::{ClassReport, Report};
use super::report::mount::MountReport;
use super::report::recompress::RecompressPassReport;
use super::report::saved::SaveReport;
use super::report::writeback::{PassProgress, PassReport};
use crate::error::{CliError, Exit, Result};
use crate::instance::InstanceDir;
use crate::instance::loop_device::refuse_if_open;
use crate::named_files::NamedFiles;
use crate::report::ServerReport;
use crate::report::keeper::KeeperReport;
use pagefold_sys::peer::PeerCredentials;
use pagefold_sys::signal::Termination;
use pagefold_sys::{handover, pidfd, ready};
use std::io::{BufReader, Write};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Timeout of a request that the server answers at once.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout between two messages during a pass: the server sends progress a few times a second.
const PASS_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of setting attributes: one of them compacts the pool.
const SET_TIMEOUT: Duration = Duration::from_secs(120);
/// Timeout of closing the device: the kernel writes what it caches first.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a server may be stopped before a request fails: somebody may continue it soon.
const STOP_GRACE: Duration = Duration::from_secs(3);

/// How often a command that waits for a response looks whether servers have died too often.
const HELD_INTERVAL: Duration = Duration::from_millis(100);

/// How long servers may die and be followed by others during a request.
const FOLLOW_TIME: Duration = Duration::from_secs(10);

/// A connection to the server of one instance.
pub struct Client {
    dir: InstanceDir,
    stream: UnixStream,
    title: String,
    /// The command that kills a server that does not answer, for messages.
    kill_command: &'static str,
    pid: i32,
}

/// The value of a response of this form; the error of any other.
macro_rules! expect {
    ($client:expr, $response:expr, $form:pat $(if $is_right:expr)? => $value:expr) => {
        match $response {
            $form $(if $is_right)? => Ok($value),
            other => Err($client.unexpected(&other)),
        }
    };
}

impl Client {
    /// Connects to the server of `dir`, which must run as this user or as root.
    pub fn connect(dir: &InstanceDir) -> Result<Self> {
        dir.refuse_if_held()?;
        let client = Client::open(dir)?;
        match stays_stopped(client.pid) {
            true => Err(client.is_stopped()),
            false => Ok(client),
        }
    }

    /// Connects and calls `request`, which may be made twice. If the server dies meanwhile and another follows it, asks that one.
    pub fn ask<T>(dir: &InstanceDir, mut request: impl FnMut(&mut Self) -> Result<T>) -> Result<T> {
        let deadline = Instant::now() + FOLLOW_TIME;
        loop {
            match Client::connect(dir).and_then(|mut client| request(&mut client)) {
                Err(e)
                    if e.exit == Exit::NotFound
                        && Instant::now() < deadline
                        && dir.keeper_process()?.is_some() =>
                {
                    std::thread::sleep(Duration::from_millis(10));
                }
                result => return result,
            }
        }
    }

    /// Connects, although a signal may have stopped the server.
    fn open(dir: &InstanceDir) -> Result<Self> {
        let title = dir.title();
        let deadline = Instant::now() + FOLLOW_TIME;
        let (stream, peer) = loop {
            let (stream, peer) = Client::connect_to(dir)?;
            // A server of root that is confined has become another user; root's state file names its process.
            if crate::is_trusted(peer.uid) || dir.server_pid() == Some(peer.pid) {
                break (stream, peer);
            }
            // The next server is recorded already, and has not taken the socket over yet.
            if Instant::now() >= deadline || dir.keeper_process()?.is_none() {
                return Err(CliError::new(
                    Exit::Unavailable,
                    format!("the server of {title} runs as user {}, which is not trusted", peer.uid),
                ));
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        Ok(Client::over(dir, stream, title, peer.pid))
    }

    fn connect_to(dir: &InstanceDir) -> Result<(UnixStream, PeerCredentials)> {
        let (title, path) = (dir.title(), dir.control_path());
        let stream = UnixStream::connect(&path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => no_control_socket(dir),
            // The server was killed and has not exited yet: the caller waits until it has.
            std::io::ErrorKind::ConnectionRefused => {
                CliError::new(Exit::NotFound, format!("the server of {title} does not listen any more"))
            }
            _ => CliError::io(format!("connecting to the server of {title} at '{}'", path.display()), &e),
        })?;
        let peer = pagefold_sys::peer::credentials(stream.as_fd())?;
        Ok((stream, peer))
    }

    fn over(dir: &InstanceDir, stream: UnixStream, title: String, pid: i32) -> Self {
        let kill_command = if dir.is_mount() { "image unmount --force" } else { "disk remove --force" };
        Client { dir: dir.clone(), stream, title, kill_command, pid }
    }

    /// The error for a server that a signal has stopped: it would not answer.
    fn is_stopped(&self) -> CliError {
        let (title, pid, kill) = (&self.title, self.pid, self.kill_command);
        let loss = if self.dir.is_mount() { "" } else { ", mounted or not, and loses the contents" };
        CliError::failed(format!(
            "the server of {title} (process {pid}) is stopped, and programs that use it wait; 'kill -CONT {pid}' continues \
             it, and '{kill}' kills it{loss}"
        ))
    }

    /// Returns the report on a disk.
    pub fn show(&mut self) -> Result<Report> {
        let report = self.request(&Request::Show {}, TIMEOUT)?;
        let mut report = expect!(self, report, Response::Report(report) => *report)?;
        self.complete(&mut report.server, &mut report.keeper);
        Ok(report)
    }

    /// Returns the report on a mounted image.
    pub fn show_mount(&mut self) -> Result<MountReport> {
        let report = self.request(&Request::Show {}, TIMEOUT)?;
        let mut report = expect!(self, report, Response::Mount(report) => *report)?;
        self.complete(&mut report.server, &mut report.keeper);
        Ok(report)
    }

    /// Adds what a confined server cannot read: the file of its keeper, and its own memory.
    fn complete(&self, server: &mut ServerReport, keeper: &mut KeeperReport) {
        let pid = self.pid.to_string();
        server.rss_bytes = pidfd::status_bytes(&pid, "VmRSS:").or(server.rss_bytes);
        server.peak_rss_bytes = pidfd::status_bytes(&pid, "VmHWM:").or(server.peak_rss_bytes);
        *keeper = KeeperReport::new(&self.dir, keeper.without_keeper.take().as_deref());
    }

    /// Returns the value of one attribute, without the last newline that its file in the attribute tree has.
    pub fn get(&mut self, attribute: &str) -> Result<String> {
        let response = self.request(&Request::Get { attribute: attribute.to_string() }, TIMEOUT)?;
        expect!(self, response, Response::Value(value) => value)
    }

    /// Sets attributes. `files` are those that the changes name. Calls `report_progress` while a change writes back pages.
    pub fn set(
        &mut self,
        changes: &[String],
        files: &NamedFiles,
        report_progress: &mut dyn FnMut(&PassProgress),
    ) -> Result<()> {
        if changes.iter().any(|change| change.starts_with("reset=")) {
            refuse_if_open(&self.dir)?;
        }
        let request = Request::Set { changes: changes.to_vec(), files: files.named() };
        let response = self.request_with_files(&request, files, report_progress)?;
        expect!(self, response, Response::Done => ())
    }

    /// Sets an attribute as a write of `text` to its file in the attribute tree does. Errors have an error number if zram
    /// has the case. `files` are those that the text names.
    pub fn write_attribute(&mut self, attribute: &str, text: &str, files: &NamedFiles) -> Result<()> {
        // As in the kernel, a text that is refused is an error whether the device is in use or not.
        if attribute == "reset" && text.trim_end().parse::<u16>().is_ok_and(|number| number > 0) {
            refuse_if_open(&self.dir)?;
        }
        let request =
            Request::Write { attribute: attribute.to_string(), text: text.to_string(), files: files.named() };
        let response = self.request_with_files(&request, files, &mut |_| {})?;
        expect!(self, response, Response::Done => ())
    }

    /// Writes back pages, and returns the report on the pass. Calls `report_progress` meanwhile.
    ///
    /// A signal ends the pass early: writes in flight complete, and the report says what was done. A second signal
    /// returns an error at once.
    pub fn write_back(
        &mut self,
        pages: &Pages,
        signals: &Termination,
        report_progress: &mut dyn FnMut(&PassProgress),
    ) -> Result<PassReport> {
        let request = Request::Writeback { pages: pages.clone() };
        let response = self.request_with_progress(&request, PASS_TIMEOUT, Some(signals), report_progress)?;
        expect!(self, response, Response::WroteBack(report) => report)
    }

    /// Compresses pages again, and reports progress. A signal ends the pass early.
    pub fn recompress(
        &mut self,
        pass: &RecompressPass,
        signals: &Termination,
        report_progress: &mut dyn FnMut(&PassProgress),
    ) -> Result<RecompressPassReport> {
        let request = Request::Recompress { pass: pass.clone() };
        let response = self.request_with_progress(&request, PASS_TIMEOUT, Some(signals), report_progress)?;
        expect!(self, response, Response::Recompressed(report) => report)
    }

    /// Lets the server write the contents of the disk to the one file in `files`, and reports progress. A signal ends the
    /// save early; that is an error.
    pub fn save(
        &mut self,
        files: &NamedFiles,
        options: &SaveOptions,
        signals: &Termination,
        report_progress: &mut dyn FnMut(&PassProgress),
    ) -> Result<SaveReport> {
        let request = Request::Save { files: files.named(), options: options.clone() };
        let sent = self.send_line_with(&protocol::line(&request)?, &files.fds());
        sent.map_err(|e| self.no_response(&e, PASS_TIMEOUT))?;
        let response = self.receive_with_progress(PASS_TIMEOUT, Some(signals), report_progress)?;
        expect!(self, response, Response::Saved(report) => report)
    }

    /// Calls `print` with the states of the pages from `first` to `last`, or to the end of the disk, in pieces of many
    /// lines, until it breaks.
    ///
    /// `print` may take long. The server closes a connection that is silent for long, so this connects again then, and
    /// goes on where it was.
    pub fn block_state(
        &mut self,
        first: u64,
        last: Option<u64>,
        print: &mut dyn FnMut(&str) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let mut next = Some(first);
        while let Some(first) = next {
            let piece = match self.block_state_piece(first, last) {
                Err(e) if e.exit == Exit::NotFound => {
                    *self = Client::connect(&self.dir)?;
                    self.block_state_piece(first, last)
                }
                piece => piece,
            };
            let (lines, go_on) = piece?;
            if print(&lines)?.is_break() {
                return Ok(());
            }
            next = go_on;
        }
        Ok(())
    }

    /// Returns some lines with the states of the pages from `first` to `last`, or to the end of the disk, and the page at
    /// which the next piece begins, if this is not the last one.
    pub fn block_state_piece(&mut self, first: u64, last: Option<u64>) -> Result<(String, Option<u64>)> {
        let response = self.request(&Request::BlockState { first, last }, TIMEOUT)?;
        expect!(self, response, Response::BlockState { lines, next } if next.is_none_or(|n| n > first)
            => (lines, next))
    }

    /// Returns the size classes of the pool.
    pub fn classes(&mut self) -> Result<Vec<ClassReport>> {
        expect!(self, self.request(&Request::Classes {}, TIMEOUT)?, Response::Classes(classes) => classes)
    }

    /// Whether the server of `dir` answers a request. One that is stopped or hangs does not, and then this takes some
    /// seconds. Any line is an answer, whether it can be parsed or not. A server that closes the connection, has gone, or
    /// refuses this user, counts as one that answers. Fails if this process could not ask.
    pub fn answers(dir: &InstanceDir) -> Result<bool> {
        match Client::open(dir) {
            Ok(client) if stays_stopped(client.pid) => Ok(false),
            Ok(client) => client.sends_a_line(TIMEOUT),
            Err(e) if e.exit == Exit::Failed => Err(e),
            Err(_) => Ok(true),
        }
    }

    /// Whether the server sends a line, or closes the connection, within `timeout` after a request.
    fn sends_a_line(&self, timeout: Duration) -> Result<bool> {
        use std::io::ErrorKind::InvalidData;
        let sent = self.send_line(&protocol::line(&Request::Show {})?);
        let mut reader = DeadlineReader::buffered(&self.stream, Instant::now() + timeout);
        let received = sent.and_then(|()| protocol::read_line(&mut reader, MAX_RESPONSE));
        match received {
            Ok(_) => Ok(true),
            Err(e) if is_timeout(e.kind()) => Ok(false),
            // A line that is too long is invalid data.
            Err(e) if is_disconnect(e.kind()) || e.kind() == InvalidData => Ok(true),
            Err(e) => Err(self.no_response(&e, timeout)),
        }
    }

    /// Makes the server close its device and exit. With `force` it disconnects NBD clients first.
    pub fn remove(&mut self, force: bool) -> Result<()> {
        expect!(self, self.request(&Request::Remove { force }, REMOVE_TIMEOUT)?, Response::Done => ())
    }

    fn unexpected(&self, response: &Response) -> CliError {
        match response {
            Response::Refused(failure) => failure.clone(),
            _ => CliError::failed(format!("the server of {} sent a response to another request", self.title)),
        }
    }

    fn request(&mut self, request: &Request, timeout: Duration) -> Result<Response> {
        self.send(request, timeout)?;
        // The server may have died before it accepted this connection, and none may follow it.
        let deadline = Instant::now() + timeout;
        while !ready::wait([self.stream.as_fd()], Some(HELD_INTERVAL))?[0] {
            self.dir.refuse_if_held()?;
            if Instant::now() >= deadline {
                return Err(self.no_response(&std::io::ErrorKind::TimedOut.into(), timeout));
            }
        }
        self.receive(&mut DeadlineReader::buffered(&self.stream, deadline), timeout)
    }

    /// Sends a request that takes long, and calls `report_progress` until the response comes. `timeout` is for each
    /// message.
    fn request_with_progress(
        &mut self,
        request: &Request,
        timeout: Duration,
        signals: Option<&Termination>,
        report_progress: &mut dyn FnMut(&PassProgress),
    ) -> Result<Response> {
        self.send(request, timeout)?;
        self.receive_with_progress(timeout, signals, report_progress)
    }

    /// The same for a request that sets attributes, with the files that it names.
    fn request_with_files(
        &mut self,
        request: &Request,
        files: &NamedFiles,
        report_progress: &mut dyn FnMut(&PassProgress),
    ) -> Result<Response> {
        let sent = self.send_line_with(&protocol::line(request)?, &files.fds());
        sent.map_err(|e| self.no_response(&e, SET_TIMEOUT))?;
        self.receive_with_progress(SET_TIMEOUT, None, report_progress)
    }

    fn receive_with_progress(
        &mut self,
        timeout: Duration,
        signals: Option<&Termination>,
        report_progress: &mut dyn FnMut(&PassProgress),
    ) -> Result<Response> {
        let mut reader = DeadlineReader::buffered(&self.stream, Instant::now());
        let mut interrupted = false;
        loop {
            reader.get_mut().deadline = Instant::now() + timeout;
            let other = signals.map_or(self.stream.as_fd(), |s| s.as_fd());
            let waited =
                reader.buffer().is_empty().then(|| ready::wait([self.stream.as_fd(), other], Some(timeout)));
            match (waited.transpose()?, signals) {
                (Some([_, true]), Some(signals)) if signals.take().is_some() => {
                    if interrupted {
                        return Err(CliError::failed("interrupted twice; the server may still be at work"));
                    }
                    interrupted = true;
                    // This asks the server to stop early. If it fails the server has gone, and the next read reports
                    // that.
                    let _ = self.stream.shutdown(std::net::Shutdown::Write);
                }
                (Some([false, false]), _) => {
                    return Err(self.no_response(&std::io::ErrorKind::TimedOut.into(), timeout));
                }
                _ => match self.receive(&mut reader, timeout)? {
                    Response::Progress(progress) => report_progress(&progress),
                    other => return Ok(other),
                },
            }
        }
    }

    fn send(&self, request: &Request, timeout: Duration) -> Result<()> {
        let line = protocol::line(request)?;
        self.send_line(&line).map_err(|e| self.no_response(&e, timeout))
    }

    fn send_line(&self, line: &[u8]) -> std::io::Result<()> {
        self.send_line_with(line, &[])
    }

    fn send_line_with(&self, line: &[u8], fds: &[BorrowedFd<'_>]) -> std::io::Result<()> {
        self.stream.set_write_timeout(Some(TIMEOUT))?;
        let sent = handover::send_with_fds(&self.stream, line, fds);
        match sent.and_then(|sent| (&self.stream).write_all(&line[sent.min(line.len())..])) {
            // A server with too many clients refuses before it reads the request: its response is there to be read.
            Err(e) if is_disconnect(e.kind()) => Ok(()),
            result => result,
        }
    }

    /// Receives a response until the deadline of the reader, which is `timeout` after the request or the last message.
    fn receive(&self, reader: &mut BufReader<DeadlineReader<'_>>, timeout: Duration) -> Result<Response> {
        let failed = |e| self.no_response(&e, timeout);
        let line = protocol::read_line(reader, MAX_RESPONSE).map_err(failed)?;
        let line = line.ok_or_else(|| disconnected(&self.title))?;
        serde_json::from_slice(&line)
            .map_err(|e| failed(std::io::Error::other(format!("its response cannot be parsed: {e}"))))
    }

    /// The error for a request without a usable response.
    fn no_response(&self, e: &std::io::Error, timeout: Duration) -> CliError {
        if is_disconnect(e.kind()) {
            return disconnected(&self.title);
        }
        // The signal may have come after this client had connected.
        if is_timeout(e.kind()) && pidfd::is_stopped(self.pid) {
            return self.is_stopped();
        }
        let why = match is_timeout(e.kind()) {
            true => format!("no response within {} s", timeout.as_secs()),
            false => e.to_string(),
        };
        CliError::failed(format!(
            "the request to the server of {} (process {}) failed: {why}; see its log, or kill it with '{}'",
            self.title, self.pid, self.kill_command
        ))
    }
}

/// Whether a process is stopped, and not only for a moment.
fn stays_stopped(pid: i32) -> bool {
    let begin = Instant::now();
    while pidfd::is_stopped(pid) {
        if begin.elapsed() >= STOP_GRACE {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

/// The error for a missing control socket.
fn no_control_socket(dir: &InstanceDir) -> CliError {
    let title = dir.title();
    match () {
        _ if !dir.exists() => CliError::new(Exit::NotFound, format!("{title} has been removed")),
        // The lock file is created first and removed last.
        _ if !dir.lock_path().exists() => CliError::new(
            Exit::Busy,
            format!(
                "{title} is served, but somebody removed the files of its folder '{}', so no command can reach \
                 its server; SIGTERM ends it: see process {}",
                dir.path().display(),
                dir.server_pid().map_or("'pagefold serve'".to_string(), |pid| pid.to_string())
            ),
        ),
        _ => CliError::new(
            Exit::Busy,
            format!("the server of {title} is starting or ending; try again in a moment"),
        ),
    }
}

/// Whether an error means that the timeout of a read or write has passed.
fn is_timeout(kind: std::io::ErrorKind) -> bool {
    use std::io::ErrorKind::{TimedOut, WouldBlock};
    matches!(kind, TimedOut | WouldBlock)
}

/// Whether an error means that the server has closed the connection.
fn is_disconnect(kind: std::io::ErrorKind) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(kind, BrokenPipe | ConnectionReset | UnexpectedEof)
}

fn disconnected(title: &str) -> CliError {
    CliError::new(Exit::NotFound, format!("the server of {title} closed the connection"))
}

#[cfg(test)]
mod tests;
