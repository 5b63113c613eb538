//! Long requests in pieces: a write as its data arrive, and a read as the output has space.
//!
//! A write sets parts aside that wait for the medium, so that a thread writes them (`deferred`): the parts of pages at
//! its two ends, whose pages are read, and at the memory limit all that arrives. If the connection has no memory for a
//! part, it is written at once, and the connection waits.

use super::ProtocolError;
use super::buffer::Buffer;
use super::deferred::{Deferred, Job, WritePart};
use super::proto::{self, Request, chunk, flag};
use super::replies::{Refusal, put_data_header, put_error};
use crate::{BlockDevice, BlockError};
use pagefold_page::PAGE_SIZE;

/// The most data in one chunk of a structured reply without "don't fragment", bytes.
pub const MAX_CHUNK_DATA: usize = 256 << 10;

/// A write whose data have not all arrived.
pub struct Writing {
    /// The request, with the parts that were not written, because that waits for the medium.
    pub job: Job,
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
    /// All of the data, if it was read before; otherwise each piece is read from the device.
    pub data: Option<Vec<u8>>,
}

/// Returns the lengths of the parts of pages at the two ends of a range of bytes, 0 for an end at a page boundary. A
/// range inside one page is its first part.
fn partial_pages(offset: u64, len_bytes: u64) -> (u64, u64) {
    let page = PAGE_SIZE as u64;
    let head = ((page - offset % page) % page).min(len_bytes);
    let tail = if head == len_bytes { 0 } else { (offset + len_bytes) % page };
    (head, tail)
}

/// Whether a write of zeroes to this range waits for the medium: it changes a part of a page, and that page is not in
/// memory, or there is no memory for the changed one. Whole pages of zeroes need no memory.
pub fn zeroing_waits(device: &dyn BlockDevice, offset: u64, len_bytes: u64) -> bool {
    let (head, tail) = partial_pages(offset, len_bytes);
    head + tail > 0 && device.waits_for_room(head + tail)
        || head > 0 && device.waits_for_medium(offset, head)
        || tail > 0 && device.waits_for_medium(offset + len_bytes - tail, tail)
}

impl Writing {
    /// Makes a write of which nothing was written.
    pub fn new(request: Request, failed: Option<Refusal>) -> Self {
        let (offset, left) = (request.offset, request.len);
        Writing { job: Job::new(request), offset, left, failed }
    }

    /// Writes as much of `data`, the filled input, as possible, and returns the number of bytes consumed.
    ///
    /// If the rest of the request has not arrived, it writes up to a page boundary, so that every page is written once.
    pub fn write_piece(&mut self, device: &dyn BlockDevice, deferred: &mut Deferred, data: &[u8]) -> usize {
        let left = self.left as usize;
        let mut n = data.len().min(left);
        if self.failed.is_none() {
            if n < left {
                let end = self.offset + n as u64;
                n = n.saturating_sub((end % PAGE_SIZE as u64) as usize);
            }
            if n > 0
                && let Err(e) = self.write_or_set_aside(device, deferred, &data[..n])
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

    /// Writes data at the current offset, except for what waits for the medium: that is kept for the end of the request.
    fn write_or_set_aside(
        &mut self,
        device: &dyn BlockDevice,
        deferred: &mut Deferred,
        data: &[u8],
    ) -> Result<(), BlockError> {
        if device.waits_for_room(data.len() as u64) && self.set_aside(deferred, self.offset, data) {
            self.job.waits_for_memory = true;
            return Ok(());
        }
        let (head, tail) = partial_pages(self.offset, data.len() as u64);
        let tail_offset = self.offset + data.len() as u64 - tail;
        let waits = |offset, len| len > 0 && device.waits_for_medium(offset, len);
        let head = if waits(self.offset, head) { head as usize } else { 0 };
        let tail = if waits(tail_offset, tail) { tail as usize } else { 0 };
        let (first, rest) = data.split_at(head);
        let (middle, last) = rest.split_at(rest.len() - tail);
        if !middle.is_empty() {
            device.write_at(self.offset + head as u64, middle)?;
        }
        for (offset, part) in [(self.offset, first), (tail_offset, last)] {
            if !part.is_empty() && !self.set_aside(deferred, offset, part) {
                device.write_at(offset, part)?;
            }
        }
        Ok(())
    }

    /// Keeps data for the end of the request. Returns false if there is no memory for it. Each part counts for a page at
    /// least, so that the number of parts is limited too.
    fn set_aside(&mut self, deferred: &mut Deferred, offset: u64, data: &[u8]) -> bool {
        let charge_bytes = data.len().max(PAGE_SIZE);
        if !deferred.reserve(charge_bytes) {
            return false;
        }
        self.job.charge_bytes += charge_bytes;
        self.job.parts.push(WritePart { offset, data: data.to_vec() });
        true
    }
}

impl Reading {
    /// Makes a read of which nothing was replied. `data` is all of its data, if it was read.
    pub fn new(request: Request, data: Option<Vec<u8>>) -> Self {
        let (announced, failed) = (false, None);
        Reading { request, offset: request.offset, left: request.len, announced, failed, data }
    }

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
        let space = output.grow(n);
        if self.failed.is_some() {
            space.fill(0);
        } else if let Some(data) = &self.data {
            let at = (self.offset - self.request.offset) as usize;
            space.copy_from_slice(&data[at..at + n]);
        } else if let Err(e) = device.read_at(self.offset, space) {
            if fragment {
                output.truncate(before);
                put_error(output, self.request.cookie, &e.into(), Some(self.offset));
                return Ok(true);
            }
            if !structured {
                output.truncate(before);
                return Err(ProtocolError::ReadFailedLate);
            }
            space.fill(0);
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
