//! [`Deferred`], the requests of one connection that wait for the medium, on threads beside the connection's own.
//!
//! A read of pages that were written back waits for a disk, and so does a write, or a write of zeroes, to a part of such
//! a page, because the rest of the page is read. On the connection's thread they would delay the requests behind them,
//! most of which need memory only. So the session passes such a request on, and puts out the reply when it was executed.
//! The protocol allows replies in any order, and orders two requests only if the client sends the second one after the
//! reply to the first; a flush covers the writes that were answered before it (`doc/proto.md` of the NBD project,
//! "Ordering of messages and writes"). A write with FUA is flushed before its reply, on the same thread.
//!
//! The first request that waits starts a thread, and each further one that finds all threads busy another, up to
//! [`THREADS_MAX`]; they end with the connection. The data of the requests takes at most [`BYTES_MAX`], until it is in the
//! output. A request beyond that is not accepted, and the session executes it itself: memory is bounded, and the client
//! waits as it would without threads.

use super::proto::{Request, cmd, flag};
use super::reply_times::Arrival;
use crate::{BlockDevice, BlockError};
use pagefold_page::PAGE_SIZE;
use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

/// The most threads of a connection: requests that a medium gets at once.
const THREADS_MAX: usize = 16;
/// The most bytes of requests that wait for the medium or for their reply. Each counts for a page at least, so that their
/// number is limited too.
pub const BYTES_MAX: usize = 4 << 20;

/// A part of a page that a write changes, and its new bytes.
pub struct Edge {
    /// Byte of the device where the part begins.
    pub offset: u64,
    /// Less than a page.
    pub data: Vec<u8>,
}

/// A request for a thread: a read, a write of zeroes, or the end of a write.
pub struct Job {
    /// The request.
    pub request: Request,
    /// When it was received.
    pub arrival: Option<Arrival>,
    /// Of a write: what is left to write. It has two ends.
    pub edges: Vec<Edge>,
}

impl Job {
    /// Bytes that the request counts for.
    fn charge_bytes(&self) -> usize {
        match self.request.command {
            cmd::READ => (self.request.len as usize).max(PAGE_SIZE),
            _ => 2 * PAGE_SIZE,
        }
    }

    /// Executes the request, and returns the data that a read replies.
    pub fn execute(&self, device: &dyn BlockDevice) -> Result<Vec<u8>, BlockError> {
        let Request { command, flags, offset, len, .. } = self.request;
        if command == cmd::READ {
            let mut data = vec![0; len as usize];
            return device.read_at(offset, &mut data).map(|()| data);
        }
        if command == cmd::WRITE_ZEROES {
            device.write_zeroes(offset, len.into())?;
        }
        for edge in &self.edges {
            device.write_at(edge.offset, &edge.data)?;
        }
        if flags & flag::FUA != 0 {
            device.flush()?;
        }
        Ok(Vec::new())
    }
}

/// A request that was executed.
pub struct Answer {
    /// The request.
    pub request: Request,
    /// When it was received.
    pub arrival: Option<Arrival>,
    /// The data of a read.
    pub result: Result<Vec<u8>, BlockError>,
    /// For [`Deferred::release`].
    pub charge_bytes: usize,
}

/// The requests of one connection that wait for the medium.
pub struct Deferred {
    device: Arc<dyn BlockDevice>,
    /// Made with the first read.
    shared: Option<Arc<Shared>>,
    threads: Vec<JoinHandle<()>>,
    /// Requests that were accepted and whose answers were not taken.
    count: usize,
    /// The bytes of these, and of those whose data is not in the output.
    len_bytes: usize,
}

/// The state that the threads and the connection have in common.
struct Shared {
    queue: Mutex<Queue>,
    /// There is a request, or the connection ends.
    work: Condvar,
    /// Readable if there is an answer. It is written and read under the lock, so that no answer is missed.
    has_answer: OwnedFd,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    answers: VecDeque<Answer>,
    /// Threads that wait for a request.
    idle_threads: usize,
    is_closed: bool,
}

impl Deferred {
    /// Makes an empty queue, without threads.
    pub fn new(device: Arc<dyn BlockDevice>) -> Self {
        Deferred { device, shared: None, threads: Vec::new(), count: 0, len_bytes: 0 }
    }

    /// Returns the number of requests whose answers have not been taken.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Passes a request to a thread. Returns it if there is no room, or no thread can be started: then the caller
    /// executes it.
    pub fn submit(&mut self, job: Job) -> Result<(), Job> {
        let charge_bytes = job.charge_bytes();
        if self.len_bytes + charge_bytes > BYTES_MAX || self.start_thread().is_err() {
            return Err(job);
        }
        let Some(shared) = &self.shared else { return Err(job) };
        shared.queue.lock().jobs.push_back(job);
        shared.work.notify_one();
        self.count += 1;
        self.len_bytes += charge_bytes;
        Ok(())
    }

    /// Notes that the data of an answer is in the output, which makes room for other requests.
    pub fn release(&mut self, charge_bytes: usize) {
        self.len_bytes -= charge_bytes;
    }

    /// Takes an answer, if there is one. The caller releases its bytes.
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
        Some(answer)
    }

    /// Returns a descriptor that is readable as long as there may be an answer, while there are requests.
    pub fn has_answer(&self) -> Option<BorrowedFd<'_>> {
        self.shared.as_ref().filter(|_| self.count > 0).map(|shared| shared.has_answer.as_fd())
    }

    /// Starts a thread for one more request, unless one is idle or there are enough.
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
            if queue.idle_threads > queue.jobs.len() || self.threads.len() == THREADS_MAX {
                return Ok(());
            }
        }
        let (shared, device) = (shared.clone(), self.device.clone());
        let started = Builder::new().name("nbd-wait".into()).spawn(move || run(&shared, &*device));
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
    /// Waits for the requests that a thread is executing, and for writes, which are executed although the client is gone:
    /// then nothing uses the device on its behalf.
    fn drop(&mut self) {
        let Some(shared) = &self.shared else { return };
        {
            let mut queue = shared.queue.lock();
            queue.is_closed = true;
            queue.jobs.retain(|job| job.request.command != cmd::READ);
        }
        shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has printed why.
            let _ = thread.join();
        }
    }
}

/// Executes requests until the connection ends.
fn run(shared: &Shared, device: &dyn BlockDevice) {
    let mut queue = shared.queue.lock();
    loop {
        let Some(job) = queue.jobs.pop_front() else {
            if queue.is_closed {
                return;
            }
            queue.idle_threads += 1;
            shared.work.wait(&mut queue);
            queue.idle_threads -= 1;
            continue;
        };
        drop(queue);
        let result = job.execute(device);
        let charge_bytes = job.charge_bytes();
        let Job { request, arrival, .. } = job;
        queue = shared.queue.lock();
        queue.answers.push_back(Answer { request, arrival, result, charge_bytes });
        // Adding 1 to the counter cannot fail: the connection's thread sets it to 0 before it gets near its limit.
        let _ = rustix::io::write(&shared.has_answer, &1u64.to_ne_bytes());
    }
}
