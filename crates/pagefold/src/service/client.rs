//! A command's side of the control socket.

use super::images::MountReport;
use super::parked::{PassProgress, PassReport};
use super::protocol::{self, MAX_RESPONSE, Pages, Request, Response};
use super::report::Report;
use crate::failure::{Exit, Failure, Outcome};
use crate::runtime::DiskDir;
use pagefold_sys::ready;
use pagefold_sys::signal::Termination;
use std::io::{BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long a server may take to answer a question.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long it may be silent during a pass, of which it tells a few times a second.
const PASS_PATIENCE: Duration = Duration::from_secs(10);
/// How long it may take to pack its pool.
const SET_PATIENCE: Duration = Duration::from_secs(120);
/// How long it may take to give its device up: what is cached is written first.
const REMOVE_PATIENCE: Duration = Duration::from_secs(20);

/// A connection to the server of one disk.
pub struct Client {
    stream: UnixStream,
    title: String,
    /// The command that ends a server that does not answer.
    remedy: &'static str,
    pid: i32,
}

impl Client {
    /// Connects; the server must run as this user or as root.
    pub fn connect(dir: &DiskDir) -> Outcome<Self> {
        let title = dir.title();
        let path = dir.control_path();
        let stream = UnixStream::connect(&path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => unreachable(dir),
            // Killed, and not yet quite dead: the caller waits for that.
            std::io::ErrorKind::ConnectionRefused => {
                Failure::new(Exit::NotFound, format!("the server of {title} does not listen any more"))
            }
            _ => Failure::io(format!("connecting to the server of {title} at '{}'", path.display()), &e),
        })?;
        let peer = pagefold_sys::peer::credentials(stream.as_fd())?;
        if !super::is_trusted(peer.uid) {
            return Err(Failure::new(
                Exit::Unavailable,
                format!("the server of {title} runs as user {}, which is not trusted", peer.uid),
            ));
        }
        let remedy = if dir.is_mount() { "image unmount --force" } else { "disk remove --force" };
        Ok(Client { stream, title, remedy, pid: peer.pid })
    }

    /// Everything the server knows of its disk.
    pub fn show(&mut self) -> Outcome<Report> {
        match self.ask(&Request::Show {}, PATIENCE)? {
            Response::Report(report) => Ok(*report),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Everything the server of a mounted image knows.
    pub fn show_mount(&mut self) -> Outcome<MountReport> {
        match self.ask(&Request::Show {}, PATIENCE)? {
            Response::Mount(report) => Ok(*report),
            other => Err(self.unexpected(&other)),
        }
    }

    /// The value of one attribute.
    pub fn get(&mut self, attribute: &str) -> Outcome<String> {
        match self.ask(&Request::Get { attribute: attribute.to_string() }, PATIENCE)? {
            Response::Value(value) => Ok(value),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Changes attributes. `tell` hears how far a change is that parks pages.
    pub fn set(&mut self, changes: &[String], tell: &mut dyn FnMut(&PassProgress)) -> Outcome<()> {
        let request = Request::Set { changes: changes.to_vec() };
        match self.follow(&request, SET_PATIENCE, None, tell)? {
            Response::Done => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Parks pages. `tell` hears how far it is. A signal ends it early; what was submitted completes, and
    /// the report says what was done. A second one is not waited for.
    pub fn park(
        &mut self,
        pages: &Pages,
        signals: &Termination,
        tell: &mut dyn FnMut(&PassProgress),
    ) -> Outcome<PassReport> {
        let request = Request::Park { pages: pages.clone() };
        match self.follow(&request, PASS_PATIENCE, Some(signals), tell)? {
            Response::Parked(report) => Ok(report),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Makes the server give its device up and end.
    pub fn remove(&mut self, force: bool) -> Outcome<()> {
        self.ask_done(&Request::Remove { force }, REMOVE_PATIENCE)
    }

    fn ask_done(&mut self, request: &Request, patience: Duration) -> Outcome<()> {
        match self.ask(request, patience)? {
            Response::Done => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    fn unexpected(&self, response: &Response) -> Failure {
        match response {
            Response::Refused(failure) => failure.clone(),
            _ => Failure::failed(format!("the server of {} gave an answer to another question", self.title)),
        }
    }

    fn ask(&mut self, request: &Request, patience: Duration) -> Outcome<Response> {
        self.send(request, patience)?;
        self.hear(&mut BufReader::new(&self.stream), patience)
    }

    /// Asks for what takes long. `patience` is for each line of the answer.
    fn follow(
        &mut self,
        request: &Request,
        patience: Duration,
        signals: Option<&Termination>,
        tell: &mut dyn FnMut(&PassProgress),
    ) -> Outcome<Response> {
        self.send(request, patience)?;
        let mut reader = BufReader::new(&self.stream);
        let mut interrupted = false;
        loop {
            let other = signals.map_or(self.stream.as_fd(), |s| s.as_fd());
            let waited =
                reader.buffer().is_empty().then(|| ready::wait([self.stream.as_fd(), other], Some(patience)));
            match (waited.transpose()?, signals) {
                (Some([_, true]), Some(signals)) if signals.take().is_some() => {
                    if interrupted {
                        return Err(Failure::failed(
                            "interrupted twice; what was being done was not waited for",
                        ));
                    }
                    interrupted = true;
                    // If this fails the server has gone, which the next read tells.
                    let _ = self.stream.shutdown(std::net::Shutdown::Write);
                }
                (Some([false, false]), _) => {
                    return Err(self.silent(&std::io::ErrorKind::TimedOut.into(), patience));
                }
                _ => match self.hear(&mut reader, patience)? {
                    Response::Progress(progress) => tell(&progress),
                    other => return Ok(other),
                },
            }
        }
    }

    fn send(&self, request: &Request, patience: Duration) -> Outcome<()> {
        let silent = |e| self.silent(&e, patience);
        self.stream.set_write_timeout(Some(PATIENCE)).map_err(silent)?;
        self.stream.set_read_timeout(Some(patience)).map_err(silent)?;
        match (&self.stream).write_all(&protocol::line(request)?) {
            // A server that turns a command away does so before it has heard it; what it said is there.
            Err(e) if is_end(e.kind()) => Ok(()),
            outcome => outcome.map_err(silent),
        }
    }

    fn hear(&self, reader: &mut BufReader<&UnixStream>, patience: Duration) -> Outcome<Response> {
        let silent = |e| self.silent(&e, patience);
        let line = protocol::read_line(reader, MAX_RESPONSE).map_err(silent)?;
        let line = line.ok_or_else(|| gone(&self.title))?;
        serde_json::from_slice(&line)
            .map_err(|e| silent(std::io::Error::other(format!("it said what makes no sense: {e}"))))
    }

    fn silent(&self, e: &std::io::Error, patience: Duration) -> Failure {
        if is_end(e.kind()) {
            return gone(&self.title);
        }
        let why = match e.kind() {
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
                format!("no answer within {} s", patience.as_secs())
            }
            _ => e.to_string(),
        };
        Failure::failed(format!(
            "asking the server of {} (process {}): {why}; see its log, or end it with '{}'",
            self.title, self.pid, self.remedy
        ))
    }
}

/// Why there is no control socket.
fn unreachable(dir: &DiskDir) -> Failure {
    let title = dir.title();
    match () {
        _ if !dir.exists() => Failure::new(Exit::NotFound, format!("{title} has been removed")),
        // The lock is made first and removed last.
        _ if !dir.lock_path().exists() => Failure::new(
            Exit::Busy,
            format!(
                "{title} is served, but somebody removed the files of its folder '{}', so its server cannot be \
                 asked anything; SIGTERM ends it: see process {}",
                dir.path().display(),
                dir.server_pid().map_or("'pagefold serve'".to_string(), |pid| pid.to_string())
            ),
        ),
        _ => Failure::new(
            Exit::Busy,
            format!("the server of {title} is starting or ending; try again in a moment"),
        ),
    }
}

/// What tells that nobody is at the other end any more.
fn is_end(kind: std::io::ErrorKind) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(kind, BrokenPipe | ConnectionReset | UnexpectedEof)
}

fn gone(title: &str) -> Failure {
    Failure::new(Exit::NotFound, format!("the server of {title} hung up"))
}
