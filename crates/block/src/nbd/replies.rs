//! Headers of data, and errors, in the replies to requests.

use super::buffer::Buffer;
use super::proto::{self, Request, chunk};
use crate::BlockError;

/// The longest message in an error reply, bytes.
pub const MAX_MESSAGE: usize = 512;

/// The error that a reply will report.
pub struct Refusal {
    pub error: u32,
    pub message: String,
}

impl Refusal {
    pub fn new(error: u32, message: impl Into<String>) -> Self {
        Refusal { error, message: message.into() }
    }
}

impl From<BlockError> for Refusal {
    fn from(e: BlockError) -> Self {
        Refusal::new(proto::error_from_errno(e.errno()), e.to_string())
    }
}

/// Appends the header of a chunk with `len` bytes of data from `offset`.
pub fn put_data_header(output: &mut Buffer, r: &Request, offset: u64, len: u32, flags: u16) {
    output.put(&proto::chunk_header(r.cookie, chunk::OFFSET_DATA, flags, len + 8));
    output.put(&offset.to_be_bytes());
}

/// Appends a last chunk with an error: its number, its message, and its offset if that is known.
pub fn put_error(output: &mut Buffer, cookie: u64, refusal: &Refusal, offset: Option<u64>) {
    let mut end = refusal.message.len().min(MAX_MESSAGE);
    while !refusal.message.is_char_boundary(end) {
        end -= 1;
    }
    let message = &refusal.message.as_bytes()[..end];
    let (kind, extra) = if offset.is_some() { (chunk::ERROR_OFFSET, 8) } else { (chunk::ERROR, 0) };
    let len = (6 + message.len() + extra) as u32;
    output.put(&proto::chunk_header(cookie, kind, proto::CHUNK_DONE, len));
    output.put(&refusal.error.to_be_bytes());
    output.put(&(message.len() as u16).to_be_bytes());
    output.put(message);
    if let Some(offset) = offset {
        output.put(&offset.to_be_bytes());
    }
}
