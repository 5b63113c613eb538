//! Serving page faults in user space: the kernel's userfaultfd.
//!
//! A context ([`Uffd`]) serves the ranges that are registered with it. A fault in such a range blocks its thread and
//! becomes a message on the descriptor; if the context was opened with `sigbus`, it becomes SIGBUS in the thread that
//! faulted instead. The thread or handler that serves the fault fills the page. `open` opens contexts, `abi` holds the
//! kernel's numbers and structures, and this file the operations. Reference: userfaultfd(2), ioctl_userfaultfd(2).
//!
//! Signal handlers may call all functions except [`Uffd::open`], [`Uffd::register`] and [`Uffd::unregister`]: they
//! allocate no memory, take no locks, and return errors as plain numbers.
//!
//! A context belongs to the address space that opened it. A forked child inherits the descriptor, but its operations
//! change the parent's memory: the child must not use it.
//!
//! Not supported: minor faults, huge pages, and events of fork, remap and removal.

mod abi;
mod open;
#[cfg(test)]
mod tests;

pub use crate::Errno;
pub use open::{DEVICE, Feature, Features, OpenError, UffdOptions, kernel_features};

use crate::{SysError, mem};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A userfaultfd context. Dropping it unregisters its ranges.
#[derive(Debug)]
pub struct Uffd {
    fd: OwnedFd,
    features: Features,
}

/// The result of an operation on a range of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// Bytes done, from the start of the range; whole pages.
    pub len_bytes: usize,
    /// The error at the next page; 0 if the whole range was done.
    pub errno: i32,
}

/// A fault that waits to be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fault {
    /// The first byte of its page, or with [`UffdOptions::exact_address`] the byte that was accessed.
    pub address: usize,
    /// Whether it was a write.
    pub is_write: bool,
    /// Whether the page is present but write-protected; otherwise it is missing.
    pub is_write_protected: bool,
}

impl Uffd {
    /// The features of the kernel, which include those that the context was opened with.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Registers a range of anonymous memory with this context: faults on missing pages (`missing`), writes to
    /// write-protected pages (`write_protect`), or both.
    ///
    /// The range begins at a page and has whole pages. Present pages stay. Registering a range again changes its mode.
    ///
    /// It is not `unsafe`, as it changes no contents: it only makes threads wait at faults. The functions that change
    /// contents are `unsafe`: [`Uffd::copy`] and the like, and [`crate::mem::Reservation::discard`].
    pub fn register(
        &self,
        start: usize,
        len_bytes: usize,
        missing: bool,
        write_protect: bool,
    ) -> Result<(), SysError> {
        self.register_again(start, len_bytes, missing, write_protect).map_err(|Errno(errno)| {
            SysError::new(format!("registering {len_bytes} bytes at {start:#x} with userfaultfd"), errno)
        })
    }

    /// Like [`Uffd::register`]. It allocates nothing, so threads that make space for faults can call it.
    pub fn register_again(
        &self,
        start: usize,
        len_bytes: usize,
        missing: bool,
        write_protect: bool,
    ) -> Result<(), Errno> {
        let mode = if missing { abi::REGISTER_MISSING } else { 0 }
            | if write_protect { abi::REGISTER_WP } else { 0 };
        let mut register = abi::Register { range: range(start, len_bytes), mode, ioctls: 0 };
        self.call(abi::UFFDIO_REGISTER, &mut register)
    }

    /// Unregisters a range, and wakes the threads that wait there. The kernel fills missing pages with zeroes again.
    ///
    /// It allocates nothing, so it can be called while a fault is served.
    pub fn unregister(&self, start: usize, len_bytes: usize) -> Result<(), Errno> {
        self.call(abi::UFFDIO_UNREGISTER, &mut range(start, len_bytes))
    }

    /// Fills missing pages at `dst` with copies of `src`, each page atomically. With `wake`, wakes the threads that
    /// wait for them. `src` needs no alignment.
    ///
    /// Stops with EEXIST at a page that is present, EFAULT if reading `src` would cause a fault that this context
    /// serves, ENOENT if `dst` is not registered, EAGAIN if the address space is being changed, or ENOMEM.
    ///
    /// # Safety
    /// `dst` and the bytes after it lie in memory whose contents the caller may decide. `src` is readable for
    /// `len_bytes` bytes.
    pub unsafe fn copy(&self, dst: usize, src: *const u8, len_bytes: usize, wake: bool) -> Done {
        let mode = if wake { 0 } else { abi::DONT_WAKE };
        self.transfer(abi::UFFDIO_COPY, [dst, src.addr()], len_bytes, mode)
    }

    /// Like [`Uffd::copy`], but the pages are write-protected from the first moment, in a range that is registered for it.
    /// So nothing has written to them until the protection is removed: a system call or a device that is to write to a page
    /// causes a fault on it first, too.
    ///
    /// # Safety
    /// As for [`Uffd::copy`] and [`Uffd::write_protect`].
    pub unsafe fn copy_protected(&self, dst: usize, src: *const u8, len_bytes: usize, wake: bool) -> Done {
        let mode = if wake { 0 } else { abi::DONT_WAKE };
        self.transfer(abi::UFFDIO_COPY, [dst, src.addr()], len_bytes, mode | abi::COPY_WP)
    }

    /// Maps the kernel's zero page at missing pages: they read as zeroes, and take memory at the first write.
    ///
    /// Stops as [`Uffd::copy`] does.
    ///
    /// # Safety
    /// `dst` and the bytes after it lie in memory whose contents the caller may decide.
    pub unsafe fn zero(&self, dst: usize, len_bytes: usize, wake: bool) -> Done {
        self.fill(abi::UFFDIO_ZEROPAGE, dst, len_bytes, wake)
    }

    /// Makes accesses to missing pages fail with SIGBUS from now on, until the page is discarded. With `wake`, wakes
    /// the threads that wait for them. Needs [`Feature::Poison`].
    ///
    /// Stops as [`Uffd::zero`] does.
    ///
    /// # Safety
    /// `dst` and the bytes after it lie in memory whose contents the caller may decide.
    pub unsafe fn poison(&self, dst: usize, len_bytes: usize, wake: bool) -> Done {
        self.fill(abi::UFFDIO_POISON, dst, len_bytes, wake)
    }

    /// Moves pages from `src` to missing pages at `dst`, without copying them: afterwards the pages at `src` are
    /// missing. Needs [`Feature::Move`].
    ///
    /// `dst` is registered with this context; `src` need not be. Both are private anonymous memory with the same
    /// protection, both locked or both unlocked. With `allow_holes`, missing pages at `src` are skipped and count as
    /// done. A zero page at `src`, which takes no memory, is moved as a zero page. Stops with EEXIST at a page that is
    /// present at `dst`, ENOENT at one that is missing at `src`, EBUSY at one that is pinned (by direct I/O, io_uring
    /// and such) or shared with a forked child, EAGAIN if the address space is being changed.
    ///
    /// Linux 6.18 may move pages and then return EEXIST: if another thread accessed the page, the kernel's `move_pages`
    /// keeps the earlier EAGAIN and goes over the same pages again. So this function takes EEXIST at a page that is
    /// missing at `src` to mean that the page was moved, and goes on.
    ///
    /// # Safety
    /// `dst` and `src`, and the bytes after them, lie in memory whose contents the caller may decide. No other thread
    /// moves these pages meanwhile.
    pub unsafe fn move_pages(
        &self,
        dst: usize,
        src: usize,
        len_bytes: usize,
        wake: bool,
        allow_holes: bool,
    ) -> Done {
        let mode =
            if wake { 0 } else { abi::DONT_WAKE } | if allow_holes { abi::MOVE_ALLOW_SRC_HOLES } else { 0 };
        let mut done = self.transfer(abi::UFFDIO_MOVE, [dst, src], len_bytes, mode);
        let page_bytes = mem::page_size();
        while done.errno == libc::EEXIST && !is_there(src + done.len_bytes, page_bytes) {
            // The kernel has moved this page, in this call or an earlier one: see above.
            if wake {
                // This fails only for ranges that are not registered.
                let _ = self.wake(dst + done.len_bytes, page_bytes);
            }
            let at = done.len_bytes + page_bytes;
            done = self.transfer(abi::UFFDIO_MOVE, [dst + at, src + at], len_bytes - at, mode);
            done.len_bytes += at;
        }
        done
    }

    /// Write-protects pages of a range that is registered for it (`protect`), or removes the protection. With `wake`,
    /// the removal wakes the threads that wait there.
    ///
    /// Fails with ENOENT if the range is not registered, and with EAGAIN if the address space is being changed.
    ///
    /// # Safety
    /// The caller serves writes to the pages; otherwise threads that write there wait forever.
    pub unsafe fn write_protect(
        &self,
        start: usize,
        len_bytes: usize,
        protect: bool,
        wake: bool,
    ) -> Result<(), Errno> {
        let mode = match (protect, wake) {
            // Protecting wakes no threads, and the kernel refuses the flag then.
            (true, _) => abi::WRITE_PROTECT,
            (false, true) => 0,
            (false, false) => abi::WRITE_PROTECT_DONT_WAKE,
        };
        let mut protect = abi::WriteProtect { range: range(start, len_bytes), mode };
        self.call(abi::UFFDIO_WRITEPROTECT, &mut protect)
    }

    /// Wakes the threads that wait for pages of a range; they retry their access.
    pub fn wake(&self, start: usize, len_bytes: usize) -> Result<(), Errno> {
        self.call(abi::UFFDIO_WAKE, &mut range(start, len_bytes))
    }

    /// Reads faults that wait to be served, at most `faults.len()`, and returns their number. Never waits. Each fault
    /// is returned once.
    pub fn read_faults(&self, faults: &mut [Fault]) -> Result<usize, Errno> {
        const NONE: abi::Message =
            abi::Message { event: 0, reserved: [0; 7], flags: 0, address: 0, thread: 0 };
        const BATCH: usize = 64;
        let mut messages = [NONE; BATCH];
        let mut filled = 0;
        while filled < faults.len() {
            let wanted = (faults.len() - filled).min(BATCH);
            let arrived = match self.read_messages(&mut messages[..wanted]) {
                Ok(arrived) => arrived,
                Err(Errno(libc::EAGAIN)) => break,
                Err(Errno(libc::EINTR)) => continue,
                // Return the faults that were read, as they must be served; the next call fails with the error again.
                Err(_) if filled > 0 => break,
                Err(e) => return Err(e),
            };
            let arrived_faults = messages[..arrived].iter().filter(|m| m.event == abi::EVENT_PAGEFAULT);
            for (fault, message) in faults[filled..].iter_mut().zip(arrived_faults) {
                *fault = Fault::from(message);
                filled += 1;
            }
            if arrived < wanted {
                break;
            }
        }
        Ok(filled)
    }

    /// The descriptor, which is readable when faults wait to be served.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn read_messages(&self, messages: &mut [abi::Message]) -> Result<usize, Errno> {
        // SAFETY: the kernel writes at most as many bytes as the slice has, into the slice; any bytes are valid
        // messages.
        let n = unsafe {
            libc::read(self.fd.as_raw_fd(), messages.as_mut_ptr().cast(), std::mem::size_of_val(messages))
        };
        // The kernel returns whole messages only.
        usize::try_from(n).map(|n| n / size_of::<abi::Message>()).map_err(|_| Errno::last())
    }

    /// Fills missing pages with something that has no source.
    fn fill(&self, request: libc::Ioctl, dst: usize, len_bytes: usize, wake: bool) -> Done {
        let mode = if wake { 0 } else { abi::DONT_WAKE };
        until_stopped(len_bytes, |done| {
            let mut zero = abi::Zero { range: range(dst + done, len_bytes - done), mode, done: 0 };
            let result = self.call(request, &mut zero);
            bytes_done(result, zero.done)
        })
    }

    fn transfer(&self, request: libc::Ioctl, [dst, src]: [usize; 2], len_bytes: usize, mode: u64) -> Done {
        until_stopped(len_bytes, |done| {
            let (dst, src, len) = ((dst + done) as u64, (src + done) as u64, (len_bytes - done) as u64);
            let mut transfer = abi::Transfer { dst, src, len, mode, done: 0 };
            let result = self.call(request, &mut transfer);
            bytes_done(result, transfer.done)
        })
    }

    /// Calls the ioctl `request`. `T` must be the structure from which the request's number was made.
    fn call<T>(&self, request: libc::Ioctl, argument: &mut T) -> Result<(), Errno> {
        // SAFETY: the argument points to a whole structure of the request, which the kernel reads and writes. Requests
        // that change other memory are made only by the unsafe functions above, whose callers prove that this is sound.
        match unsafe { libc::ioctl(self.fd.as_raw_fd(), request, std::ptr::from_mut(argument)) } {
            0 => Ok(()),
            _ => Err(Errno::last()),
        }
    }
}

impl From<&abi::Message> for Fault {
    fn from(message: &abi::Message) -> Self {
        Fault {
            address: message.address as usize,
            is_write: message.flags & abi::PAGEFAULT_WRITE != 0,
            is_write_protected: message.flags & abi::PAGEFAULT_WP != 0,
        }
    }
}

/// Whether a page of mapped memory is present. True if mincore fails.
fn is_there(address: usize, page_bytes: usize) -> bool {
    let mut resident = 1_u8;
    let page = std::ptr::without_provenance_mut(address / page_bytes * page_bytes);
    // SAFETY: the kernel only reads page tables, and writes one byte for one page to `resident`.
    let rc = unsafe { libc::mincore(page, page_bytes, &mut resident) };
    rc != 0 || resident & 1 == 1
}

fn range(start: usize, len_bytes: usize) -> abi::Range {
    abi::Range { start: start as u64, len: len_bytes as u64 }
}

/// The bytes that one call did, or its error if it did none.
///
/// A call that stops after some pages fails with EAGAIN, whatever stopped it, and writes the number of bytes to its
/// structure. A call that does nothing returns the reason as its error number, and usually in the structure too.
fn bytes_done(result: Result<(), Errno>, done: i64) -> Result<usize, Errno> {
    match (result, usize::try_from(done)) {
        (_, Ok(done)) if done > 0 => Ok(done),
        (Err(e), _) => Err(e),
        // Success without any bytes done: a retry could go on forever.
        (Ok(()), _) => Err(Errno(libc::EIO)),
    }
}

/// Repeats `call` until the whole range is done, or a call does nothing and so returns the reason why the one before it
/// stopped.
fn until_stopped(len_bytes: usize, mut call: impl FnMut(usize) -> Result<usize, Errno>) -> Done {
    let mut done = 0;
    while done < len_bytes {
        match call(done) {
            Ok(more) => done += more.min(len_bytes - done),
            Err(Errno(errno)) => return Done { len_bytes: done, errno },
        }
    }
    Done { len_bytes, errno: 0 }
}
