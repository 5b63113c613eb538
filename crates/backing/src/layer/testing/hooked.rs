//! The generic test layer: it calls a hook before and after each request.

use super::{Access, Action};
use crate::{Backing, BackingError, Buffers, ByteSource, Completion, Operation, Prefetched, Queue, Request};
use std::sync::Arc;

/// The behaviour of a test layer.
pub trait Hook: Send + Sync {
    /// Called before a request goes to `inner`. If it returns a result, the request ends with that and does not go to
    /// `inner`; the hook may call `inner` itself.
    ///
    /// `data` holds the bytes of a write, and is `None` for other requests. For a queued request this is called when
    /// it is submitted.
    fn before(
        &self,
        inner: &dyn Backing,
        access: Access,
        data: Option<&[u8]>,
    ) -> Option<Result<(), BackingError>> {
        let _ = (inner, access, data);
        None
    }

    /// Called after the request has ended, by the hook or by the medium. `data` holds the bytes of a write, or of a
    /// read that succeeded.
    fn after(&self, access: Access, data: Option<&[u8]>, result: &Result<(), BackingError>) {
        let _ = (access, data, result);
    }

    /// The text that the layer appends to [`ByteSource::describe`](crate::ByteSource::describe).
    fn describe(&self) -> String;
}

/// A medium with a hook.
pub struct Layered<B, H> {
    inner: B,
    control: Arc<H>,
}

impl<B: Backing, H: Hook> Layered<B, H> {
    /// Makes a layer over `inner` with the hook `control`.
    pub fn over(inner: B, control: Arc<H>) -> Self {
        Layered { inner, control }
    }

    /// The layer's hook, through which a test controls the layer.
    pub fn control(&self) -> Arc<H> {
        self.control.clone()
    }

    /// The medium below.
    pub fn inner(&self) -> &B {
        &self.inner
    }

    /// Runs a request other than a read, with the hook's calls.
    fn pass(
        &self,
        access: Access,
        data: Option<&[u8]>,
        request: impl FnOnce(&B) -> Result<(), BackingError>,
    ) -> Result<(), BackingError> {
        let settled = self.control.before(&self.inner, access, data);
        let result = settled.unwrap_or_else(|| request(&self.inner));
        self.control.after(access, data, &result);
        result
    }
}

impl<B: Backing, H: Hook> ByteSource for Layered<B, H> {
    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BackingError> {
        let access = Access { action: Action::Read, offset, len_bytes: buf.len() as u64 };
        let settled = self.control.before(&self.inner, access, None);
        let result = settled.unwrap_or_else(|| self.inner.read_at(offset, buf));
        self.control.after(access, result.is_ok().then_some(&*buf), &result);
        result
    }

    fn discard_cached(&self, offset: u64, len_bytes: u64) -> bool {
        self.inner.discard_cached(offset, len_bytes)
    }

    fn prefetch(&self, offset: u64, len_bytes: u64) -> Prefetched {
        self.inner.prefetch(offset, len_bytes)
    }

    fn describe(&self) -> String {
        format!("{}, {}", self.inner.describe(), self.control.describe())
    }
}

impl<B: Backing, H: Hook> Backing for Layered<B, H> {
    fn block_bytes(&self) -> usize {
        self.inner.block_bytes()
    }

    fn read_signal_safe(&self, offset: u64, buf: &mut [u8]) -> Result<(), i32> {
        let access = Access { action: Action::Read, offset, len_bytes: buf.len() as u64 };
        let settled = self.control.before(&self.inner, access, None);
        let read = || self.inner.read_signal_safe(offset, buf).map_err(|errno| access.failed(errno));
        let result = settled.unwrap_or_else(read);
        self.control.after(access, result.is_ok().then_some(&*buf), &result);
        result.map_err(|e| e.errno())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), BackingError> {
        let access = Access { action: Action::Write, offset, len_bytes: data.len() as u64 };
        self.pass(access, Some(data), |inner| inner.write_at(offset, data))
    }

    fn flush(&self) -> Result<(), BackingError> {
        self.pass(Access { action: Action::Flush, offset: 0, len_bytes: 0 }, None, |inner| inner.flush())
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), BackingError> {
        let access = Access { action: Action::Discard, offset, len_bytes };
        self.pass(access, None, |inner| inner.discard(offset, len_bytes))
    }

    fn queue<'a>(&'a self, depth: usize, buffers: &'a Buffers) -> Result<Box<dyn Queue + 'a>, BackingError> {
        let queue = self.inner.queue(depth, buffers)?;
        Ok(Box::new(HookedQueue { layer: self, queue, settled: Vec::new(), depth: depth.max(1) }))
    }
}

/// A queue that calls the hook for its requests.
struct HookedQueue<'a, B, H: Hook> {
    layer: &'a Layered<B, H>,
    queue: Box<dyn Queue + 'a>,
    /// Requests that ended in the hook and were not returned yet.
    settled: Vec<Completion>,
    depth: usize,
}

fn access(request: &Request) -> Access {
    let action = match request.operation {
        Operation::Read => Action::Read,
        Operation::Write => Action::Write,
    };
    Access { action, offset: request.offset, len_bytes: request.len_bytes as u64 }
}

impl<B, H: Hook> HookedQueue<'_, B, H> {
    fn report_completions(&self, completions: &[Completion]) {
        for Completion { request, result } in completions {
            let is_known = request.operation == Operation::Write || result.is_ok();
            let data = if is_known { request.buf.get(..request.len_bytes) } else { None };
            self.layer.control.after(access(request), data, result);
        }
    }
}

impl<B: Backing, H: Hook> Queue for HookedQueue<'_, B, H> {
    fn submit(&mut self, request: Request) -> Result<(), Completion> {
        if self.in_flight() >= self.depth {
            return Err(Completion { request, result: Err(BackingError::QueueFull { depth: self.depth }) });
        }
        let is_write = request.operation == Operation::Write;
        let data = if is_write { request.buf.get(..request.len_bytes) } else { None };
        match self.layer.control.before(&self.layer.inner, access(&request), data) {
            Some(result) => self.settled.push(Completion { request, result }),
            None => self.queue.submit(request)?,
        }
        Ok(())
    }

    fn start(&mut self) {
        self.queue.start();
    }

    fn complete(&mut self, min: usize, done: &mut Vec<Completion>) -> usize {
        let before = done.len();
        done.append(&mut self.settled);
        self.queue.complete(min.saturating_sub(done.len() - before), done);
        self.report_completions(&done[before..]);
        done.len() - before
    }

    fn in_flight(&self) -> usize {
        self.settled.len() + self.queue.in_flight()
    }

    fn is_degraded(&self) -> bool {
        self.queue.is_degraded()
    }

    fn register_again(&mut self) {
        self.queue.register_again();
    }
}

impl<B, H: Hook> Drop for HookedQueue<'_, B, H> {
    fn drop(&mut self) {
        let mut done = std::mem::take(&mut self.settled);
        self.queue.complete(usize::MAX, &mut done);
        self.report_completions(&done);
    }
}
