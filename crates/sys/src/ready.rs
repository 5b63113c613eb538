//! Waiting until one of several descriptors is readable (poll).

use crate::{SysError, failed};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Waits until one of the descriptors is readable, at end of file, or in an error state. Returns for each whether it
/// is.
///
/// All are `false` if `limit` has passed. Without a limit it waits until one is ready.
pub fn wait<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    limit: Option<Duration>,
) -> Result<[bool; N], SysError> {
    wait_for(fds.map(|fd| (fd, true)), limit)
}

/// As [`wait`], but where the flag of a descriptor is false, only an error state of it counts. Allocates nothing.
pub fn wait_for<const N: usize>(
    fds: [(BorrowedFd<'_>, bool); N],
    limit: Option<Duration>,
) -> Result<[bool; N], SysError> {
    let events = |readable| if readable { PollFlags::IN } else { PollFlags::empty() };
    let deadline = limit.map(|l| Instant::now() + l);
    loop {
        let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        let timeout = left.map(|l| Timespec { tv_sec: l.as_secs() as i64, tv_nsec: l.subsec_nanos().into() });
        let mut polled = fds.map(|(fd, readable)| PollFd::from_borrowed_fd(fd, events(readable)));
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) => return Ok(polled.each_ref().map(|p| !p.revents().is_empty())),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(failed("waiting for descriptors")(e)),
        }
    }
}

/// Whether a write to the descriptor would not wait.
pub fn is_writable(fd: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
}

/// Whether the peer of a stream socket has closed it, or shut down the half to which it writes. Bytes that it wrote
/// before may still be unread. Does not wait.
pub fn is_at_end(stream: BorrowedFd<'_>) -> Result<bool, SysError> {
    let mut polled = [PollFd::from_borrowed_fd(stream, PollFlags::RDHUP)];
    match poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(_) => Ok(!polled[0].revents().is_empty()),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(e) => Err(failed("checking whether a socket's peer has hung up")(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn wait_returns_which_descriptors_are_readable() {
        let (mut a, b) = UnixStream::pair().unwrap();
        let (c, d) = UnixStream::pair().unwrap();
        assert_eq!(wait([b.as_fd(), d.as_fd()], Some(Duration::ZERO)).unwrap(), [false, false]);
        a.write_all(b"x").unwrap();
        assert_eq!(wait([b.as_fd(), d.as_fd()], None).unwrap(), [true, false]);
        assert_eq!(wait_for([(b.as_fd(), false)], Some(Duration::ZERO)).unwrap(), [false]);
        drop(c);
        assert_eq!(wait_for([(b.as_fd(), false), (d.as_fd(), false)], None).unwrap(), [false, true]);
        assert_eq!(wait([b.as_fd(), d.as_fd()], None).unwrap(), [true, true]);
    }

    #[test]
    fn a_closed_half_is_an_end_and_unread_bytes_are_not() {
        let (mut a, b) = UnixStream::pair().unwrap();
        a.write_all(b"x").unwrap();
        assert!(!is_at_end(b.as_fd()).unwrap());
        a.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(is_at_end(b.as_fd()).unwrap());
        assert!(!is_at_end(a.as_fd()).unwrap());
        drop(b);
        assert!(is_at_end(a.as_fd()).unwrap());
    }
}
