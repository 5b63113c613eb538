//! Listening sockets, the checks of who may connect, and the threads that accept clients.
//!
//! Three independent checks protect a unix socket, so that a mistake in one does not open the disk: its file is created
//! with mode 0600, its folder is writable by no other user, and every peer's user id is read from the kernel
//! (SO_PEERCRED).
//!
//! Each listener has a thread ([`Acceptor`]) that accepts clients and passes each to a callback. It ends when its
//! eventfd is written. If the system has no descriptor or memory for a client, the thread waits a moment and tries
//! again.

use super::NbdError;
use pagefold_sys::SysError;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{Mode, Stat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Length of the kernel's queue of clients that wait to be accepted.
const BACKLOG: i32 = 128;
/// How long the acceptor waits if the system has no descriptor or memory for a client, milliseconds.
const EXHAUSTED_MS: i64 = 100;

/// A listening unix socket, with its file if this process created it.
pub struct UnixSocket {
    pub(super) listener: OwnedFd,
    pub(super) file: Option<SocketFile>,
}

impl UnixSocket {
    /// Creates a socket file with mode 0600 and listens on it.
    ///
    /// Fails unless its folder belongs to this user or root and no other user can write to it, or if the file exists:
    /// only the caller can know whether an old socket file is stale.
    pub fn bind(path: &Path) -> Result<Self, NbdError> {
        check_folder(path)?;
        let addr =
            SocketAddrUnix::new(path).map_err(|_| NbdError::PathTooLong { path: path.to_path_buf() })?;
        let failed = |e: Errno| {
            let hint = if e == Errno::ADDRINUSE { " (remove it if no server uses it)" } else { "" };
            SysError::new(format!("listening on {}{hint}", path.display()), e.raw_os_error())
        };
        let fd =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .map_err(failed)?;
        // Linux creates the file with the mode of the socket, less the umask. So set the mode before `bind`: the file
        // never has a wider one.
        rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        rustix::net::bind(&fd, &addr).map_err(failed)?;
        let file = SocketFile::of(path).map_err(failed)?;
        rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        rustix::net::listen(&fd, BACKLOG).map_err(failed)?;
        Ok(UnixSocket { listener: fd, file: Some(file) })
    }

    /// The socket that listens. Its file is not removed: the caller may have no right to that.
    pub fn into_listener(self) -> OwnedFd {
        let UnixSocket { listener, file } = self;
        std::mem::forget(file);
        listener
    }
}

impl AsFd for UnixSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Takes a socket that already listens, for instance one from a service manager. Its file, if it has one, is not
/// removed by this process.
impl From<UnixListener> for UnixSocket {
    fn from(listener: UnixListener) -> Self {
        UnixSocket { listener: listener.into(), file: None }
    }
}

/// A socket file. Dropping removes it, unless another file has replaced it.
pub(super) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn of(path: &Path) -> Result<Self, Errno> {
        Ok(SocketFile { path: path.to_path_buf(), identity: identity(&rustix::fs::lstat(path)?) })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if rustix::fs::lstat(&self.path).is_ok_and(|stat| identity(&stat) == self.identity) {
            // If this fails, a stale socket file stays, which the next server at this path has to detect anyway.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

fn check_folder(path: &Path) -> Result<(), NbdError> {
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let meta =
        fs::metadata(dir).map_err(|e| NbdError::io(format!("checking the folder {}", dir.display()), &e))?;
    let unsafe_folder = |why| Err(NbdError::UnsafeFolder { dir: dir.to_path_buf(), why });
    if meta.uid() != rustix::process::geteuid().as_raw() && meta.uid() != 0 {
        return unsafe_folder("it belongs to another user");
    }
    if meta.mode() & 0o022 != 0 {
        return unsafe_folder("others can write to it");
    }
    Ok(())
}

/// Whether only this machine can reach `addr`.
pub(super) fn is_loopback(addr: SocketAddr) -> bool {
    let ip: IpAddr = addr.ip().to_canonical();
    ip.is_loopback()
}

/// Whether a peer with user id `peer` may use a socket of a server that runs as `own`.
pub(super) fn may_connect(peer: u32, own: u32) -> bool {
    peer == own || peer == 0
}

/// A thread that accepts the clients of one listener.
pub(super) struct Acceptor {
    wake: Arc<OwnedFd>,
    thread: JoinHandle<()>,
    _file: Option<SocketFile>,
}

impl Acceptor {
    /// Starts a thread that passes every accepted socket to `on_client`.
    pub(super) fn start(
        listener: OwnedFd,
        file: Option<SocketFile>,
        on_client: impl Fn(OwnedFd) + Send + 'static,
    ) -> Result<Self, NbdError> {
        let failed = |e: Errno| SysError::new("setting up the NBD listener", e.raw_os_error());
        // Accept must not block if the client disconnects between poll and accept.
        rustix::io::ioctl_fionbio(&listener, true).map_err(failed)?;
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(failed)?);
        let thread_wake = wake.clone();
        let thread = std::thread::Builder::new()
            .name("nbd-accept".into())
            .spawn(move || accept_until(&listener, &thread_wake, on_client))
            .map_err(|e| NbdError::io("starting the NBD listener's thread", &e))?;
        Ok(Acceptor { wake, thread, _file: file })
    }

    /// Closes the listener, waits for the thread, and removes the socket's file.
    pub(super) fn stop(self) {
        // Adding 1 to an eventfd whose counter is 0 cannot fail.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        // The panic hook has already reported a panic of the thread.
        let _ = self.thread.join();
    }
}

/// Accepts clients until `wake` is readable or the listener fails.
fn accept_until(listener: &OwnedFd, wake: &OwnedFd, on_client: impl Fn(OwnedFd)) {
    loop {
        let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(wake, PollFlags::IN)];
        if poll(&mut fds, None).is_err_and(|e| e != Errno::INTR) {
            return;
        }
        if !fds[1].revents().is_empty() {
            return;
        }
        match rustix::net::accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(client) => on_client(client),
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => pause(wake.as_fd()),
            Err(Errno::BADF | Errno::INVAL | Errno::NOTSOCK | Errno::OPNOTSUPP) => return,
            // The client disconnected before it was accepted, or its network failed.
            Err(_) => {}
        }
    }
}

/// Waits for descriptors or memory to become free, at most [`EXHAUSTED_MS`], and returns early if `wake` is readable.
fn pause(wake: BorrowedFd<'_>) {
    let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: EXHAUSTED_MS * 1_000_000 };
    // The caller polls again in any case.
    let _ = poll(&mut [PollFd::from_borrowed_fd(wake, PollFlags::IN)], Some(&timeout));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_user_and_root_may_connect() {
        assert!(may_connect(1000, 1000) && may_connect(0, 1000) && may_connect(0, 0));
        assert!(!may_connect(1000, 0) && !may_connect(1001, 1000));
    }

    #[test]
    fn all_forms_of_loopback_addresses_are_recognised() {
        for (addr, loopback) in [
            ("127.0.0.1:1", true),
            ("127.9.9.9:1", true),
            ("[::1]:1", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("0.0.0.0:1", false),
            ("[::]:1", false),
            ("192.168.0.1:1", false),
        ] {
            assert_eq!(is_loopback(addr.parse().unwrap()), loopback, "{addr}");
        }
    }
}
