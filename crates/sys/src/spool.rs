//! A file without a name that holds what a process has no memory for, mapped into its address space.
//!
//! Pages of the mappings that are not resident are read from the page cache, or from the file, when they are accessed, and
//! the kernel writes changed ones back when memory is short. [`Spool::evict`] makes all of them not resident: so the
//! process decides how much memory it takes.
//!
//! The blocks of the file are allocated before they are mapped: a full file system is an error of [`Spool::map`], and not
//! a SIGBUS of a later access. That ends the process nevertheless if the medium fails, and if a file system that copies or
//! compresses what is written (btrfs, ZFS) finds no room for a changed block.

use crate::SysError;
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, open, unlink};
use rustix::io::Errno;
use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes that are written at once to a file whose blocks cannot be allocated otherwise.
const STEP_BYTES: usize = 64 << 10;
/// Names that are tried where the file system has no files without one.
const NAMES_MAX: u32 = 100;

/// A file without a name. Each part of it is mapped once.
#[derive(Debug)]
pub struct Spool {
    file: File,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes of the file that are mapped, or were.
    used_bytes: u64,
    /// The mappings: address and length.
    mapped: Vec<(usize, usize)>,
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
}

// SAFETY: the value owns the mapping, which is not bound to a thread.
unsafe impl Send for Mapping {}
// SAFETY: a shared value gives out shared references only.
unsafe impl Sync for Mapping {}

impl Spool {
    /// Creates a file without a name in a directory.
    pub fn in_directory(directory: &Path) -> Result<Arc<Self>, SysError> {
        Ok(Arc::new(Spool { file: unnamed_file(directory)?, state: Mutex::default() }))
    }

    /// Maps further `len_bytes` of the file, a multiple of the machine's page size and not 0.
    pub fn map(self: &Arc<Self>, len_bytes: usize) -> Result<Mapping, SysError> {
        assert!(len_bytes > 0 && len_bytes.is_multiple_of(crate::mem::page_size()));
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
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
                state.mapped.push((base.as_ptr() as usize, len_bytes));
                drop(state);
                let mut mapping = Mapping { spool: self.clone(), base, len_bytes, offset };
                if unused.is_some() {
                    mapping.fill(0);
                }
                Ok(mapping)
            }
            _ => Err(SysError::last(format!("mapping {len_bytes} bytes of a file"))),
        }
    }

    /// Bytes that are mapped, resident or not.
    pub fn mapped_bytes(&self) -> u64 {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.mapped.iter().map(|(_, len_bytes)| *len_bytes as u64).sum()
    }

    /// Makes no page of the mappings resident. Their contents stay, and an access brings a page back.
    pub fn evict(&self) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for &(base, len_bytes) in &state.mapped {
            // SAFETY: the range is a mapping of this spool, which leaves the list before it is unmapped. It is a shared
            // mapping of a file, so its contents are those of the file, and this changes none of them.
            unsafe { libc::madvise(base as *mut libc::c_void, len_bytes, libc::MADV_DONTNEED) };
        }
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

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is readable, of this length, and lives as long as the value. Only this value writes to its
        // part of the file, by `deref_mut`: `Spool` made the file without a name and hands it to nobody, and no part is
        // mapped twice at a time. (The user's own programs can open it in /proc, as they can open the process's memory.)
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len_bytes) }
    }
}

impl DerefMut for Mapping {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the mapping is writable too, and the reference is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len_bytes) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let mut state = self.spool.state.lock().unwrap_or_else(PoisonError::into_inner);
        let base = self.base.as_ptr() as usize;
        state.mapped.retain(|(other, _)| *other != base);
        state.unused.push((self.len_bytes, self.offset));
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

/// Bytes of mapped files that are resident in this process, roughly; its program and libraries are among them.
pub fn resident_file_bytes() -> Result<u64, SysError> {
    const PATH: &str = "/proc/self/statm";
    let text = std::fs::read_to_string(PATH).map_err(|e| SysError::io(format!("reading {PATH}"), &e))?;
    let pages = text.split_ascii_whitespace().nth(2).and_then(|pages| pages.parse::<u64>().ok());
    let pages = pages.ok_or_else(|| SysError::new(format!("{PATH} has no third number"), libc::EINVAL))?;
    Ok(pages * crate::mem::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_outlive_eviction_and_parts_do_not_overlap() {
        let spool = Spool::in_directory(&std::env::temp_dir()).unwrap();
        let page = crate::mem::page_size();
        let mut maps: Vec<_> = (1..=5).map(|pages| spool.map(pages * page).unwrap()).collect();
        assert_eq!(spool.mapped_bytes(), 15 * page as u64);
        for (n, map) in maps.iter_mut().enumerate() {
            assert!(map.iter().all(|byte| *byte == 0));
            map.fill(n as u8 + 1);
        }
        spool.evict();
        for (n, map) in maps.iter().enumerate() {
            assert!(map.len() == (n + 1) * page && map.iter().all(|byte| *byte == n as u8 + 1));
        }
        drop(maps.remove(2));
        spool.evict();
        assert_eq!(spool.mapped_bytes(), 12 * page as u64);
        assert_eq!(maps[2][0], 4);
    }

    #[test]
    fn evicted_pages_are_not_resident() {
        let spool = Spool::in_directory(&std::env::temp_dir()).unwrap();
        let mut map = spool.map(64 << 20).unwrap();
        map.fill(1);
        let before = resident_file_bytes().unwrap();
        spool.evict();
        let after = resident_file_bytes().unwrap();
        assert!(before > after + (48 << 20), "{before} {after}");
        assert!(map.iter().all(|byte| *byte == 1));
    }

    #[test]
    fn the_blocks_of_a_dropped_part_are_used_again() {
        let spool = Spool::in_directory(&std::env::temp_dir()).unwrap();
        let page = crate::mem::page_size();
        let mut first = spool.map(4 * page).unwrap();
        first.fill(7);
        drop(first);
        let second = spool.map(4 * page).unwrap();
        assert!(second.iter().all(|byte| *byte == 0));
        assert_eq!(spool.file.metadata().unwrap().len(), 4 * page as u64);
    }

    #[test]
    fn the_file_has_no_name() {
        let directory = tempfile::tempdir().unwrap();
        let unlinked = unlinked_file(directory.path(), Mode::RUSR | Mode::WUSR).unwrap();
        let unlinked = Arc::new(Spool { file: unlinked.into(), state: Mutex::default() });
        for spool in [Spool::in_directory(directory.path()).unwrap(), unlinked] {
            assert_eq!(spool.map(crate::mem::page_size()).unwrap()[0], 0);
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        assert!(Spool::in_directory(Path::new("/does/not/exist")).is_err());
    }
}
