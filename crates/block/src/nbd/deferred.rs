//! [`Deferred`], the reads of one connection that wait for the medium, on threads beside the connection's own.
//!
//! A read of pages that were written back waits for a disk. On the connection's thread it would delay the requests
//! behind it, most of which need memory only. So the session passes such a read on, and puts out the reply when the data
//! is there. The protocol allows replies in any order, and orders two requests only if the client sends the second one
//! after the reply to the first (`doc/proto.md` of the NBD project, "Ordering of messages and writes"). Writes stay on
//! the connection's thread; so a flush, too, is executed after all writes before it.
//!
//! The first read that waits starts a thread, and each further one that finds all threads busy another, up to
//! [`THREADS_MAX`]; they end with the connection. The data of the reads takes at most [`BYTES_MAX`]. A read beyond that is
//! not accepted, and the session executes it itself: memory is bounded, and the client waits as it would without threads.

use super::proto::Request;
use super::reply_times::Arrival;
use crate::{BlockDevice, BlockError};
use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

/// The most threads of a connection: reads that a medium gets at once.
const THREADS_MAX: usize = 16;
/// The most bytes of reads that wait for the medium or for their reply.
pub const BYTES_MAX: usize = 4 << 20;

/// A read that was executed.
pub struct Answer {
    /// The request.
    pub request: Request,
    /// When it was received.
    pub arrival: Option<Arrival>,
    /// The data.
    pub result: Result<Vec<u8>, BlockError>,
}

/// The reads of one connection that wait for the medium.
pub struct Deferred {
    device: Arc<dyn BlockDevice>,
    /// Made with the first read.
    shared: Option<Arc<Shared>>,
    threads: Vec<JoinHandle<()>>,
    /// Reads that were accepted and whose answers were not taken.
    count: usize,
    /// Their bytes.
    len_bytes: usize,
}

/// The state that the threads and the connection have in common.
struct Shared {
    queue: Mutex<Queue>,
    /// There is a read, or the connection ends.
    work: Condvar,
    /// Readable if there is an answer. It is written and read under the lock, so that no answer is missed.
    has_answer: OwnedFd,
}

#[derive(Default)]
struct Queue {
    reads: VecDeque<(Request, Option<Arrival>)>,
    answers: VecDeque<Answer>,
    /// Threads that wait for a read.
    idle_threads: usize,
    is_closed: bool,
}

impl Deferred {
    /// Makes an empty queue, without threads.
    pub fn new(device: Arc<dyn BlockDevice>) -> Self {
        Deferred { device, shared: None, threads: Vec::new(), count: 0, len_bytes: 0 }
    }

    /// Returns the number of reads whose answers have not been taken.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Passes a read to a thread. Returns false if there is no room, or no thread can be started: then the caller
    /// executes it.
    pub fn submit(&mut self, request: Request, arrival: Option<Arrival>) -> bool {
        let len_bytes = request.len as usize;
        if self.len_bytes + len_bytes > BYTES_MAX || self.start_thread().is_err() {
            return false;
        }
        let Some(shared) = &self.shared else { return false };
        shared.queue.lock().reads.push_back((request, arrival));
        shared.work.notify_one();
        self.count += 1;
        self.len_bytes += len_bytes;
        true
    }

    /// Takes an answer, if there is one.
    pub fn take(&mut self) -> Option<Answer> {
        if self.count == 0 {
            return None;
        }
        let shared = self.shared.as_ref()?;
        let mut queue = shared.queue.lock();
        let Some(answer) = queue.answers.pop_front() else {
            // It does not wait: the descriptor is not blocking. An error means that it was not readable.
            let _ = rustix::io::read(&shared.has_answer, &mut [0; 8]);
            return None;
        };
        self.count -= 1;
        self.len_bytes -= answer.request.len as usize;
        Some(answer)
    }

    /// Returns a descriptor that is readable as long as there may be an answer, while there are reads.
    pub fn has_answer(&self) -> Option<BorrowedFd<'_>> {
        self.shared.as_ref().filter(|_| self.count > 0).map(|shared| shared.has_answer.as_fd())
    }

    /// Starts a thread for one more read, unless one is idle or there are enough.
    fn start_thread(&mut self) -> io::Result<()> {
        let shared = match &self.shared {
            Some(shared) => shared,
            None => {
                let has_answer = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
                let (queue, work) = (Mutex::default(), Condvar::new());
                self.shared.insert(Arc::new(Shared { queue, work, has_answer }))
            }
        };
        {
            let queue = shared.queue.lock();
            if queue.idle_threads > queue.reads.len() || self.threads.len() == THREADS_MAX {
                return Ok(());
            }
        }
        let (shared, device) = (shared.clone(), self.device.clone());
        let started = Builder::new().name("nbd-read".into()).spawn(move || run(&shared, &*device));
        match started {
            Ok(thread) => self.threads.push(thread),
            Err(error) if self.threads.is_empty() => return Err(error),
            // The threads that there are serve it later.
            Err(_) => {}
        }
        Ok(())
    }
}

impl Drop for Deferred {
    /// Waits for the reads that a thread is executing: nothing uses the device on behalf of a client that is gone.
    fn drop(&mut self) {
        let Some(shared) = &self.shared else { return };
        {
            let mut queue = shared.queue.lock();
            queue.is_closed = true;
            queue.reads.clear();
        }
        shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has printed why.
            let _ = thread.join();
        }
    }
}

/// Executes reads until the connection ends.
fn run(shared: &Shared, device: &dyn BlockDevice) {
    let mut queue = shared.queue.lock();
    loop {
        let Some((request, arrival)) = queue.reads.pop_front() else {
            if queue.is_closed {
                return;
            }
            queue.idle_threads += 1;
            shared.work.wait(&mut queue);
            queue.idle_threads -= 1;
            continue;
        };
        drop(queue);
        let mut data = vec![0; request.len as usize];
        let result = device.read_at(request.offset, &mut data).map(|()| data);
        queue = shared.queue.lock();
        queue.answers.push_back(Answer { request, arrival, result });
        // Adding 1 to the counter cannot fail: the connection's thread sets it to 0 before it gets near its limit.
        let _ = rustix::io::write(&shared.has_answer, &1u64.to_ne_bytes());
    }
}
