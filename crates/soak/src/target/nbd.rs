//! An NBD export on a unix socket, with a client of our own: any offset and length, and the error of each request.

use super::{Connection, Failure, Target};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// Commands of the protocol.
const READ: u16 = 0;
const WRITE: u16 = 1;
const TRIM: u16 = 4;
const WRITE_ZEROES: u16 = 6;
/// Error numbers that say that there is no room.
const NO_ROOM: [u32; 2] = [12, 28];

/// The export.
pub struct NbdTarget {
    /// Its socket.
    pub socket: PathBuf,
    /// Its size.
    pub len_bytes: u64,
}

impl Target for NbdTarget {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn align(&self) -> u64 {
        1
    }

    fn connect(&self) -> Result<Box<dyn Connection + '_>, String> {
        let connected = self.handshake();
        let stream = connected.map_err(|e| format!("connecting to {}: {e}", self.socket.display()))?;
        Ok(Box::new(NbdConnection { stream, next: 0 }))
    }
}

impl NbdTarget {
    /// The shortest way to the default export: `NBD_OPT_EXPORT_NAME`, without zeroes.
    fn handshake(&self) -> std::io::Result<UnixStream> {
        let mut stream = UnixStream::connect(&self.socket)?;
        let mut hello = [0; 18];
        stream.read_exact(&mut hello)?;
        stream.write_all(&3u32.to_be_bytes())?;
        stream.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0")?;
        stream.read_exact(&mut [0; 10])?;
        Ok(stream)
    }
}

struct NbdConnection {
    stream: UnixStream,
    next: u64,
}

impl NbdConnection {
    /// Sends a request and returns the error number of the answer.
    fn ask(&mut self, command: u16, offset: u64, len_bytes: u64, data: &[u8]) -> std::io::Result<u32> {
        self.next += 1;
        let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
        request.extend([0; 2]);
        request.extend(command.to_be_bytes());
        request.extend(self.next.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend((len_bytes as u32).to_be_bytes());
        self.stream.write_all(&request)?;
        self.stream.write_all(data)?;
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        let is_answer = reply[..4] == 0x6744_6698_u32.to_be_bytes() && reply[8..] == self.next.to_be_bytes();
        if !is_answer {
            return Err(std::io::Error::other(format!("an answer to another question: {reply:02x?}")));
        }
        Ok(u32::from_be_bytes([reply[4], reply[5], reply[6], reply[7]]))
    }

    fn done(&mut self, command: u16, offset: u64, len_bytes: u64, data: &[u8]) -> Result<(), Failure> {
        let what = || format!("NBD command {command} of {len_bytes} bytes at {offset}");
        match self.ask(command, offset, len_bytes, data) {
            Ok(0) => Ok(()),
            Ok(number) if NO_ROOM.contains(&number) => {
                Err(Failure::NoRoom(format!("{}: error {number}", what())))
            }
            Ok(number) => Err(Failure::Other(format!("{}: error {number}", what()))),
            Err(e) => Err(Failure::Other(format!("{}: {e}", what()))),
        }
    }
}

impl Connection for NbdConnection {
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), Failure> {
        self.done(READ, offset, buf.len() as u64, &[])?;
        self.stream.read_exact(buf).map_err(|e| Failure::Other(format!("reading an answer: {e}")))
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Failure> {
        self.done(WRITE, offset, data.len() as u64, data)
    }

    fn discard(&mut self, offset: u64, len_bytes: u64) -> Result<(), Failure> {
        self.done(TRIM, offset, len_bytes, &[])
    }

    fn write_zeroes(&mut self, offset: u64, len_bytes: u64) -> Result<(), Failure> {
        self.done(WRITE_ZEROES, offset, len_bytes, &[])
    }
}
