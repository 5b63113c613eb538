//! [`SharedMemory`]: a sparse file in memory, which lives as long as some process has it open.
//!
//! A process that maps it can die, and another that has the descriptor finds the contents as they were. The kernel takes
//! the stores of a dead process in the order of its instructions.
//!
//! Memory of such a file is returned by punching holes: `madvise(MADV_DONTNEED)` frees nothing of it.

use crate::SysError;
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SeekFrom};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The name that `/proc/PID/maps` shows.
const NAME: &str = "pagefold";

/// A sparse file in memory.
#[derive(Debug)]
pub struct SharedMemory {
    file: File,
    is_unswappable: bool,
    /// Counts the values of this process that are the same file.
    values: Arc<()>,
}

impl SharedMemory {
    /// Creates an empty file, whose memory the system may swap out.
    pub fn new() -> Result<Self, SysError> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL;
        let made = match rustix::fs::memfd_create(NAME, flags) {
            // Before Linux 6.3.
            Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create(NAME, MemfdFlags::CLOEXEC),
            made => made,
        };
        let fd =
            made.map_err(|e| SysError::new("creating memory to share (memfd_create)", e.raw_os_error()))?;
        Ok(Self::from_fd(fd, false))
    }

    /// Creates an empty file, whose memory the system never swaps out, whether a process maps it or not: on a private tmpfs
    /// that no path leads to. Needs CAP_SYS_ADMIN and Linux 6.4.
    pub fn new_unswappable() -> Result<Self, SysError> {
        let failed = |what: &'static str| move |e: rustix::io::Errno| SysError::new(what, e.raw_os_error());
        let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC);
        let context = context.map_err(failed("opening a tmpfs (fsopen)"))?;
        rustix::mount::fsconfig_set_flag(&context, "noswap").map_err(failed("keeping a tmpfs from swap"))?;
        // No limit: the store has one.
        for (key, value) in [("size", "0"), ("nr_inodes", "0"), ("mode", "0700")] {
            rustix::mount::fsconfig_set_string(&context, key, value)
                .map_err(failed("configuring a tmpfs"))?;
        }
        rustix::mount::fsconfig_create(&context).map_err(failed("creating a tmpfs"))?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        let root = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes);
        let root = root.map_err(failed("mounting a tmpfs (fsmount)"))?;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&root, ".", flags, Mode::RUSR | Mode::WUSR);
        let fd = fd.map_err(failed("creating a file in a tmpfs"))?;
        Ok(Self::from_fd(fd, true))
    }

    /// The file at a descriptor that another process has handed over.
    pub fn from_fd(fd: OwnedFd, is_unswappable: bool) -> Self {
        SharedMemory { file: fd.into(), is_unswappable, values: Arc::default() }
    }

    /// Whether the system never swaps its memory out.
    pub fn is_unswappable(&self) -> bool {
        self.is_unswappable
    }

    /// Its length, bytes.
    pub fn len_bytes(&self) -> Result<u64, SysError> {
        let meta = self.file.metadata().map_err(|e| SysError::io("examining shared memory", &e))?;
        Ok(meta.len())
    }

    /// Makes it longer, or shorter if no process maps it. New bytes are zeroes, and use no memory.
    pub fn set_len(&self, len_bytes: u64) -> Result<(), SysError> {
        self.file.set_len(len_bytes).map_err(|e| SysError::io("extending shared memory", &e))
    }

    /// Bytes of memory that it uses.
    pub fn used_bytes(&self) -> Result<u64, SysError> {
        use std::os::unix::fs::MetadataExt as _;
        let meta = self.file.metadata().map_err(|e| SysError::io("examining shared memory", &e))?;
        Ok(meta.blocks() * 512)
    }

    /// Returns the memory of whole pages to the kernel; the bytes are zeroes then, for each process that maps them.
    pub fn punch(&self, offset: u64, len_bytes: u64) -> Result<(), SysError> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punched = rustix::fs::fallocate(&self.file, flags, offset, len_bytes);
        punched.map_err(|e| SysError::new(format!("returning {len_bytes} bytes of memory"), e.raw_os_error()))
    }

    /// The first range of bytes with memory in `range`; it may begin and end with bytes of the pages around it. `None` if
    /// there is none.
    pub fn first_used(&self, range: Range<u64>) -> Option<Range<u64>> {
        let start = rustix::fs::seek(&self.file, SeekFrom::Data(range.start)).ok()?;
        let end = rustix::fs::seek(&self.file, SeekFrom::Hole(start)).ok()?;
        (start < range.end).then(|| start.max(range.start)..end.min(range.end))
    }

    /// Another descriptor of it.
    pub fn try_clone(&self) -> Result<Self, SysError> {
        let file = self.file.try_clone().map_err(|e| SysError::io("duplicating a descriptor", &e))?;
        Ok(SharedMemory { file, is_unswappable: self.is_unswappable, values: self.values.clone() })
    }

    /// Whether this process has no other value for the file, and so no mapping of it
    /// ([`Reservation`](crate::mem::Reservation) has one).
    pub fn is_only_value(&self) -> bool {
        Arc::strong_count(&self.values) == 1
    }
}

impl AsFd for SharedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn memory_is_used_as_it_is_written_and_returned_by_holes() {
        let unswappable = may_mount().then(|| SharedMemory::new_unswappable().unwrap());
        for memory in std::iter::once(SharedMemory::new().unwrap()).chain(unswappable) {
            memory.set_len(1 << 30).unwrap();
            assert_eq!((memory.len_bytes().unwrap(), memory.used_bytes().unwrap()), (1 << 30, 0));
            memory.file.write_all_at(&[7; 8192], 1 << 20).unwrap();
            let other = memory.try_clone().unwrap();
            assert_eq!(other.used_bytes().unwrap(), 8192);
            other.punch(1 << 20, 4096).unwrap();
            let mut bytes = [1; 8192];
            memory.file.read_exact_at(&mut bytes, 1 << 20).unwrap();
            assert!(bytes[..4096].iter().all(|b| *b == 0) && bytes[4096..].iter().all(|b| *b == 7));
            assert_eq!(memory.used_bytes().unwrap(), 4096);
            let (from, page) = ((1 << 20) + 4096, 4096);
            assert_eq!(memory.first_used(0..1 << 30), Some(from..from + page));
            assert_eq!(memory.first_used(from + 8..from + 16), Some(from + 8..from + 16));
            assert_eq!((memory.first_used(0..from), memory.first_used(from + page..1 << 30)), (None, None));
        }
    }

    fn may_mount() -> bool {
        rustix::process::geteuid().is_root()
    }
}
