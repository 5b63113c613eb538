//! Requests and replies: a machine over two buffers, without I/O.
//!
//! [`Session::run`] executes every request that is whole in the input and appends
//! the replies to the output, so that the driver can answer a queue of requests
//! with one system call. Both buffers have a fixed size whatever a client asks for:
//! a write is executed piece by piece as its data arrives, cut at page borders so that no page is
//! written twice, and a long read is answered piece by piece as the output
//! drains. Reads land in the output buffer itself; data is never copied between
//! buffers.
//!
//! Requests of one connection are executed in the order they came. The machine
//! stops at [`OUTPUT_HIGH_WATER`] bytes of unsent replies and goes on from there.

use super::buffer::Buffer;
use super::export::{Export, MAX_DATA};
use super::handshake::Agreed;
use super::proto::{self, Request, chunk, cmd, err, flag};
use super::{ProtocolError, meta};
use crate::{BlockDevice, BlockError};
use pagefold_page::PAGE_SIZE;

/// Unsent bytes from which on no request is begun.
pub const OUTPUT_HIGH_WATER: usize = 256 << 10;
/// The most data in one chunk of a structured reply without "don't fragment".
const PIECE: usize = 256 << 10;
/// The most data of a simple reply that is read before the reply begins. An error found
/// later can only be told by hanging up, so this covers the largest request Linux sends by default.
const WHOLE_SIMPLE: usize = 1280 << 10;
/// The most that one step appends to the output beyond data.
const REPLY_SLACK: usize = 16 << 10;
/// Bytes the output buffer of a session must be able to hold.
pub const OUTPUT_LEN: usize = OUTPUT_HIGH_WATER + WHOLE_SIMPLE + REPLY_SLACK;
/// The least bytes the input buffer of a session must be able to hold: a header, or a page.
pub const MIN_INPUT_LEN: usize = 2 * PAGE_SIZE;
/// The longest message in an error reply, bytes.
const MAX_MESSAGE: usize = 512;

const _: () = assert!(meta::MAX_STATUS_LEN + 64 < REPLY_SLACK && MAX_MESSAGE + 64 < REPLY_SLACK);

/// Why [`Session::run`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Nothing more can be done without more input.
    NeedInput,
    /// Nothing more should be done before output is sent.
    OutputFull,
    /// The client said goodbye; send the output and close.
    Closed,
}

/// One client's requests after the handshake.
pub struct Session<'e> {
    export: &'e Export,
    device: &'e dyn BlockDevice,
    agreed: Agreed,
    state: State,
    has_begun: bool,
}

/// What the next byte of input or output belongs to.
enum State {
    Idle,
    /// Data of a write follows in the input.
    Writing(Writing),
    /// Data of a read follows in the output.
    Reading(Reading),
    Closed,
}

struct Writing {
    request: Request,
    offset: u64,
    left: u32,
    /// What the reply will say; once set, the rest of the data is only skipped.
    failed: Option<Refusal>,
}

struct Reading {
    request: Request,
    offset: u64,
    left: u32,
    /// The header that announces all data was sent: a simple reply, or "don't fragment".
    announced: bool,
    /// Set when reading failed under an announced header: the rest is sent as zeroes.
    failed: Option<(BlockError, u64)>,
}

/// An error reply in the making.
struct Refusal {
    error: u32,
    message: String,
}

impl Refusal {
    fn new(error: u32, message: impl Into<String>) -> Self {
        Refusal { error, message: message.into() }
    }
}

impl From<BlockError> for Refusal {
    fn from(e: BlockError) -> Self {
        Refusal::new(proto::error_from_errno(e.errno()), e.to_string())
    }
}

impl<'e> Session<'e> {
    /// A session after a handshake that ended in `agreed`.
    pub fn new(export: &'e Export, agreed: Agreed) -> Self {
        Session { export, device: export.device().as_ref(), agreed, state: State::Idle, has_begun: false }
    }

    /// Whether a request has come.
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Executes what is in `input` until it or the room for replies runs out.
    ///
    /// `input` holds at least [`MIN_INPUT_LEN`] and `output` at least [`OUTPUT_LEN`] bytes of
    /// capacity. After an error the connection is to be closed; replies in `output` are still good.
    pub fn run(&mut self, input: &mut Buffer, output: &mut Buffer) -> Result<Status, ProtocolError> {
        loop {
            if output.len() >= OUTPUT_HIGH_WATER {
                return Ok(Status::OutputFull);
            }
            match &mut self.state {
                State::Idle => {
                    let Some(header) = input.filled().first_chunk() else { return Ok(Status::NeedInput) };
                    let request = Request::decode(header).ok_or(ProtocolError::RequestMagic)?;
                    input.consume(proto::REQUEST_LEN);
                    output.make_room(WHOLE_SIMPLE + REPLY_SLACK);
                    self.begin(request, output);
                }
                State::Writing(_) if input.is_empty() => return Ok(Status::NeedInput),
                State::Writing(w) => {
                    let n = w.piece(self.device, input.filled());
                    input.consume(n);
                    if w.left == 0 {
                        self.finish_write(output);
                    } else if n == 0 {
                        return Ok(Status::NeedInput);
                    }
                }
                State::Reading(r) => {
                    output.make_room(PIECE + REPLY_SLACK);
                    if r.piece(self.device, self.agreed.structured, output)? {
                        self.state = State::Idle;
                    }
                }
                State::Closed => return Ok(Status::Closed),
            }
        }
    }

    /// Starts a request, and finishes it at once where it has no data to wait for.
    fn begin(&mut self, request: Request, output: &mut Buffer) {
        self.has_begun = true;
        let checked = self.check(&request);
        match request.command {
            cmd::READ => match checked {
                Ok(()) => self.begin_read(request, output),
                Err(refusal) => self.reply(&request, Err(refusal), output),
            },
            // The data of a refused write is on its way and is skipped like written data.
            cmd::WRITE => {
                let Request { offset, len, .. } = request;
                let writing = Writing { request, offset, left: len, failed: checked.err() };
                self.state = State::Writing(writing);
                if len == 0 {
                    self.finish_write(output);
                }
            }
            cmd::DISC => self.state = State::Closed,
            cmd::BLOCK_STATUS if checked.is_ok() => self.block_status(&request, output),
            _ => {
                let outcome = checked.and_then(|()| self.execute(&request));
                self.reply(&request, outcome, output);
            }
        }
    }

    /// Whether a request may be executed at all: flags, rights, range.
    fn check(&self, r: &Request) -> Result<(), Refusal> {
        let invalid = |why: &str| Err(Refusal::new(err::EINVAL, why));
        let structured = self.agreed.structured;
        let (flags, writes) = match r.command {
            cmd::READ => (if structured { flag::DF } else { 0 }, false),
            cmd::WRITE | cmd::TRIM => (0, true),
            cmd::WRITE_ZEROES => (flag::NO_HOLE | flag::FAST_ZERO, true),
            cmd::FLUSH => (0, false),
            cmd::BLOCK_STATUS if self.agreed.allocation => (flag::REQ_ONE, false),
            cmd::BLOCK_STATUS => {
                return invalid("block status needs base:allocation, selected in the handshake");
            }
            cmd::DISC => return Ok(()),
            _ => return invalid("unknown command"),
        };
        // FUA means nothing to a command that does not write, and is allowed with all.
        if r.flags & !(flags | flag::FUA) != 0 {
            return invalid("unknown flags for this command");
        }
        if writes && self.export.is_read_only() {
            return Err(BlockError::ReadOnly.into());
        }
        if matches!(r.command, cmd::READ | cmd::WRITE) && r.len > MAX_DATA {
            return invalid("more data than the maximum block size");
        }
        if r.command == cmd::FLUSH {
            let zero = r.offset == 0 && r.len == 0;
            return if zero { Ok(()) } else { invalid("a flush has no offset and no length") };
        }
        if r.command == cmd::BLOCK_STATUS && r.len == 0 {
            return invalid("a block status of no bytes");
        }
        self.device.check_range(r.offset, u64::from(r.len)).map_err(|e| match r.command {
            cmd::WRITE | cmd::WRITE_ZEROES => Refusal::new(err::ENOSPC, e.to_string()),
            _ => e.into(),
        })
    }

    /// Commands without data, in or out.
    fn execute(&self, r: &Request) -> Result<(), Refusal> {
        let len = u64::from(r.len);
        match r.command {
            _ if len == 0 && r.command != cmd::FLUSH => {}
            cmd::TRIM => self.device.discard(r.offset, len)?,
            cmd::WRITE_ZEROES => self.device.write_zeroes(r.offset, len)?,
            _ => {}
        }
        if r.command == cmd::FLUSH || r.flags & flag::FUA != 0 {
            self.device.flush()?;
        }
        Ok(())
    }

    /// Answers a short read in one piece, which is the path that matters; begins a long one.
    fn begin_read(&mut self, request: Request, output: &mut Buffer) {
        let Request { cookie, offset, len, .. } = request;
        let n = len as usize;
        let whole = if self.agreed.structured { PIECE } else { WHOLE_SIMPLE };
        if n > whole {
            let (announced, failed) = (false, None);
            self.state = State::Reading(Reading { request, offset, left: len, announced, failed });
            return;
        }
        let before = output.len();
        if !self.agreed.structured {
            output.put(&proto::simple_reply(cookie, 0));
        } else if n == 0 {
            output.put(&proto::chunk_header(cookie, chunk::NONE, proto::CHUNK_DONE, 0));
        } else {
            put_data_header(output, &request, offset, len, proto::CHUNK_DONE);
        }
        if n > 0
            && let Err(e) = self.device.read_at(offset, output.grow(n))
        {
            output.truncate(before);
            self.reply(&request, Err(e.into()), output);
        }
    }

    fn finish_write(&mut self, output: &mut Buffer) {
        if let State::Writing(w) = std::mem::replace(&mut self.state, State::Idle) {
            let mut outcome = w.failed.map_or(Ok(()), Err);
            if outcome.is_ok() && w.request.flags & flag::FUA != 0 {
                outcome = self.device.flush().map_err(Refusal::from);
            }
            output.make_room(REPLY_SLACK);
            self.reply(&w.request, outcome, output);
        }
    }

    fn block_status(&self, r: &Request, output: &mut Buffer) {
        let mut data = Vec::with_capacity(64);
        meta::put_extents(self.device, r.offset, r.len, r.flags & flag::REQ_ONE != 0, &mut data);
        let len = data.len() as u32;
        output.put(&proto::chunk_header(r.cookie, chunk::BLOCK_STATUS, proto::CHUNK_DONE, len));
        output.put(&data);
    }

    /// A reply without data. Success is told by a simple reply even to clients with structured
    /// replies: the protocol allows it for all commands that return no data, and it is shorter.
    fn reply(&self, r: &Request, outcome: Result<(), Refusal>, output: &mut Buffer) {
        match outcome {
            Ok(()) => output.put(&proto::simple_reply(r.cookie, 0)),
            Err(refusal) if self.agreed.structured => put_error(output, r.cookie, &refusal, None),
            Err(refusal) => output.put(&proto::simple_reply(r.cookie, refusal.error)),
        }
    }
}

impl Writing {
    /// Takes what it can of `data`, the front of the input; returns how much that was.
    ///
    /// Short of the whole request it takes up to a page border, so that every page is written once.
    fn piece(&mut self, device: &dyn BlockDevice, data: &[u8]) -> usize {
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
        // The offset of a refused write may be anything, and is of no more use.
        if self.failed.is_none() {
            self.offset += n as u64;
        }
        self.left -= n as u32;
        n
    }
}

impl Reading {
    /// Appends the next piece of the reply; whether that was the last one.
    fn piece(
        &mut self,
        device: &dyn BlockDevice,
        structured: bool,
        output: &mut Buffer,
    ) -> Result<bool, ProtocolError> {
        let n = (self.left as usize).min(PIECE);
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

    /// The last word after a single announced chunk, which could not carry "done" before its data
    /// was known to be good.
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

/// The header of a chunk with `len` bytes of data from `offset`.
fn put_data_header(output: &mut Buffer, r: &Request, offset: u64, len: u32, flags: u16) {
    output.put(&proto::chunk_header(r.cookie, chunk::OFFSET_DATA, flags, len + 8));
    output.put(&offset.to_be_bytes());
}

/// A last chunk that tells an error, in words too, and where it is known, at which byte.
fn put_error(output: &mut Buffer, cookie: u64, refusal: &Refusal, offset: Option<u64>) {
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
