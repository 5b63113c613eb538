//! How bytes reach a client: a socket, plain or through TLS.
//!
//! The driver must never be stuck sending while the client is stuck sending too,
//! so a transport sends only what fits at once and waits in one place, for both
//! directions. Receiving may wait in the call itself, which saves a system
//! call per batch of requests and is used only when nothing is left to send.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How much the system may hold of our replies, bytes: a batch of them in one call.
const SOCKET_BUFFER: usize = 2 << 20;

/// How long a TCP client is silent until the system asks whether it is still there.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// How long the system waits until it asks again.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// How often it asks before it gives the connection up.
const KEEPALIVE_PROBES: u32 = 6;

/// Two directions of bytes.
pub trait Transport {
    /// Takes what has arrived, at most all of `buf`; 0 is the end of the stream.
    ///
    /// Without data it waits if `wait`, and fails with `WouldBlock` if not.
    fn recv(&mut self, buf: &mut [u8], wait: bool) -> io::Result<usize>;

    /// Sends as much of `data` as fits now; `WouldBlock` if nothing does.
    fn send(&mut self, data: &[u8]) -> io::Result<usize>;

    /// Sleeps until one of the directions asked for is worth trying, with no promise that it is.
    ///
    /// Fails with `TimedOut` at the deadline.
    fn wait(&mut self, readable: bool, writable: bool, deadline: Option<Instant>) -> io::Result<()>;

    /// Says goodbye and passes on what is still held, as far as that goes before the deadline.
    fn finish(&mut self, deadline: Instant);
}

/// A connected stream socket, shared with whoever may have to shut it down.
pub struct Socket {
    fd: Arc<OwnedFd>,
}

impl Socket {
    /// Prepares a connected socket: large buffers, and no delay of small replies on TCP.
    pub fn new(fd: Arc<OwnedFd>) -> Self {
        use rustix::net::sockopt;
        // Beyond the system's limit only with privilege; a smaller buffer costs calls, nothing else.
        if sockopt::set_socket_send_buffer_size_force(&*fd, SOCKET_BUFFER).is_err() {
            let _ = sockopt::set_socket_send_buffer_size(&*fd, SOCKET_BUFFER);
        }
        // TCP adapts its receive buffer unless one is set; a unix socket has none that counts.
        let _ = sockopt::set_tcp_nodelay(&*fd, true);
        keep_alive(&fd);
        Socket { fd }
    }
}

/// Has the system find out when the other end has vanished: a client may be silent for as long as it likes, so nothing
/// else would tell that its machine is off. On a unix socket this is refused, where the system always knows.
fn keep_alive(fd: &OwnedFd) {
    use rustix::net::sockopt;
    let _ = sockopt::set_socket_keepalive(fd, true);
    let _ = sockopt::set_tcp_keepidle(fd, KEEPALIVE_IDLE);
    let _ = sockopt::set_tcp_keepintvl(fd, KEEPALIVE_INTERVAL);
    let _ = sockopt::set_tcp_keepcnt(fd, KEEPALIVE_PROBES);
}

impl Transport for Socket {
    fn recv(&mut self, buf: &mut [u8], wait: bool) -> io::Result<usize> {
        let flags = if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        loop {
            match recv(&*self.fd, &mut *buf, flags) {
                Ok((n, _)) => return Ok(n),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn send(&mut self, data: &[u8]) -> io::Result<usize> {
        loop {
            match send(&*self.fd, data, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(n) => return Ok(n),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn wait(&mut self, readable: bool, writable: bool, deadline: Option<Instant>) -> io::Result<()> {
        let mut events = PollFlags::empty();
        events.set(PollFlags::IN, readable);
        events.set(PollFlags::OUT, writable);
        loop {
            let left = match deadline.map(|d| d.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return Err(io::ErrorKind::TimedOut.into()),
                left => left.and_then(|l| Timespec::try_from(l).ok()),
            };
            match poll(&mut [PollFd::new(&*self.fd, events)], left.as_ref()) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn finish(&mut self, _deadline: Instant) {
        // Fails if the peer is gone, which is the same to us.
        let _ = shutdown(&*self.fd, Shutdown::Both);
    }
}
