//! Freezing a mounted file system for a moment (FIFREEZE), with a guard that thaws it whatever happens to its parent.
//!
//! Writers of a frozen file system wait, and a process that forgets to thaw it stops the machine. So a separate process
//! freezes and thaws, the *guard*. It has the file system open since before, and then only makes system calls on open descriptors. It
//! thaws when its parent says so, when its parent has ended, and [`FROZEN_MAX`] after the file system is frozen. If the
//! guard itself is killed, its parent thaws. Only if both are killed within the same moment, nobody does; `fsfreeze -u`
//! ends that.
//!
//! Reference: fsfreeze(8), `freeze_super` in the kernel's `fs/super.c`.

use crate::fork::fork_with;
use crate::{SysError, detach, ready, signal};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How long the guard leaves a file system frozen.
pub const FROZEN_MAX: Duration = Duration::from_secs(1);
/// How long the parent waits for the answer to a request to thaw: a guard that a signal has stopped never answers.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// How often the guard tries to thaw a file system whose device has errors, and the pause between.
const THAW_TRIES: u32 = 50;
const THAW_PAUSE: Duration = Duration::from_millis(100);

/// `_IOWR('X', 119, int)`.
const FIFREEZE: libc::c_ulong = 0xc004_5877;
/// `_IOWR('X', 120, int)`.
const FITHAW: libc::c_ulong = 0xc004_5878;

/// The messages to the guard, one byte each.
const FREEZE: u8 = b'f';
const THAW: u8 = b't';

/// A guard of one file system, in a child process.
pub struct FreezeGuard {
    /// Until the end of the freeze: an open file keeps the file system from being unmounted.
    root: Option<File>,
    socket: UnixStream,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing was requested.
    Idle,
    /// The guard freezes the file system, or has frozen it.
    Requested,
    /// The guard has frozen the file system, at this time.
    Frozen(Instant),
    /// The file system is not frozen, and the guard ends.
    Over,
}

/// How a file system was thawed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thawed {
    /// On request. It was frozen for this time.
    OnRequest(Duration),
    /// Before the request: the guard's time was over, or the guard was killed, or another program thawed it.
    Early,
}

impl FreezeGuard {
    /// Starts a guard of the file system of `root`, any file or directory on it. The calling process must have one thread.
    pub fn start(root: File) -> Result<Self, SysError> {
        let failed = |e: std::io::Error| SysError::io("starting the guard of a frozen file system", &e);
        let (socket, theirs) = UnixStream::pair().map_err(failed)?;
        let its_root = root.try_clone().map_err(failed)?;
        fork_with(vec![theirs.into(), its_root.into()], guard)?;
        Ok(FreezeGuard { root: Some(root), socket, state: State::Idle })
    }

    /// Freezes the file system. The kernel first writes what it caches of it. Returns false if `interrupt` becomes readable
    /// before that is done; the guard then thaws by itself when it is.
    pub fn freeze(&mut self, interrupt: BorrowedFd<'_>) -> Result<bool, SysError> {
        self.state = State::Requested;
        // An error is that the guard was killed, which the read below reports.
        let _ = self.socket.write_all(&[FREEZE]);
        let [answered, _] = ready::wait([self.socket.as_fd(), interrupt], None)?;
        if !answered {
            return Ok(false);
        }
        match self.answer() {
            Some(Answer { errno: 0, .. }) => {
                self.state = State::Frozen(Instant::now());
                Ok(true)
            }
            Some(Answer { errno, .. }) => {
                self.end();
                Err(SysError::new("freezing the file system", errno))
            }
            None => {
                self.thaw_for_guard();
                Err(SysError::new("freezing the file system: its guard was killed", libc::ESRCH))
            }
        }
    }

    /// Whether the file system was frozen, and was not thawed since by [`FreezeGuard::thaw`].
    pub fn is_frozen(&self) -> bool {
        matches!(self.state, State::Frozen(_))
    }

    /// Thaws the file system.
    pub fn thaw(&mut self) -> Thawed {
        let State::Frozen(since) = self.state else { return Thawed::Early };
        let _ = self.socket.write_all(&[THAW]);
        let answer = match ready::wait([self.socket.as_fd()], Some(ANSWER_MAX)) {
            Ok([true]) => self.answer(),
            _ => None,
        };
        match answer {
            Some(Answer { errno, on_request }) => {
                self.end();
                if on_request && errno == 0 { Thawed::OnRequest(since.elapsed()) } else { Thawed::Early }
            }
            None => {
                self.thaw_for_guard();
                Thawed::Early
            }
        }
    }

    /// Receives an answer; `None` if the guard has ended: what it was doing is done.
    fn answer(&mut self) -> Option<Answer> {
        let mut bytes = [0; Answer::LEN];
        self.socket.read_exact(&mut bytes).ok()?;
        Some(Answer::decode(bytes))
    }

    /// Thaws the file system in place of a guard that was killed or stopped. If it is not frozen, this is an error of no
    /// consequence.
    fn thaw_for_guard(&mut self) {
        if let Some(root) = &self.root {
            thaw(root.as_fd());
        }
        self.end();
    }

    fn end(&mut self) {
        self.state = State::Over;
        self.root = None;
    }
}

impl Drop for FreezeGuard {
    fn drop(&mut self) {
        // The end of the socket makes the guard thaw, if it has frozen, and end.
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
        if matches!(self.state, State::Idle | State::Over) {
            return;
        }
        let deadline = Instant::now() + ANSWER_MAX;
        let mut has_thawed = false;
        while let Ok([true]) =
            ready::wait([self.socket.as_fd()], Some(deadline.saturating_duration_since(Instant::now())))
        {
            match self.answer() {
                // The first may be that to the request to freeze.
                Some(answer) => has_thawed = answer.is_last(self.state),
                None if has_thawed => return,
                None => return self.thaw_for_guard(),
            }
            self.state = State::Frozen(Instant::now());
        }
        // A guard in the middle of the request thaws when that is done; one that is stopped may have frozen.
        if self.is_frozen() && !has_thawed {
            self.thaw_for_guard();
        }
    }
}

/// An answer of the guard: to the request to freeze, and when it has thawed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Answer {
    errno: i32,
    on_request: bool,
}

impl Answer {
    const LEN: usize = 5;

    fn encode(self) -> [u8; Self::LEN] {
        let [a, b, c, d] = self.errno.to_le_bytes();
        [a, b, c, d, self.on_request.into()]
    }

    fn decode([a, b, c, d, on_request]: [u8; Self::LEN]) -> Self {
        Answer { errno: i32::from_le_bytes([a, b, c, d]), on_request: on_request != 0 }
    }

    /// Whether the guard sends no other, in this state: it did not freeze, or has thawed.
    fn is_last(self, state: State) -> bool {
        self.errno != 0 || matches!(state, State::Frozen(_))
    }
}

/// The child process. It opens nothing and logs nothing, and memory that it needs is there.
fn guard(mut fds: Vec<OwnedFd>) -> u8 {
    let (Some(root), Some(socket)) = (fds.pop(), fds.pop()) else { return 1 };
    // Signals of a terminal are for the command, whose end this process notices.
    detach::new_session();
    let _masked = signal::mask_asynchronous();
    // Otherwise a page of the program might have to be read while memory is short. It is a precaution only.
    let _ = rustix::mm::mlockall(rustix::mm::MlockAllFlags::CURRENT);
    let mut socket = UnixStream::from(socket);
    let mut request = [0];
    if socket.read_exact(&mut request).is_err() {
        return 0;
    }
    let frozen = freeze_ioctl(root.as_fd(), FIFREEZE);
    let errno = frozen.err().unwrap_or(0);
    let sent = socket.write_all(&Answer { errno, on_request: false }.encode());
    if errno != 0 {
        return 0;
    }
    // Readable at the end of the socket, too.
    let told = sent.is_ok() && ready::wait([socket.as_fd()], Some(FROZEN_MAX)) == Ok([true]);
    let errno = thaw(root.as_fd());
    let _ = socket.write_all(&Answer { errno, on_request: told }.encode());
    0
}

/// Thaws a file system, and returns the error number: 0, or EINVAL if it is not frozen. Tries again after another error:
/// the file system could not write something.
fn thaw(root: BorrowedFd<'_>) -> i32 {
    let mut errno = 0;
    for _ in 0..THAW_TRIES {
        errno = freeze_ioctl(root, FITHAW).err().unwrap_or(0);
        if matches!(errno, 0 | libc::EINVAL) {
            return errno;
        }
        std::thread::sleep(THAW_PAUSE);
    }
    errno
}

fn freeze_ioctl(root: BorrowedFd<'_>, request: libc::c_ulong) -> Result<(), i32> {
    // SAFETY: both requests take an argument that the kernel ignores, and access no memory of this process.
    match unsafe { libc::ioctl(root.as_raw_fd(), request as _, 0) } {
        -1 => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_decoded_as_they_were_encoded() {
        for answer in
            [Answer { errno: 0, on_request: true }, Answer { errno: libc::EBUSY, on_request: false }]
        {
            assert_eq!(Answer::decode(answer.encode()), answer);
        }
        let frozen = State::Frozen(Instant::now());
        let ok = Answer { errno: 0, on_request: false };
        assert!(!ok.is_last(State::Requested) && ok.is_last(frozen));
        assert!(Answer { errno: libc::EOPNOTSUPP, ..ok }.is_last(State::Requested));
    }
}
