//! A medium in memory that blocks requests until the test opens a gate, so that the test decides what happens in
//! between.

use pagefold_backing::{
    Backing, BackingError, Buffers, ByteSource, Completion, MemoryBacking, Queue, Request,
};
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};

/// A gate at which requests wait.
#[derive(Default)]
pub struct Gate {
    state: Mutex<State>,
    changed: Condvar,
    errno: AtomicI32,
}

#[derive(Default)]
struct State {
    is_closed: bool,
    /// The most requests that wait at once; others pass. `None`: all wait.
    waiting_max: Option<usize>,
    waiting: usize,
}

impl Gate {
    pub fn close(&self) {
        self.state.lock().unwrap().is_closed = true;
    }

    /// Closes the gate for the first `count` requests and lets others pass.
    pub fn close_for(&self, count: usize) {
        let mut state = self.state.lock().unwrap();
        (state.is_closed, state.waiting_max) = (true, Some(count));
    }

    /// Opens the gate; the requests fail with this error number, or succeed if it is 0.
    pub fn open(&self, errno: i32) {
        self.errno.store(errno, SeqCst);
        self.state.lock().unwrap().is_closed = false;
        self.changed.notify_all();
    }

    /// Waits until a request waits at the gate.
    pub fn wait_for_arrival(&self) {
        self.wait_for_arrivals(1);
    }

    /// Waits until `count` requests wait at the gate.
    pub fn wait_for_arrivals(&self, count: usize) {
        let mut state = self.state.lock().unwrap();
        while state.waiting < count {
            state = self.changed.wait(state).unwrap();
        }
    }

    fn pass(&self, offset: u64) -> Result<(), BackingError> {
        let mut state = self.state.lock().unwrap();
        if state.waiting_max.is_some_and(|count| state.waiting >= count) {
            return Ok(());
        }
        state.waiting += 1;
        self.changed.notify_all();
        while state.is_closed {
            state = self.changed.wait(state).unwrap();
        }
        state.waiting -= 1;
        match self.errno.load(SeqCst) {
            0 => Ok(()),
            errno => Err(BackingError::Io { operation: "gated", offset, len_bytes: 0, errno }),
        }
    }
}

/// The medium, with one gate for completions of writes, one for reads that are not queued, and one for discards.
pub struct Gated {
    pub inner: MemoryBacking,
    pub writes: Gate,
    pub reads: Gate,
    pub discards: Gate,
}

impl Gated {
    pub fn new(len_bytes: usize) -> Arc<Self> {
        let (writes, reads, discards) = Default::default();
        Arc::new(Gated { inner: MemoryBacking::new(len_bytes), writes, reads, discards })
    }
}

/// Opens the gates when a test fails, so that the test ends.
pub struct OpensOnFailure<'a>(&'a Gated);

impl Drop for OpensOnFailure<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.writes.open(0);
            self.0.reads.open(0);
            self.0.discards.open(0);
        }
    }
}

impl Gated {
    pub fn opens_on_failure(&self) -> OpensOnFailure<'_> {
        OpensOnFailure(self)
    }
}

impl ByteSource for Gated {
    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BackingError> {
        self.reads.pass(offset)?;
        self.inner.read_at(offset, buf)
    }

    fn describe(&self) -> String {
        "gated memory".to_string()
    }
}

impl Backing for Gated {
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), BackingError> {
        self.inner.write_at(offset, data)
    }

    fn flush(&self) -> Result<(), BackingError> {
        Ok(())
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), BackingError> {
        self.discards.pass(offset)?;
        self.inner.discard(offset, len_bytes)
    }

    fn queue<'a>(&'a self, _: usize, _: &'a Buffers) -> Result<Box<dyn Queue + 'a>, BackingError> {
        Ok(Box::new(GatedQueue { medium: self, held: Vec::new() }))
    }
}

struct GatedQueue<'a> {
    medium: &'a Gated,
    held: Vec<Request>,
}

impl Queue for GatedQueue<'_> {
    fn submit(&mut self, request: Request) -> Result<(), Completion> {
        self.held.push(request);
        Ok(())
    }

    /// The request submitted last completes first.
    fn complete(&mut self, min: usize, done: &mut Vec<Completion>) -> usize {
        let count = min.min(self.held.len());
        for _ in 0..count {
            let Some(mut request) = self.held.pop() else { break };
            let passed = self.medium.writes.pass(request.offset);
            let result = passed.and_then(|()| request.run(&self.medium.inner));
            done.push(Completion { request, result });
        }
        count
    }

    fn in_flight(&self) -> usize {
        self.held.len()
    }
}

impl Drop for GatedQueue<'_> {
    fn drop(&mut self) {
        self.complete(usize::MAX, &mut Vec::new());
    }
}
