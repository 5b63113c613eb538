//! A queue on an io_uring ring of its own.
//!
//! `submit` only fills the ring; `start` and `complete` enter the kernel, once for all
//! that was submitted and all that is waited for. Requests that the ring cannot take
//! as they are (misaligned, out of range, empty) are run one by one when it completes.
//!
//! The ring has no thread-bound flags (`SINGLE_ISSUER`, `COOP_TASKRUN`), so that a queue
//! may move between threads.
//!
//! # Why the kernel never touches memory that is not the request's
//! A request in the kernel's hands is a [`Flight`] in `flights`, owner of its [`Buffer`](crate::Buffer), whose bytes do
//! not move when the value does. A flight leaves `flights` only when the kernel has reported its
//! completion, or in [`UringQueue::abandon`], when the kernel never got it and never will. Nobody can
//! reach the buffer in between: `flights` is private, and no method hands out references into it.
//! Dropping the queue waits until `flights` is empty; leaking the queue leaks the buffers with it.

use super::FileBacking;
use super::positioned::{Progress, progress};
use crate::{Backing, BackingError, Buffers, Completion, Operation, Queue, Request};
use io_uring::{IoUring, Probe, opcode, squeue, types};
use pagefold_sys::SysError;
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// More in flight brings nothing on any medium and costs kernel memory.
const MAX_DEPTH: usize = 4096;

/// Registered memory stays in memory, so of a large budget only this much is. Budgets hand out their
/// first free bytes first, so this is the part that is used most.
const MAX_REGISTERED_BYTES: usize = 64 << 20;

/// The kernel does less than 2 GiB at once; the rest is continued, which the tests want to see.
const MAX_OPERATION_BYTES: usize = if cfg!(test) { 8192 } else { 1 << 30 };

/// How often a ring that can no longer be entered is looked at.
const BROKEN_RING_POLL: Duration = Duration::from_millis(1);

/// Whether this process may have rings, and the kernel knows the operations used here (5.6).
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

/// A request in the kernel's hands, or about to be.
struct Flight {
    request: Request,
    /// How much of it is done.
    done_bytes: usize,
}

pub(super) struct UringQueue<'a> {
    backing: &'a FileBacking,
    ring: IoUring,
    depth: usize,
    /// By the number that the kernel returns with a completion.
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    /// In the order of the submission ring; trimmed to what the kernel has not taken yet.
    unsent: VecDeque<usize>,
    /// Requests that do not go through the ring.
    aside: VecDeque<Request>,
    /// First and last address of the registered region.
    registered: Option<(usize, usize)>,
    /// The kernel refuses to be entered: everything goes aside.
    is_broken: bool,
}

impl<'a> UringQueue<'a> {
    pub(super) fn new(
        backing: &'a FileBacking,
        depth: usize,
        buffers: &'a Buffers,
    ) -> Result<Self, BackingError> {
        let depth = depth.clamp(1, MAX_DEPTH);
        let ring = IoUring::new(depth as u32).map_err(|e| SysError::io("setting up io_uring", &e))?;
        let fd = backing.file.as_raw_fd();
        ring.submitter()
            .register_files(&[fd])
            .map_err(|e| SysError::io("registering a file with io_uring", &e))?;
        let registered = register(&ring, buffers);
        let flights = std::iter::repeat_with(|| None).take(depth).collect();
        let (free, unsent, aside) = ((0..depth).rev().collect(), VecDeque::new(), VecDeque::new());
        Ok(UringQueue { backing, ring, depth, flights, free, unsent, aside, registered, is_broken: false })
    }

    /// Whether the ring can take a request as it is.
    fn fits_ring(&self, request: &Request) -> bool {
        let (offset, len_bytes) = (request.offset, request.len_bytes);
        !self.is_broken
            && len_bytes > 0
            && len_bytes <= request.buf.len()
            && self.backing.check_range(offset, len_bytes as u64).is_ok()
            && self.backing.is_aligned(offset, request.buf.as_ptr().addr(), len_bytes)
    }

    /// Puts the rest of a flight into the submission ring.
    ///
    /// # Safety
    /// The kernel does not have it: it is new, or its completion was reported.
    unsafe fn push(&mut self, index: usize) {
        let Some(Some(flight)) = self.flights.get_mut(index) else { return };
        let entry = entry(flight, self.registered).user_data(index as u64);
        // SAFETY: the entry's memory is the rest of a buffer that `flights` owns from here until the
        // kernel has reported its completion (see the module's proof), and its file is registered.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        match pushed {
            Ok(()) => self.unsent.push_back(index),
            // The ring has as many places as there are flights, so this does not happen.
            // SAFETY: the ring did not take the entry, and the kernel has no earlier one (the caller's duty).
            Err(_) => unsafe { self.set_aside(index) },
        }
    }

    /// Takes a flight out of the ring's hands.
    ///
    /// # Safety
    /// The kernel has not got it, and will not get it: its buffer is free to be used and dropped afterwards.
    unsafe fn set_aside(&mut self, index: usize) {
        if let Some(flight) = self.flights.get_mut(index).and_then(Option::take) {
            self.free.push(index);
            self.aside.push_back(flight.request);
        }
    }

    /// Enters the kernel: hands over what was submitted, waits for `min` completions.
    fn enter(&mut self, min: usize) {
        if self.is_broken {
            return std::thread::sleep(BROKEN_RING_POLL);
        }
        let entered = self.ring.submit_and_wait(min);
        let unsent_count = self.ring.submission().len();
        self.unsent.drain(..self.unsent.len().saturating_sub(unsent_count));
        match entered.map_err(|e| e.raw_os_error()) {
            Ok(_) | Err(Some(libc::EINTR)) => {}
            // Short of memory, or too many completions not taken yet: both pass.
            Err(Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM)) => std::thread::yield_now(),
            Err(_) => self.abandon(),
        }
    }

    /// The kernel will not be entered again (forbidden since the ring was set up): what it has taken it
    /// finishes, what it has not goes aside.
    fn abandon(&mut self) {
        self.is_broken = true;
        // The kernel takes entries only when it is entered, which `is_broken` rules out: these flights'
        // entries are dead.
        while let Some(index) = self.unsent.pop_front() {
            // SAFETY: the kernel has not taken the entry and takes no more (see above).
            unsafe { self.set_aside(index) };
        }
    }

    /// Collects completions that are there. Short ones go back into the ring for the rest.
    fn reap(&mut self, done: &mut Vec<Completion>) {
        loop {
            let Some(completed) = self.ring.completion().next() else { return };
            let index = completed.user_data() as usize;
            let Some(slot) = self.flights.get_mut(index) else { continue };
            let Some(flight) = slot.as_mut() else { continue };
            match note(flight, completed.result(), self.backing.block_bytes) {
                // SAFETY: the kernel has reported this flight's completion, and is given nothing more of it.
                None if self.is_broken => unsafe { self.set_aside(index) },
                // SAFETY: the kernel has reported this flight's completion.
                None => unsafe { self.push(index) },
                Some(result) => {
                    if let Some(flight) = slot.take() {
                        self.free.push(index);
                        done.push(Completion { request: flight.request, result });
                    }
                }
            }
        }
    }

    /// Does the requests that do not go through the ring.
    fn run_aside(&mut self, done: &mut Vec<Completion>) {
        for mut request in self.aside.drain(..) {
            let result = request.run(self.backing);
            done.push(Completion { request, result });
        }
    }
}

/// Registers the budget's region; `None` where the kernel refuses (a limit on locked memory, as a rule).
fn register(ring: &IoUring, buffers: &Buffers) -> Option<(usize, usize)> {
    let (base, len_bytes) = buffers.region();
    let len_bytes = len_bytes.min(MAX_REGISTERED_BYTES);
    let region = libc::iovec { iov_base: base.as_ptr().cast(), iov_len: len_bytes };
    // SAFETY: the region is mapped now, and the kernel keeps its pages itself until the ring is gone.
    // Only requests name addresses in it, each of a buffer that its flight owns. The pages that the kernel keeps are
    // those that the region shows for as long: `Buffers` never gives memory back.
    let registered = unsafe { ring.submitter().register_buffers(&[region]) };
    let first = base.as_ptr().addr();
    registered.ok().map(|()| (first, first + len_bytes))
}

/// What of a flight is still to be done, as the kernel wants it.
fn entry(flight: &mut Flight, registered: Option<(usize, usize)>) -> squeue::Entry {
    let Request { operation, offset, ref mut buf, len_bytes, .. } = flight.request;
    let rest = &mut buf[flight.done_bytes..len_bytes];
    let offset = offset + flight.done_bytes as u64;
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

/// Notes what the kernel did of a flight; `None` if something is left to do. Interruptions are tried again.
fn note(flight: &mut Flight, kernel_result: i32, block_bytes: usize) -> Option<Result<(), BackingError>> {
    let Request { operation, offset, ref mut buf, len_bytes, .. } = flight.request;
    let name = if operation == Operation::Read { "read" } else { "write" };
    let failed =
        |errno| Some(Err(BackingError::Io { operation: name, offset, len_bytes: len_bytes as u64, errno }));
    let moved = match kernel_result {
        n if n >= 0 => n as usize,
        n if -n == libc::EINTR => return None,
        n => return failed(-n),
    };
    let rest = &mut buf[flight.done_bytes..len_bytes];
    match progress(operation, moved, rest.len(), block_bytes) {
        Progress::Done => Some(Ok(())),
        Progress::Stuck => failed(libc::EIO),
        Progress::EndOfFile => {
            rest[moved..].fill(0);
            Some(Ok(()))
        }
        Progress::Part(bytes) => {
            flight.done_bytes += bytes;
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
                self.flights[index] = Some(Flight { request, done_bytes: 0 });
                // SAFETY: the flight is new.
                unsafe { self.push(index) };
            }
            None => self.aside.push_back(request),
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
        if !self.aside.is_empty() {
            self.start();
            self.run_aside(done);
        }
        loop {
            self.reap(done);
            self.run_aside(done);
            let count = done.len() - before;
            if count >= want {
                self.start();
                return count;
            }
            self.enter(want - count);
        }
    }

    fn in_flight(&self) -> usize {
        self.depth - self.free.len() + self.aside.len()
    }
}

impl Drop for UringQueue<'_> {
    /// Waits until the kernel has let go of every buffer, then of the file: a closed ring is taken apart
    /// some time later, and until then the file would stay open, locked and claimed.
    fn drop(&mut self) {
        self.complete(usize::MAX, &mut Vec::new());
        // Where this fails, as nothing should make it, the ring's end does the same, later.
        let _ = self.ring.submitter().unregister_files();
        if self.registered.is_some() {
            let _ = self.ring.submitter().unregister_buffers();
        }
    }
}

#[cfg(test)]
mod tests;
