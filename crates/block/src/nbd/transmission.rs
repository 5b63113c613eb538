//! [`Session`], the requests and replies after the handshake, as a state machine over two buffers, without I/O.
//!
//! [`Session::run`] executes every request in the input buffer, on the caller's thread, and appends the replies to
//! the output buffer, so that the driver (`connection.rs`) answers a queue of requests with one system call. Both
//! buffers have a fixed size, however long a request is: a long write is executed in pieces as its data arrives, cut
//! at page boundaries so that no page is written twice, and a long read is answered in pieces as the output buffer
//! drains. The device reads into the output buffer and writes from the input buffer, so data is never copied between
//! buffers.
//!
//! The requests of one connection are executed in the order in which they arrive, but for those that wait for the
//! medium, which other threads execute (`deferred`), with the data that they need in separate memory (`request_memory`). The
//! machine stops at [`OUTPUT_HIGH_WATER`] bytes of unsent replies, and goes on when the driver has sent some of them.

use super::buffer::Buffer;
use super::deferred::{Answer, Deferred, Job};
use super::export::Export;
use super::handshake::Negotiated;
use super::pieces::{MAX_CHUNK_DATA, Reading, Writing, zeroing_waits};
use super::proto::{self, MAX_DATA, Request, chunk, cmd, err, flag};
use super::replies::{MAX_MESSAGE, Refusal, put_data_header, put_error};
use super::reply_times::{Arrival, ReplyTimes};
use super::{ProtocolError, meta};
use crate::{BlockDevice, BlockError};
use pagefold_page::PAGE_SIZE;
use std::os::fd::BorrowedFd;

/// While at least this many bytes are unsent, the session starts no request and no further piece of one.
pub const OUTPUT_HIGH_WATER: usize = 256 << 10;
/// A simple reply to a read up to this length, bytes, is put out only once all data was read, so an error can still be
/// reported. For a longer read the header goes first, and an error closes the connection. The largest request that
/// Linux sends by default is not longer.
const MAX_CHECKED_SIMPLE: usize = 1280 << 10;
/// The most bytes that one step appends to the output besides data.
const REPLY_SLACK: usize = 16 << 10;
/// The capacity that the output buffer of a session needs, bytes.
pub const OUTPUT_LEN: usize = OUTPUT_HIGH_WATER + MAX_CHECKED_SIMPLE + REPLY_SLACK;
/// The least capacity that the input buffer of a session needs, bytes: a header, or a page that is not aligned.
pub const MIN_INPUT_LEN: usize = 2 * PAGE_SIZE;

const _: () = assert!(meta::MAX_STATUS_LEN + 64 < REPLY_SLACK && MAX_MESSAGE + 64 < REPLY_SLACK);

/// Why [`Session::run`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The session needs more input.
    NeedInput,
    /// The driver has to send output first.
    OutputFull,
    /// The client has disconnected; the session waits for requests that other threads execute.
    Closing,
    /// The client has disconnected, or the server stops; send the output and close.
    Closed,
}

/// The state of one client's requests after the handshake.
pub struct Session<'e> {
    export: &'e Export,
    device: &'e dyn BlockDevice,
    negotiated: Negotiated,
    state: State,
    deferred: Deferred,
    /// A long reply to a read that another thread has executed; the output continues with it.
    answering: Option<Answering>,
    times: ReplyTimes,
    has_begun: bool,
}

/// A reply to a read whose data is there.
struct Answering {
    reading: Reading,
    arrival: Option<Arrival>,
    /// For [`Deferred::release`].
    charge_bytes: usize,
}

/// The request in progress, if there is one.
enum State {
    Idle,
    /// The input continues with the data of this write.
    Writing(Writing),
    /// The output continues with the data of this read.
    Reading(Reading),
    Closed,
}

impl<'e> Session<'e> {
    /// Makes the session of a client whose handshake ended in `negotiated`.
    pub fn new(export: &'e Export, negotiated: Negotiated) -> Self {
        let deferred = Deferred::new(export);
        let (device, state) = (export.device().as_ref(), State::Idle);
        let (answering, times) = (None, ReplyTimes::new());
        Session { export, device, negotiated, state, deferred, answering, times, has_begun: false }
    }

    /// Whether other threads execute requests.
    pub fn is_deferring(&self) -> bool {
        self.deferred.count() > 0
    }

    /// Returns a descriptor that is readable if one of these requests may have ended, so that [`Session::run`] puts out
    /// the reply; `None` if there are none.
    pub fn has_answer(&self) -> Option<BorrowedFd<'_>> {
        self.deferred.has_answer()
    }

    /// Notes that the driver has received input.
    pub fn note_received(&mut self) {
        self.times.receive();
    }

    /// Notes that the driver has sent so much of the output.
    pub fn note_sent(&mut self, len_bytes: usize) {
        self.times.send(len_bytes, self.device);
    }

    /// Whether the client has sent a request.
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Executes the requests in `input` until it has no whole one or `output` has no space for replies.
    ///
    /// The capacity of `input` is at least [`MIN_INPUT_LEN`], that of `output` at least [`OUTPUT_LEN`]. After an
    /// error, the caller sends the replies in `output`, which are valid, and closes the connection.
    pub fn run(&mut self, input: &mut Buffer, output: &mut Buffer) -> Result<Status, ProtocolError> {
        loop {
            if self.export.is_stopping() {
                return Ok(Status::Closed);
            }
            if output.len() >= OUTPUT_HIGH_WATER {
                return Ok(Status::OutputFull);
            }
            if let Some(answering) = &mut self.answering {
                output.make_room(MAX_CHUNK_DATA + REPLY_SLACK);
                if answering.reading.append_piece(self.device, self.negotiated.structured, output)? {
                    self.deferred.release(answering.charge_bytes);
                    self.times.answer(answering.arrival, output.len());
                    self.answering = None;
                }
                continue;
            }
            // A reply must not come between the pieces of another one.
            if !matches!(self.state, State::Reading(_))
                && let Some(answer) = self.deferred.take()
            {
                self.put_answer(answer, output);
                continue;
            }
            match &mut self.state {
                State::Idle => {
                    let Some(header) = input.filled().first_chunk() else { return Ok(Status::NeedInput) };
                    let request = Request::decode(header).ok_or(ProtocolError::RequestMagic)?;
                    input.consume(proto::REQUEST_LEN);
                    output.make_room(MAX_CHECKED_SIMPLE + REPLY_SLACK);
                    self.begin(request, output);
                }
                State::Writing(_) if input.is_empty() => return Ok(Status::NeedInput),
                State::Writing(w) => {
                    let n = w.write_piece(self.device, &mut self.deferred, input.filled());
                    input.consume(n);
                    if w.left == 0 {
                        self.finish_write(output);
                    } else if n == 0 {
                        return Ok(Status::NeedInput);
                    }
                }
                State::Reading(r) => {
                    output.make_room(MAX_CHUNK_DATA + REPLY_SLACK);
                    if r.append_piece(self.device, self.negotiated.structured, output)? {
                        self.state = State::Idle;
                    }
                }
                State::Closed => {
                    return Ok(if self.is_deferring() { Status::Closing } else { Status::Closed });
                }
            }
            if matches!(self.state, State::Idle) {
                self.times.answer_current(output.len());
            }
        }
    }

    /// Starts a request, and finishes it if it does not have to wait for data.
    fn begin(&mut self, request: Request, output: &mut Buffer) {
        pagefold_sys::injected_panic::at(|| format!("nbd {}", request.command));
        self.has_begun = true;
        self.times.begin(request.command);
        let checked = self.check(&request);
        match request.command {
            cmd::READ => match checked {
                Ok(()) => self.begin_read(request, output),
                Err(refusal) => self.reply(&request, Err(refusal), output),
            },
            // The client sends the data of a refused write too; skip it as it arrives.
            cmd::WRITE => {
                let is_empty = request.len == 0;
                self.state = State::Writing(Writing::new(request, checked.err()));
                if is_empty {
                    self.finish_write(output);
                }
            }
            cmd::DISC => self.state = State::Closed,
            cmd::BLOCK_STATUS if checked.is_ok() => self.block_status(&request, output),
            cmd::WRITE_ZEROES
                if checked.is_ok()
                    && zeroing_waits(self.device, request.offset, request.len.into())
                    && self.deferred.reserve(PAGE_SIZE) =>
            {
                self.defer(Job { charge_bytes: PAGE_SIZE, ..Job::new(request) }, output);
            }
            _ => {
                let result = checked.and_then(|()| self.execute(&request));
                self.reply(&request, result, output);
            }
        }
    }

    /// Checks the command, flags, permission and range of a request.
    fn check(&self, r: &Request) -> Result<(), Refusal> {
        let invalid = |why: &str| Err(Refusal::new(err::EINVAL, why));
        let structured = self.negotiated.structured;
        let (flags, writes) = match r.command {
            cmd::READ => (if structured { flag::DF } else { 0 }, false),
            cmd::WRITE | cmd::TRIM => (0, true),
            cmd::WRITE_ZEROES => (flag::NO_HOLE | flag::FAST_ZERO, true),
            cmd::FLUSH => (0, false),
            cmd::BLOCK_STATUS if self.negotiated.allocation => (flag::REQ_ONE, false),
            cmd::BLOCK_STATUS => {
                return invalid("block status needs base:allocation, selected in the handshake");
            }
            cmd::DISC => return Ok(()),
            _ => return invalid("unknown command"),
        };
        // The protocol allows FUA with every command; it has no effect on one that does not write.
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

    /// Executes a command without data in its request or reply.
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

    /// Answers a short read in one piece, which is the hot path, and starts a long one.
    fn begin_read(&mut self, request: Request, output: &mut Buffer) {
        let Request { cookie, offset, len, .. } = request;
        let n = len as usize;
        let charge_bytes = n.max(PAGE_SIZE);
        if n > 0 && self.device.waits_for_medium(offset, len.into()) && self.deferred.reserve(charge_bytes) {
            if self.submit(Job { charge_bytes, ..Job::new(request) }).is_ok() {
                return;
            }
            self.deferred.release(charge_bytes);
        }
        let max_whole = if self.negotiated.structured { MAX_CHUNK_DATA } else { MAX_CHECKED_SIMPLE };
        if n > max_whole {
            self.state = State::Reading(Reading::new(request, None));
            return;
        }
        let before = output.len();
        if !self.negotiated.structured {
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

    /// Passes the request in progress to another thread; returns it if there is none.
    fn submit(&mut self, job: Job) -> Result<(), Job> {
        self.deferred.submit(Job { arrival: self.times.current(), ..job })?;
        self.times.leave_current();
        Ok(())
    }

    /// Passes a write of zeroes, or the rest of a write, to another thread, and executes it if there is none.
    fn defer(&mut self, job: Job, output: &mut Buffer) {
        if let Err(job) = self.submit(job) {
            let result = job.execute(self.device);
            self.deferred.release(job.charge_bytes);
            self.reply(&job.request, result.map(|_| ()).map_err(Refusal::from), output);
        }
    }

    /// Replies to a request that another thread has executed, or begins a long reply.
    fn put_answer(&mut self, (job, result): Answer, output: &mut Buffer) {
        let Job { request, arrival, charge_bytes, .. } = job;
        output.make_room(MAX_CHECKED_SIMPLE + REPLY_SLACK);
        match result {
            Ok(_) if request.command != cmd::READ => self.reply(&request, Ok(()), output),
            Ok(data) if data.len() > MAX_CHUNK_DATA => {
                let reading = Reading::new(request, Some(data));
                self.answering = Some(Answering { reading, arrival, charge_bytes });
                return;
            }
            Ok(data) => {
                match self.negotiated.structured {
                    true => put_data_header(output, &request, request.offset, request.len, proto::CHUNK_DONE),
                    false => output.put(&proto::simple_reply(request.cookie, 0)),
                }
                output.put(&data);
            }
            Err(error) => self.reply(&request, Err(error.into()), output),
        }
        self.deferred.release(charge_bytes);
        self.times.answer(arrival, output.len());
    }

    /// Replies to a write whose data has all arrived.
    fn finish_write(&mut self, output: &mut Buffer) {
        if let State::Writing(w) = std::mem::replace(&mut self.state, State::Idle) {
            output.make_room(REPLY_SLACK);
            let Writing { job, failed, .. } = w;
            if failed.is_none() && !job.parts.is_empty() {
                return self.defer(job, output);
            }
            self.deferred.release(job.charge_bytes);
            let mut result = failed.map_or(Ok(()), Err);
            if result.is_ok() && job.request.flags & flag::FUA != 0 {
                result = self.device.flush().map_err(Refusal::from);
            }
            self.reply(&job.request, result, output);
        }
    }

    fn block_status(&self, r: &Request, output: &mut Buffer) {
        let mut data = Vec::with_capacity(64);
        meta::put_extents(self.device, r.offset, r.len, r.flags & flag::REQ_ONE != 0, &mut data);
        let len = data.len() as u32;
        output.put(&proto::chunk_header(r.cookie, chunk::BLOCK_STATUS, proto::CHUNK_DONE, len));
        output.put(&data);
    }

    /// Appends a reply without data. Success is a simple reply even with structured replies: the protocol allows that
    /// for every command but a read, and it is shorter.
    fn reply(&self, r: &Request, result: Result<(), Refusal>, output: &mut Buffer) {
        match result {
            Ok(()) => output.put(&proto::simple_reply(r.cookie, 0)),
            Err(refusal) if self.negotiated.structured => put_error(output, r.cookie, &refusal, None),
            Err(refusal) => output.put(&proto::simple_reply(r.cookie, refusal.error)),
        }
    }
}
