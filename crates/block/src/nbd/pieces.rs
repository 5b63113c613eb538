//! Long requests in pieces: a write as its data arrive, and a read as the output has room.

use super::ProtocolError;
use super::buffer::Buffer;
use super::proto::{self, Request, chunk, flag};
use super::replies::{Refusal, put_data_header, put_error};
use crate::{BlockDevice, BlockError};
use pagefold_page::PAGE_SIZE;

/// The most data in one chunk of a structured reply without "don't fragment", bytes.
pub const MAX_CHUNK_DATA: usize = 256 << 10;

/// A write whose data have not all arrived.
pub struct Writing {
    pub request: Request,
    pub offset: u64,
    pub left: u32,
    /// The error of the reply. Once it is set, the rest of the data is skipped.
    pub failed: Option<Refusal>,
}

/// A read whose reply is not complete.
pub struct Reading {
    pub request: Request,
    pub offset: u64,
    pub left: u32,
    /// Whether the one header for all of the data was appended: that of a simple reply, or of the only chunk under
    /// "don't fragment".
    pub announced: bool,
    /// The error and offset of a read that failed after such a header; the rest is sent as zeroes.
    pub failed: Option<(BlockError, u64)>,
}

impl Writing {
    /// Writes as much of `data`, the filled input, as possible, and returns the number of bytes consumed.
    ///
    /// If the rest of the request has not arrived, it writes up to a page boundary, so that every page is written once.
    pub fn write_piece(&mut self, device: &dyn BlockDevice, data: &[u8]) -> usize {
        let left = self.left as usize;
        let mut n = data.len().min(left);
        if self.failed.is_none() {
            if n < left {
                let end = self.offset + n as u64;
                n = n.saturating_sub((end % PAGE_SIZE as u64) as usize);
            }
            if n > 0
                && let Err(e) = device.write_at(self.offset, &data[..n])
            {
                self.failed = Some(e.into());
            }
        }
        // After a refusal the offset may be any number, so adding to it could overflow.
        if self.failed.is_none() {
            self.offset += n as u64;
        }
        self.left -= n as u32;
        n
    }
}

impl Reading {
    /// Appends the next piece of the reply. Returns whether it was the last one.
    pub fn append_piece(
        &mut self,
        device: &dyn BlockDevice,
        structured: bool,
        output: &mut Buffer,
    ) -> Result<bool, ProtocolError> {
        let n = (self.left as usize).min(MAX_CHUNK_DATA);
        let last = n == self.left as usize;
        let before = output.len();
        let fragment = structured && self.request.flags & flag::DF == 0;
        if fragment {
            let flags = if last { proto::CHUNK_DONE } else { 0 };
            put_data_header(output, &self.request, self.offset, n as u32, flags);
        } else if !self.announced {
            self.announced = true;
            match structured {
                true => put_data_header(output, &self.request, self.offset, self.left, 0),
                false => output.put(&proto::simple_reply(self.request.cookie, 0)),
            }
        }
        let room = output.grow(n);
        if self.failed.is_some() {
            room.fill(0);
        } else if let Err(e) = device.read_at(self.offset, room) {
            if fragment {
                output.truncate(before);
                put_error(output, self.request.cookie, &e.into(), Some(self.offset));
                return Ok(true);
            }
            if !structured {
                output.truncate(before);
                return Err(ProtocolError::ReadFailedLate);
            }
            room.fill(0);
            self.failed = Some((e, self.offset));
        }
        self.offset += n as u64;
        self.left -= n as u32;
        if last && structured && !fragment {
            self.end_unfragmented(output);
        }
        Ok(last)
    }

    /// Appends the last chunk of a "don't fragment" reply. The data chunk before it could not carry "done": its data
    /// was not known to be valid when its header was sent.
    fn end_unfragmented(&mut self, output: &mut Buffer) {
        match self.failed.take() {
            Some((e, offset)) => put_error(output, self.request.cookie, &e.into(), Some(offset)),
            None => {
                let done = proto::chunk_header(self.request.cookie, chunk::NONE, proto::CHUNK_DONE, 0);
                output.put(&done);
            }
        }
    }
}
