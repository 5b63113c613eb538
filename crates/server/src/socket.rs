//! The server's side of the control socket: accepts commands, and passes their requests to a [`RequestHandler`].
//!
//! The thread `control` accepts connections and starts a thread for each. Only processes of the same user and of root
//! are served. Requests have a maximum length, and all reads and writes have deadlines, so a slow, silent or hostile
//! client occupies one of [`MAX_CLIENTS`] threads for about ten seconds after its last request. Handling a request may take longer: writing
//! back pages, setting an attribute, closing the device. During a writeback pass the client receives progress, and if
//! it disconnects or shuts down the sending half of its connection the pass ends.

use pagefold_control::error::{CliError, Exit, Result};
use pagefold_control::named_files::FILES_MAX;
use pagefold_control::protocol::{self, MAX_REQUEST, Request, Response, SERVER_TIMEOUT, time_left};
use pagefold_control::report::writeback::PassProgress;
use pagefold_sys::{handover, ready};
use std::io::{BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Clients served at once; one more gets an error. The number is larger than that of commands that a script runs in
/// parallel, so that no command, such as `disk remove`, is refused.
const MAX_CLIENTS: usize = 64;

/// Clients that wait to be accepted, as many as the standard library lets wait.
const BACKLOG: i32 = 128;

/// Handles the requests of commands.
pub trait RequestHandler: Send + Sync + 'static {
    /// Returns the response to one request, to which `fds` were attached. During a request that takes long, it calls
    /// `report_progress` now and then; if that returns false the client has disconnected, or wants the request to end early.
    fn handle(
        &self,
        request: Request,
        fds: Vec<OwnedFd>,
        report_progress: &mut dyn FnMut(&PassProgress) -> bool,
    ) -> Response;

    /// Called after the response was sent, or could not be sent.
    fn reply_sent(&self);
}

/// A bound control socket that accepts no connections yet.
pub struct ControlSocket {
    listener: UnixListener,
}

impl ControlSocket {
    /// Creates the socket file, accessible to this user only. The folder is private already.
    pub fn bind(path: &Path) -> Result<Self> {
        let failed = |e| CliError::io(format!("creating the control socket '{}'", path.display()), &e);
        let listener = UnixListener::bind(path).map_err(failed)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
        Ok(ControlSocket { listener })
    }

    /// The socket that a former server has bound. Clients see this process as its owner from now on.
    pub fn taken_over(listener: UnixListener) -> Result<Self> {
        let failed = |e: rustix::io::Errno| CliError::io("taking the control socket over", &e.into());
        rustix::net::listen(&listener, BACKLOG).map_err(failed)?;
        Ok(ControlSocket { listener })
    }

    /// Its descriptor, to hand it over.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Starts the thread that accepts clients, which runs as long as the process.
    pub fn serve(self, handler: Arc<impl RequestHandler>) -> Result<()> {
        let clients = Arc::new(AtomicUsize::new(0));
        let accept = move || {
            loop {
                match self.listener.accept() {
                    Ok((stream, _)) => admit(stream, &clients, &handler),
                    // Out of descriptors or memory: clients wait in the backlog meanwhile.
                    Err(_) => std::thread::sleep(Duration::from_millis(100)),
                }
            }
        };
        let spawned = std::thread::Builder::new().name("control".into()).spawn(accept);
        spawned.map(|_| ()).map_err(|e| CliError::io("starting the control thread", &e))
    }
}

/// One of [`MAX_CLIENTS`] slots, released when dropped.
struct ClientSlot(Arc<AtomicUsize>);

impl Drop for ClientSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

fn admit(stream: UnixStream, clients: &Arc<AtomicUsize>, handler: &Arc<impl RequestHandler>) {
    match pagefold_sys::peer::credentials(stream.as_fd()) {
        Ok(peer) if pagefold_control::is_trusted(peer.uid) => {}
        _ => return,
    }
    let before = clients.fetch_add(1, Ordering::Acquire);
    let slot = ClientSlot(clients.clone());
    if before >= MAX_CLIENTS {
        let full = CliError::new(Exit::Busy, "the server is serving too many commands; try again");
        let _ = send(&stream, &Response::Refused(full), Instant::now() + Duration::from_millis(10));
        return;
    }
    let handler = handler.clone();
    let serve = move || {
        let _slot = slot;
        // An error of the connection concerns the client only, which sees it too.
        let _ = serve_client(&stream, &*handler);
    };
    // If no thread can be started, the stream is dropped, and the client sees the end of the connection.
    let _ = std::thread::Builder::new().name("control-client".into()).spawn(serve);
}

/// Serves the requests of one client until it disconnects, or the deadline of a request has passed.
fn serve_client(stream: &UnixStream, handler: &impl RequestHandler) -> std::io::Result<()> {
    let mut reader = BufReader::new(RequestReader { stream, deadline: Instant::now(), fds: Vec::new() });
    loop {
        // Each response that a client has received is a sign of life: a long list takes many requests.
        let deadline = Instant::now() + SERVER_TIMEOUT;
        reader.get_mut().deadline = deadline;
        let response = match protocol::read_line(&mut reader, MAX_REQUEST) {
            Ok(None) => return Ok(()),
            Ok(Some(line)) => match serde_json::from_slice(&line) {
                Ok(request) => {
                    pagefold_sys::injected_panic::at(|| format!("control {request:?}"));
                    let fds = std::mem::take(&mut reader.get_mut().fds);
                    handler.handle(request, fds, &mut |p| send_progress(stream, p))
                }
                Err(e) => Response::Refused(CliError::usage(format!("the request cannot be parsed: {e}"))),
            },
            Err(e) => {
                let refused = Response::Refused(CliError::usage(format!("reading the request: {e}")));
                return send(stream, &refused, deadline);
            }
        };
        // The deadline for sending starts now: handling may have taken long, and the client still needs the response.
        let sent = send(stream, &response, Instant::now() + SERVER_TIMEOUT);
        handler.reply_sent();
        sent?;
    }
}

/// Sends the progress of a request. False if the client has disconnected or shut down the sending half of its
/// connection.
fn send_progress(stream: &UnixStream, progress: &PassProgress) -> bool {
    let sent = send(stream, &Response::Progress(*progress), Instant::now() + SERVER_TIMEOUT);
    sent.is_ok() && !ready::is_at_end(stream.as_fd()).unwrap_or(true)
}

fn send(mut stream: &UnixStream, response: &Response, deadline: Instant) -> std::io::Result<()> {
    let line = protocol::line(response).map_err(std::io::Error::other)?;
    stream.set_write_timeout(Some(time_left(deadline)?))?;
    stream.write_all(&line)
}

/// As [`protocol::DeadlineReader`], and receives descriptors.
struct RequestReader<'s> {
    stream: &'s UnixStream,
    deadline: Instant,
    /// The descriptors that were attached to the bytes so far.
    fds: Vec<OwnedFd>,
}

impl Read for RequestReader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        self.stream.set_read_timeout(Some(time_left(self.deadline)?))?;
        let read = handover::recv_with_fds(self.stream, buf, &mut self.fds)?;
        self.fds.truncate(FILES_MAX);
        Ok(read)
    }
}
