//! [`OneFile`], the FUSE file system that answers the kernel's requests for the one file.
//!
//! The session thread that received a read, write, discard or flush calls the device itself: these paths queue nothing,
//! allocate nothing and take no lock. The other requests handled here are those that `open`, `stat` and `ls` send. All
//! others fail with ENOSYS, which the kernel remembers: it does not repeat them. Reads of extended attributes are an
//! example, which the kernel would otherwise send before every write.
//!
//! Only the file's contents change, so the kernel may cache names and attributes without a time limit. It also has
//! to: the loop driver reads the inode's attributes when it reports a loop device's status, and this must work even
//! after the server died. The size changes with that of the device: the server then truncates the file to the size
//! that the device has, which only makes the kernel cache it. Other sizes are refused.

use super::warmup::ThreadWarmup;
use super::{FILE_NAME, MAX_IO_BYTES};
use crate::{BlockDevice, BlockError};
use fuser::{Errno, FileAttr, FileHandle, FileType, FopenFlags, INodeNo, InitFlags, KernelConfig, Request};
use pagefold_fuse::{FOREVER, limit_requests, unsupported, with_reply_buffer};
use pagefold_page::PAGE_SIZE;
use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Limit of background requests in flight, above which the kernel queues. It is twice the depth of a loop device's
/// queue, 128, because the kernel may split each of its requests in two.
const MAX_BACKGROUND: u16 = 256;

/// A file system of one file, which holds the device's contents, and the files of the warm-up.
pub(super) struct OneFile {
    device: Arc<dyn BlockDevice>,
    inode: u64,
    warmup: Arc<ThreadWarmup>,
}

/// The file or directory that an inode number names.
enum Node {
    Root,
    Disk,
    Warmup,
}

impl OneFile {
    pub(super) fn new(device: Arc<dyn BlockDevice>, inode: u64, warmup: Arc<ThreadWarmup>) -> Self {
        OneFile { device, inode, warmup }
    }

    /// Looks an inode number up. The warm-up files have the numbers after the disk's.
    fn node(&self, inode: INodeNo) -> Option<Node> {
        match inode.0 {
            _ if inode == INodeNo::ROOT => Some(Node::Root),
            n if n == self.inode => Some(Node::Disk),
            n if n.checked_sub(self.inode + 1)? < self.warmup.files() as u64 => Some(Node::Warmup),
            _ => None,
        }
    }

    fn inode_named(&self, name: &OsStr) -> Option<INodeNo> {
        if name == FILE_NAME {
            return Some(INodeNo(self.inode));
        }
        let index = (0..self.warmup.files()).find(|&i| name == OsStr::new(&ThreadWarmup::file_name(i)))?;
        Some(INodeNo(self.inode + 1 + index as u64))
    }

    fn attr(&self, inode: INodeNo) -> Option<FileAttr> {
        let (kind, perm, size) = match self.node(inode)? {
            Node::Root => (FileType::Directory, 0o700, 0),
            Node::Disk => (FileType::RegularFile, 0o600, self.device.len_bytes()),
            Node::Warmup => (FileType::RegularFile, 0o600, MAX_IO_BYTES as u64),
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

    /// Zeroes a range, for both modes of `fallocate` that the loop driver uses.
    ///
    /// It sends "write zeroes" as FALLOC_FL_PUNCH_HOLE if the space may be freed and as FALLOC_FL_ZERO_RANGE if not,
    /// and sends a discard as FALLOC_FL_PUNCH_HOLE too. A punched range must therefore read as zeroes, so both modes
    /// call [`BlockDevice::write_zeroes`], which frees the memory of whole pages anyway.
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
        // Return fewer bytes at the end of the file, as `read` does.
        let left = self.device.len_bytes().saturating_sub(offset);
        let len = buffer.len().min(size as usize).min(usize::try_from(left).unwrap_or(usize::MAX));
        if len == 0 {
            return Ok(0);
        }
        self.device.read_at(offset, &mut buffer[..len]).map_err(|e| block_errno(&e))?;
        Ok(len)
    }
}

/// The errno that the FUSE reply carries: ENOSPC, which file systems on the disk return to their writers, or EIO.
///
/// The block layer maps most errors to EIO itself. The block layer must not get ENOMEM: it takes ENOMEM for a request
/// that the driver will retry, and the loop driver does not retry.
fn block_errno(error: &BlockError) -> Errno {
    match error.errno() {
        libc::ENOSPC => Errno::ENOSPC,
        _ => Errno::EIO,
    }
}

impl fuser::Filesystem for OneFile {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Without FUSE_ASYNC_DIO the kernel sends the requests of one asynchronous caller one after the other.
        config
            .add_capabilities(InitFlags::FUSE_ASYNC_DIO)
            .map_err(|_| unsupported("the kernel's FUSE has no asynchronous direct I/O"))?;
        limit_requests(config, MAX_IO_BYTES, MAX_BACKGROUND)
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

    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<fuser::TimeOrNow>,
        _: Option<fuser::TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: fuser::ReplyAttr,
    ) {
        match (size, self.attr(inode)) {
            (None, _) => reply.error(Errno::ENOSYS),
            (Some(size), Some(attr)) if size == attr.size => reply.attr(&FOREVER, &attr),
            (Some(_), _) => reply.error(Errno::EPERM),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: fuser::OpenFlags, reply: fuser::ReplyOpen) {
        // Do not set FOPEN_DIRECT_IO: an open with O_DIRECT bypasses the cache anyway, on a faster path.
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
        with_reply_buffer(MAX_IO_BYTES, |buffer| match self.read_into(inode, offset, buffer, size) {
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
        let result = match self.node(inode) {
            Some(Node::Disk) => self.device.write_at(offset, data).map_err(|e| block_errno(&e)),
            Some(Node::Warmup) => {
                self.warmup.arrive();
                Ok(())
            }
            _ => Err(Errno::EPERM),
        };
        match result {
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
        // The loop driver uses the block size as the granularity of discards.
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
        OneFile::new(Arc::new(RamDevice::new(len_bytes)), 1 << 40, Arc::new(ThreadWarmup::new(2)))
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
    fn errors_become_enospc_or_eio() {
        let index = PageIndex(0);
        assert_eq!(block_errno(&BlockError::NoSpace { index }).code(), libc::ENOSPC);
        assert_eq!(block_errno(&BlockError::NoMemory { index }).code(), libc::EIO);
        assert_eq!(block_errno(&BlockError::ReadOnly).code(), libc::EIO);
    }

    #[test]
    fn inode_numbers_match_file_names() {
        let fs = file(4096);
        let disk = fs.inode_named(OsStr::new(FILE_NAME)).unwrap();
        assert_eq!(fs.attr(disk).map(|a| (a.size, a.perm)), Some((4096, 0o600)));
        let last = fs.inode_named(OsStr::new("warmup-1")).unwrap();
        assert!(matches!(fs.node(last), Some(Node::Warmup)));
        assert!(fs.inode_named(OsStr::new("warmup-2")).is_none());
        assert!(fs.node(INodeNo(last.0 + 1)).is_none() && fs.node(INodeNo(2)).is_none());
    }
}
