//! Reserving, populating and returning anonymous memory; the machine's totals.

use crate::SysError;
use std::ptr::NonNull;

/// A range of private anonymous memory, reserved but not yet backed.
///
/// Pages are backed by the kernel when first touched and read as zeroes then.
/// The range is unmapped when the value is dropped.
#[derive(Debug)]
pub struct Reservation {
    base: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: the value only names a range of the address space; it holds no thread-bound state, and
// every access to the memory itself goes through raw pointers whose users state their own proof.
unsafe impl Send for Reservation {}
// SAFETY: as above; the methods taking `&self` are system calls that the kernel serialises.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// Reserves `len_bytes` bytes of address space without backing any of it.
    pub fn new(len_bytes: usize) -> Result<Self, SysError> {
        let len_bytes = len_bytes.max(1);
        // SAFETY: a fresh private anonymous mapping at an address the kernel picks overlaps nothing.
        let addr = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        match NonNull::new(addr.cast::<u8>()) {
            Some(base) if addr != libc::MAP_FAILED => {
                let range = Reservation { base, len_bytes };
                range.advise(0, len_bytes, libc::MADV_NOHUGEPAGE);
                range.advise(0, len_bytes, libc::MADV_DONTDUMP);
                Ok(range)
            }
            _ => Err(SysError::last(format!("reserving {len_bytes} bytes of address space"))),
        }
    }

    /// The first byte.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Advice is optional by nature: a kernel without one of these works the same, less well.
    fn advise(&self, offset: usize, len: usize, advice: i32) {
        // SAFETY: called with ranges inside this mapping and advice that keeps its contents.
        unsafe { libc::madvise(self.base.as_ptr().add(offset).cast(), len, advice) };
    }

    /// Backs `len` bytes at `offset` with memory now, so that touching them later cannot fail.
    ///
    /// Contents are kept. Both are multiples of the machine's page size. Fails with ENOMEM if the
    /// kernel has no memory to give.
    pub fn populate(&self, offset: usize, len: usize) -> Result<(), SysError> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len_bytes));
        // SAFETY: the range is inside this mapping (asserted); populating keeps contents.
        let rc =
            unsafe { libc::madvise(self.base.as_ptr().add(offset).cast(), len, libc::MADV_POPULATE_WRITE) };
        match rc {
            0 => Ok(()),
            _ => Err(SysError::last(format!("backing {len} bytes with memory"))),
        }
    }

    /// Gives the memory behind `len` bytes at `offset` back to the kernel; they read as zeroes next.
    ///
    /// # Safety
    /// No live object or reference lies in the range: its contents are lost.
    pub unsafe fn discard(&self, offset: usize, len: usize) -> Result<(), SysError> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len_bytes));
        // SAFETY: the range is inside this mapping (asserted) and dead (the caller's duty).
        // MADV_DONTNEED on locked memory is refused, so unlock that part first: harmless if not locked.
        let rc = unsafe {
            let at = self.base.as_ptr().add(offset).cast::<libc::c_void>();
            match libc::madvise(at, len, libc::MADV_DONTNEED_LOCKED) {
                0 => 0,
                _ => libc::madvise(at, len, libc::MADV_DONTNEED),
            }
        };
        match rc {
            0 => Ok(()),
            _ => Err(SysError::last(format!("returning {len} bytes of memory"))),
        }
    }
}

/// A part of a reservation, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Where it begins.
    pub offset: usize,
    /// How long it is.
    pub len: usize,
}

impl Reservation {
    /// [`Reservation::discard`] for many parts, up to `N` with one system call; their list, of 16 bytes each, is on
    /// the stack. Returns how many, from the first on, were given back; fewer than
    /// all if the kernel refuses one.
    ///
    /// Each call of `madvise` interrupts all CPUs that run threads of this process, so that they forget the
    /// pages; kernels from 6.16 on do so once for all parts of a `process_madvise`. Older ones refuse that call,
    /// and the parts are given back one by one.
    ///
    /// # Safety
    /// As for [`Reservation::discard`], for every part.
    pub unsafe fn discard_many<const N: usize>(&self, parts: &[Part]) -> usize {
        let mut done = 0;
        for chunk in parts.chunks(N.max(1)) {
            // SAFETY: the caller's duty.
            if chunk.len() > 1 && unsafe { self.discard_at_once::<N>(chunk) } {
                done += chunk.len();
                continue;
            }
            for part in chunk {
                // SAFETY: the caller's duty.
                if unsafe { self.discard(part.offset, part.len) }.is_err() {
                    return done;
                }
                done += 1;
            }
        }
        done
    }

    /// One system call for up to `N` parts. False if not all were given back; those that were may
    /// be again.
    ///
    /// # Safety
    /// As for [`Reservation::discard`], for every part.
    unsafe fn discard_at_once<const N: usize>(&self, parts: &[Part]) -> bool {
        /// This process, for calls that take a pidfd (Linux 6.14).
        const PIDFD_SELF_THREAD_GROUP: libc::c_int = -10001;
        let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; N];
        let mut len_bytes = 0;
        for (vector, part) in vectors.iter_mut().zip(parts) {
            assert!(part.offset.checked_add(part.len).is_some_and(|end| end <= self.len_bytes));
            // SAFETY: inside this mapping (asserted).
            vector.iov_base = unsafe { self.base.as_ptr().add(part.offset) }.cast();
            vector.iov_len = part.len;
            len_bytes += part.len;
        }
        // SAFETY: the vectors are inside this mapping and dead (the caller's duty).
        let done = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                PIDFD_SELF_THREAD_GROUP,
                vectors.as_ptr(),
                parts.len(),
                libc::MADV_DONTNEED_LOCKED,
                0,
            )
        };
        usize::try_from(done).is_ok_and(|done| done == len_bytes)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and whole, and with the value gone nothing refers to it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len_bytes) };
    }
}

/// All memory of this machine, bytes. 0 if the kernel does not say.
pub fn total_bytes() -> u64 {
    rustix::system::sysinfo().totalram as u64 * u64::from(rustix::system::sysinfo().mem_unit.max(1))
}

/// Memory of this machine that holds nothing at all, not even a cache, bytes.
pub fn free_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.freeram as u64 * u64::from(info.mem_unit.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discard_makes_populated_memory_zero_again() {
        let range = Reservation::new(1 << 30).unwrap();
        range.populate(4096, 8192).unwrap();
        // SAFETY: byte 4096 is inside the reservation, which only this test uses.
        let byte = unsafe { &*range.base().as_ptr().add(4096).cast::<std::sync::atomic::AtomicU8>() };
        byte.store(7, std::sync::atomic::Ordering::Relaxed);
        // SAFETY: the only reference into the range is to an atomic byte, valid for any contents.
        unsafe { range.discard(4096, 4096) }.unwrap();
        assert_eq!(byte.load(std::sync::atomic::Ordering::Relaxed), 0);
    }

    #[test]
    fn discard_many_makes_all_its_parts_zero_and_nothing_else() {
        let range = Reservation::new(1 << 24).unwrap();
        range.populate(0, 1 << 24).unwrap();
        let byte = |page: usize| {
            // SAFETY: inside the reservation, which only this test uses.
            unsafe { &*range.base().as_ptr().add(page * 4096).cast::<std::sync::atomic::AtomicU8>() }
        };
        (0..4096).for_each(|page| byte(page).store(7, std::sync::atomic::Ordering::Relaxed));
        let parts: Vec<_> =
            (0..4096).step_by(2).map(|page| Part { offset: page * 4096, len: 4096 }).collect();
        // SAFETY: the only references into the range are to atomic bytes, valid for any contents.
        assert_eq!(unsafe { range.discard_many::<100>(&parts) }, parts.len());
        for page in 0..4096 {
            let expected = if page % 2 == 0 { 0 } else { 7 };
            assert_eq!(byte(page).load(std::sync::atomic::Ordering::Relaxed), expected);
        }
    }

    #[test]
    fn total_is_more_than_this_test_needs() {
        assert!(total_bytes() > 1 << 26);
    }
}
