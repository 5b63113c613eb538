//! The credentials of the process at the other end of a unix socket (SO_PEERCRED).

use crate::{SysError, failed};
use std::os::fd::BorrowedFd;

/// The credentials of the process that connected, at the time of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Its effective user id.
    pub uid: u32,
    /// Its effective group id.
    pub gid: u32,
    /// Its process id in this process's namespace. Another process may have that id by now, so use it for messages
    /// only.
    pub pid: i32,
}

/// The credentials of the peer of a connected unix socket.
pub fn credentials(socket: BorrowedFd<'_>) -> Result<PeerCredentials, SysError> {
    match rustix::net::sockopt::socket_peercred(socket) {
        Ok(c) => Ok(PeerCredentials {
            uid: c.uid.as_raw(),
            gid: c.gid.as_raw(),
            pid: rustix::process::Pid::as_raw(Some(c.pid)),
        }),
        Err(e) => Err(failed("reading the credentials of a socket's peer")(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_peer_of_a_socket_pair_is_this_process() {
        let (a, _b) = UnixStream::pair().unwrap();
        let peer = credentials(a.as_fd()).unwrap();
        assert_eq!(peer.pid, std::process::id() as i32);
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        assert_eq!(peer.gid, rustix::process::getegid().as_raw());
    }

    #[test]
    fn a_file_has_no_peer() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(credentials(file.as_fd()).is_err());
    }
}
