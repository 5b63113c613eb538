//! Serving a program's page faults: the kernel's userfaultfd.
//!
//! A context ([`Uffd`]) is told which ranges it serves. A fault in one of them becomes a message on the
//! descriptor or, if the context was opened so, SIGBUS in the thread that made it; whoever serves it fills
//! the page.
//! `open` holds the ways to a context, `abi` the kernel's numbers; here are the operations. Reference:
//! userfaultfd(2), ioctl_userfaultfd(2).
//!
//! Everything but [`Uffd::open`], [`Uffd::register`] and [`Uffd::unregister`] may be called in a signal
//! handler: no memory is allocated and no lock is taken, and errors are plain numbers.
//!
//! A context belongs to the address space that opened it. A forked child inherits the descriptor, and what it
//! does with it happens to the parent's memory: it must leave it alone.
//!
//! Not here: minor faults, huge pages, and events of fork, remap and removal.

mod abi;
mod open;
#[cfg(test)]
mod tests;

pub use crate::Errno;
pub use open::{DEVICE, Feature, Features, Open, OpenError, kernel_features};

use crate::{SysError, mem};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A userfaultfd context. Its ranges are unregistered when it is dropped.
#[derive(Debug)]
pub struct Uffd {
    fd: OwnedFd,
    features: Features,
}

/// How far an operation got, and why it stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// Bytes done, from the front; whole pages.
    pub len_bytes: usize,
    /// Why the page after them was not done; 0 if all were.
    pub errno: i32,
}

/// A fault that waits to be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fault {
    /// The first byte of its page.
    pub address: usize,
    /// Whether it was a write.
    pub is_write: bool,
    /// Whether the page is there but write-protected; else it is not there.
    pub is_write_protected: bool,
}

impl Uffd {
    /// A new context. Only faults of user mode are served unless `kernel_faults` is asked for, which takes a
    /// privilege; the error says which.
    ///
    /// The system call is tried first, then [`DEVICE`]. The descriptor is closed on exec and never blocks.
    pub fn open(open: &Open) -> Result<Uffd, OpenError> {
        open::open(*open)
    }

    /// What the kernel can do; what the context was opened for is among it.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Serves a range of anonymous memory from now on: faults on pages that are not there (`missing`), and
    /// writes to pages that are write-protected (`write_protect`), one of them at least.
    ///
    /// At a page, whole pages. Pages that are there stay. Registering again changes what is served.
    ///
    /// Not `unsafe`, as it changes no contents: it holds up those who look. What does is [`Uffd::copy`] and the like, and
    /// discarding pages ([`crate::mem::Reservation::discard`]): from then on they are zeroes, served otherwise or not.
    pub fn register(
        &self,
        start: usize,
        len_bytes: usize,
        missing: bool,
        write_protect: bool,
    ) -> Result<(), SysError> {
        let mode = if missing { abi::REGISTER_MISSING } else { 0 }
            | if write_protect { abi::REGISTER_WP } else { 0 };
        let mut register = abi::Register { range: range(start, len_bytes), mode, ioctls: 0 };
        self.call(abi::UFFDIO_REGISTER, &mut register).map_err(|Errno(errno)| {
            SysError::new(format!("registering {len_bytes} bytes at {start:#x} with userfaultfd"), errno)
        })
    }

    /// Serves a range no longer: the kernel fills missing pages with zeroes again. Who waits there is woken.
    pub fn unregister(&self, start: usize, len_bytes: usize) -> Result<(), SysError> {
        self.call(abi::UFFDIO_UNREGISTER, &mut range(start, len_bytes)).map_err(|Errno(errno)| {
            SysError::new(format!("unregistering {len_bytes} bytes at {start:#x} from userfaultfd"), errno)
        })
    }

    /// Fills missing pages at `dst` with copies of `src`, each page whole at once, and wakes who waits for
    /// them if
    /// `wake`. `src` needs no alignment.
    ///
    /// Stops with EEXIST at a page that is there, EFAULT if `src` cannot be read without a fault that this
    /// context serves, ENOENT if `dst` is not registered, EAGAIN if the address space is being changed,
    /// ENOMEM.
    ///
    /// # Safety
    /// `dst` and the bytes after it lie in memory whose contents the caller may decide. `src` is readable for
    /// `len_bytes` bytes.
    pub unsafe fn copy(&self, dst: usize, src: *const u8, len_bytes: usize, wake: bool) -> Done {
        let mode = if wake { 0 } else { abi::DONT_WAKE };
        self.transfer(abi::UFFDIO_COPY, [dst, src.addr()], len_bytes, mode)
    }

    /// Maps the kernel's page of zeroes at missing pages: they read as zeroes, and take memory when first
    /// written.
    ///
    /// Stops as [`Uffd::copy`] does.
    ///
    /// # Safety
    /// `dst` and the bytes after it lie in memory whose contents the caller may decide.
    pub unsafe fn zero(&self, dst: usize, len_bytes: usize, wake: bool) -> Done {
        let mode = if wake { 0 } else { abi::DONT_WAKE };
        until_stopped(len_bytes, |done| {
            let mut zero = abi::Zero { range: range(dst + done, len_bytes - done), mode, done: 0 };
            let outcome = self.call(abi::UFFDIO_ZEROPAGE, &mut zero);
            progress(outcome, zero.done)
        })
    }

    /// Makes accesses to missing pages fail with SIGBUS from now on, and wakes who waits for them if `wake`. Needs
    /// [`Feature::Poison`]. Discarding a page ends it.
    ///
    /// Stops as [`Uffd::zero`] does.
    ///
    /// # Safety
    /// `dst` and the bytes after it lie in memory whose contents the caller may decide.
    pub unsafe fn poison(&self, dst: usize, len_bytes: usize, wake: bool) -> Done {
        let mode = if wake { 0 } else { abi::DONT_WAKE };
        until_stopped(len_bytes, |done| {
            let mut poison = abi::Zero { range: range(dst + done, len_bytes - done), mode, done: 0 };
            let outcome = self.call(abi::UFFDIO_POISON, &mut poison);
            progress(outcome, poison.done)
        })
    }

    /// Moves pages from `src` to missing pages at `dst`, without copying them: afterwards those at `src` are
    /// missing. Needs [`Feature::Move`].
    ///
    /// `dst` is registered with this context; `src` need not be. Both are private anonymous memory of like
    /// protection, locked both or neither. With `allow_holes`, pages that are missing at `src` are passed
    /// over and count as done. A source page of zeroes that takes no memory stays one. Stops with EEXIST at a
    /// page that is there at `dst`, ENOENT at one that is missing at `src`, EBUSY at one that is pinned (by
    /// direct I/O, io_uring and such) or shared with a forked child, EAGAIN if the address space is being
    /// changed.
    ///
    /// Linux 6.18 moves pages and then claims EEXIST, as if it had not, when it had to begin anew in between
    /// (another thread was at the page: its `move_pages` keeps the earlier EAGAIN and goes over the same pages
    /// again). So EEXIST at a page that is missing at `src` means that it was moved, and is not returned.
    ///
    /// # Safety
    /// `dst` and the bytes after it lie in memory whose contents the caller may decide, and so do `src` and
    /// the bytes after it. None of it is moved by another thread meanwhile.
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
            // It was moved by this very call, or one before: see above.
            if wake {
                // It fails only for ranges that are not registered.
                let _ = self.wake(dst + done.len_bytes, page_bytes);
            }
            let at = done.len_bytes + page_bytes;
            done = self.transfer(abi::UFFDIO_MOVE, [dst + at, src + at], len_bytes - at, mode);
            done.len_bytes += at;
        }
        done
    }

    /// Write-protects pages of a range that is registered for it, or lifts the protection; if `wake`, the
    /// latter wakes who waits there.
    ///
    /// In a context that was opened with `async_wp`, pages that are missing are protected too, by a mark in
    /// the page table: [`Uffd::zero`] and [`Uffd::move_pages`] then stop there as if at a page that is there
    /// (Linux 6.18), while [`Uffd::copy`] does not. Lifting the protection and discarding the page take the
    /// mark away.
    ///
    /// ENOENT if the range is not registered, EAGAIN if the address space is being changed.
    ///
    /// # Safety
    /// The caller serves writes to the pages, or the context lifts the protection by itself (`async_wp`):
    /// else threads that write there wait forever.
    pub unsafe fn write_protect(
        &self,
        start: usize,
        len_bytes: usize,
        protect: bool,
        wake: bool,
    ) -> Result<(), Errno> {
        let mode = match (protect, wake) {
            // Protecting wakes nobody, and the kernel refuses to be told so.
            (true, _) => abi::WRITE_PROTECT,
            (false, true) => 0,
            (false, false) => abi::WRITE_PROTECT_DONT_WAKE,
        };
        let mut protect = abi::WriteProtect { range: range(start, len_bytes), mode };
        self.call(abi::UFFDIO_WRITEPROTECT, &mut protect)
    }

    /// Wakes who waits for pages of a range; they try their access again.
    pub fn wake(&self, start: usize, len_bytes: usize) -> Result<(), Errno> {
        self.call(abi::UFFDIO_WAKE, &mut range(start, len_bytes))
    }

    /// Takes faults that wait to be served, as many as there are and have room. Returns how many; never
    /// waits. Each is given out once.
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
                // What was taken must be served: the error shows again at the next call.
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

    /// Readable when faults wait to be served.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn read_messages(&self, messages: &mut [abi::Message]) -> Result<usize, Errno> {
        // SAFETY: the kernel writes into the slice, as many bytes as it is long at most; any bytes are valid
        // messages.
        let n = unsafe {
            libc::read(self.fd.as_raw_fd(), messages.as_mut_ptr().cast(), std::mem::size_of_val(messages))
        };
        // The kernel gives whole messages only.
        usize::try_from(n).map(|n| n / size_of::<abi::Message>()).map_err(|_| Errno::last())
    }

    fn transfer(&self, request: libc::Ioctl, [dst, src]: [usize; 2], len_bytes: usize, mode: u64) -> Done {
        until_stopped(len_bytes, |done| {
            let (dst, src, len) = ((dst + done) as u64, (src + done) as u64, (len_bytes - done) as u64);
            let mut transfer = abi::Transfer { dst, src, len, mode, done: 0 };
            let outcome = self.call(request, &mut transfer);
            progress(outcome, transfer.done)
        })
    }

    /// One request. `T` is the structure that its number was made with.
    fn call<T>(&self, request: libc::Ioctl, argument: &mut T) -> Result<(), Errno> {
        // SAFETY: the argument points to a whole structure of the request, which the kernel reads and writes;
        // what it does to memory elsewhere is the duty of the callers of the unsafe functions above.
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

/// Whether a page of mapped memory is there. True if the kernel does not say.
fn is_there(address: usize, page_bytes: usize) -> bool {
    let mut resident = 1_u8;
    let page = std::ptr::without_provenance_mut(address / page_bytes * page_bytes);
    // SAFETY: looks only at page tables; the kernel writes one byte for one page.
    let rc = unsafe { libc::mincore(page, page_bytes, &mut resident) };
    rc != 0 || resident & 1 == 1
}

fn range(start: usize, len_bytes: usize) -> abi::Range {
    abi::Range { start: start as u64, len: len_bytes as u64 }
}

/// What one call did: some bytes, or an error if it did none.
///
/// A call that does a part fails with EAGAIN, whatever stopped it, and says in its structure how many bytes
/// it did; one that does nothing says why by its error number, and mostly in the structure too.
fn progress(outcome: Result<(), Errno>, done: i64) -> Result<usize, Errno> {
    match (outcome, usize::try_from(done)) {
        (_, Ok(done)) if done > 0 => Ok(done),
        (Err(e), _) => Err(e),
        // A kernel that claims to have done nothing, and that well, would be asked forever.
        (Ok(()), _) => Err(Errno(libc::EIO)),
    }
}

/// Calls until all is done or a call does nothing, which is how the kernel says why the one before stopped
/// short.
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
