//! The ring of a store's writeback, and the write requests of the current pass.
//!
//! The first pass creates the ring and registers the buffers with it. Both live as long as the store, so that a pass
//! of a few pages does not have to set up a ring. Between passes only the ring and the memory of the buffers' region
//! are kept; the requests' buffers go back to the region.
//!
//! A request is either in the idle list or in flight. All waiting is in [`Control::wait`], and there is no thread. A
//! pass ends only when nothing is in flight, so no completion outlives its pass. The holder of the writer's lock owns
//! a `Control`.

use crate::layout::WriteRequest;
use pagefold_backing::{Backing, BackingError, Buffers, Completion, Operation, OwnedQueue, Queue, Request};
use std::sync::Arc;

/// The least depth of a queue.
const DEPTH_MIN: usize = 64;

/// A completed write request and its result.
pub(crate) struct Completed {
    pub(crate) request: WriteRequest,
    pub(crate) result: Result<(), BackingError>,
}

/// The ring, and the requests of the pass that uses it.
pub(crate) struct Control {
    backing: Arc<dyn Backing>,
    buffers: Buffers,
    /// The ring; `None` before the first pass.
    queue: Option<OwnedQueue>,
    /// The depth of the queue, requests.
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

impl Control {
    /// Creates a control without a ring, with requests of `buf_len` bytes.
    pub(crate) fn new(backing: Arc<dyn Backing>, buffers: Buffers, buf_len: usize) -> Self {
        Control {
            backing,
            buffers,
            queue: None,
            depth: 0,
            buf_len,
            idle: Vec::new(),
            in_flight: Vec::new(),
            pages_in_flight: 0,
            not_started: 0,
            made: 0,
            done: Vec::new(),
        }
    }

    /// Ensures that there is a ring for `batch` pages in flight. Replaces a queue that is too small or has fallen
    /// back to slower I/O, if a new one can be created. Returns an error if there is no queue at all.
    pub(crate) fn begin_pass(&mut self, batch: usize) -> Result<(), BackingError> {
        let depth = batch.max(DEPTH_MIN);
        let is_good = self.queue.as_ref().is_some_and(|queue| self.depth >= depth && !queue.is_degraded());
        if is_good {
            return Ok(());
        }
        match OwnedQueue::new(self.backing.clone(), depth, self.buffers.clone()) {
            Ok(queue) => {
                let replaced = self.queue.replace(queue).is_some();
                self.depth = depth;
                if replaced && let Some(queue) = &mut self.queue {
                    // The memory that the old ring had locked is free now.
                    queue.register_again();
                }
            }
            Err(error) if self.queue.is_none() => return Err(error),
            Err(_) => {}
        }
        Ok(())
    }

    /// Waits for writes in flight (there are none unless the pass panicked), and returns the buffers to their region.
    pub(crate) fn end_pass(&mut self) {
        while self.is_busy() {
            for completed in self.wait(1) {
                self.recycle(completed.request);
            }
        }
        self.idle.clear();
    }

    /// Closes the ring, and with it its reference to the file of the medium. The next pass creates another ring.
    pub(crate) fn close_ring(&mut self) {
        self.queue = None;
    }

    /// Returns an idle request, or a new one if there is none.
    pub(crate) fn take_idle(&mut self) -> WriteRequest {
        if let Some(request) = self.idle.pop() {
            return request;
        }
        self.made += 1;
        WriteRequest::new(self.made, self.buffers.required(self.buf_len))
    }

    /// Puts a request into the idle list.
    pub(crate) fn recycle(&mut self, mut request: WriteRequest) {
        request.entries.clear();
        request.len = 0;
        self.idle.push(request);
    }

    /// Whether a request of `pages` pages may be submitted: always, if nothing is in flight; otherwise only within
    /// the batch size and the depth of the queue, which may be smaller if the batch size was raised since.
    pub(crate) fn can_submit(&self, pages: usize, batch: usize) -> bool {
        let fits = self.pages_in_flight + pages <= batch && self.in_flight.len() < self.depth;
        self.in_flight.is_empty() || fits
    }

    /// Whether anything is in flight.
    pub(crate) fn is_busy(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Submits a request. `batch` is the most pages that may be in flight; if nothing is in flight, a queue that is
    /// too small for it is replaced first.
    ///
    /// Returns the request and an error if the queue refused it.
    pub(crate) fn submit(&mut self, mut request: WriteRequest, batch: usize) -> Option<Completed> {
        if self.depth < batch
            && self.in_flight.is_empty()
            && let Err(error) = self.begin_pass(batch)
        {
            return Some(Completed { request, result: Err(error) });
        }
        let Some(queue) = &mut self.queue else {
            return Some(Completed { request, result: Err(BackingError::QueueFull { depth: 0 }) });
        };
        let Some(buf) = request.buf.take() else {
            let result = Err(BackingError::ShortBuffer { len_bytes: request.len, buf_len_bytes: 0 });
            return Some(Completed { request, result });
        };
        let (id, offset, len_bytes) = (request.id, request.offset, request.len);
        match queue.submit(Request { id, operation: Operation::Write, offset, buf, len_bytes }) {
            Ok(()) => {
                self.pages_in_flight += request.entries.len();
                self.in_flight.push(request);
                self.not_started += 1;
                // Starting costs a system call: a few small requests share one.
                if self.not_started * 4 >= batch || len_bytes >= 1 << 16 {
                    queue.start();
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

    /// Waits for at least `min` completions, or as many as are in flight. No other function of a pass waits for I/O.
    pub(crate) fn wait(&mut self, min: usize) -> Vec<Completed> {
        if min > 0 {
            self.not_started = 0;
        }
        if let Some(queue) = &mut self.queue {
            queue.complete(min, &mut self.done);
        }
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
