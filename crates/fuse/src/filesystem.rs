//! [`FileSystem`], the trait that a caller implements: one function for each operation.

use crate::directory::Entries;
use crate::negotiate::{Offer, Settings};
use crate::request::{Changes, NameChange, Operation, Range};
use crate::types::{CachedAttr, Entry, Errno, Handle, Inode, OpenMode, Opened, Seek, StatFs, Transfer};
use std::ffi::OsStr;
use std::time::Duration;

/// A feature that the file system cannot do without, and that the kernel's FUSE lacks. The text is an error message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unsupported(pub &'static str);

/// A file system. The session calls a function of it for each request, on several threads at the same time, and sends
/// its result as the reply.
///
/// Operations that are not implemented fail with ENOSYS, which the kernel remembers: it does not repeat most of them.
pub trait FileSystem: Send + Sync + 'static {
    /// Chooses features and limits. Called once, before all other functions.
    fn init(&mut self, offer: &Offer) -> Result<Settings, Unsupported>;

    /// Called by each thread before it serves its first request. The thread's buffers are in memory then.
    fn begin_thread(&self) {}

    /// Whether a request may take long because it waits for something else. The session then serves it on a separate
    /// thread, so that no other request waits for it. The session copies such a request: only a file system without
    /// much to transfer returns true.
    fn waits(&self, _operation: &Operation<'_>) -> bool {
        false
    }

    /// Whether the file system looks at [`is_interrupted`](crate::is_interrupted) while it serves long requests. Otherwise
    /// programs wait for each reply, whatever signals they get.
    const CAN_BE_INTERRUPTED: bool = false;

    /// Whether requests leave no state behind that a panic could make inconsistent. A request that panics then fails with EIO,
    /// and its thread serves on. Otherwise a panic ends the thread.
    const IS_STATELESS: bool = false;

    /// Whether [`replied`](Self::replied) is wanted, which costs two readings of the clock for each request.
    const TIMES_REPLIES: bool = false;

    /// The session has answered a read or write, so long after a thread received it.
    fn replied(&self, _transfer: Transfer, _took: Duration) {}

    /// Looks a name up in a directory.
    fn lookup(&self, _parent: Inode, _name: &OsStr) -> Result<Entry, Errno> {
        Err(Errno(libc::ENOSYS))
    }

    /// Returns the attributes of a file.
    fn attr(&self, _inode: Inode) -> Result<CachedAttr, Errno> {
        Err(Errno(libc::ENOSYS))
    }

    /// Changes attributes, and returns the new ones.
    fn set_attr(&self, _inode: Inode, _changes: &Changes) -> Result<CachedAttr, Errno> {
        Err(Errno(libc::ENOSYS))
    }

    /// Returns the target of a symbolic link.
    fn read_link(&self, _inode: Inode) -> Result<Vec<u8>, Errno> {
        Err(Errno(libc::ENOSYS))
    }

    /// Opens a file with the flags of open(2).
    fn open(&self, _inode: Inode, _flags: i32) -> Result<Opened, Errno> {
        Ok(Opened { handle: Handle(0), mode: OpenMode::default() })
    }

    /// Opens a directory.
    fn open_dir(&self, _inode: Inode) -> Result<Opened, Errno> {
        Ok(Opened { handle: Handle(0), mode: OpenMode::default() })
    }

    /// Reads at most `range.size` bytes of an open file to the beginning of `buffer`, from which they are sent, and
    /// returns their number. A smaller number than requested is the end of the file.
    ///
    /// The buffer has room for the longest read and [`Settings::scratch_bytes`] more. Its other bytes may be changed.
    fn read(&self, _inode: Inode, _range: Range, _buffer: &mut [u8]) -> Result<usize, Errno> {
        Err(Errno(libc::ENOSYS))
    }

    /// Writes to an open file, and returns how many of the bytes were taken.
    fn write(&self, _inode: Inode, _handle: Handle, _offset: u64, _data: &[u8]) -> Result<usize, Errno> {
        Err(Errno(libc::ENOSYS))
    }

    /// The last descriptor of an open file was closed.
    fn release(&self, _handle: Handle) {}

    /// Makes what was written to a file durable.
    fn sync(&self, _inode: Inode) -> Result<(), Errno> {
        Err(Errno(libc::ENOSYS))
    }

    /// Frees or zeroes a range, by the flags of fallocate(2).
    fn fallocate(&self, _inode: Inode, _offset: u64, _len: u64, _mode: i32) -> Result<(), Errno> {
        Err(Errno(libc::ENOSYS))
    }

    /// Returns where the next data or hole begins, at `offset` or after it; ENXIO if there is none. ENOSYS is that files have
    /// no holes.
    fn seek(&self, _inode: Inode, _offset: u64, _wanted: Seek) -> Result<u64, Errno> {
        Err(Errno(libc::ENOSYS))
    }

    /// Adds the entries of a directory from the position `offset` on, until there is no room for one.
    fn read_dir(&self, _inode: Inode, _offset: u64, _entries: &mut Entries<'_>) -> Result<(), Errno> {
        Err(Errno(libc::ENOSYS))
    }

    /// As [`read_dir`](Self::read_dir), with the attributes of each entry ([`Entries::add_plus`]).
    fn read_dir_plus(&self, _inode: Inode, _offset: u64, _entries: &mut Entries<'_>) -> Result<(), Errno> {
        Err(Errno(libc::ENOSYS))
    }

    /// Returns the value of an extended attribute.
    fn xattr(&self, _inode: Inode, _name: &OsStr) -> Result<Vec<u8>, Errno> {
        Err(Errno(libc::ENOSYS))
    }

    /// Returns the names of the extended attributes that the user `uid` sees, each with a zero byte at its end.
    fn xattr_names(&self, _inode: Inode, _uid: u32) -> Result<Vec<u8>, Errno> {
        Err(Errno(libc::ENOSYS))
    }

    /// Returns the size of the file system.
    fn stat_fs(&self) -> StatFs {
        StatFs { blocks: 0, files: 0, block_bytes: 512 }
    }

    /// Returns the error for an operation that creates, removes or moves a name: no file system here does any.
    fn change_names(&self, _change: NameChange) -> Errno {
        Errno(libc::ENOSYS)
    }
}
