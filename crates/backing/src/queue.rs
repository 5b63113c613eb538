//! Queues: many requests in flight at once, of one submitter.
//!
//! [`Queue`] is the trait; [`SyncQueue`] is the simple implementation, for media without asynchronous I/O. The other
//! one is an io_uring ring (`file/uring.rs`).

use crate::{Backing, BackingError, Buffer};
use std::collections::VecDeque;

/// The operation of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Fill the buffer.
    Read,
    /// Store the buffer.
    Write,
}

/// One read or write. It owns its buffer.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    /// A number that the submitter chooses; the queue does not use it.
    pub id: u64,
    /// Read or write.
    pub operation: Operation,
    /// First byte on the medium.
    pub offset: u64,
    /// The buffer that is filled or stored.
    pub buf: Buffer,
    /// Bytes to transfer, from the buffer's start; at most the buffer's length.
    pub len_bytes: usize,
}

impl Request {
    /// Runs this request alone and waits for it.
    pub fn run(&mut self, backing: &dyn Backing) -> Result<(), BackingError> {
        let (len_bytes, buf_len_bytes) = (self.len_bytes, self.buf.len());
        let bytes = self.buf.get_mut(..len_bytes);
        let bytes = bytes.ok_or(BackingError::ShortBuffer { len_bytes, buf_len_bytes })?;
        match self.operation {
            Operation::Read => backing.read_at(self.offset, bytes),
            Operation::Write => backing.write_at(self.offset, bytes),
        }
    }
}

/// A request that the queue returns, with its result.
#[derive(Debug)]
pub struct Completion {
    /// The request with its buffer.
    pub request: Request,
    /// Whether it succeeded.
    pub result: Result<(), BackingError>,
}

/// The requests in flight of one submitter. Dropping the queue waits for them.
///
/// Requests that are in flight together may run in any order, even if their ranges overlap.
pub trait Queue: Send {
    /// Adds a request. A full queue returns it with [`BackingError::QueueFull`]. The request may wait for
    /// [`Queue::start`] or [`Queue::complete`], so that many requests start with one system call.
    fn submit(&mut self, request: Request) -> Result<(), Completion>;

    /// Starts the submitted requests without waiting, for a caller that has other work before it waits.
    fn start(&mut self) {}

    /// Waits until `min` requests (or all in flight, if fewer) have completed. Appends all completed requests to
    /// `done`, in any order, and returns their number.
    fn complete(&mut self, min: usize, done: &mut Vec<Completion>) -> usize;

    /// Requests submitted and not yet returned by [`Queue::complete`].
    fn in_flight(&self) -> usize;

    /// Whether the queue works, but a new one might be faster: the kernel refused a ring, or refuses requests on this
    /// one. The owner of a long-lived queue checks this while no request is in flight.
    fn is_degraded(&self) -> bool {
        false
    }

    /// Tries again to register the buffers with the kernel, if it has refused that. For the owner of a long-lived queue
    /// that has replaced another: while both existed, they were more than the kernel lets a user lock. No request is in
    /// flight.
    fn register_again(&mut self) {}
}

/// A queue without asynchronous I/O: `complete` runs the requests one after the other in the calling thread.
pub struct SyncQueue<'a> {
    backing: &'a dyn Backing,
    depth: usize,
    is_fallback: bool,
    waiting: VecDeque<Request>,
}

impl<'a> SyncQueue<'a> {
    /// Makes a queue of `depth` (at least 1) on `backing`.
    pub fn new(backing: &'a dyn Backing, depth: usize) -> Self {
        SyncQueue { backing, depth: depth.max(1), is_fallback: false, waiting: VecDeque::new() }
    }

    /// Makes a queue that reports itself as degraded, because the ring could not be created.
    pub(crate) fn fallback(backing: &'a dyn Backing, depth: usize) -> Self {
        SyncQueue { backing, depth: depth.max(1), is_fallback: true, waiting: VecDeque::new() }
    }
}

impl Queue for SyncQueue<'_> {
    fn submit(&mut self, request: Request) -> Result<(), Completion> {
        if self.waiting.len() >= self.depth {
            return Err(Completion { request, result: Err(BackingError::QueueFull { depth: self.depth }) });
        }
        self.waiting.push_back(request);
        Ok(())
    }

    fn complete(&mut self, min: usize, done: &mut Vec<Completion>) -> usize {
        let count = min.min(self.waiting.len());
        for mut request in self.waiting.drain(..count) {
            let result = request.run(self.backing);
            done.push(Completion { request, result });
        }
        count
    }

    fn in_flight(&self) -> usize {
        self.waiting.len()
    }

    fn is_degraded(&self) -> bool {
        self.is_fallback
    }
}

impl Drop for SyncQueue<'_> {
    fn drop(&mut self) {
        self.complete(usize::MAX, &mut Vec::new());
    }
}
