//! A regular file or a block device as a medium.
//!
//! The caller passes an open file; [`open_for_reading`] opens one by its path. Direct I/O and io_uring are used where the medium and the
//! kernel allow them; otherwise the page cache and positioned I/O are used, without an error. [`ByteSource::describe`]
//! reports which.
//!
//! Single requests go to `positioned.rs`: pread and pwrite in the calling thread, misaligned ones through a bounce
//! buffer. A queue is an io_uring ring (`uring.rs`); where no ring can be set up, it is a
//! [`SyncQueue`](crate::SyncQueue) over the single requests. There are no locks and no threads here.

mod positioned;
mod uring;

use crate::{
    BUFFER_ALIGN_BYTES, Backing, BackingError, Buffer, Buffers, ByteSource, Prefetched, Queue, SyncQueue,
};
use pagefold_sys::{SysError, blockdev, direct, iolock};
use std::fs::File;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;
use uring::UringQueue;

/// Whether to bypass the page cache (O_DIRECT).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Direct {
    /// If the medium allows it.
    #[default]
    Auto,
    /// Always: fail if the medium does not allow it.
    On,
    /// Never.
    Off,
}

/// Whether queues are io_uring rings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Uring {
    /// If the kernel allows them.
    #[default]
    Auto,
    /// Always: fail if the kernel does not allow them.
    On,
    /// Never: a queue runs one positioned read or write after the other.
    Off,
}

/// How to use a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileOptions {
    /// Direct I/O.
    pub direct: Direct,
    /// io_uring.
    pub uring: Uring,
}

/// A medium on a regular file or block device.
#[derive(Debug)]
pub struct FileBacking {
    file: File,
    len_bytes: u64,
    /// 1 if the page cache is used.
    block_bytes: usize,
    is_block_device: bool,
    uses_uring: bool,
}

impl FileBacking {
    /// Makes a medium on `file`, which is open for reading and writing. The medium keeps the length that the file or
    /// device has now.
    ///
    /// Switches direct I/O on or off for all descriptors of the open file, duplicates in other processes included.
    pub fn new(file: File, options: FileOptions) -> Result<Self, BackingError> {
        let meta = file.metadata().map_err(|e| SysError::io("looking at the backing file", &e))?;
        let is_block_device = meta.file_type().is_block_device();
        let len_bytes = match is_block_device {
            true => blockdev::len_bytes(&file)?,
            false if meta.is_file() => meta.len(),
            false => {
                return Err(SysError::new("using neither a file nor a block device", libc::ENOTBLK).into());
            }
        };
        let uses_uring = match options.uring {
            Uring::Off => false,
            Uring::Auto => uring::probe().is_ok(),
            Uring::On => uring::probe().map(|()| true)?,
        };
        let mut backing = FileBacking { file, len_bytes, block_bytes: 1, is_block_device, uses_uring };
        let tried = (options.direct != Direct::Off).then(|| backing.try_direct());
        match tried {
            Some(Ok(block_bytes)) => backing.block_bytes = block_bytes,
            Some(Err(e)) if options.direct == Direct::On => return Err(e),
            _ => direct::set_direct(&backing.file, false)?,
        }
        Ok(backing)
    }

    /// Like [`FileBacking::new`], for a medium that a process uses which has died, or that another one will use when this
    /// one has: opens the file anew, and waits until no request of the former process is under way. Fails after `limit`.
    /// Where the file cannot be opened anew or locked, each thread does its I/O itself: then it cannot die before that ends.
    pub fn new_alone(file: &File, options: FileOptions, limit: Duration) -> Result<Self, BackingError> {
        Self::reopened_alone(file, iolock::reopen(file).ok(), options, limit)
    }

    /// The same with `reopened`, the file opened anew by [`iolock::reopen`], perhaps by another process. `None`: it could not be.
    pub fn reopened_alone(
        file: &File,
        reopened: Option<File>,
        options: FileOptions,
        limit: Duration,
    ) -> Result<Self, BackingError> {
        match iolock::open_alone(file, reopened, limit)? {
            Some(opened) => Self::new(opened, options),
            None => {
                let file = file.try_clone().map_err(|e| SysError::io("duplicating a descriptor", &e))?;
                Self::new(file, FileOptions { uring: Uring::Off, ..options })
            }
        }
    }

    /// Makes a medium that is only read, through the page cache. `file` need not be open for writing.
    pub fn for_reading(file: File) -> Result<Self, BackingError> {
        Self::new(file, FileOptions { direct: Direct::Off, uring: Uring::Off })
    }

    /// Switches direct I/O on, reads a block to check that it works, and returns the alignment that it needs.
    fn try_direct(&self) -> Result<usize, BackingError> {
        let refuse =
            |why: &str| BackingError::System(SysError::new(format!("direct I/O: {why}"), libc::EINVAL));
        let block_bytes = match direct::alignment_bytes(&self.file) {
            Some(bytes) => bytes,
            None if self.is_block_device => blockdev::logical_block_bytes(&self.file)?,
            None => BUFFER_ALIGN_BYTES,
        };
        if !block_bytes.is_power_of_two() || block_bytes > BUFFER_ALIGN_BYTES {
            return Err(refuse("the medium's blocks cannot be used"));
        }
        // A direct write of the last, partial block would make the file longer.
        if !self.len_bytes.is_multiple_of(block_bytes as u64) {
            return Err(refuse("the length is not a multiple of the medium's blocks"));
        }
        direct::set_direct(&self.file, true)?;
        let mut block = Buffer::new(block_bytes.min(self.len_bytes as usize));
        positioned::read_aligned(&self.file, 0, &mut block, block_bytes)?;
        Ok(block_bytes)
    }
}

/// Opens a regular file or a block device for reading alone. Files of other types are refused without being opened:
/// opening a named pipe would wait for its other end, and opening other devices can have side effects.
pub fn open_for_reading(path: &Path) -> Result<File, SysError> {
    let failed = |e| SysError::io("opening it", &e);
    let kind = path.metadata().map_err(failed)?.file_type();
    // Another file may have replaced it since. O_NONBLOCK keeps the open from waiting then, and the caller checks the
    // type of the open file again.
    let flags = match (kind.is_file(), kind.is_block_device()) {
        (true, _) => libc::O_NONBLOCK | libc::O_NOCTTY,
        (_, true) => libc::O_NOCTTY,
        _ => return Err(SysError::new("using neither a file nor a block device", libc::ENOTBLK)),
    };
    std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)
}

impl ByteSource for FileBacking {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BackingError> {
        self.check_range(offset, buf.len() as u64)?;
        positioned::read(&self.file, offset, buf, self.block_bytes)
    }

    fn prefetch(&self, offset: u64, len_bytes: u64) -> Prefetched {
        // With direct I/O, reads do not use the page cache.
        match self.block_bytes > 1
            || pagefold_sys::readahead::will_need(&self.file, offset, len_bytes).is_ok()
        {
            true => Prefetched::Done,
            false => Prefetched::Failed,
        }
    }

    fn describe(&self) -> String {
        let medium = if self.is_block_device { "block device" } else { "file" };
        let cache = if self.block_bytes > 1 { "direct I/O" } else { "page cache" };
        let queue = if self.uses_uring { "io_uring" } else { "positioned I/O" };
        format!("{medium}, {cache}, {queue}")
    }
}

impl Backing for FileBacking {
    fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    fn read_signal_safe(&self, offset: u64, buf: &mut [u8]) -> Result<(), i32> {
        self.check_range(offset, buf.len() as u64).map_err(|e| e.errno())?;
        match positioned::is_aligned(self.block_bytes, offset, buf) {
            true => {
                positioned::read_aligned(&self.file, offset, buf, self.block_bytes).map_err(|e| e.errno())
            }
            false => Err(libc::EINVAL),
        }
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), BackingError> {
        self.check_range(offset, data.len() as u64)?;
        positioned::write(&self.file, offset, data, self.block_bytes)
    }

    fn flush(&self) -> Result<(), BackingError> {
        self.file.sync_data().map_err(|e| BackingError::io("flush", 0, self.len_bytes, &e))
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), BackingError> {
        self.check_range(offset, len_bytes)?;
        positioned::discard(&self.file, self.is_block_device, offset, len_bytes)
    }

    fn queue<'a>(&'a self, depth: usize, buffers: &'a Buffers) -> Result<Box<dyn Queue + 'a>, BackingError> {
        if self.uses_uring {
            // A ring that cannot be set up now (no memory, no descriptors) is no error: positioned I/O works too.
            return Ok(match UringQueue::new(self, &self.file, depth, buffers) {
                Ok(queue) => Box::new(queue),
                Err(_) => Box::new(SyncQueue::fallback(self, depth)),
            });
        }
        Ok(Box::new(SyncQueue::new(self, depth)))
    }
}
