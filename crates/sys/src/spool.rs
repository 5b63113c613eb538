//! A file without a name that holds what a process has no memory for, mapped into its address space.
//!
//! Pages of the mappings that are not resident are read from the page cache, or from the file, when they are accessed, and
//! the kernel writes changed ones back when memory is short. [`Spool::evict`] makes all of them not resident: so the
//! process decides how much memory it takes.
//!
//! A mapping notes which windows of it were accessed since the last eviction. An access to a page that is not resident
//! makes the pages around it resident too, as far as the page cache has them: 64 KiB where these are at a multiple of
//! that. So the windows of all mappings bound what is resident, without asking the kernel, and an eviction leaves out
//! mappings that were not accessed. There may be thousands of those.
//!
//! The blocks of the file are allocated before they are mapped: a full file system is an error of [`Spool::map`], and not
//! a SIGBUS of a later access. That ends the process nevertheless if the medium fails when it is read, and if a file
//! system that copies or compresses what is written (btrfs, ZFS) finds no space for a changed block. If the kernel cannot
//! write a page back, it drops the page later: [`Spool::check`] reports that, and what was read since may be wrong.

use crate::SysError;
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, open, unlink};
use rustix::io::Errno;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that are written at once to a file whose blocks cannot be allocated otherwise.
const STEP_BYTES: usize = 64 << 10;
/// The least window of a mapping, as a power of two: what Linux makes resident around a page (`fault_around_bytes`).
const WINDOW_SHIFT_MIN: u32 = 16;
/// Most windows of a mapping: the bits of a word.
const WINDOWS_MAX: usize = u32::BITS as usize;
/// Names that are tried where the file system has no files without one.
const NAMES_MAX: u32 = 100;

/// A file without a name. Each part of it is mapped once.
#[derive(Debug)]
pub struct Spool {
    file: File,
    state: Mutex<State>,
    /// Number of evictions, from 1 on; it changes under the lock of the state.
    evictions: AtomicU32,
    /// Bytes of the windows that were accessed since the last eviction.
    touched_bytes: AtomicU64,
    mapped_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes of the file that are mapped, or were.
    used_bytes: u64,
    /// The mappings that were accessed since the last eviction: address and length.
    touched: Vec<(usize, usize)>,
    /// The parts that are no longer mapped: length and offset.
    unused: Vec<(usize, u64)>,
}

/// A part of a [`Spool`] in memory. It is zeroed at first. Dropping it unmaps it; another mapping of the same length gets
/// its blocks.
#[derive(Debug)]
pub struct Mapping {
    spool: Arc<Spool>,
    base: NonNull<u8>,
    len_bytes: usize,
    /// Its offset in the file, bytes.
    offset: u64,
    /// The length of its windows, as a power of two.
    window_shift: u32,
    /// In the upper half, the number of evictions when it was accessed last, 0 for none; in the lower, the windows that
    /// were accessed since that eviction.
    touched: AtomicU64,
}

// SAFETY: the value owns the mapping, which is not bound to a thread.
unsafe impl Send for Mapping {}
// SAFETY: a shared value gives out shared references only.
unsafe impl Sync for Mapping {}

impl Spool {
    /// Creates a file without a name in a directory.
    pub fn in_directory(directory: &Path) -> Result<Arc<Self>, SysError> {
        Ok(Arc::new(Self::of_file(unnamed_file(directory)?)))
    }

    fn of_file(file: File) -> Self {
        let (touched_bytes, mapped_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        Spool { file, state: Mutex::default(), evictions: AtomicU32::new(1), touched_bytes, mapped_bytes }
    }

    /// Maps further `len_bytes` of the file, a multiple of the machine's page size and not 0.
    pub fn map(self: &Arc<Self>, len_bytes: usize) -> Result<Mapping, SysError> {
        assert!(len_bytes > 0 && len_bytes.is_multiple_of(crate::mem::page_size()));
        let mut state = self.lock();
        let unused = state.unused.iter().position(|(len, _)| *len == len_bytes);
        let unused = unused.map(|at| state.unused.swap_remove(at).1);
        let offset = unused.unwrap_or(state.used_bytes);
        if unused.is_none() {
            self.allocate(offset, len_bytes)?;
        }
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no other.
        let addr = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                self.file.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        match NonNull::new(addr.cast::<u8>()) {
            Some(base) if addr != libc::MAP_FAILED => {
                state.used_bytes = state.used_bytes.max(offset + len_bytes as u64);
                drop(state);
                self.mapped_bytes.fetch_add(len_bytes as u64, Ordering::Relaxed);
                let (window_shift, touched) =
                    (window_shift(base.as_ptr() as usize, len_bytes), AtomicU64::new(0));
                let mut mapping =
                    Mapping { spool: self.clone(), base, len_bytes, offset, window_shift, touched };
                if unused.is_some() {
                    mapping.bytes_mut(0..len_bytes).fill(0);
                }
                Ok(mapping)
            }
            _ => Err(SysError::last(format!("mapping {len_bytes} bytes of a file"))),
        }
    }

    /// Bytes that are mapped, resident or not.
    pub fn mapped_bytes(&self) -> u64 {
        self.mapped_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of the mappings that may be resident, because they or their neighbours were accessed since the last
    /// [`evict`](Self::evict).
    #[inline]
    pub fn touched_bytes(&self) -> u64 {
        self.touched_bytes.load(Ordering::Relaxed)
    }

    /// Makes no page of the mappings resident. Their contents stay, and an access brings a page back. An access by
    /// another thread meanwhile may leave the pages around it resident.
    pub fn evict(&self) {
        let mut state = self.lock();
        for (base, len_bytes) in state.touched.drain(..) {
            // SAFETY: the range is a mapping of this spool, which leaves the list before it is unmapped. It is a shared
            // mapping of a file, so its contents are those of the file, and this changes none of them.
            unsafe { libc::madvise(base as *mut libc::c_void, len_bytes, libc::MADV_DONTNEED) };
        }
        self.evictions.fetch_add(1, Ordering::Relaxed);
        self.touched_bytes.store(0, Ordering::Relaxed);
    }

    /// Fails if the kernel could not write a page of the file back. It waits for pages that are being written, and does
    /// not have others written.
    pub fn check(&self) -> Result<(), SysError> {
        // SAFETY: the call has no pointers, and the descriptor is open.
        match unsafe { libc::sync_file_range(self.file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WAIT_BEFORE) }
        {
            0 => Ok(()),
            _ => match std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) {
                // The file system or the kernel has no such call.
                libc::ENOSYS | libc::EINVAL | libc::ESPIPE => Ok(()),
                errno => Err(SysError::new("writing a temporary file", errno)),
            },
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates blocks of the file.
    fn allocate(&self, offset: u64, len_bytes: usize) -> Result<(), SysError> {
        let failed =
            |errno: i32| SysError::new(format!("allocating {len_bytes} bytes of a temporary file"), errno);
        match fallocate(&self.file, FallocateFlags::empty(), offset, len_bytes as u64) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                let zeroes = vec![0; STEP_BYTES];
                for start in (0..len_bytes).step_by(STEP_BYTES) {
                    let len = STEP_BYTES.min(len_bytes - start);
                    let written = self.file.write_all_at(&zeroes[..len], offset + start as u64);
                    written.map_err(|e| failed(e.raw_os_error().unwrap_or(libc::EIO)))?;
                }
                Ok(())
            }
            Err(e) => Err(failed(e.raw_os_error())),
        }
    }
}

impl Mapping {
    /// Its length, bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// The bytes of a range, which becomes resident as it is read.
    #[inline]
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        self.touch(&range);
        // SAFETY: the mapping is readable, of this length, and lives as long as the value. Only this value writes to its
        // part of the file, by `bytes_mut`: `Spool` made the file without a name and hands it to nobody, and no part is
        // mapped twice at a time. (The user's own programs can open it in /proc, as they can open the process's memory.)
        let all = unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len_bytes) };
        &all[range]
    }

    /// The bytes of a range, to be changed.
    #[inline]
    pub fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        self.touch(&range);
        // SAFETY: as in `bytes`; the mapping is writable too, and the reference is the only one.
        let all = unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len_bytes) };
        &mut all[range]
    }

    /// Notes an access to a range.
    #[inline]
    fn touch(&self, range: &Range<usize>) {
        if range.is_empty() || range.end > self.len_bytes {
            return;
        }
        let base = self.base.as_ptr() as usize;
        let window = |at: usize| ((base + at) >> self.window_shift) - (base >> self.window_shift);
        let (first, last) = (window(range.start), window(range.end - 1));
        let windows = (u32::MAX >> (WINDOWS_MAX - 1 - (last - first))) << first;
        let seen = self.touched.load(Ordering::Relaxed);
        let is_current = (seen >> 32) as u32 == self.spool.evictions.load(Ordering::Relaxed);
        if !is_current || seen as u32 & windows != windows {
            self.touch_first(windows);
        }
    }

    /// Notes that windows are accessed, some of them for the first time since the last eviction.
    #[cold]
    fn touch_first(&self, windows: u32) {
        let mut state = self.spool.lock();
        let (evictions, seen) =
            (self.spool.evictions.load(Ordering::Relaxed), self.touched.load(Ordering::Relaxed));
        let is_current = (seen >> 32) as u32 == evictions;
        let before = if is_current { seen as u32 } else { 0 };
        if !is_current {
            state.touched.push((self.base.as_ptr() as usize, self.len_bytes));
        }
        let further = u64::from((windows & !before).count_ones()) << self.window_shift;
        self.spool.touched_bytes.fetch_add(further, Ordering::Relaxed);
        self.touched.store(u64::from(evictions) << 32 | u64::from(before | windows), Ordering::Relaxed);
    }
}

/// The length of the windows of a mapping, as a power of two. Windows begin at its multiples, as those of the kernel do.
fn window_shift(base: usize, len_bytes: usize) -> u32 {
    let windows = |shift: u32| ((base + len_bytes - 1) >> shift) - (base >> shift) + 1;
    (WINDOW_SHIFT_MIN..usize::BITS).find(|shift| windows(*shift) <= WINDOWS_MAX).unwrap_or(usize::BITS - 1)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let mut state = self.spool.lock();
        let base = self.base.as_ptr() as usize;
        state.touched.retain(|(other, _)| *other != base);
        state.unused.push((self.len_bytes, self.offset));
        self.spool.mapped_bytes.fetch_sub(self.len_bytes as u64, Ordering::Relaxed);
        // SAFETY: the value owns the mapping, and no reference outlives it. The list, under its lock, no longer has it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len_bytes) };
    }
}

/// Creates a file without a name in a directory. No other process can give it one.
pub fn unnamed_file(directory: &Path) -> Result<File, SysError> {
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::TMPFILE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    let made = match open(directory, flags, mode) {
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => unlinked_file(directory, mode),
        made => made,
    };
    let what = || format!("creating a temporary file in '{}'", directory.display());
    made.map(File::from).map_err(|e| SysError::new(what(), e.raw_os_error()))
}

/// Creates a file and removes its name, for file systems that have no files without one.
fn unlinked_file(directory: &Path, mode: Mode) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC;
    let mut tried = 0;
    loop {
        let path = directory.join(format!(".pagefold-{}-{tried}.spill", std::process::id()));
        match open(&path, flags, mode) {
            Err(Errno::EXIST) if tried < NAMES_MAX => tried += 1,
            Err(error) => return Err(error),
            Ok(file) => return unlink(&path).map(|()| file),
        }
    }
}

/// The count of bytes of mapped files that are resident in this process. It opens its file once, so that a process can read it
/// after it was confined.
#[derive(Debug)]
pub struct ResidentFiles(crate::pidfd::Statm);

impl ResidentFiles {
    /// Opens the file of this process.
    pub fn open() -> Result<Self, SysError> {
        crate::pidfd::Statm::open().map(ResidentFiles)
    }

    /// Bytes that are resident, roughly; the program and libraries are among them.
    pub fn bytes(&self) -> Result<u64, SysError> {
        self.0.bytes(2)
    }
}

#[cfg(test)]
mod tests;
