//! [`Transport`], the byte stream to a client, and [`Socket`], the plain one; [`super::tls`] has the encrypted one.
//!
//! To avoid a deadlock of two sides that both block in sending, a transport sends only as much as fits without
//! waiting, and waits for both directions in a separate call. A receive may wait itself, which saves a system call
//! for each batch of requests; the driver uses that only if it has nothing left to send.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Size of the socket's send buffer, bytes, so that one call can send a batch of replies.
const SOCKET_BUFFER: usize = 2 << 20;

/// Idle time of a TCP connection after which the system sends keep-alive probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// Time between two keep-alive probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Unanswered keep-alive probes after which the system closes the connection.
const KEEPALIVE_PROBES: u32 = 6;

/// The events that end a wait.
#[derive(Debug, Clone, Copy, Default)]
pub struct Awaited<'f> {
    /// A receive is likely to succeed.
    pub readable: bool,
    /// A send is likely to succeed.
    pub writable: bool,
    /// This descriptor is readable.
    pub other: Option<BorrowedFd<'f>>,
}

impl Awaited<'_> {
    /// Only a receive.
    pub const READABLE: Self = Awaited { readable: true, writable: false, other: None };
    /// Only a send.
    pub const WRITABLE: Self = Awaited { readable: false, writable: true, other: None };
}

/// A byte stream in both directions.
pub trait Transport {
    /// Receives the bytes that have arrived, at most as many as `buf` has space for. Returns 0 at the end of the stream.
    ///
    /// If no bytes have arrived, waits for some if `wait` is set, and fails with `WouldBlock` if not.
    fn recv(&mut self, buf: &mut [u8], wait: bool) -> io::Result<usize>;

    /// Sends as much of `data` as fits without waiting, and returns how much. Fails with `WouldBlock` if nothing fits.
    fn send(&mut self, data: &[u8]) -> io::Result<usize>;

    /// Waits until what is awaited is likely to succeed. It may return too early.
    ///
    /// Fails with `TimedOut` at `deadline`.
    fn wait(&mut self, awaited: Awaited<'_>, deadline: Option<Instant>) -> io::Result<()>;

    /// Sends buffered bytes and the end of the stream, as far as possible before `deadline`, and closes the stream.
    fn finish(&mut self, deadline: Instant);
}

/// A connected stream socket. The server holds a reference to it too, to shut it down.
pub struct Socket {
    fd: Arc<OwnedFd>,
}

impl Socket {
    /// Prepares a connected socket: a large send buffer and, on TCP, no delay of small replies and keep-alive probes.
    pub fn new(fd: Arc<OwnedFd>) -> Self {
        use rustix::net::sockopt;
        // Only a privileged process may exceed the system's limit. A smaller buffer only costs more calls.
        if sockopt::set_socket_send_buffer_size_force(&*fd, SOCKET_BUFFER).is_err() {
            let _ = sockopt::set_socket_send_buffer_size(&*fd, SOCKET_BUFFER);
        }
        // Do not set the receive buffer: TCP adapts it only if it was never set, and on a unix socket the sender's
        // counts.
        let _ = sockopt::set_tcp_nodelay(&*fd, true);
        enable_keepalive(&fd);
        Socket { fd }
    }
}

/// Enables TCP keep-alive: a client may be idle for any time, so nothing else would detect that its machine is off. A
/// unix socket refuses the options and does not need them.
fn enable_keepalive(fd: &OwnedFd) {
    use rustix::net::sockopt;
    let _ = sockopt::set_socket_keepalive(fd, true);
    let _ = sockopt::set_tcp_keepidle(fd, KEEPALIVE_IDLE);
    let _ = sockopt::set_tcp_keepintvl(fd, KEEPALIVE_INTERVAL);
    let _ = sockopt::set_tcp_keepcnt(fd, KEEPALIVE_PROBES);
}

impl Transport for Socket {
    fn recv(&mut self, buf: &mut [u8], wait: bool) -> io::Result<usize> {
        let flags = if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        let (received, _) = retry_on_intr(|| recv(&*self.fd, &mut *buf, flags))?;
        Ok(received)
    }

    fn send(&mut self, data: &[u8]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(retry_on_intr(|| send(&*self.fd, data, flags))?)
    }

    fn wait(&mut self, awaited: Awaited<'_>, deadline: Option<Instant>) -> io::Result<()> {
        let mut events = PollFlags::empty();
        events.set(PollFlags::IN, awaited.readable);
        events.set(PollFlags::OUT, awaited.writable);
        let other = PollFd::from_borrowed_fd(awaited.other.unwrap_or(self.fd.as_fd()), PollFlags::IN);
        let mut polled = [PollFd::new(&*self.fd, events), other];
        let polled = match awaited.other {
            None => &mut polled[..1],
            // A poll ends when a client hangs up, whatever it awaits: without this socket it does not.
            Some(_) if events.is_empty() => &mut polled[1..],
            Some(_) => &mut polled[..],
        };
        loop {
            let left = match deadline.map(|d| d.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return Err(io::ErrorKind::TimedOut.into()),
                left => left.and_then(|l| Timespec::try_from(l).ok()),
            };
            match poll(polled, left.as_ref()) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn finish(&mut self, _deadline: Instant) {
        // An error means that the client has disconnected already.
        let _ = shutdown(&*self.fd, Shutdown::Both);
    }
}
