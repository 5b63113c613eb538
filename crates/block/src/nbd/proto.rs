//! The wire format of NBD: numbers, fixed headers, and their encoding.
//!
//! All functions are pure functions over bytes. Only this module knows the layout of messages; the two state machines
//! ([`super::handshake`], [`super::transmission`]) work on requests and replies. Names follow the protocol
//! description of the NBD project (`doc/proto.md` in the NetworkBlockDevice/nbd repository) without the `NBD_`
//! prefix. All numbers on the wire are big-endian.

/// The most bytes one read or write request may carry.
pub const MAX_DATA: u32 = 32 << 20;

/// `NBDMAGIC`, the first 8 bytes that the server sends.
pub const MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`, the magic number of an option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Magic number of a reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Magic number of a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Magic number of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Magic number of a chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Handshake flag of both sides: fixed newstyle.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake flag of both sides: no 124 zero bytes follow the reply to `OPT_EXPORT_NAME`.
pub const FLAG_NO_ZEROES: u16 = 1 << 1;

/// Options a client may send.
pub mod opt {
    #![allow(missing_docs, reason = "the names are the protocol document's, which explains them")]
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Types of replies to options.
pub mod rep {
    #![allow(missing_docs, reason = "the names are the protocol document's, which explains them")]
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const ERR_UNSUP: u32 = (1 << 31) + 1;
    pub const ERR_POLICY: u32 = (1 << 31) + 2;
    pub const ERR_INVALID: u32 = (1 << 31) + 3;
    pub const ERR_TLS_REQD: u32 = (1 << 31) + 5;
    pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    pub const ERR_TOO_BIG: u32 = (1 << 31) + 9;
}

/// Kinds of information in an `INFO` reply.
pub mod info {
    #![allow(missing_docs, reason = "the names are the protocol document's, which explains them")]
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags: the features of the export.
pub mod can {
    #![allow(missing_docs, reason = "the names are the protocol document's, which explains them")]
    pub const HAS_FLAGS: u16 = 1 << 0;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const MULTI_CONN: u16 = 1 << 8;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Commands.
pub mod cmd {
    #![allow(missing_docs, reason = "the names are the protocol document's, which explains them")]
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of commands.
pub mod flag {
    #![allow(missing_docs, reason = "the names are the protocol document's, which explains them")]
    pub const FUA: u16 = 1 << 0;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Types of chunks in a structured reply.
pub mod chunk {
    #![allow(missing_docs, reason = "the names are the protocol document's, which explains them")]
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const BLOCK_STATUS: u16 = 5;
    pub const ERROR: u16 = (1 << 15) + 1;
    pub const ERROR_OFFSET: u16 = (1 << 15) + 2;
}
/// Flag of the last chunk of a reply.
pub const CHUNK_DONE: u16 = 1;

/// The one metadata context of this server.
pub const BASE_ALLOCATION: &[u8] = b"base:allocation";
/// The number of [`BASE_ALLOCATION`] in replies.
pub const BASE_ALLOCATION_ID: u32 = 1;
/// In a block status: the extent is not allocated.
pub const STATE_HOLE: u32 = 1;
/// In a block status: the extent reads as zeroes.
pub const STATE_ZERO: u32 = 2;

/// Error numbers of the protocol; they equal Linux's.
pub mod err {
    #![allow(missing_docs, reason = "the names are the protocol document's, which explains them")]
    pub const EPERM: u32 = 1;
    pub const EIO: u32 = 5;
    pub const ENOMEM: u32 = 12;
    pub const EINVAL: u32 = 22;
    pub const ENOSPC: u32 = 28;
}

/// The protocol's number for a system error number, or EIO if the protocol has none for it.
pub fn error_from_errno(errno: i32) -> u32 {
    match u32::try_from(errno) {
        Ok(n @ (err::EPERM | err::EIO | err::ENOMEM | err::EINVAL | err::ENOSPC)) => n,
        _ => err::EIO,
    }
}

/// Bytes of a request header.
pub const REQUEST_LEN: usize = 28;
/// Bytes of a simple reply's header.
pub const SIMPLE_REPLY_LEN: usize = 16;
/// Bytes of a chunk's header.
pub const CHUNK_LEN: usize = 20;

/// A request as a client sent it. Only its magic number has been checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// [`flag`] bits.
    pub flags: u16,
    /// One of [`cmd`], or an unknown number.
    pub command: u16,
    /// The client's identifier of this request, repeated in the reply.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
}

impl Request {
    /// Decodes a request; `None` if it does not begin with the magic number of requests.
    pub fn decode(bytes: &[u8; REQUEST_LEN]) -> Option<Request> {
        let mut at = Cursor(bytes);
        if at.u32()? != REQUEST_MAGIC {
            return None;
        }
        Some(Request {
            flags: at.u16()?,
            command: at.u16()?,
            cookie: at.u64()?,
            offset: at.u64()?,
            len: at.u32()?,
        })
    }

    /// Encodes the request as a client sends it; a write's data follows.
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        let mut out = [0; REQUEST_LEN];
        out[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        out[4..6].copy_from_slice(&self.flags.to_be_bytes());
        out[6..8].copy_from_slice(&self.command.to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        out[16..24].copy_from_slice(&self.offset.to_be_bytes());
        out[24..28].copy_from_slice(&self.len.to_be_bytes());
        out
    }
}

/// Encodes the header of a simple reply.
pub fn simple_reply(cookie: u64, error: u32) -> [u8; SIMPLE_REPLY_LEN] {
    let mut out = [0; SIMPLE_REPLY_LEN];
    out[0..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    out[4..8].copy_from_slice(&error.to_be_bytes());
    out[8..16].copy_from_slice(&cookie.to_be_bytes());
    out
}

/// Encodes the header of one chunk of a structured reply, which `len` bytes follow.
pub fn chunk_header(cookie: u64, kind: u16, flags: u16, len: u32) -> [u8; CHUNK_LEN] {
    let mut out = [0; CHUNK_LEN];
    out[0..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    out[4..6].copy_from_slice(&flags.to_be_bytes());
    out[6..8].copy_from_slice(&kind.to_be_bytes());
    out[8..16].copy_from_slice(&cookie.to_be_bytes());
    out[16..20].copy_from_slice(&len.to_be_bytes());
    out
}

/// Appends a reply to `option` with the parts of `data`.
pub fn put_option_reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[&[u8]]) {
    let len: usize = data.iter().map(|part| part.len()).sum();
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(len as u32).to_be_bytes());
    for part in data {
        out.extend_from_slice(part);
    }
}

/// Reads numbers and byte strings from the front of a message. Each method returns `None` if the rest is too short.
#[derive(Debug, Clone, Copy)]
pub struct Cursor<'a>(pub &'a [u8]);

impl<'a> Cursor<'a> {
    /// The next `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(len)?;
        self.0 = tail;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>()?;
        self.0 = tail;
        Some(*head)
    }

    /// The next 16-bit number.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// The next 32-bit number.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// The next 64-bit number.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// The next byte string, which follows its 32-bit length.
    pub fn string(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.bytes(usize::try_from(len).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_an_encoded_request_returns_it() {
        let request =
            Request { flags: 5, command: cmd::TRIM, cookie: 0x0102_0304_0506_0708, offset: 1 << 40, len: 7 };
        assert_eq!(Request::decode(&request.encode()), Some(request));
        let mut bad = request.encode();
        bad[0] ^= 1;
        assert_eq!(Request::decode(&bad), None);
    }

    #[test]
    fn magic_numbers_spell_the_protocols_words() {
        assert_eq!(&MAGIC.to_be_bytes(), b"NBDMAGIC");
        assert_eq!(&OPTION_MAGIC.to_be_bytes(), b"IHAVEOPT");
    }

    #[test]
    fn cursor_returns_none_past_the_end() {
        let mut at = Cursor(&[0, 0, 0, 5, 1, 2]);
        assert_eq!(at.string(), None);
        let mut at = Cursor(&[0xff; 6]);
        assert_eq!(at.string(), None);
        assert_eq!(Cursor(&[1, 2]).u16(), Some(0x102));
        assert_eq!(Cursor(&[1]).u16(), None);
    }

    #[test]
    fn errors_unknown_to_the_protocol_become_eio() {
        assert_eq!(error_from_errno(libc::ENOSPC), err::ENOSPC);
        assert_eq!(error_from_errno(libc::EBADF), err::EIO);
        assert_eq!(error_from_errno(-1), err::EIO);
    }
}
