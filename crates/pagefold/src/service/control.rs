//! The server's side of the control socket.
//!
//! Only the same user and root are heard. Lines are short, and a connection does not
//! outlast its time, so a peer that is slow, silent or hostile takes a thread for ten
//! seconds and nothing else. One thing may take longer, and one
//! client at a time may ask for it: a pass that parks pages. Meanwhile it is told how far
//! that is, and if it no longer listens the pass ends.

use super::parked::PassProgress;
use super::protocol::{self, MAX_REQUEST, Request, Response, SERVER_PATIENCE};
use crate::failure::{Exit, Failure, Outcome};
use pagefold_sys::ready;
use std::io::{BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Clients served at once; one more is told so and hung up on. More than a script that starts commands side by side has, so
/// that no command of it, such as the one that removes the disk, is refused.
const MAX_CLIENTS: usize = 64;

/// What answers requests.
pub trait Answer: Send + Sync + 'static {
    /// The answer to one request. For one that takes long, `tell` is called now and then with how far it
    /// is; if it answers false nobody waits for the answer any more.
    fn answer(&self, request: Request, tell: &mut dyn FnMut(&PassProgress) -> bool) -> Response;

    /// Called after the answer was sent, or could not be.
    fn answered(&self);
}

/// A bound control socket, not listening to anyone yet.
pub struct Control {
    listener: UnixListener,
}

impl Control {
    /// Makes the socket file, for this user alone. The folder is private already.
    pub fn bind(path: &Path) -> Outcome<Self> {
        let failed = |e| Failure::io(format!("making the control socket '{}'", path.display()), &e);
        let listener = UnixListener::bind(path).map_err(failed)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
        Ok(Control { listener })
    }

    /// Serves clients from a thread of its own, for as long as the process lives.
    pub fn serve(self, answer: Arc<impl Answer>) -> Outcome<()> {
        let clients = Arc::new(AtomicUsize::new(0));
        let accept = move || {
            loop {
                match self.listener.accept() {
                    Ok((stream, _)) => admit(stream, &clients, &answer),
                    // Out of descriptors or memory for a moment: clients wait in the queue.
                    Err(_) => std::thread::sleep(Duration::from_millis(100)),
                }
            }
        };
        let spawned = std::thread::Builder::new().name("control".into()).spawn(accept);
        spawned.map(|_| ()).map_err(|e| Failure::io("starting the control thread", &e))
    }
}

/// A place among the clients, given back when dropped.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

fn admit(stream: UnixStream, clients: &Arc<AtomicUsize>, answer: &Arc<impl Answer>) {
    match pagefold_sys::peer::credentials(stream.as_fd()) {
        Ok(peer) if super::is_trusted(peer.uid) => {}
        _ => return,
    }
    let before = clients.fetch_add(1, Ordering::Acquire);
    let place = Place(clients.clone());
    if before >= MAX_CLIENTS {
        let full = Failure::new(Exit::Busy, "the server is talking to too many commands; try again");
        let _ = send(&stream, &Response::Refused(full), Instant::now() + Duration::from_millis(10));
        return;
    }
    let answer = answer.clone();
    let serve = move || {
        let _place = place;
        // A client that hangs up, stalls or breaks the protocol is its own loss.
        let _ = converse(&stream, &*answer);
    };
    // If no thread can be had, the stream is dropped and the client sees the end of it.
    let _ = std::thread::Builder::new().name("control-client".into()).spawn(serve);
}

fn converse(stream: &UnixStream, answer: &impl Answer) -> std::io::Result<()> {
    let deadline = Instant::now() + SERVER_PATIENCE;
    let mut reader = BufReader::new(Until { stream, deadline });
    loop {
        let response = match protocol::read_line(&mut reader, MAX_REQUEST) {
            Ok(None) => return Ok(()),
            Ok(Some(line)) => match serde_json::from_slice(&line) {
                Ok(request) => answer.answer(request, &mut |p| is_told(stream, p)),
                Err(e) => Response::Refused(Failure::usage(format!("the request makes no sense: {e}"))),
            },
            Err(e) => {
                let refused = Response::Refused(Failure::usage(format!("reading the request: {e}")));
                return send(stream, &refused, deadline);
            }
        };
        // An answer that took long, such as giving the device up, must still be heard.
        let sent = send(stream, &response, Instant::now() + SERVER_PATIENCE);
        answer.answered();
        sent?;
    }
}

/// Tells how far a request is. False if the client hung up, or said by closing its half that it is enough.
fn is_told(stream: &UnixStream, progress: &PassProgress) -> bool {
    let sent = send(stream, &Response::Progress(*progress), Instant::now() + SERVER_PATIENCE);
    sent.is_ok() && !ready::is_at_end(stream.as_fd()).unwrap_or(true)
}

fn send(mut stream: &UnixStream, response: &Response, deadline: Instant) -> std::io::Result<()> {
    let line = protocol::line(response).map_err(std::io::Error::other)?;
    stream.set_write_timeout(Some(left(deadline)?))?;
    stream.write_all(&line)
}

fn left(deadline: Instant) -> std::io::Result<Duration> {
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(std::io::ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

/// A stream whose every read ends at one deadline, however slowly bytes trickle in.
struct Until<'s> {
    stream: &'s UnixStream,
    deadline: Instant,
}

impl Read for Until<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        self.stream.set_read_timeout(Some(left(self.deadline)?))?;
        let mut stream = self.stream;
        stream.read(buf)
    }
}
