//! FUSE over io_uring: the queue of a mount that one thread serves.
//!
//! A [`FuseRing`] has entries, each with two areas of memory: headers and a payload. The kernel puts a request into an
//! entry that it has; the thread puts the reply into the same entry and commits it, which also asks for the next
//! request. The kernel copies inside of [`FuseRing::wait`], because the ring defers its work to that call.
//!
//! A mount uses rings only if its negotiation has said so, and then it needs entries for the number of each possible
//! CPU: the kernel sends requests to the queue of the CPU that makes them. References: the kernel's
//! Documentation/filesystems/fuse-io-uring.rst and `include/uapi/linux/fuse.h`.

mod permission;

use crate::{SysError, failed};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::event::EventfdFlags;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

pub use permission::check_commands;

/// Whether this kernel offers FUSE over io_uring: the parameter that an administrator sets. This crate never writes it.
pub const ENABLED: &str = "/sys/module/fuse/parameters/enable_uring";

const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// The `user_data` of the request that waits for the stop event.
const STOP: u64 = u64::MAX;
const PAGE: usize = 4096;

/// Bytes of the header of a request or reply in an entry, of the operation's structure, and of the ring's own fields.
const HEADER: usize = 128;
const STRUCTURE: usize = 128;
const EXCHANGE: usize = 32;
/// Bytes of the headers' area of an entry.
pub const HEADERS: usize = HEADER + STRUCTURE + EXCHANGE;

/// Whether the kernel has the parameter: it has FUSE over io_uring, and the module is loaded.
pub fn is_known() -> bool {
    std::path::Path::new(ENABLED).exists()
}

/// Whether the parameter allows FUSE over io_uring. False for kernels without it.
pub fn is_enabled() -> bool {
    std::fs::read_to_string(ENABLED).is_ok_and(|text| matches!(text.trim(), "Y" | "1"))
}

/// The number of CPUs that the kernel may ever have, which is the number of queues.
pub fn queues() -> Result<usize, SysError> {
    const FILE: &str = "/sys/devices/system/cpu/possible";
    let text = std::fs::read_to_string(FILE).map_err(|e| SysError::io(format!("reading {FILE}"), &e))?;
    count(&text)
        .ok_or_else(|| SysError::new(format!("reading {FILE}: CPUs without gaps are needed"), libc::EINVAL))
}

/// The number of CPUs of a list such as `0-3`. `None` if their numbers do not begin with 0 or have gaps: then the numbers
/// of CPUs are not those of the kernel's queues.
fn count(list: &str) -> Option<usize> {
    match list.trim().split_once('-') {
        None => list.trim().parse::<usize>().ok().filter(|only| *only == 0).map(|_| 1),
        Some(("0", last)) => last.parse::<usize>().ok().map(|last| last + 1),
        Some(_) => None,
    }
}

/// An event that ends all threads of a mount.
#[derive(Debug)]
pub struct StopEvent(OwnedFd);

impl StopEvent {
    /// Makes an event that was not signalled.
    pub fn new() -> Result<Self, SysError> {
        let made = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        made.map(StopEvent).map_err(failed("making an eventfd"))
    }

    /// Wakes all waiters; later waits return at once.
    pub fn signal(&self) {
        // It fails only if it was signalled very often.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl AsFd for StopEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[derive(Clone)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

/// Whole pages of memory that the kernel writes to and reads from.
///
/// A raw pointer owns them: a `Box` would promise the compiler that nothing else has access to them.
struct Area {
    pages: NonNull<[Page]>,
}

impl Area {
    /// Memory for `len` bytes, which is present from now on.
    fn new(len: usize) -> Self {
        // Other bytes than zeroes bring all pages into memory now.
        let pages = vec![Page([0xff; PAGE]); len.div_ceil(PAGE)].into_boxed_slice();
        Area { pages: NonNull::from(Box::leak(pages)) }
    }

    fn start(&self) -> *mut u8 {
        self.pages.as_ptr().cast()
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the pointer is that of a box that `new` leaked, and is not used again.
        drop(unsafe { Box::from_raw(self.pages.as_ptr()) });
    }
}

/// The memory of an entry. The kernel has pointers to it, so nothing but `FuseRing` touches it.
struct Entry {
    headers: Area,
    payload: Area,
    payload_bytes: usize,
    /// Both areas, as the kernel reads them when the entry is registered.
    areas: Box<[libc::iovec; 2]>,
    /// Whether it contains a request that was not committed: then the kernel does not touch it.
    belongs_to_server: bool,
}

impl Entry {
    fn new(payload_bytes: usize) -> Self {
        let (headers, payload) = (Area::new(HEADERS), Area::new(payload_bytes));
        let areas = Box::new([
            libc::iovec { iov_base: headers.start().cast(), iov_len: HEADERS },
            libc::iovec { iov_base: payload.start().cast(), iov_len: payload_bytes },
        ]);
        Entry { headers, payload, payload_bytes, areas, belongs_to_server: false }
    }

    /// The headers and the payload, unless the kernel has the entry.
    fn ours(&mut self) -> Option<(&mut [u8], &mut [u8])> {
        if !self.belongs_to_server {
            return None;
        }
        // SAFETY: both areas are initialised bytes that the entry owns, and have these lengths. The kernel touches them
        // only inside of a system call on the ring after the entry was committed, which needs `&mut FuseRing` and so
        // ends the life of these references.
        unsafe {
            let headers = std::slice::from_raw_parts_mut(self.headers.start(), HEADERS);
            let payload = std::slice::from_raw_parts_mut(self.payload.start(), self.payload_bytes);
            Some((headers, payload))
        }
    }
}

// SAFETY: the pointers of an entry are to memory that it owns, and no thread has others.
unsafe impl Send for Entry {}

/// A request in an entry, and the place of its reply.
#[derive(Debug)]
pub struct Exchange<'a> {
    /// The header of the request; later that of the reply.
    pub header: &'a mut [u8],
    /// The structure of the request's operation.
    pub structure: &'a [u8],
    /// Names or data of the request, as long as `payload_bytes` says; later the reply.
    pub payload: &'a mut [u8],
    /// Bytes of names or data.
    pub payload_bytes: usize,
}

impl<'a> Exchange<'a> {
    /// The request in the areas of an entry, whatever they contain.
    pub fn in_areas(headers: &'a mut [u8; HEADERS], payload: &'a mut [u8]) -> Self {
        let (header, rest) = headers.split_at_mut(HEADER);
        let (structure, exchange) = rest.split_at_mut(STRUCTURE);
        // The kernel has put no more into the payload than there is space for.
        let payload_bytes = (word(exchange, 16) as usize).min(payload.len());
        Exchange { header, structure, payload, payload_bytes }
    }
}

/// Something that happened to a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The entry with this number contains a request.
    Request(usize),
    /// The mount has ended, or the stop event was signalled.
    Ended,
    /// The kernel refused a registration or a commit with this error number.
    Refused(i32),
}

/// A ring with the entries of one queue. Only the thread that made it uses it: the kernel refuses others.
pub struct FuseRing {
    // Dropped before the memory that the kernel has pointers to.
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    channel: File,
    queue: u16,
    entries: Vec<Entry>,
    /// Entries whose requests came while they were registered.
    early: Vec<usize>,
}

impl FuseRing {
    /// Makes a ring with `entries` entries for the queue of the CPU `queue`. `channel` is a channel of the mount.
    ///
    /// A payload has space for the longest reply and `payload_bytes` says how much that is. This fails where a sandbox
    /// forbids any of io_uring's system calls that the ring needs later.
    pub fn new(
        channel: &File,
        queue: usize,
        entries: usize,
        payload_bytes: usize,
        stop: &StopEvent,
    ) -> Result<Self, SysError> {
        let failed = |e: io::Error| SysError::io("making a ring for FUSE requests", &e);
        let slots = u32::try_from(entries + 1).map_err(|_| failed(io::ErrorKind::InvalidInput.into()))?;
        let queue = u16::try_from(queue).map_err(|_| failed(io::ErrorKind::InvalidInput.into()))?;
        let mut builder = IoUring::<squeue::Entry128, cqueue::Entry>::builder();
        let ring = builder
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .build(slots)
            .map_err(failed)?;
        let channel = channel.try_clone().map_err(failed)?;
        let entries = (0..entries).map(|_| Entry::new(payload_bytes)).collect();
        let mut made = FuseRing { ring, channel, queue, entries, early: Vec::new() };
        let wait = opcode::PollAdd::new(types::Fd(stop.as_fd().as_raw_fd()), libc::POLLIN as u32);
        made.push(wait.build().user_data(STOP).into()).map_err(failed)?;
        // A sandbox may allow the call that makes a ring and forbid the one that uses it: that has to show now.
        made.ring.submit().map_err(failed)?;
        Ok(made)
    }

    /// Gives all entries to the kernel. The mount must be negotiated.
    pub fn register(&mut self) -> Result<(), SysError> {
        let failed = |e: io::Error| SysError::io("registering the entries of a FUSE ring", &e);
        for number in 0..self.entries.len() {
            let command = self.registration(number);
            self.push(command).map_err(failed)?;
        }
        self.ring.submit().map_err(failed)?;
        while let Some(event) = self.completed() {
            match event {
                Event::Request(number) => self.early.push(number),
                Event::Refused(errno) => return Err(failed(io::Error::from_raw_os_error(errno))),
                Event::Ended => return Err(failed(io::Error::from_raw_os_error(libc::ENOTCONN))),
            }
        }
        Ok(())
    }

    /// The command that gives an entry to the kernel.
    fn registration(&self, number: usize) -> squeue::Entry128 {
        let areas = self.entries.get(number).map_or(std::ptr::null(), |entry| entry.areas.as_ptr());
        let mut command = self.command(REGISTER, number, 0, Some(areas as u64));
        // SAFETY: `Entry128` is the kernel's structure of 128 bytes, whose field `len` has four bytes at offset 24. The
        // crate has no function that sets it for commands.
        unsafe { (&raw mut command).cast::<u8>().add(24).cast::<u32>().write(2) };
        command
    }

    /// The number of entries.
    pub fn entries(&self) -> usize {
        self.entries.len()
    }

    /// Waits until something has happened.
    pub fn wait(&mut self) -> Result<(), SysError> {
        loop {
            if !self.early.is_empty() {
                return Ok(());
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(SysError::io("waiting for FUSE requests", &e)),
            }
        }
    }

    /// Hands all commits to the kernel now, without waiting for anything.
    pub fn submit(&mut self) -> Result<(), SysError> {
        let submitted = self.ring.submit();
        submitted.map(drop).map_err(|e| SysError::io("committing FUSE replies", &e))
    }

    /// The next thing that has happened.
    pub fn next_event(&mut self) -> Option<Event> {
        self.early.pop().map(Event::Request).or_else(|| self.completed())
    }

    fn completed(&mut self) -> Option<Event> {
        let done = self.ring.completion().next()?;
        Some(match (done.user_data(), -done.result()) {
            (STOP, _) => Event::Ended,
            (number, 0) => match self.entries.get_mut(number as usize) {
                Some(entry) => {
                    entry.belongs_to_server = true;
                    Event::Request(number as usize)
                }
                None => Event::Refused(libc::EIO),
            },
            (_, libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV | libc::ECANCELED) => Event::Ended,
            (_, errno) => Event::Refused(errno),
        })
    }

    /// The request in an entry. `None` if the kernel has the entry.
    pub fn exchange(&mut self, number: usize) -> Option<Exchange<'_>> {
        let (headers, payload) = self.entries.get_mut(number)?.ours()?;
        Some(Exchange::in_areas(headers.first_chunk_mut()?, payload))
    }

    /// Returns an entry with a reply of `payload_bytes` bytes to the kernel, at the next [`wait`](Self::wait) or
    /// [`submit`](Self::submit), and asks for another request.
    pub fn commit(&mut self, number: usize, payload_bytes: usize) -> Result<(), SysError> {
        let failed = |e: io::Error| SysError::io("committing a FUSE reply", &e);
        let entry = self.entries.get_mut(number);
        let entry = entry.ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
        let (headers, payload) = entry.ours().ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
        // The kernel would read beyond the payload.
        if payload_bytes > payload.len() {
            return Err(failed(io::ErrorKind::InvalidInput.into()));
        }
        let exchange = &mut headers[HEADER + STRUCTURE..];
        let mut id = [0; 8];
        id.copy_from_slice(&exchange[8..16]);
        exchange[16..20].copy_from_slice(&(payload_bytes as u32).to_ne_bytes());
        entry.belongs_to_server = false;
        let command = self.command(COMMIT_AND_FETCH, number, u64::from_ne_bytes(id), None);
        self.push(command).map_err(failed)
    }

    /// A command on an entry: `struct fuse_uring_cmd_req` is flags, the number of the request, and the queue.
    fn command(&self, operation: u32, number: usize, id: u64, areas: Option<u64>) -> squeue::Entry128 {
        let mut fields = [0; 80];
        fields[8..16].copy_from_slice(&id.to_ne_bytes());
        fields[16..18].copy_from_slice(&self.queue.to_ne_bytes());
        let command = opcode::UringCmd80::new(types::Fd(self.channel.as_raw_fd()), operation);
        command.cmd(fields).addr(areas).build().user_data(number as u64)
    }

    /// Queues a command. There is space: an entry has one command at most, and the queue has one more.
    fn push(&mut self, command: squeue::Entry128) -> io::Result<()> {
        // SAFETY: the channel is open as long as the ring, the stop event until `new` has submitted the request that
        // waits for it (the kernel then has a reference), and the areas of an entry live until after the ring.
        unsafe { self.ring.submission().push(&command) }.map_err(|_| io::ErrorKind::StorageFull.into())
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_ne_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpus_of_a_list_without_gaps_are_counted() {
        let cases = [
            ("0\n", Some(1)),
            ("0-1\n", Some(2)),
            ("0-127", Some(128)),
            ("0-3,8", None),
            ("0,2-17", None),
            ("1-2", None),
            ("", None),
        ];
        for (list, cpus) in cases {
            assert_eq!(count(list), cpus, "{list:?}");
        }
        assert!(queues().unwrap() >= crate::cpu::count());
    }

    #[test]
    fn a_channel_without_a_mount_takes_no_entries() {
        let Ok(channel) = crate::fusedev::open() else {
            return pagefold_testkit::skipped!("a_channel_without_a_mount_takes_no_entries: no /dev/fuse");
        };
        let stop = StopEvent::new().unwrap();
        let made = FuseRing::new(&channel, 0, 2, 1 << 16, &stop);
        let Ok(mut ring) = made else {
            return pagefold_testkit::skipped!("a_channel_without_a_mount_takes_no_entries: no io_uring");
        };
        assert!(ring.exchange(0).is_none() && ring.commit(0, 0).is_err());
        assert!(ring.register().is_err());
        stop.signal();
        ring.wait().unwrap();
        assert_eq!(std::iter::from_fn(|| ring.next_event()).last(), Some(Event::Ended));
    }
}
