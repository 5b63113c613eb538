//! Reserving, populating and discarding anonymous and shared memory; the machine's total and available memory.

use crate::sharedmem::SharedMemory;
use crate::{SysError, done};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;

/// Keeps the pages of `bytes` in memory, as far as the limit of locked memory allows (mlock(2)).
pub fn lock(bytes: &[u8]) -> Result<(), SysError> {
    // SAFETY: the range is that of a live slice, and the call changes none of its bytes.
    done(unsafe { libc::mlock(bytes.as_ptr().cast(), bytes.len()) }, || "locking memory (mlock)")
}

/// A range of private anonymous memory: reserved address space without memory at first. Or the same range of a
/// [`SharedMemory`], for each process that maps it.
///
/// The kernel backs a page with memory when it is first accessed; it reads as zeroes then. Dropping the value unmaps
/// the range.
///
/// That holds also if the process locks all memory that it maps (mlockall(2) with MCL_FUTURE), for which the kernel would
/// back the whole range at once: the range is locked page by page then, when each is accessed first.
#[derive(Debug)]
pub struct Reservation {
    base: NonNull<u8>,
    len_bytes: usize,
    shared: Option<Shared>,
}

/// The file of a shared range, and where the range begins there.
#[derive(Debug)]
struct Shared {
    memory: SharedMemory,
    offset: u64,
}

// SAFETY: the value only holds the address and length of a mapping, which are not bound to a thread; every access to
// the memory goes through raw pointers, whose users prove that it is sound.
unsafe impl Send for Reservation {}
// SAFETY: a shared value returns its address and length, which never change; the other methods that take `&self` are
// system calls on the range, which the kernel serialises.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// Reserves `len_bytes` bytes of address space, without memory. Huge pages are off for the range, and core dumps
    /// leave it out.
    pub fn new(len_bytes: usize) -> Result<Self, SysError> {
        Self::with_locks(len_bytes, true)
    }

    /// Maps `len_bytes` bytes at `offset` of shared memory, a multiple of the page size. The file is long enough.
    pub fn shared(memory: &SharedMemory, offset: u64, len_bytes: usize) -> Result<Self, SysError> {
        let shared = Shared { memory: memory.try_clone()?, offset };
        Self::map(len_bytes, !memory.is_unswappable(), Some(shared))
    }

    fn with_locks(len_bytes: usize, may_lock: bool) -> Result<Self, SysError> {
        Self::map(len_bytes, may_lock, None)
    }

    fn map(len_bytes: usize, may_lock: bool, shared: Option<Shared>) -> Result<Self, SysError> {
        let len_bytes = len_bytes.max(1);
        let (kind, fd, offset) = match &shared {
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0),
            Some(Shared { memory, offset }) => (libc::MAP_SHARED, memory.as_fd().as_raw_fd(), *offset),
        };
        let error = || SysError::last(format!("reserving {len_bytes} bytes of address space"));
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no other.
        let addr = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len_bytes,
                // The kernel backs memory that may not be accessed with nothing, even if it is locked.
                libc::PROT_NONE,
                kind | libc::MAP_NORESERVE,
                fd,
                offset as libc::off_t,
            )
        };
        match NonNull::new(addr.cast::<u8>()) {
            Some(base) if addr != libc::MAP_FAILED => {
                let range = Reservation { base, len_bytes, shared };
                range.advise(0, len_bytes, libc::MADV_NOHUGEPAGE);
                range.advise(0, len_bytes, libc::MADV_DONTDUMP);
                range.allow_access(may_lock).then_some(range).ok_or_else(error)
            }
            _ => Err(error()),
        }
    }

    /// Allows access to a new range without backing it with memory: a lock of all of it is replaced by one of the pages that
    /// are accessed, or removed. Returns false, with the error in `errno`, if the kernel refuses.
    fn allow_access(&self, may_lock: bool) -> bool {
        const MLOCK_ONFAULT: libc::c_uint = 1;
        let (at, len_bytes) = (self.base.as_ptr().cast::<libc::c_void>(), self.len_bytes);
        // SAFETY: the range is this mapping, which is new and has no contents; the calls change its protection and locks.
        unsafe {
            // The kernel refuses this advice for memory that is locked, and only for it.
            let is_locked = libc::madvise(at, len_bytes, libc::MADV_DONTNEED) != 0;
            (!is_locked || libc::munlock(at, len_bytes) == 0)
                && libc::mprotect(at, len_bytes, libc::PROT_READ | libc::PROT_WRITE) == 0
                && (!is_locked || !may_lock || libc::mlock2(at, len_bytes, MLOCK_ONFAULT) == 0)
        }
    }

    /// Like [`Reservation::aligned`], for memory that userfaultfd serves: never locked, as the kernel does not move pages
    /// between locked memory and other, and never merged with equal pages (ksm), which it does not move at all.
    pub fn movable(len_bytes: usize, align_bytes: usize) -> Result<Self, SysError> {
        let range = Self::cut(
            Self::with_locks(len_bytes.saturating_add(align_bytes), false)?,
            len_bytes,
            align_bytes,
        );
        range.advise(0, range.len_bytes, libc::MADV_UNMERGEABLE);
        Ok(range)
    }

    /// Like [`Reservation::new`], at a multiple of `align_bytes`, which is a multiple of the page size.
    pub fn aligned(len_bytes: usize, align_bytes: usize) -> Result<Self, SysError> {
        Ok(Self::cut(Self::new(len_bytes.saturating_add(align_bytes))?, len_bytes, align_bytes))
    }

    /// Unmaps what a range has before and after `len_bytes` at a multiple of `align_bytes`.
    fn cut(wide: Self, len_bytes: usize, align_bytes: usize) -> Self {
        let before = wide.base.as_ptr().align_offset(align_bytes);
        let whole = len_bytes.max(1).next_multiple_of(crate::mem::page_size());
        let after = wide.len_bytes.next_multiple_of(crate::mem::page_size()).saturating_sub(before + whole);
        // SAFETY: both parts lie in the mapping, which nothing else uses yet: at its start and at its end.
        unsafe {
            if before > 0 {
                libc::munmap(wide.base.as_ptr().cast(), before);
            }
            if after > 0 {
                libc::munmap(wide.base.as_ptr().add(before + whole).cast(), after);
            }
        }
        // SAFETY: inside the mapping, which is longer than `before`.
        let base = unsafe { wide.base.add(before) };
        wide.forget();
        Reservation { base, len_bytes: len_bytes.max(1), shared: None }
    }

    /// Says whether the kernel may back `len` bytes at `offset` with huge pages. A kernel without them ignores it.
    ///
    /// It allocates nothing, so it can be called while a fault is served.
    pub fn advise_huge_pages(&self, offset: usize, len: usize, is_wanted: bool) {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len_bytes));
        self.advise(offset, len, if is_wanted { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE });
    }

    /// The first byte.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Gives optional advice: on a kernel that refuses it, the range works the same, only less efficiently.
    fn advise(&self, offset: usize, len: usize, advice: i32) {
        // SAFETY: the callers pass ranges inside this mapping, and advice that keeps its contents.
        unsafe { libc::madvise(self.base.as_ptr().add(offset).cast(), len, advice) };
    }

    /// Backs `len` bytes at `offset` with memory now, so that a later access cannot fail.
    ///
    /// Keeps the contents. Offset and length are multiples of the machine's page size. Fails with ENOMEM if the kernel
    /// has no memory left.
    pub fn populate(&self, offset: usize, len: usize) -> Result<(), SysError> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len_bytes));
        // SAFETY: the range is inside this mapping (asserted); populating keeps contents.
        let rc =
            unsafe { libc::madvise(self.base.as_ptr().add(offset).cast(), len, libc::MADV_POPULATE_WRITE) };
        done(rc, || format!("backing {len} bytes with memory"))
    }

    /// Excludes the range from children that are forked from now on (MADV_DONTFORK): there it is not mapped.
    ///
    /// # Safety
    /// A child neither accesses the range nor drops its copy of this value, as another mapping may be at that address
    /// there: see [`Reservation::forget`].
    pub unsafe fn keep_from_children(&self) -> Result<(), SysError> {
        // SAFETY: the range is this mapping; the advice changes nothing in this process, and children do not access the
        // range (the caller's duty).
        done(unsafe { libc::madvise(self.base.as_ptr().cast(), self.len_bytes, libc::MADV_DONTFORK) }, || {
            format!("keeping {} bytes of memory from children", self.len_bytes)
        })
    }

    /// Makes the range read as zeroes in children that are forked from now on (MADV_WIPEONFORK). Returns false if the
    /// kernel does not support that (before 4.14).
    ///
    /// # Safety
    /// All objects in the range that a child may access are valid if their bytes are zeroes.
    pub unsafe fn wipe_in_children(&self) -> bool {
        // SAFETY: the range is this mapping; the advice changes nothing in this process, and in children zeroes are
        // valid there (the caller's duty).
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.len_bytes, libc::MADV_WIPEONFORK) == 0 }
    }

    /// Drops the value without unmapping the range: for a forked child, which holds a copy of its parent's value.
    pub fn forget(self) {
        std::mem::forget(self);
    }

    /// Returns the memory of `len` bytes at `offset` to the kernel; the bytes read as zeroes afterwards.
    ///
    /// # Safety
    /// No live object or reference lies in the range: its contents are lost.
    pub unsafe fn discard(&self, offset: usize, len: usize) -> Result<(), SysError> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len_bytes));
        if let Some(Shared { memory, offset: start }) = &self.shared {
            return memory.punch(start + offset as u64, len as u64);
        }
        // The kernel refuses MADV_DONTNEED on locked memory; MADV_DONTNEED_LOCKED works for both, but only since Linux
        // 5.18.
        // SAFETY: the range is inside this mapping (asserted), and no live object lies in it (the caller's duty).
        let rc = unsafe {
            let at = self.base.as_ptr().add(offset).cast::<libc::c_void>();
            match libc::madvise(at, len, libc::MADV_DONTNEED_LOCKED) {
                0 => 0,
                _ => libc::madvise(at, len, libc::MADV_DONTNEED),
            }
        };
        done(rc, || format!("returning {len} bytes of memory"))
    }
}

/// A list of parts of one reservation that are discarded together, in the form in which the kernel takes it.
///
/// Its own memory is allocated and written at creation, so that filling the list later needs no memory from the kernel.
pub struct DiscardBatch {
    vectors: Box<[libc::iovec]>,
    len: usize,
}

// SAFETY: only the kernel accesses memory through these addresses, in `Reservation::discard_batch`, whose caller proves
// that no live object lies in the parts. The list itself is not bound to a thread.
unsafe impl Send for DiscardBatch {}

impl DiscardBatch {
    /// Makes an empty list with space for `capacity` parts.
    pub fn new(capacity: usize) -> Self {
        // Not zeroes, so that the memory is really written: the allocator might return zeroed memory that is not backed
        // yet.
        let filler = libc::iovec { iov_base: NonNull::dangling().as_ptr(), iov_len: usize::MAX };
        DiscardBatch { vectors: vec![filler; capacity].into(), len: 0 }
    }

    /// Empties the list.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Adds `len` bytes at `offset` of `range`. Extends the last part if the bytes directly follow it. Panics if the
    /// list is full or the bytes do not lie in the range.
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
    /// Discards pages as [`Reservation::discard`] does. Returns how many bytes were discarded, from `offset` on; fewer than
    /// all if the kernel refuses a page. It keeps the contents of that page and of all after it.
    ///
    /// # Safety
    /// As for [`Reservation::discard`].
    pub unsafe fn discard_until_refused(&self, offset: usize, len: usize) -> usize {
        // SAFETY: the caller's duty.
        let discard = |at, len| unsafe { self.discard(at, len) }.is_ok();
        if discard(offset, len) {
            return len;
        }
        // The kernel has discarded the pages before the one that it refused, but does not return their number.
        let pages = (offset..offset + len).step_by(page_size());
        pages.take_while(|at| discard(*at, page_size())).count() * page_size()
    }

    /// Discards many parts as [`Reservation::discard`] does. Returns how many bytes were discarded, from the first part
    /// on; fewer than all if the kernel refuses a page. It keeps the contents of that page and of all after it.
    ///
    /// Each `madvise` interrupts all CPUs that run threads of this process, to flush their TLBs; Linux 6.16 and later
    /// does that once for all parts of a `process_madvise`. Older kernels refuse that call, and the parts are discarded
    /// one by one.
    ///
    /// # Safety
    /// As for [`Reservation::discard`], for every part. All are of this reservation.
    pub unsafe fn discard_batch(&self, parts: &DiscardBatch) -> usize {
        let len_bytes = parts.filled().iter().map(|part| part.iov_len).sum();
        // SAFETY: the parts are of this mapping, and no live object lies in them (the caller's duty).
        if parts.len > 1 && self.shared.is_none() && unsafe { discard_at_once(parts.filled(), len_bytes) } {
            return len_bytes;
        }
        let mut done = 0;
        for part in parts.filled() {
            let offset = part.iov_base.addr() - self.base.addr().get();
            // SAFETY: no live object lies in the part (the caller's duty).
            let discarded = unsafe { self.discard_until_refused(offset, part.iov_len) };
            done += discarded;
            if discarded < part.iov_len {
                break;
            }
        }
        done
    }
}

/// Discards all parts, `len_bytes` in total, with one system call. Returns false if some were not discarded; the caller
/// may then discard all of them again.
///
/// # Safety
/// As for [`Reservation::discard`], for every part.
unsafe fn discard_at_once(parts: &[libc::iovec], len_bytes: usize) -> bool {
    /// This process, for calls that take a pidfd (Linux 6.14).
    const PIDFD_SELF_THREAD_GROUP: libc::c_int = -10001;
    // SAFETY: the parts are mapped, and no live object lies in them (the caller's duty); the kernel only reads the
    // list.
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
        // SAFETY: the mapping was made by `new` and is whole; the value is dropped, so nothing refers to the mapping.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len_bytes) };
    }
}

/// Whether the kernel may merge equal pages of all memory of this process (ksm, PR_SET_MEMORY_MERGE). Pages that are
/// merged and separated again lose their write protection.
///
/// It allocates nothing.
pub fn is_merged() -> bool {
    /// Linux 6.4.
    const PR_GET_MEMORY_MERGE: libc::c_int = 68;
    // SAFETY: the call reads a setting of this process; an older kernel refuses it.
    unsafe { libc::prctl(PR_GET_MEMORY_MERGE, 0, 0, 0, 0) == 1 }
}

/// The page size of this machine, bytes.
pub fn page_size() -> usize {
    rustix::param::page_size()
}

/// The total memory of this machine, bytes.
pub fn total_bytes() -> u64 {
    rustix::system::sysinfo().totalram as u64 * u64::from(rustix::system::sysinfo().mem_unit.max(1))
}

/// Reader of the machine's available memory (MemAvailable): free memory, and the page cache that can be reclaimed
/// without writing.
///
/// The file is opened and read once at creation. The kernel keeps the buffer of an open file in `/proc` after the first
/// read, so later reads need no memory from the kernel.
#[derive(Debug)]
pub struct Available {
    meminfo: Option<std::fs::File>,
}

impl Available {
    /// Opens `/proc/meminfo` and reads it once.
    pub fn open() -> Self {
        let available = Available { meminfo: std::fs::File::open("/proc/meminfo").ok() };
        available.bytes();
        available
    }

    /// The available memory, bytes; if the file cannot be read, the free memory.
    pub fn bytes(&self) -> u64 {
        use std::os::unix::fs::FileExt;
        let mut text = [0; 512];
        let read = self.meminfo.as_ref().and_then(|file| file.read_at(&mut text, 0).ok());
        let field = read.and_then(|len_bytes| available_kib(&text[..len_bytes]));
        field.map_or_else(free_bytes, |kib| kib.saturating_mul(1024))
    }
}

/// Parses the line `MemAvailable:     1234 kB`, which is among the first lines.
pub(crate) fn available_kib(meminfo: &[u8]) -> Option<u64> {
    const NAME: &[u8] = b"MemAvailable:";
    let at = meminfo.windows(NAME.len()).position(|window| window == NAME)? + NAME.len();
    let digits = meminfo[at..].trim_ascii_start();
    let end = digits.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
}

/// The free memory of this machine, without caches, bytes.
fn free_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.freeram as u64 * u64::from(info.mem_unit.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

    #[test]
    fn available_memory_is_read_from_meminfo() {
        let text = b"MemTotal:  100 kB\nMemFree:  3 kB\nMemAvailable:      77 kB\nBuffers: 1 kB\n";
        assert_eq!(available_kib(text), Some(77));
        assert_eq!(available_kib(b"MemTotal: 100 kB\nMemAvailable: 7"), None);
        let available = Available::open();
        assert!(available.meminfo.is_some());
        let bytes = available.bytes();
        assert!(0 < bytes && bytes < total_bytes(), "{bytes}");
        // The file's figure is returned, not the free memory, which does not contain the page cache.
        let mut given = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut given, text).unwrap();
        assert_eq!(Available { meminfo: Some(given) }.bytes(), 77 << 10);
        // Without the file, the free memory is returned.
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
    fn shared_memory_is_the_same_in_two_ranges_and_is_freed_by_a_discard() {
        let memory = SharedMemory::new().unwrap();
        memory.set_len(1 << 30).unwrap();
        let ranges = [4096, 8192].map(|offset| Reservation::shared(&memory, offset, 1 << 20).unwrap());
        assert_eq!(memory.used_bytes().unwrap(), 0);
        let byte = |range: &Reservation, at: usize| {
            // SAFETY: the byte lies in the mapping, which only this test uses, and is always valid.
            unsafe { AtomicU8::from_ptr(range.base().as_ptr().add(at)) }.load(Relaxed)
        };
        ranges[0].populate(4096, 8192).unwrap();
        assert_eq!(memory.used_bytes().unwrap(), 8192);
        // SAFETY: as above.
        unsafe { AtomicU8::from_ptr(ranges[0].base().as_ptr().add(4096 + 7)) }.store(9, Relaxed);
        assert_eq!(byte(&ranges[1], 7), 9);
        let mut parts = DiscardBatch::new(2);
        parts.push(&ranges[1], 0, 4096);
        // SAFETY: there are no references into the range.
        assert_eq!(unsafe { ranges[1].discard_batch(&parts) }, 4096);
        assert_eq!((byte(&ranges[0], 4096 + 7), memory.used_bytes().unwrap()), (0, 8192));
    }

    #[test]
    fn discard_batch_clears_its_parts_and_no_other_pages() {
        let range = Reservation::new(1 << 22).unwrap();
        range.populate(0, 1 << 22).unwrap();
        let byte = |page: usize| {
            // SAFETY: the byte is inside the reservation, which only this test uses.
            unsafe { &*range.base().as_ptr().add(page * 4096).cast::<std::sync::atomic::AtomicU8>() }
        };
        (0..1024).for_each(|page| byte(page).store(7, std::sync::atomic::Ordering::Relaxed));
        // Every even page, and the second page of each eight, so that the first three pages of each eight are one part.
        let is_part = |page: usize| page.is_multiple_of(2) || page % 8 == 1;
        let mut parts = DiscardBatch::new(512);
        parts.push(&range, 0, 4096);
        parts.clear();
        (0..1024).filter(|page| is_part(*page)).for_each(|page| parts.push(&range, page * 4096, 4096));
        assert_eq!(parts.len, 1024 / 8 * 3);
        // SAFETY: the only references into the range are to atomic bytes, valid for any contents.
        assert_eq!(unsafe { range.discard_batch(&parts) }, 1024 / 8 * 5 * 4096);
        for page in 0..1024 {
            let expected = if is_part(page) { 0 } else { 7 };
            assert_eq!(byte(page).load(std::sync::atomic::Ordering::Relaxed), expected, "{page}");
        }
    }

    /// Whether something is mapped at the first byte of the range.
    fn is_mapped(range: *mut libc::c_void) -> bool {
        let mut resident = 0u8;
        // SAFETY: the kernel only reads page tables, and writes one byte for one page to `resident`.
        unsafe { libc::mincore(range, page_size(), &mut resident) == 0 }
    }

    #[test]
    fn a_range_that_is_kept_from_children_is_not_mapped_there() {
        let (excluded, shared) = (Reservation::new(1 << 20).unwrap(), Reservation::new(1 << 20).unwrap());
        // SAFETY: the child only checks whether the ranges are mapped, and exits without dropping anything.
        unsafe { excluded.keep_from_children() }.unwrap();
        let [excluded_at, shared_at] = [&excluded, &shared].map(|range| range.base().as_ptr().cast());
        // SAFETY: the child makes two system calls and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let seen = i32::from(is_mapped(excluded_at)) * 2 + i32::from(is_mapped(shared_at));
            // SAFETY: the call ends the child process.
            unsafe { libc::_exit(seen) }
        }
        let mut status = 0;
        // SAFETY: the call writes only to `status`.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status));
        assert_eq!(libc::WEXITSTATUS(status), 1);
        assert!(is_mapped(excluded_at));
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
