//! A command's side of the control socket.

use super::protocol::{self, MAX_RESPONSE, Request, Response};
use super::report::Report;
use crate::failure::{Exit, Failure, Outcome};
use crate::runtime::DiskDir;
use std::io::{BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long a server may take to answer a question.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long it may take to pack its pool.
const SET_PATIENCE: Duration = Duration::from_secs(120);
/// How long it may take to give its device up: what is cached is written first.
const REMOVE_PATIENCE: Duration = Duration::from_secs(20);

/// A connection to the server of one disk.
pub struct Client {
    stream: UnixStream,
    name: String,
    pid: i32,
}

impl Client {
    /// Connects; the server must run as this user or as root.
    pub fn connect(dir: &DiskDir) -> Outcome<Self> {
        let name = dir.name().to_string();
        let path = dir.control_path();
        let stream = UnixStream::connect(&path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => Failure::new(
                Exit::Busy,
                format!("the server of disk '{name}' is starting or ending; try again in a moment"),
            ),
            _ => {
                Failure::io(format!("connecting to the server of disk '{name}' at '{}'", path.display()), &e)
            }
        })?;
        let peer = pagefold_sys::peer::credentials(stream.as_fd())?;
        if !super::is_trusted(peer.uid) {
            return Err(Failure::new(
                Exit::Unavailable,
                format!("the server of disk '{name}' runs as user {}, which is not trusted", peer.uid),
            ));
        }
        Ok(Client { stream, name, pid: peer.pid })
    }

    /// Everything the server knows of its disk.
    pub fn show(&mut self) -> Outcome<Report> {
        match self.ask(&Request::Show {}, PATIENCE)? {
            Response::Report(report) => Ok(*report),
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

    /// Changes attributes.
    pub fn set(&mut self, changes: &[String]) -> Outcome<()> {
        self.ask_done(&Request::Set { changes: changes.to_vec() }, SET_PATIENCE)
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
            _ => Failure::failed(format!(
                "the server of disk '{}' gave an answer to another question",
                self.name
            )),
        }
    }

    fn ask(&mut self, request: &Request, patience: Duration) -> Outcome<Response> {
        let silent = |e: std::io::Error| {
            if is_end(e.kind()) {
                return gone(&self.name);
            }
            let why = match e.kind() {
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
                    format!("no answer within {} s", patience.as_secs())
                }
                _ => e.to_string(),
            };
            Failure::failed(format!(
                "asking the server of disk '{}' (process {}): {why}; see its log, or end it with 'disk remove \
                 --force'",
                self.name, self.pid
            ))
        };
        self.stream.set_write_timeout(Some(PATIENCE)).map_err(silent)?;
        self.stream.set_read_timeout(Some(patience)).map_err(silent)?;
        match (&self.stream).write_all(&protocol::line(request)?) {
            // A server that turns a command away does so before it has heard it; what it said is there.
            Err(e) if is_end(e.kind()) => {}
            outcome => outcome.map_err(silent)?,
        }
        let line = protocol::read_line(&mut BufReader::new(&self.stream), MAX_RESPONSE).map_err(silent)?;
        let line = line.ok_or_else(|| gone(&self.name))?;
        serde_json::from_slice(&line)
            .map_err(|e| silent(std::io::Error::other(format!("it said what makes no sense: {e}"))))
    }
}

/// What tells that nobody is at the other end any more.
fn is_end(kind: std::io::ErrorKind) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(kind, BrokenPipe | ConnectionReset | UnexpectedEof)
}

fn gone(name: &str) -> Failure {
    Failure::new(Exit::NotFound, format!("the server of disk '{name}' hung up"))
}
