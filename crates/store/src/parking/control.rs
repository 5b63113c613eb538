//! The write-back control: the requests of one pass, idle and in flight.
//!
//! Made by the pass and handed to whoever submits for it; separate from the selection
//! of pages. A request is idle or in flight, never looked for by a flag: take an idle
//! one, or wait for completions and recycle them. One routine waits, and there is no
//! thread. Dropping it waits for what is in flight, so that no completion can come to
//! something that is gone.

use crate::parking::request::WriteRequest;
use pagefold_backing::{Backing, BackingError, Buffers, Completion, Operation, Queue, Request};

/// Requests that a queue is made for at least.
const DEPTH_MIN: usize = 64;

/// What became of a write.
pub(crate) struct Completed {
    pub(crate) request: WriteRequest,
    pub(crate) result: Result<(), BackingError>,
}

/// The requests of one pass.
pub(crate) struct Control<'a> {
    backing: &'a dyn Backing,
    buffers: &'a Buffers,
    queue: Box<dyn Queue + 'a>,
    depth: usize,
    /// Length of a request's buffer, bytes.
    buf_len: usize,
    idle: Vec<WriteRequest>,
    in_flight: Vec<WriteRequest>,
    pages_in_flight: usize,
    /// Requests submitted since the queue was last started.
    not_started: usize,
    made: u64,
    done: Vec<Completion>,
}

impl<'a> Control<'a> {
    /// A control with requests of `buf_len` bytes and at first no more than `batch` in flight.
    pub(crate) fn new(
        backing: &'a dyn Backing,
        buffers: &'a Buffers,
        buf_len: usize,
        batch: usize,
    ) -> Result<Self, BackingError> {
        let depth = batch.max(DEPTH_MIN);
        Ok(Control {
            backing,
            buffers,
            queue: backing.queue(depth, buffers)?,
            depth,
            buf_len,
            idle: Vec::new(),
            in_flight: Vec::new(),
            pages_in_flight: 0,
            not_started: 0,
            made: 0,
            done: Vec::new(),
        })
    }

    /// An idle request; a new one if there is none.
    pub(crate) fn take_idle(&mut self) -> WriteRequest {
        if let Some(request) = self.idle.pop() {
            return request;
        }
        self.made += 1;
        WriteRequest::new(self.made, self.buffers.required(self.buf_len))
    }

    /// Makes a request idle.
    pub(crate) fn recycle(&mut self, mut request: WriteRequest) {
        request.entries.clear();
        request.len = 0;
        self.idle.push(request);
    }

    /// Whether so many more pages may be in flight: always, if none are. No more requests than the queue was
    /// made for, though the batch size may have been raised since.
    pub(crate) fn has_room(&self, pages: usize, batch: usize) -> bool {
        let fits = self.pages_in_flight + pages <= batch && self.in_flight.len() < self.depth;
        self.in_flight.is_empty() || fits
    }

    /// Whether anything is in flight.
    pub(crate) fn is_busy(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Submits a request. `batch` is how many pages may be in flight; a queue too small for it is replaced,
    /// which the caller allows by having nothing in flight then.
    ///
    /// Returns the request if the queue refused it.
    pub(crate) fn submit(&mut self, mut request: WriteRequest, batch: usize) -> Option<Completed> {
        if self.depth < batch
            && self.in_flight.is_empty()
            && let Ok(queue) = self.backing.queue(batch, self.buffers)
        {
            (self.queue, self.depth) = (queue, batch);
        }
        let Some(buf) = request.buf.take() else {
            let result = Err(BackingError::ShortBuffer { len_bytes: request.len, buf_len_bytes: 0 });
            return Some(Completed { request, result });
        };
        let (id, offset, len_bytes) = (request.id, request.offset, request.len);
        match self.queue.submit(Request { id, operation: Operation::Write, offset, buf, len_bytes }) {
            Ok(()) => {
                self.pages_in_flight += request.entries.len();
                self.in_flight.push(request);
                self.not_started += 1;
                // Starting costs a system call: a few small requests share one.
                if self.not_started * 4 >= batch || len_bytes >= 1 << 16 {
                    self.queue.start();
                    self.not_started = 0;
                }
                None
            }
            Err(Completion { request: back, result }) => {
                request.buf = Some(back.buf);
                Some(Completed { request, result })
            }
        }
    }

    /// The one place that waits: for at least `min` completions, or as many as are in flight.
    pub(crate) fn wait(&mut self, min: usize) -> Vec<Completed> {
        if min > 0 {
            self.not_started = 0;
        }
        self.queue.complete(min, &mut self.done);
        let mut completed = Vec::with_capacity(self.done.len());
        for Completion { request: back, result } in self.done.drain(..) {
            let Some(at) = self.in_flight.iter().position(|request| request.id == back.id) else { continue };
            let mut request = self.in_flight.swap_remove(at);
            request.buf = Some(back.buf);
            self.pages_in_flight -= request.entries.len();
            completed.push(Completed { request, result });
        }
        completed
    }
}
