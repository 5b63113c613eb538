//! Waiting until one of several descriptors is readable (poll), and several threads that wait for one (epoll).

use crate::SysError;
use rustix::event::epoll;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Waits until one of the descriptors is readable, at end of file, or in an error state. Returns for each whether it
/// is.
///
/// All are `false` if `limit` has passed. Without a limit it waits until one is ready.
pub fn wait<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    limit: Option<Duration>,
) -> Result<[bool; N], SysError> {
    let deadline = limit.map(|l| Instant::now() + l);
    loop {
        let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        let timeout = left.map(|l| Timespec { tv_sec: l.as_secs() as i64, tv_nsec: l.subsec_nanos().into() });
        let mut polled = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) => return Ok(polled.each_ref().map(|p| !p.revents().is_empty())),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(SysError::new("waiting for descriptors", e.raw_os_error())),
        }
    }
}

/// One of several waits of threads for one event source: an event wakes one thread, and among those that wait the one
/// whose wait was made first.
///
/// Threads that block in `read` are woken in turn instead. Then a source with one event at a time wakes a thread that
/// slept long, and each event costs more time: its caches are cold, and more often it is woken on another CPU.
#[derive(Debug)]
pub struct OrderedWait(OwnedFd);

impl OrderedWait {
    /// Makes a wait for `fd`, which reads without blocking from now on: another thread may have taken what has woken
    /// this one.
    pub fn new(fd: BorrowedFd<'_>) -> Result<Self, SysError> {
        use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
        let failed = |e: rustix::io::Errno| SysError::new("making an epoll descriptor", e.raw_os_error());
        let flags = fcntl_getfl(fd).map_err(failed)?;
        fcntl_setfl(fd, flags | OFlags::NONBLOCK).map_err(failed)?;
        let made = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let events = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
        epoll::add(&made, fd, epoll::EventData::new_u64(0), events).map_err(failed)?;
        Ok(OrderedWait(made))
    }

    /// Waits until the descriptor is readable, at end of file, or in an error state.
    pub fn wait(&self) -> Result<(), SysError> {
        let mut event =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }];
        loop {
            match epoll::wait(&self.0, &mut event, None) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(SysError::new("waiting for a descriptor", e.raw_os_error())),
            }
        }
    }
}

/// Whether the peer of a stream socket has closed it, or shut down the half to which it writes. Bytes that it wrote
/// before may still be unread. Does not wait.
pub fn is_at_end(stream: BorrowedFd<'_>) -> Result<bool, SysError> {
    let mut polled = [PollFd::from_borrowed_fd(stream, PollFlags::RDHUP)];
    match poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(_) => Ok(!polled[0].revents().is_empty()),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(e) => Err(SysError::new("checking whether a socket's peer has hung up", e.raw_os_error())),
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
        drop(c);
        assert_eq!(wait([b.as_fd(), d.as_fd()], None).unwrap(), [true, true]);
    }

    #[test]
    fn an_event_wakes_the_first_wait() {
        use std::io::Read;
        use std::sync::mpsc::{Receiver, channel};
        // A pipe wakes all its readers. An eventfd is a queue of events with one waker, as /dev/fuse is.
        let source = rustix::event::eventfd(0, rustix::event::EventfdFlags::SEMAPHORE).unwrap();
        let file = std::fs::File::from(source.try_clone().unwrap());
        let waits: Vec<_> = (0..3).map(|_| OrderedWait::new(source.as_fd()).unwrap()).collect();
        let (woken, wakes) = channel();
        let file = &file;
        let happen = || rustix::io::write(&source, &1u64.to_ne_bytes()).unwrap();
        let asleep = |tid: &Receiver<rustix::process::Pid>| {
            let stat = format!("/proc/self/task/{}/stat", tid.recv().unwrap().as_raw_nonzero());
            while !std::fs::read_to_string(&stat).unwrap().contains(") S ") {
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            let (started, starts) = channel();
            // The last wait sleeps first.
            for (number, wait) in waits.iter().enumerate().rev() {
                let (woken, started) = (woken.clone(), started.clone());
                scope.spawn(move || {
                    started.send(rustix::thread::gettid()).unwrap();
                    let mut taken = false;
                    while !taken {
                        wait.wait().unwrap();
                        let mut file = file;
                        taken = file.read_exact(&mut [0; 8]).is_ok();
                    }
                    woken.send(number).unwrap();
                });
                asleep(&starts);
            }
            // The thread that was woken has ended, so the next event wakes the next one.
            for number in 0..3 {
                happen();
                assert_eq!(wakes.recv().unwrap(), number);
            }
        });
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
