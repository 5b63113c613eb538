//! [`Deferred`], the requests of one connection that wait for the medium, on threads beside the connection's own.
//!
//! A read of pages that were written back waits for a disk, and so does a write, or a write of zeroes, to a part of such
//! a page, because the rest of the page is read. At the memory limit every write waits until pages were written back. On
//! the connection's thread they would delay the requests after them, most of which need memory only. So the session
//! passes such a request on, and puts out the reply when it was executed.
//! The protocol allows replies in any order, and orders two requests only if the client sends the second one after the
//! reply to the first; a flush covers the writes that were answered before it (`doc/proto.md` of the NBD project,
//! "Ordering of messages and writes"). A write with FUA is flushed before its reply, on the same thread.
//!
//! The first request that waits starts a thread, and each further one that finds all threads busy another, up to
//! [`THREADS_MAX`]; they end with the connection. Writes that wait for memory have [`MEMORY_WRITES_MAX`] of them at most,
//! so that they do not keep reads from a medium that answers. The data of the requests takes memory from the
//! connection's [`RequestMemory`] until it was written or is in the output. The session executes a request that has no space
//! itself: memory is bounded, and the client waits as it would without threads.

use super::export::Export;
use super::proto::{Request, cmd, flag};
use super::reply_times::Arrival;
use super::request_memory::RequestMemory;
use crate::{BlockDevice, BlockError};
use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

/// The most threads of a connection: requests that a medium gets at once.
const THREADS_MAX: usize = 16;
/// The most threads of a connection whose writes wait for memory.
const MEMORY_WRITES_MAX: usize = 8;

/// A part of a write that was set aside.
pub struct WritePart {
    /// Byte of the device where the part begins.
    pub offset: u64,
    /// The new bytes from there.
    pub data: Vec<u8>,
}

/// A request for a thread: a read, a write of zeroes, or what is left of a write.
pub struct Job {
    /// The request.
    pub request: Request,
    /// When it was received.
    pub arrival: Option<Arrival>,
    /// Of a write: what is left to write.
    pub parts: Vec<WritePart>,
    /// Whether it waits for memory, and not for the contents of pages.
    pub waits_for_memory: bool,
    /// The memory that was reserved for it ([`Deferred::reserve`]), bytes.
    pub charge_bytes: usize,
}

impl Job {
    /// Makes the job of a request for which no memory is reserved.
    pub fn new(request: Request) -> Self {
        Job { request, arrival: None, parts: Vec::new(), waits_for_memory: false, charge_bytes: 0 }
    }

    /// Executes the request, and returns the data that a read replies.
    pub fn execute(&self, device: &dyn BlockDevice) -> Result<Vec<u8>, BlockError> {
        pagefold_sys::injected_panic::at(|| "nbd job".into());
        let Request { command, flags, offset, len, .. } = self.request;
        if command == cmd::READ {
            let mut data = vec![0; len as usize];
            return device.read_at(offset, &mut data).map(|()| data);
        }
        if command == cmd::WRITE_ZEROES {
            device.write_zeroes(offset, len.into())?;
        }
        for part in &self.parts {
            device.write_at(part.offset, &part.data)?;
        }
        if flags & flag::FUA != 0 {
            device.flush()?;
        }
        Ok(Vec::new())
    }
}

/// A request that was executed, and the data of a read.
pub type Answer = (Job, Result<Vec<u8>, BlockError>);

/// The requests of one connection that wait for the medium.
pub struct Deferred {
    export: Export,
    /// Made with the first read.
    shared: Option<Arc<Shared>>,
    threads: Vec<JoinHandle<()>>,
    /// Requests that were accepted and whose answers were not taken.
    count: usize,
    /// The memory of these, of parts that are set aside, and of answers that are not in the output.
    memory: RequestMemory,
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
    /// The writes that wait for memory.
    memory_writes: VecDeque<Job>,
    /// Threads that execute one of these.
    memory_writers: usize,
    answers: VecDeque<Answer>,
    /// Threads that wait for a request.
    idle_threads: usize,
    is_closed: bool,
}

impl Queue {
    /// Takes a request that a thread may execute now.
    fn take_job(&mut self) -> Option<Job> {
        if self.memory_writers < MEMORY_WRITES_MAX
            && let Some(write) = self.memory_writes.pop_front()
        {
            self.memory_writers += 1;
            return Some(write);
        }
        self.jobs.pop_front()
    }
}

impl Deferred {
    /// Makes an empty queue, without threads, for one connection to an export.
    pub fn new(export: &Export) -> Self {
        let memory = RequestMemory::new(export.shared_memory().clone());
        Deferred { export: export.clone(), shared: None, threads: Vec::new(), count: 0, memory }
    }

    /// Returns the number of requests whose answers have not been taken.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Reserves memory for a request, or for a part of one. Returns false, and reserves nothing, if there is too little.
    pub fn reserve(&mut self, charge_bytes: usize) -> bool {
        self.memory.take(charge_bytes)
    }

    /// Passes a request to a thread. Returns it if no thread can be started: then the caller executes it, and releases
    /// its memory.
    pub fn submit(&mut self, job: Job) -> Result<(), Job> {
        if self.start_thread().is_err() {
            return Err(job);
        }
        let Some(shared) = &self.shared else { return Err(job) };
        {
            let mut queue = shared.queue.lock();
            let jobs = if job.waits_for_memory { &mut queue.memory_writes } else { &mut queue.jobs };
            jobs.push_back(job);
        }
        shared.work.notify_one();
        self.count += 1;
        Ok(())
    }

    /// Releases the memory of a request: its reply is in the output.
    pub fn release(&mut self, charge_bytes: usize) {
        self.memory.put_back(charge_bytes);
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
            let waiting = queue.jobs.len() + queue.memory_writes.len();
            if queue.idle_threads > waiting || self.threads.len() == THREADS_MAX {
                return Ok(());
            }
        }
        let (shared, export) = (shared.clone(), self.export.clone());
        let started = Builder::new().name("nbd-wait".into()).spawn(move || run(&shared, &export));
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
    /// Waits for the requests that a thread is executing, and for writes, which are executed although the client is gone,
    /// unless the server stops: then nothing uses the device on its behalf.
    fn drop(&mut self) {
        let Some(shared) = &self.shared else { return };
        {
            let mut queue = shared.queue.lock();
            queue.is_closed = true;
            queue.jobs.retain(|job| job.request.command != cmd::READ);
        }
        shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // Threads catch the panics of requests.
            let _ = thread.join();
        }
    }
}

/// Executes requests until the connection ends.
fn run(shared: &Shared, export: &Export) {
    let device = &**export.device();
    let mut queue = shared.queue.lock();
    loop {
        let job = if export.is_stopping() { None } else { queue.take_job() };
        let Some(mut job) = job else {
            if queue.is_closed {
                return;
            }
            queue.idle_threads += 1;
            shared.work.wait(&mut queue);
            queue.idle_threads -= 1;
            continue;
        };
        drop(queue);
        // The panic hook has reported a panic, or ended the process. Otherwise the client gets an answer: it would wait forever.
        let execute = AssertUnwindSafe(|| job.execute(device));
        let result = catch_unwind(execute).unwrap_or(Err(BlockError::Panicked));
        job.parts = Vec::new();
        queue = shared.queue.lock();
        queue.memory_writers -= usize::from(job.waits_for_memory);
        queue.answers.push_back((job, result));
        // Adding 1 to the counter cannot fail: the connection's thread sets it to 0 before it gets near its limit.
        let _ = rustix::io::write(&shared.has_answer, &1u64.to_ne_bytes());
    }
}
