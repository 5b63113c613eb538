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
// SAFETY: a shared value gives out its address and length, which never change; the other methods taking `&self` are system
// calls on the range, which the kernel serialises.
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

    /// Leaves the range out of children that are forked from now on: they have nothing mapped there.
    ///
    /// # Safety
    /// A child neither touches what was in the range nor drops its copy of this value, as the address may be something
    /// else's there: see [`Reservation::forget`].
    pub unsafe fn keep_from_children(&self) -> Result<(), SysError> {
        // SAFETY: the range is this mapping; the advice changes nothing in this process, and children leave it alone
        // (the caller's duty).
        match unsafe { libc::madvise(self.base.as_ptr().cast(), self.len_bytes, libc::MADV_DONTFORK) } {
            0 => Ok(()),
            _ => Err(SysError::last(format!("keeping {} bytes of memory from children", self.len_bytes))),
        }
    }

    /// Has the range read as zeroes in children that are forked from now on. False if the kernel cannot
    /// (before 4.14).
    ///
    /// # Safety
    /// What the range holds is valid as zeroes, for those who look at it in a child.
    pub unsafe fn wipe_in_children(&self) -> bool {
        // SAFETY: the range is this mapping; the advice changes nothing in this process, and children see what the
        // caller allows for.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.len_bytes, libc::MADV_WIPEONFORK) == 0 }
    }

    /// Drops the value and leaves the mapping as it is: for a forked child that holds a copy of its parent's
    /// value.
    pub fn forget(self) {
        std::mem::forget(self);
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

/// Parts of one reservation that are to be given back together: the list that the kernel is handed.
///
/// Its memory is taken and touched when it is made, so that filling it later asks the kernel for none.
pub struct Parts {
    vectors: Box<[libc::iovec]>,
    len: usize,
}

// SAFETY: the addresses only name parts of a mapping; nothing is accessed through them but by the kernel, in
// `Reservation::discard_parts`, whose caller proves that the parts are dead.
unsafe impl Send for Parts {}

impl Parts {
    /// An empty list with room for so many parts.
    pub fn new(capacity: usize) -> Self {
        // Not zeroes, which might be memory that was never touched.
        let untouched = libc::iovec { iov_base: NonNull::dangling().as_ptr(), iov_len: usize::MAX };
        Parts { vectors: vec![untouched; capacity].into(), len: 0 }
    }

    /// Empties the list.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Adds `len` bytes at `offset` of `range`; to the last part, where they follow on it. Panics if the list has no
    /// room, or the bytes do not lie in the range.
    pub fn push(&mut self, range: &Reservation, offset: usize, len: usize) {
        assert!(offset.checked_add(len).is_some_and(|end| end <= range.len_bytes));
        let start = range.base.as_ptr().wrapping_add(offset).cast::<libc::c_void>();
        match self.vectors[..self.len].last_mut() {
            Some(last) if last.iov_base.addr() + last.iov_len == start.addr() => last.iov_len += len,
            _ => {
                self.vectors[self.len] = libc::iovec { iov_base: start, iov_len: len };
                self.len += 1;
            }
        }
    }

    fn filled(&self) -> &[libc::iovec] {
        &self.vectors[..self.len]
    }
}

impl Reservation {
    /// [`Reservation::discard`] for many parts. Returns how many bytes, from the first part on, were given back;
    /// fewer than all if the kernel refuses a part.
    ///
    /// Each call of `madvise` interrupts all CPUs that run threads of this process, so that they forget the
    /// pages; kernels from 6.16 on do so once for all parts of a `process_madvise`. Older ones refuse that call,
    /// and the parts are given back one by one.
    ///
    /// # Safety
    /// As for [`Reservation::discard`], for every part. All are of this reservation.
    pub unsafe fn discard_parts(&self, parts: &Parts) -> usize {
        let len_bytes = parts.filled().iter().map(|part| part.iov_len).sum();
        // SAFETY: the caller's duty.
        if parts.len > 1 && unsafe { discard_at_once(parts.filled(), len_bytes) } {
            return len_bytes;
        }
        let mut done = 0;
        for part in parts.filled() {
            let offset = part.iov_base.addr() - self.base.addr().get();
            // SAFETY: the caller's duty.
            if unsafe { self.discard(offset, part.iov_len) }.is_err() {
                break;
            }
            done += part.iov_len;
        }
        done
    }
}

/// One system call for all parts, `len_bytes` together. False if not all were given back; those that were may be again.
///
/// # Safety
/// As for [`Reservation::discard`], for every part.
unsafe fn discard_at_once(parts: &[libc::iovec], len_bytes: usize) -> bool {
    /// This process, for calls that take a pidfd (Linux 6.14).
    const PIDFD_SELF_THREAD_GROUP: libc::c_int = -10001;
    // SAFETY: the parts are mapped and dead (the caller's duty).
    let done = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            PIDFD_SELF_THREAD_GROUP,
            parts.as_ptr(),
            parts.len(),
            libc::MADV_DONTNEED_LOCKED,
            0,
        )
    };
    usize::try_from(done).is_ok_and(|done| done == len_bytes)
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and whole, and with the value gone nothing refers to it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len_bytes) };
    }
}

/// The unit in which this machine maps memory, bytes.
pub fn page_size() -> usize {
    rustix::param::page_size()
}

/// All memory of this machine, bytes. 0 if the kernel does not say.
pub fn total_bytes() -> u64 {
    rustix::system::sysinfo().totalram as u64 * u64::from(rustix::system::sysinfo().mem_unit.max(1))
}

/// The machine's available memory: what is free, and what reclaim could take from the page cache without writing.
///
/// The file is opened once and read in place: a thread that must not ask the kernel for memory can ask how much there is,
/// because the kernel keeps the buffer of an open file in `/proc` after the first read.
#[derive(Debug)]
pub struct Available {
    meminfo: Option<std::fs::File>,
}

impl Available {
    /// Opens the kernel's count and reads it once.
    pub fn open() -> Self {
        let available = Available { meminfo: std::fs::File::open("/proc/meminfo").ok() };
        available.bytes();
        available
    }

    /// How many bytes are available; where the kernel does not say, those that hold nothing at all.
    pub fn bytes(&self) -> u64 {
        use std::os::unix::fs::FileExt;
        let mut text = [0; 512];
        let read = self.meminfo.as_ref().and_then(|file| file.read_at(&mut text, 0).ok());
        let field = read.and_then(|len_bytes| available_kib(&text[..len_bytes]));
        field.map_or_else(free_bytes, |kib| kib.saturating_mul(1024))
    }
}

/// The number in the line `MemAvailable:     1234 kB`, which is among the first.
fn available_kib(meminfo: &[u8]) -> Option<u64> {
    const NAME: &[u8] = b"MemAvailable:";
    let at = meminfo.windows(NAME.len()).position(|window| window == NAME)? + NAME.len();
    let digits = meminfo[at..].trim_ascii_start();
    let end = digits.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
}

/// Memory of this machine that holds nothing at all, not even a cache, bytes.
fn free_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.freeram as u64 * u64::from(info.mem_unit.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_counts_what_the_page_cache_could_give_up() {
        let text = b"MemTotal:  100 kB\nMemFree:  3 kB\nMemAvailable:      77 kB\nBuffers: 1 kB\n";
        assert_eq!(available_kib(text), Some(77));
        assert_eq!(available_kib(b"MemTotal: 100 kB\nMemAvailable: 7"), None);
        let available = Available::open();
        assert!(available.meminfo.is_some());
        let bytes = available.bytes();
        assert!(0 < bytes && bytes < total_bytes(), "{bytes}");
        // Where the file cannot be had, memory that is free.
        let free = Available { meminfo: None }.bytes();
        assert!(0 < free && free < total_bytes(), "{free}");
    }

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
    fn discard_parts_makes_all_parts_zero_and_nothing_else() {
        let range = Reservation::new(1 << 22).unwrap();
        range.populate(0, 1 << 22).unwrap();
        let byte = |page: usize| {
            // SAFETY: inside the reservation, which only this test uses.
            unsafe { &*range.base().as_ptr().add(page * 4096).cast::<std::sync::atomic::AtomicU8>() }
        };
        (0..1024).for_each(|page| byte(page).store(7, std::sync::atomic::Ordering::Relaxed));
        // Every other page, the first two of each eight together as one part.
        let is_part = |page: usize| page.is_multiple_of(2) || page % 8 == 1;
        let mut parts = Parts::new(512);
        parts.push(&range, 0, 4096);
        parts.clear();
        (0..1024).filter(|page| is_part(*page)).for_each(|page| parts.push(&range, page * 4096, 4096));
        assert_eq!(parts.len, 1024 / 8 * 3);
        // SAFETY: the only references into the range are to atomic bytes, valid for any contents.
        assert_eq!(unsafe { range.discard_parts(&parts) }, 1024 / 8 * 5 * 4096);
        for page in 0..1024 {
            let expected = if is_part(page) { 0 } else { 7 };
            assert_eq!(byte(page).load(std::sync::atomic::Ordering::Relaxed), expected, "{page}");
        }
    }

    /// Whether something is mapped at the first byte of the range.
    fn is_mapped(range: *mut libc::c_void) -> bool {
        let mut resident = 0u8;
        // SAFETY: one page, one byte of answer.
        unsafe { libc::mincore(range, page_size(), &mut resident) == 0 }
    }

    #[test]
    fn children_have_nothing_where_a_range_is_kept_from_them() {
        let (kept, shared) = (Reservation::new(1 << 20).unwrap(), Reservation::new(1 << 20).unwrap());
        // SAFETY: the child only asks what is mapped there, and exits without dropping anything.
        unsafe { kept.keep_from_children() }.unwrap();
        let [kept_at, shared_at] = [&kept, &shared].map(|range| range.base().as_ptr().cast());
        // SAFETY: the child makes two system calls and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let seen = i32::from(is_mapped(kept_at)) * 2 + i32::from(is_mapped(shared_at));
            // SAFETY: ends the child.
            unsafe { libc::_exit(seen) }
        }
        let mut status = 0;
        // SAFETY: the status is written.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status));
        assert_eq!(libc::WEXITSTATUS(status), 1);
        assert!(is_mapped(kept_at));
    }

    #[test]
    fn forgotten_range_stays_mapped() {
        let range = Reservation::new(1 << 20).unwrap();
        let at = range.base().as_ptr().cast();
        range.forget();
        assert!(is_mapped(at));
        // SAFETY: the mapping is this test's, and nothing refers to it any longer.
        assert_eq!(unsafe { libc::munmap(at, 1 << 20) }, 0);
    }

    #[test]
    fn total_is_more_than_this_test_needs() {
        assert!(total_bytes() > 1 << 26);
    }
}
