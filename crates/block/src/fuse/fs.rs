//! Answers to the kernel's requests for the one file.
//!
//! Reading, writing, discarding and flushing go straight to the device on the thread that received
//! the request; nothing is queued and nothing is allocated on these paths. The rest is the little that
//! `open`, `stat` and `ls` need. Requests not answered here fail as "not implemented", which the
//! kernel remembers and does not ask again (extended attributes, which it would otherwise ask for on
//! every write, are one of these).

use super::muster::{Muster, with_reply_buffer};
use super::{FILE_NAME, MAX_IO_BYTES};
use crate::{BlockDevice, BlockError};
use fuser::{Errno, FileAttr, FileHandle, FileType, FopenFlags, INodeNo, InitFlags, KernelConfig, Request};
use pagefold_page::PAGE_SIZE;
use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// Nothing about the file changes but its contents, so the kernel may keep what it was told. It must
/// not come back to ask: the loop driver looks at the inode when it is asked for its status, and has
/// to get an answer even when the server is dead.
const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);

/// Requests that the kernel may have in flight before it holds back the next: twice as many as a loop
/// device has (its queue is 128 deep and may split each in two).
const MAX_BACKGROUND: u16 = 256;

/// The file system.
pub(super) struct OneFile {
    device: Arc<dyn BlockDevice>,
    inode: u64,
    muster: Arc<Muster>,
}

/// What an inode number stands for.
enum Node {
    Root,
    Disk,
    Muster,
}

impl OneFile {
    pub(super) fn new(device: Arc<dyn BlockDevice>, inode: u64, muster: Arc<Muster>) -> Self {
        OneFile { device, inode, muster }
    }

    /// The muster's files have the numbers after the disk's.
    fn node(&self, inode: INodeNo) -> Option<Node> {
        match inode.0 {
            _ if inode == INodeNo::ROOT => Some(Node::Root),
            n if n == self.inode => Some(Node::Disk),
            n if n.checked_sub(self.inode + 1)? < self.muster.files() as u64 => Some(Node::Muster),
            _ => None,
        }
    }

    fn inode_named(&self, name: &OsStr) -> Option<INodeNo> {
        if name == FILE_NAME {
            return Some(INodeNo(self.inode));
        }
        let index = (0..self.muster.files()).find(|&i| name == OsStr::new(&Muster::file_name(i)))?;
        Some(INodeNo(self.inode + 1 + index as u64))
    }

    fn attr(&self, inode: INodeNo) -> Option<FileAttr> {
        let (kind, perm, size) = match self.node(inode)? {
            Node::Root => (FileType::Directory, 0o700, 0),
            Node::Disk => (FileType::RegularFile, 0o600, self.device.len_bytes()),
            Node::Muster => (FileType::RegularFile, 0o600, MAX_IO_BYTES as u64),
        };
        Some(FileAttr {
            ino: inode,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: PAGE_SIZE as u32,
            flags: 0,
        })
    }

    /// Loop sends write zeroes as "punch a hole" when the space may be given up, and as "zero a
    /// range" when it should be kept; a discard looks exactly like the first. So a hole must read as
    /// zeroes, and both are the device's write zeroes, which gives memory back by itself.
    fn zero(&self, inode: INodeNo, offset: u64, len: u64, mode: i32) -> Result<(), Errno> {
        const ZEROING: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
        if !matches!(self.node(inode), Some(Node::Disk)) {
            return Err(Errno::EPERM);
        }
        if mode & ZEROING == 0 || mode & !(ZEROING | libc::FALLOC_FL_KEEP_SIZE) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let size = self.device.len_bytes();
        let len = len.min(size.saturating_sub(offset));
        self.device.write_zeroes(offset.min(size), len).map_err(|e| block_errno(&e))
    }

    fn read_into(&self, inode: INodeNo, offset: u64, buffer: &mut [u8], size: u32) -> Result<usize, Errno> {
        if !matches!(self.node(inode), Some(Node::Disk)) {
            return Err(Errno::EPERM);
        }
        // Short at the end of the file, as reads of files are.
        let left = self.device.len_bytes().saturating_sub(offset);
        let len = buffer.len().min(size as usize).min(usize::try_from(left).unwrap_or(usize::MAX));
        if len == 0 {
            return Ok(0);
        }
        self.device.read_at(offset, &mut buffer[..len]).map_err(|e| block_errno(&e))?;
        Ok(len)
    }
}

/// The block layer knows few errors and maps the rest to "I/O error" itself, with two exceptions
/// worth having: "no space", which file systems hand on to the writer as such, and "no memory",
/// which it would take for a request to be retried by a driver that does not.
fn block_errno(error: &BlockError) -> Errno {
    match error.errno() {
        libc::ENOSPC => Errno::ENOSPC,
        _ => Errno::EIO,
    }
}

impl fuser::Filesystem for OneFile {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Without this the kernel sends the requests of one asynchronous caller one after the other.
        config.add_capabilities(InitFlags::FUSE_ASYNC_DIO).map_err(|_| {
            io::Error::new(io::ErrorKind::Unsupported, "the kernel's FUSE has no asynchronous direct I/O")
        })?;
        let invalid = |_| io::Error::from(io::ErrorKind::InvalidInput);
        config.set_max_write(MAX_IO_BYTES as u32).map_err(invalid)?;
        config
            .set_max_background(MAX_BACKGROUND)
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: fuser::ReplyEntry) {
        let found = self.inode_named(name).filter(|_| parent == INodeNo::ROOT);
        match found.and_then(|inode| self.attr(inode)) {
            Some(attr) => reply.entry(&FOREVER, &attr, fuser::Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: fuser::ReplyAttr) {
        match self.attr(inode) {
            Some(attr) => reply.attr(&FOREVER, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: fuser::OpenFlags, reply: fuser::ReplyOpen) {
        // Not FOPEN_DIRECT_IO: opens with O_DIRECT bypass the cache anyway, on a faster path.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH);
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: fuser::OpenFlags,
        _: Option<fuser::LockOwner>,
        reply: fuser::ReplyData,
    ) {
        with_reply_buffer(|buffer| match self.read_into(inode, offset, buffer, size) {
            Ok(len) => reply.data(&buffer[..len]),
            Err(e) => reply.error(e),
        });
    }

    fn write(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: fuser::WriteFlags,
        _: fuser::OpenFlags,
        _: Option<fuser::LockOwner>,
        reply: fuser::ReplyWrite,
    ) {
        let outcome = match self.node(inode) {
            Some(Node::Disk) => self.device.write_at(offset, data).map_err(|e| block_errno(&e)),
            Some(Node::Muster) => {
                self.muster.report();
                Ok(())
            }
            _ => Err(Errno::EPERM),
        };
        match outcome {
            Ok(()) => reply.written(data.len() as u32),
            Err(e) => reply.error(e),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: fuser::ReplyEmpty) {
        match self.device.flush() {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(block_errno(&e)),
        }
    }

    fn fallocate(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: fuser::ReplyEmpty,
    ) {
        match self.zero(inode, offset, len, mode) {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(e),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: fuser::ReplyDirectory,
    ) {
        if inode != INodeNo::ROOT {
            return reply.error(Errno::ENOTDIR);
        }
        let entries = [
            (INodeNo::ROOT, FileType::Directory, "."),
            (INodeNo::ROOT, FileType::Directory, ".."),
            (INodeNo(self.inode), FileType::RegularFile, FILE_NAME),
        ];
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        for (i, (inode, kind, name)) in entries.into_iter().enumerate().skip(start) {
            if reply.add(inode, i as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: fuser::ReplyStatfs) {
        // Loop takes the block size for the granularity of discards.
        let blocks = self.device.len_bytes() / PAGE_SIZE as u64;
        reply.statfs(blocks, 0, 0, 1, 0, PAGE_SIZE as u32, 255, PAGE_SIZE as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RamDevice;
    use pagefold_page::PageIndex;

    fn file(len_bytes: u64) -> OneFile {
        OneFile::new(Arc::new(RamDevice::new(len_bytes)), 1 << 40, Arc::new(Muster::new(2)))
    }

    #[test]
    fn reads_end_at_the_end_of_the_device() {
        let fs = file(8192);
        let mut buffer = vec![1; MAX_IO_BYTES];
        let disk = INodeNo(fs.inode);
        for (offset, size, len) in [(0, 4096, 4096), (4096, 65536, 4096), (8192, 1, 0), (u64::MAX, 512, 0)] {
            assert_eq!(fs.read_into(disk, offset, &mut buffer, size).ok(), Some(len), "{offset}+{size}");
        }
        assert!(fs.read_into(INodeNo::ROOT, 0, &mut buffer, 512).is_err());
    }

    #[test]
    fn zeroing_accepts_holes_and_ranges_and_nothing_else() {
        use libc::{
            FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE,
        };
        let fs = file(16384);
        let disk = INodeNo(fs.inode);
        fs.device.write_at(0, &[7; 16384]).unwrap();
        fs.zero(disk, 4096, 4096, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE).unwrap();
        fs.zero(disk, 12288, u64::MAX, FALLOC_FL_ZERO_RANGE).unwrap();
        let mut got = vec![1; 16384];
        fs.device.read_at(0, &mut got).unwrap();
        let want: Vec<u8> = [7, 0, 7, 0].into_iter().flat_map(|b| [b; 4096]).collect();
        assert_eq!(got, want);
        for mode in [0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_COLLAPSE_RANGE] {
            assert_eq!(fs.zero(disk, 0, 4096, mode).unwrap_err().code(), libc::EOPNOTSUPP);
        }
        assert!(fs.zero(INodeNo::ROOT, 0, 4096, FALLOC_FL_ZERO_RANGE).is_err());
    }

    #[test]
    fn errors_reach_the_block_layer_as_no_space_or_io_error() {
        let index = PageIndex(0);
        assert_eq!(block_errno(&BlockError::NoSpace { index }).code(), libc::ENOSPC);
        assert_eq!(block_errno(&BlockError::NoMemory { index }).code(), libc::EIO);
        assert_eq!(block_errno(&BlockError::ReadOnly).code(), libc::EIO);
    }

    #[test]
    fn names_and_numbers_agree() {
        let fs = file(4096);
        let disk = fs.inode_named(OsStr::new(FILE_NAME)).unwrap();
        assert_eq!(fs.attr(disk).map(|a| (a.size, a.perm)), Some((4096, 0o600)));
        let last = fs.inode_named(OsStr::new("muster-1")).unwrap();
        assert!(matches!(fs.node(last), Some(Node::Muster)));
        assert!(fs.inode_named(OsStr::new("muster-2")).is_none());
        assert!(fs.node(INodeNo(last.0 + 1)).is_none() && fs.node(INodeNo(2)).is_none());
    }
}
