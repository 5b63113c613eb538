//! An NBD export on a unix socket, with a minimal client: requests of any offset and length, and the error of each.

use super::{Connection, RequestError, other};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Commands of the protocol.
const READ: u16 = 0;
const WRITE: u16 = 1;
const TRIM: u16 = 4;
const WRITE_ZEROES: u16 = 6;
/// Error numbers of a lack of space: ENOMEM and ENOSPC.
const NO_ROOM: [u32; 2] = [12, 28];

/// A connection to an NBD export.
pub struct NbdConnection {
    stream: UnixStream,
    next: u64,
}

impl NbdConnection {
    /// Connects to the default export by the shortest handshake: `NBD_OPT_EXPORT_NAME`, with `NBD_FLAG_C_NO_ZEROES`.
    pub fn open(socket: &Path) -> std::io::Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        let mut hello = [0; 18];
        stream.read_exact(&mut hello)?;
        stream.write_all(&3u32.to_be_bytes())?;
        stream.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0")?;
        stream.read_exact(&mut [0; 10])?;
        Ok(NbdConnection { stream, next: 0 })
    }

    /// Sends a request and returns the error number of the reply.
    fn exchange(&mut self, command: u16, offset: u64, len_bytes: u64, data: &[u8]) -> std::io::Result<u32> {
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
        let is_reply = reply[..4] == 0x6744_6698_u32.to_be_bytes() && reply[8..] == self.next.to_be_bytes();
        if !is_reply {
            return Err(std::io::Error::other(format!(
                "the reply does not belong to the request: {reply:02x?}"
            )));
        }
        Ok(u32::from_be_bytes([reply[4], reply[5], reply[6], reply[7]]))
    }

    fn request(
        &mut self,
        command: u16,
        offset: u64,
        len_bytes: u64,
        data: &[u8],
    ) -> Result<(), RequestError> {
        let request = format!("NBD command {command} of {len_bytes} bytes at {offset}");
        match self.exchange(command, offset, len_bytes, data) {
            Ok(0) => Ok(()),
            Ok(number) if NO_ROOM.contains(&number) => {
                Err(RequestError::NoRoom(format!("{request}: error {number}")))
            }
            Ok(number) => Err(other(format!("{request}: error {number}"))),
            Err(e) => Err(other(format!("{request}: {e}"))),
        }
    }
}

impl Connection for NbdConnection {
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), RequestError> {
        self.request(READ, offset, buf.len() as u64, &[])?;
        let read = self.stream.read_exact(buf);
        read.map_err(|e| other(format!("reading the data of a reply: {e}")))
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), RequestError> {
        self.request(WRITE, offset, data.len() as u64, data)
    }

    fn discard(&mut self, offset: u64, len_bytes: u64) -> Result<(), RequestError> {
        self.request(TRIM, offset, len_bytes, &[])
    }

    fn write_zeroes(&mut self, offset: u64, len_bytes: u64) -> Result<(), RequestError> {
        self.request(WRITE_ZEROES, offset, len_bytes, &[])
    }
}
