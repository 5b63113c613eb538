//! Passing an open descriptor to another process over a unix socket (SCM_RIGHTS).
//!
//! The receiver gets a duplicate, which shares the file position and the file lock (flock). So a lock passes from one
//! process to the next without a moment in which no process holds it.

use crate::{SysError, failed};
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The length of the header of a message.
pub const HEADER_BYTES: usize = 8;

/// Sends one byte with a descriptor attached. The receiver's duplicate shares the file's locks.
pub fn send_fd(socket: impl AsFd, fd: impl AsFd) -> Result<(), SysError> {
    send_optional_fd(socket, Some(fd))
}

/// Sends one byte with a descriptor attached, or without one; [`recv_fd`] then returns `None`.
pub fn send_optional_fd(socket: impl AsFd, fd: Option<impl AsFd>) -> Result<(), SysError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = fd.as_ref().map(|fd| [fd.as_fd()]);
    if let Some(fds) = &fds {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let send = || rustix::net::sendmsg(&socket, &[IoSlice::new(&[1])], &mut control, SendFlags::NOSIGNAL);
    retry_on_intr(send).map(|_| ()).map_err(failed("handing a descriptor over"))
}

/// Receives the descriptor of one [`send_fd`], and sets close-on-exec. `None` if the peer has closed the socket or sent
/// no descriptor.
pub fn recv_fd(socket: impl AsFd) -> Result<Option<OwnedFd>, SysError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8; 1];
    let receive = || {
        let buffers = &mut [IoSliceMut::new(&mut byte)];
        rustix::net::recvmsg(&socket, buffers, &mut control, RecvFlags::CMSG_CLOEXEC)
    };
    retry_on_intr(receive).map_err(failed("receiving a descriptor"))?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message {
            return Ok(fds.next());
        }
    }
    Ok(None)
}

/// Sends bytes with descriptors attached to the first of them, at most [`FDS_MAX`]. Returns how many bytes were sent, which is
/// at least one of them.
pub fn send_with_fds(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> std::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(rustix::io::Errno::TOOBIG.into());
    }
    let send = || rustix::net::sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
    Ok(retry_on_intr(send)?)
}

/// Receives bytes, and adds the descriptors that are attached to them, with close-on-exec, to `fds`. Returns how many bytes
/// came, 0 at the end.
pub fn recv_with_fds(socket: impl AsFd, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> std::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let receive = || {
        let buffers = &mut [IoSliceMut::new(bytes)];
        rustix::net::recvmsg(&socket, buffers, &mut control, RecvFlags::CMSG_CLOEXEC)
    };
    let received = retry_on_intr(receive)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    Ok(received.bytes)
}

/// Most descriptors of one message (SCM_MAX_FD).
pub const FDS_MAX: usize = 253;

/// Sends the eight bytes `header` with descriptors attached, at most [`FDS_MAX`].
pub fn send_message(
    socket: impl AsFd,
    header: [u8; HEADER_BYTES],
    fds: &[BorrowedFd<'_>],
) -> Result<(), SysError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(SysError::new("handing descriptors over", libc::E2BIG));
    }
    let send = || rustix::net::sendmsg(&socket, &[IoSlice::new(&header)], &mut control, SendFlags::NOSIGNAL);
    // Eight bytes are sent whole.
    retry_on_intr(send).map(|_| ()).map_err(failed("handing descriptors over"))
}

/// Receives one message of [`send_message`]: adds its descriptors, with close-on-exec, to `fds`, and returns its header.
/// `None` if the peer has closed the socket. Allocates nothing if `fds` has the capacity.
pub fn recv_message(
    socket: impl AsFd,
    fds: &mut Vec<OwnedFd>,
) -> Result<Option<[u8; HEADER_BYTES]>, SysError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut header = [0u8; HEADER_BYTES];
    let receive = || {
        let buffers = &mut [IoSliceMut::new(&mut header)];
        rustix::net::recvmsg(&socket, buffers, &mut control, RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL)
    };
    let received = retry_on_intr(receive).map_err(failed("receiving descriptors"))?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    if received.flags.contains(rustix::net::ReturnFlags::CTRUNC) {
        // This process may open no more.
        return Err(SysError::new("receiving descriptors", libc::EMFILE));
    }
    match received.bytes {
        HEADER_BYTES => Ok(Some(header)),
        0 => Ok(None),
        _ => Err(SysError::new("receiving descriptors", libc::EPROTO)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::os::unix::thread::JoinHandleExt;

    #[test]
    fn a_received_descriptor_shares_the_lock() {
        let (a, b) = UnixStream::pair().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let file = std::fs::File::create(&path).unwrap();
        file.try_lock().unwrap();
        send_fd(&a, &file).unwrap();
        let got = recv_fd(&b).unwrap().unwrap();
        drop(file);
        let other = std::fs::File::open(&path).unwrap();
        assert!(other.try_lock().is_err());
        drop(got);
        other.try_lock().unwrap();
        send_optional_fd(&a, None::<&std::fs::File>).unwrap();
        assert!(recv_fd(&b).unwrap().is_none());
        drop(a);
        assert!(recv_fd(&b).unwrap().is_none());
    }

    #[test]
    fn a_message_carries_many_descriptors() {
        let (a, b) = UnixStream::pair().unwrap();
        let mut received = Vec::new();
        for count in [0, 1, FDS_MAX] {
            send_message(&a, *b"12345678", &vec![a.as_fd(); count]).unwrap();
            assert_eq!(recv_message(&b, &mut received).unwrap(), Some(*b"12345678"));
            assert_eq!(received.len(), count);
            received.clear();
        }
        assert!(send_message(&a, [0; 8], &vec![a.as_fd(); FDS_MAX + 1]).is_err());
        drop(a);
        assert_eq!(recv_message(&b, &mut received).unwrap(), None);
    }

    #[test]
    fn a_signal_does_not_interrupt_a_handover() {
        extern "C" fn nothing(_: i32) {}
        // SAFETY: zeroes are valid. The handler does nothing, and no other test uses the signal; it has no SA_RESTART.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as *const () as libc::sighandler_t;
            assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
        }
        let (a, b) = UnixStream::pair().unwrap();
        let receiver = std::thread::spawn(move || recv_fd(&b));
        for _ in 0..20 {
            std::thread::sleep(std::time::Duration::from_millis(1));
            // SAFETY: the thread is not joined yet.
            assert_eq!(unsafe { libc::pthread_kill(receiver.as_pthread_t(), libc::SIGUSR1) }, 0);
        }
        // A receiver that a signal has ended has closed its end: then this fails instead.
        let sent = send_fd(&a, &a);
        assert!(receiver.join().unwrap().unwrap().is_some());
        sent.unwrap();
    }
}
