//! The messages between a keeper and a server, over a pair of stream sockets.
//!
//! `docs/keeper.md` has the table of messages and their bytes.

use pagefold_control::error::{CliError, Result};
use pagefold_sys::handover::{self, HEADER_BYTES};
use pagefold_sys::{SysError, ready};
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Longest payload, bytes: a request to start, in JSON, and some more.
const PAYLOAD_BYTES_MAX: u32 = 16 << 20;
/// Descriptors in one message. The kernel takes a few more.
const FDS_IN_MESSAGE: usize = 250;
/// Most descriptors of a state: 256 channels, and the devices of an image.
const FDS_MAX: usize = 1024;
/// How long a peer may take to send or to receive the rest of a message.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The meaning of a message: the letter of `docs/keeper.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Message {
    New = b'N',
    Start = b'C',
    Descriptors = b'F',
    State = b'K',
    Accepted = b'A',
    Prepared = b'P',
    Go = b'G',
    Alone = b'O',
    Serving = b'R',
    Failed = b'E',
    Done = b'D',
}

impl Message {
    fn of(byte: u8) -> Option<Self> {
        use Message::*;
        let all = [New, Start, Descriptors, State, Accepted, Prepared, Go, Alone, Serving, Failed, Done];
        all.into_iter().find(|message| *message as u8 == byte)
    }
}

/// A state: the things of a server that the next one needs. The keeper holds it, and does not look at the bytes.
pub struct State {
    /// The descriptors: the lock, the folder of the instance, a channel of FUSE, and others.
    pub fds: Vec<OwnedFd>,
    /// For the next server.
    pub payload: Vec<u8>,
}

/// One end of the connection between a keeper and a server.
#[derive(Debug)]
pub struct Link(UnixStream);

impl Link {
    /// Both ends of a new connection.
    pub fn pair() -> Result<(Self, OwnedFd)> {
        let (ours, theirs) = UnixStream::pair().map_err(|e| failed(&e))?;
        Ok((Link::over(ours)?, theirs.into()))
    }

    /// The connection over a connected socket. Limits the time of a message that has begun: the peer may be stopped, or
    /// hostile.
    pub fn over(stream: UnixStream) -> Result<Self> {
        let limited = stream.set_write_timeout(Some(TIMEOUT));
        limited.and_then(|()| stream.set_read_timeout(Some(TIMEOUT))).map_err(|e| failed(&e))?;
        Ok(Link(stream))
    }

    /// Sends a message.
    pub fn send(&self, message: Message, fds: &[BorrowedFd<'_>], payload: &[u8]) -> Result<()> {
        let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let [a, b, c, d] = len.to_le_bytes();
        handover::send_message(&self.0, [message as u8, 0, 0, 0, a, b, c, d], fds)?;
        (&self.0).write_all(payload).map_err(|e| failed(&e))
    }

    /// Sends a state. Allocates nothing.
    pub fn send_state(&self, state: &State) -> Result<()> {
        let mut borrowed = [self.as_fd(); FDS_IN_MESSAGE];
        let mut rest = state.fds.as_slice();
        loop {
            let (part, further) = rest.split_at(rest.len().min(FDS_IN_MESSAGE));
            borrowed.iter_mut().zip(part).for_each(|(place, fd)| *place = fd.as_fd());
            let fds = &borrowed[..part.len()];
            if further.is_empty() {
                return self.send(Message::State, fds, &state.payload);
            }
            self.send(Message::Descriptors, fds, &[])?;
            rest = further;
        }
    }

    /// Waits for the next message. Adds its descriptors to `fds`, and puts its payload into `payload`. `None` if the peer
    /// has closed the connection.
    pub fn receive(&self, fds: &mut Vec<OwnedFd>, payload: &mut Vec<u8>) -> Result<Option<Message>> {
        ready::wait([self.0.as_fd()], None)?;
        let Some(header) = handover::recv_message(&self.0, fds)? else { return Ok(None) };
        let [kind, _, _, _, len @ ..]: [u8; HEADER_BYTES] = header;
        let len = u32::from_le_bytes(len);
        let malformed = || CliError::failed("a malformed message between a keeper and a server");
        if len > PAYLOAD_BYTES_MAX || fds.len() > FDS_MAX {
            return Err(malformed());
        }
        payload.clear();
        payload.resize(len as usize, 0);
        self.read_exact(payload).map_err(|e| failed(&e))?;
        Message::of(kind).map(Some).ok_or_else(malformed)
    }

    /// Reads the payload of a message, within one deadline.
    fn read_exact(&self, mut rest: &mut [u8]) -> std::io::Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        while !rest.is_empty() {
            match (&self.0).read(rest)? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                _ if Instant::now() >= deadline => return Err(std::io::ErrorKind::TimedOut.into()),
                read => rest = &mut rest[read..],
            }
        }
        Ok(())
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn failed(e: &std::io::Error) -> CliError {
    SysError::io("the connection between a keeper and its server", e).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_arrives_with_all_its_descriptors() {
        let (a, b) = Link::pair().unwrap();
        let b = Link::over(b.into()).unwrap();
        for count in [0, 3, 250, 600] {
            let null = || std::fs::File::open("/dev/null").unwrap().into();
            let fds = std::iter::repeat_with(null).take(count).collect();
            a.send_state(&State { fds, payload: b"for the next".to_vec() }).unwrap();
            let (mut fds, mut payload) = (Vec::new(), Vec::new());
            while b.receive(&mut fds, &mut payload).unwrap() == Some(Message::Descriptors) {}
            assert_eq!((fds.len(), payload.as_slice()), (count, &b"for the next"[..]));
        }
        a.send(Message::Done, &[], &[]).unwrap();
        let (mut fds, mut payload) = (Vec::new(), vec![1]);
        assert_eq!(b.receive(&mut fds, &mut payload).unwrap(), Some(Message::Done));
        assert!(fds.is_empty() && payload.is_empty());
        drop(a);
        assert_eq!(b.receive(&mut fds, &mut payload).unwrap(), None);
    }

    #[test]
    fn malformed_messages_are_errors() {
        for header in [*b"X\0\0\0\0\0\0\0", *b"K\0\0\0\xff\xff\xff\xff"] {
            let (a, b) = Link::pair().unwrap();
            handover::send_message(&a, header, &[]).unwrap();
            let b = Link::over(b.into()).unwrap();
            assert!(b.receive(&mut Vec::new(), &mut Vec::new()).is_err());
        }
        let (a, b) = Link::pair().unwrap();
        (&a.0).write_all(b"K\0\0\0\x05\0\0\0").unwrap();
        drop(a);
        assert!(Link::over(b.into()).unwrap().receive(&mut Vec::new(), &mut Vec::new()).is_err());
    }
}
