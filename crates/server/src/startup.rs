//! The server's side of the handshake with the command that started it.
//!
//! [`pagefold_control::startup`] describes the handshake.

use pagefold_control::error::{CliError, Result};
use pagefold_control::protocol;
use pagefold_control::startup::{MAX_LINE, Ready, StartupReply};
use std::io::{BufReader, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// The socket to the command.
pub struct StartupChannel {
    pub(crate) stream: UnixStream,
    pub(crate) foreground: bool,
}

impl StartupChannel {
    /// Reports that the device is ready, and waits until the command confirms the start. An error if the command has
    /// exited.
    pub fn ready(&self, ready: &Ready) -> Result<()> {
        let gone = |e: std::io::Error| CliError::io("the command that started this server has gone", &e);
        (&self.stream).write_all(&protocol::line(&StartupReply::Ready(ready.clone()))?).map_err(gone)?;
        match protocol::read_line(&mut BufReader::new(&self.stream), MAX_LINE).map_err(gone)? {
            Some(_) => Ok(()),
            None => Err(gone(std::io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// The socket, which is readable when the command has exited: it sends nothing before the device is ready.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Another descriptor of what [`StartupChannel::into_foreground_socket`] returns.
    pub fn foreground_socket(&self) -> Result<Option<UnixStream>> {
        let cloned = self.foreground.then(|| self.stream.try_clone()).transpose();
        cloned.map_err(|e| CliError::io("duplicating a socket", &e))
    }

    /// The socket to a command in the foreground, which becomes readable when the command exits; `None` in the
    /// background.
    pub fn into_foreground_socket(self) -> Option<UnixStream> {
        self.foreground.then_some(self.stream)
    }
}
