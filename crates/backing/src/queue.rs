//! Many requests at once.

use crate::{Backing, BackingError, Buffer};
use std::collections::VecDeque;

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Fill the buffer.
    Read,
    /// Store the buffer.
    Write,
}

/// One request, owner of its buffer.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    /// The submitter's own number for it.
    pub id: u64,
    /// What to do.
    pub operation: Operation,
    /// Where, bytes.
    pub offset: u64,
    /// With what.
    pub buf: Buffer,
    /// How many bytes of the buffer, from its start, take part; at most its length.
    pub len_bytes: usize,
}

impl Request {
    /// Does this one request and waits for it.
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

/// A request that has come back, done or not.
#[derive(Debug)]
pub struct Completion {
    /// The request, buffer included.
    pub request: Request,
    /// What became of it.
    pub result: Result<(), BackingError>,
}

/// Requests in flight of one submitter. Dropping it waits for them.
///
/// Requests in flight together are not ordered among each other, even where they overlap.
pub trait Queue: Send {
    /// Takes a request; a full queue gives it back. It may start no sooner than [`Queue::start`] or
    /// [`Queue::complete`], so that many can start with one system call.
    fn submit(&mut self, request: Request) -> Result<(), Completion>;

    /// Starts what was submitted, for those who have something else to do before they wait.
    fn start(&mut self) {}

    /// Waits until `min` requests (or all in flight, if fewer) have completed and appends these and any
    /// others that have to `done`, in any order. Returns how many.
    fn complete(&mut self, min: usize, done: &mut Vec<Completion>) -> usize;

    /// Requests submitted and not yet returned by [`Queue::complete`].
    fn in_flight(&self) -> usize;
}

/// A queue for media that answer at once: each request is done when it is completed.
pub struct SyncQueue<'a> {
    backing: &'a dyn Backing,
    depth: usize,
    waiting: VecDeque<Request>,
}

impl<'a> SyncQueue<'a> {
    /// A queue of `depth` (at least 1) on `backing`.
    pub fn new(backing: &'a dyn Backing, depth: usize) -> Self {
        SyncQueue { backing, depth: depth.max(1), waiting: VecDeque::new() }
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
}

impl Drop for SyncQueue<'_> {
    fn drop(&mut self) {
        self.complete(usize::MAX, &mut Vec::new());
    }
}
