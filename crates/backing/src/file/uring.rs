//! A queue on an io_uring ring. Each queue has its own ring.
//!
//! `submit` only fills the submission ring; `start` and `complete` each make one system call, which hands over all
//! submitted requests and waits for completions. Requests that the ring cannot serve (misaligned, out of range, empty)
//! go to the `fallback` list; `complete` runs them one by one with positioned I/O. If the kernel refuses to enter the
//! ring at all (a seccomp filter that was installed later), or has no memory to do so for a while, all requests go that
//! way.
//!
//! The ring has no thread-bound flags (`SINGLE_ISSUER`, `COOP_TASKRUN`), so that a queue may move between threads.
//!
//! # Why the kernel never touches memory that is not the request's
//! A request that the kernel works on is an [`InFlight`] in `slots`, which owns the request's
//! [`Buffer`](crate::Buffer); the bytes of a buffer do not move when the value does. An `InFlight` leaves `slots` only
//! after the kernel has reported its completion, or in [`UringQueue::abandon`], where the kernel has not taken its
//! entry and never will. No other code can reach the buffer in between: `slots` is private, and no method returns
//! references into it. Dropping the queue waits until `slots` is empty; leaking the queue leaks the buffers with it.

use super::positioned::{Transfer, classify_transfer, is_aligned};
use crate::{Backing, BackingError, Buffers, Completion, Operation, Queue, Request};
use io_uring::{IoUring, Probe, opcode, squeue, types};
use pagefold_sys::SysError;
use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// The most requests in flight: more gain nothing on any medium and cost kernel memory.
const MAX_DEPTH: usize = 4096;

/// The most bytes of a region that are registered. The kernel pins registered memory, so only the beginning of a large
/// region is registered; buffers are allocated first-fit, so that part is used most.
const MAX_REGISTERED_BYTES: usize = 64 << 20;

/// The longest single operation: the kernel transfers less than 2 GiB at once. Longer requests are continued; tests use
/// a small limit to exercise that.
const MAX_OPERATION_BYTES: usize = if cfg!(test) { 8192 } else { 1 << 30 };

/// Pause between two looks at the completions of a ring that can no longer be entered.
const BROKEN_RING_POLL: Duration = Duration::from_millis(1);

/// Pause before a ring is entered again for which the kernel had no memory.
const REFUSED_PAUSE: Duration = Duration::from_micros(100);

/// How often in a row the kernel may have no memory to enter a ring, before requests are run without the ring: for a
/// tenth of a second.
const REFUSALS_MAX: u32 = 1000;

/// Checks that this process may set up rings, and that the kernel supports the operations used here (Linux 5.6).
pub(super) fn probe() -> Result<(), BackingError> {
    let ring = IoUring::new(2).map_err(|e| SysError::io("setting up io_uring", &e))?;
    let mut probe = Probe::new();
    let known = ring.submitter().register_probe(&mut probe).is_ok()
        && [opcode::Read::CODE, opcode::Write::CODE].iter().all(|&code| probe.is_supported(code));
    match known {
        true => Ok(()),
        false => Err(SysError::new("using io_uring's read and write", libc::ENOSYS).into()),
    }
}

/// A request that the kernel works on, or that is in the submission ring.
struct InFlight {
    request: Request,
    /// Bytes transferred so far.
    done_bytes: usize,
}

/// The queue of a file with io_uring. One thread uses it at a time (`&mut self`), so it has no lock.
pub(super) struct UringQueue<'a> {
    /// The medium on the file, which runs the requests that the ring cannot serve.
    backing: &'a dyn Backing,
    block_bytes: usize,
    buffers: &'a Buffers,
    ring: IoUring,
    depth: usize,
    /// By index, which is the `user_data` of the ring's entries.
    slots: Vec<Option<InFlight>>,
    /// Indexes of empty slots.
    free: Vec<usize>,
    /// Slots whose entries the kernel has not taken yet, in the order of the submission ring.
    unsent: VecDeque<usize>,
    /// Requests that are run with positioned I/O.
    fallback: VecDeque<Request>,
    /// First address of the registered region, and the address after its end.
    registered: Option<(usize, usize)>,
    /// The kernel refuses to enter the ring: all requests go to `fallback`.
    is_broken: bool,
    /// How often in a row the kernel had no memory to enter the ring.
    refusals: u32,
}

impl<'a> UringQueue<'a> {
    /// Makes a queue on `backing`, whose bytes are those of `file`.
    pub(super) fn new(
        backing: &'a dyn Backing,
        file: &File,
        depth: usize,
        buffers: &'a Buffers,
    ) -> Result<Self, BackingError> {
        let depth = depth.clamp(1, MAX_DEPTH);
        let ring = IoUring::new(depth as u32).map_err(|e| SysError::io("setting up io_uring", &e))?;
        ring.submitter()
            .register_files(&[file.as_raw_fd()])
            .map_err(|e| SysError::io("registering a file with io_uring", &e))?;
        Ok(UringQueue {
            backing,
            block_bytes: backing.block_bytes(),
            buffers,
            registered: register(&ring, buffers),
            ring,
            depth,
            slots: std::iter::repeat_with(|| None).take(depth).collect(),
            free: (0..depth).rev().collect(),
            unsent: VecDeque::new(),
            fallback: VecDeque::new(),
            is_broken: false,
            refusals: 0,
        })
    }

    /// Whether the ring can serve a request as it is.
    fn fits_ring(&self, request: &Request) -> bool {
        let (offset, len_bytes) = (request.offset, request.len_bytes);
        !self.is_broken
            && len_bytes > 0
            && len_bytes <= request.buf.len()
            && self.backing.check_range(offset, len_bytes as u64).is_ok()
            && is_aligned(self.block_bytes, offset, &request.buf[..len_bytes])
    }

    /// Adds an entry for the rest of a request to the submission ring.
    ///
    /// # Safety
    /// The kernel has no entry of this request: it is new, or the kernel has reported its completion.
    unsafe fn push(&mut self, index: usize) {
        let Some(Some(inflight)) = self.slots.get_mut(index) else { return };
        let entry = entry(inflight, self.registered).user_data(index as u64);
        // SAFETY: the entry's memory is the rest of a buffer that `slots` owns from here until the
        // kernel has reported its completion (see the module's proof), and its file is registered.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        match pushed {
            Ok(()) => self.unsent.push_back(index),
            // The ring has as many entries as there are slots, so this does not happen.
            // SAFETY: the ring did not take the entry, and the kernel has no earlier one (the caller's duty).
            Err(_) => unsafe { self.move_to_fallback(index) },
        }
    }

    /// Moves a request from its slot to the fallback list.
    ///
    /// # Safety
    /// The kernel has no entry of this request and will get none: afterwards its buffer may be used and dropped.
    unsafe fn move_to_fallback(&mut self, index: usize) {
        if let Some(inflight) = self.slots.get_mut(index).and_then(Option::take) {
            self.free.push(index);
            self.fallback.push_back(inflight.request);
        }
    }

    /// Enters the kernel (io_uring_enter): hands over the submitted entries and waits for `min` completions.
    fn enter(&mut self, min: usize) {
        if self.is_broken {
            return std::thread::sleep(BROKEN_RING_POLL);
        }
        let entered = self.ring.submit_and_wait(min);
        let unsent_count = self.ring.submission().len();
        self.unsent.drain(..self.unsent.len().saturating_sub(unsent_count));
        match entered.map_err(|e| e.raw_os_error()) {
            Ok(_) | Err(Some(libc::EINTR)) => self.refusals = 0,
            // The kernel lacks memory, or too many completions wait to be collected: retry. Positioned I/O needs less
            // memory, and may be what frees some.
            Err(Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM)) if self.refusals < REFUSALS_MAX => {
                self.refusals += 1;
                std::thread::sleep(REFUSED_PAUSE);
            }
            Err(_) => self.abandon(),
        }
    }

    /// Stops submitting to the ring, because the kernel refuses to enter it (forbidden since the ring was set up, or no
    /// memory). The
    /// kernel finishes the entries that it has taken; the other requests go to the fallback list.
    fn abandon(&mut self) {
        self.is_broken = true;
        // The kernel takes entries only when it is entered, which `is_broken` rules out: it will never read the entries
        // of these slots.
        while let Some(index) = self.unsent.pop_front() {
            // SAFETY: the kernel has not taken the entry and takes no more entries (see above).
            unsafe { self.move_to_fallback(index) };
        }
    }

    /// Collects the completions that have arrived. Short transfers go back into the ring for the rest.
    fn reap(&mut self, done: &mut Vec<Completion>) {
        loop {
            let Some(completed) = self.ring.completion().next() else { return };
            let index = completed.user_data() as usize;
            let Some(slot) = self.slots.get_mut(index) else { continue };
            let Some(inflight) = slot.as_mut() else { continue };
            match apply_result(inflight, completed.result(), self.block_bytes) {
                // SAFETY: the kernel has reported this request's completion, and gets no further entry of it.
                None if self.is_broken => unsafe { self.move_to_fallback(index) },
                // SAFETY: the kernel has reported this request's completion.
                None => unsafe { self.push(index) },
                Some(result) => {
                    if let Some(inflight) = slot.take() {
                        self.free.push(index);
                        done.push(Completion { request: inflight.request, result });
                    }
                }
            }
        }
    }

    /// Runs the requests of the fallback list, with positioned I/O.
    fn run_fallback(&mut self, done: &mut Vec<Completion>) {
        for mut request in self.fallback.drain(..) {
            let result = request.run(self.backing);
            done.push(Completion { request, result });
        }
    }
}

/// Registers the region of `buffers` with the ring, and returns its addresses; `None` if the kernel refuses (usually by
/// the limit on locked memory).
fn register(ring: &IoUring, buffers: &Buffers) -> Option<(usize, usize)> {
    let (base, len_bytes) = buffers.region();
    let len_bytes = len_bytes.min(MAX_REGISTERED_BYTES);
    let region = libc::iovec { iov_base: base.as_ptr().cast(), iov_len: len_bytes };
    // SAFETY: the region is mapped now, and the kernel holds references to its pages until the ring is gone. Only
    // entries make the kernel access the region, each inside a buffer that its `InFlight` owns. The pages that the
    // kernel holds stay the pages of the region: `Buffers` never returns memory to the kernel.
    let registered = unsafe { ring.submitter().register_buffers(&[region]) };
    let first = base.as_ptr().addr();
    registered.ok().map(|()| (first, first + len_bytes))
}

/// The ring's entry for the rest of a request.
fn entry(inflight: &mut InFlight, registered: Option<(usize, usize)>) -> squeue::Entry {
    let Request { operation, offset, ref mut buf, len_bytes, .. } = inflight.request;
    let rest = &mut buf[inflight.done_bytes..len_bytes];
    let offset = offset + inflight.done_bytes as u64;
    let (start, end) = (rest.as_ptr().addr(), rest.as_ptr().addr() + rest.len());
    let is_registered = registered.is_some_and(|(first, last)| first <= start && end <= last);
    let len = rest.len().min(MAX_OPERATION_BYTES) as u32;
    let (file, at) = (types::Fixed(0), rest.as_mut_ptr());
    match (operation, is_registered) {
        (Operation::Read, true) => opcode::ReadFixed::new(file, at, len, 0).offset(offset).build(),
        (Operation::Read, false) => opcode::Read::new(file, at, len).offset(offset).build(),
        (Operation::Write, true) => opcode::WriteFixed::new(file, at, len, 0).offset(offset).build(),
        (Operation::Write, false) => opcode::Write::new(file, at, len).offset(offset).build(),
    }
}

/// Records the kernel's result for a request, and returns the request's result; `None` if bytes are left to transfer,
/// or the operation was interrupted.
fn apply_result(
    inflight: &mut InFlight,
    kernel_result: i32,
    block_bytes: usize,
) -> Option<Result<(), BackingError>> {
    let Request { operation, offset, ref mut buf, len_bytes, .. } = inflight.request;
    let name = if operation == Operation::Read { "read" } else { "write" };
    let failed =
        |errno| Some(Err(BackingError::Io { operation: name, offset, len_bytes: len_bytes as u64, errno }));
    let moved = match kernel_result {
        n if n >= 0 => n as usize,
        n if -n == libc::EINTR => return None,
        n => return failed(-n),
    };
    let rest = &mut buf[inflight.done_bytes..len_bytes];
    match classify_transfer(operation, moved, rest.len(), block_bytes) {
        Transfer::Complete => Some(Ok(())),
        Transfer::Stalled => failed(libc::EIO),
        Transfer::EndOfFile => {
            let end = offset + (inflight.done_bytes + moved) as u64;
            Some(Err(BackingError::CutOff { offset, len_bytes: len_bytes as u64, end }))
        }
        Transfer::Partial(bytes) => {
            inflight.done_bytes += bytes;
            None
        }
    }
}

impl Queue for UringQueue<'_> {
    fn submit(&mut self, request: Request) -> Result<(), Completion> {
        if self.in_flight() >= self.depth {
            return Err(Completion { request, result: Err(BackingError::QueueFull { depth: self.depth }) });
        }
        let index = if self.fits_ring(&request) { self.free.pop() } else { None };
        match index {
            Some(index) => {
                self.slots[index] = Some(InFlight { request, done_bytes: 0 });
                // SAFETY: the request is new, so the kernel has no entry of it.
                unsafe { self.push(index) };
            }
            None => self.fallback.push_back(request),
        }
        Ok(())
    }

    fn start(&mut self) {
        if !self.unsent.is_empty() {
            self.enter(0);
        }
    }

    fn complete(&mut self, min: usize, done: &mut Vec<Completion>) -> usize {
        let (before, want) = (done.len(), min.min(self.in_flight()));
        if !self.fallback.is_empty() {
            self.start();
            self.run_fallback(done);
        }
        loop {
            self.reap(done);
            self.run_fallback(done);
            let count = done.len() - before;
            if count >= want {
                self.start();
                return count;
            }
            self.enter(want - count);
        }
    }

    fn in_flight(&self) -> usize {
        self.depth - self.free.len() + self.fallback.len()
    }

    fn is_degraded(&self) -> bool {
        self.is_broken
    }

    fn register_again(&mut self) {
        if self.registered.is_none() && self.in_flight() == 0 && !self.is_broken {
            self.registered = register(&self.ring, self.buffers);
        }
    }
}

impl Drop for UringQueue<'_> {
    /// Waits until the kernel has completed every request, then unregisters the file. The kernel tears down a closed
    /// ring some time later; until then a registered file would stay open, locked and claimed.
    fn drop(&mut self) {
        self.complete(usize::MAX, &mut Vec::new());
        // If this fails, which is not expected, the teardown of the ring does the same later.
        let _ = self.ring.submitter().unregister_files();
        if self.registered.is_some() {
            let _ = self.ring.submitter().unregister_buffers();
        }
    }
}

#[cfg(test)]
mod tests;
