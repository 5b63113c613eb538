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
use crate::operation::Operation;
use crate::{BlockDevice, BlockError};
use pagefold_fuse::{
    Attr, CachedAttr, Changes, Entries, Entry, Errno, FOREVER, Features, FileSystem, FileType, Handle, Inode,
    Offer, OpenMode, Opened, Range, Settings, StatFs, Transfer, Unsupported,
};
use pagefold_page::PAGE_SIZE;
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

/// The name of the one file.
pub const FILE_NAME: &str = "disk";
/// The largest read or write request, bytes. By default the kernel allows no larger one.
pub const MAX_IO_BYTES: usize = 1 << 20;

/// Limit of background requests in flight, above which the kernel queues. It is twice the depth of a loop device's
/// queue, 128, because the kernel may split each of its requests in two.
const MAX_BACKGROUND: u16 = 256;

/// A file system of one file, which holds the device's contents.
pub(super) struct OneFile {
    device: Arc<dyn BlockDevice>,
    inode: u64,
    warmup: Arc<ThreadWarmup>,
}

/// The file or directory that an inode number names.
enum Node {
    Root,
    Disk,
}

impl OneFile {
    pub(super) fn new(device: Arc<dyn BlockDevice>, inode: u64, warmup: Arc<ThreadWarmup>) -> Self {
        OneFile { device, inode, warmup }
    }

    /// Looks an inode number up.
    fn node(&self, inode: Inode) -> Option<Node> {
        match inode.0 {
            _ if inode == Inode::ROOT => Some(Node::Root),
            n if n == self.inode => Some(Node::Disk),
            _ => None,
        }
    }

    fn inode_named(&self, name: &OsStr) -> Option<Inode> {
        (name == FILE_NAME).then_some(Inode(self.inode))
    }

    fn attributes(&self, inode: Inode) -> Result<Attr, Errno> {
        let (kind, permissions, size) = match self.node(inode).ok_or(Errno(libc::ENOENT))? {
            Node::Root => (FileType::Directory, 0o700, 0),
            Node::Disk => (FileType::Regular, 0o600, self.device.len_bytes()),
        };
        let attr = Attr::new(inode, kind, permissions, PAGE_SIZE as u32);
        Ok(Attr { size, sectors: size / 512, ..attr })
    }

    /// Zeroes a range, for both modes of `fallocate` that the loop driver uses.
    ///
    /// It sends "write zeroes" as FALLOC_FL_PUNCH_HOLE if the space may be freed and as FALLOC_FL_ZERO_RANGE if not,
    /// and sends a discard as FALLOC_FL_PUNCH_HOLE too. A punched range must therefore read as zeroes, so both modes
    /// call [`BlockDevice::write_zeroes`], which frees the memory of whole pages anyway.
    fn zero(&self, inode: Inode, offset: u64, len: u64, mode: i32) -> Result<(), Errno> {
        const ZEROING: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
        let device = self.disk(inode)?;
        if mode & ZEROING == 0 || mode & !(ZEROING | libc::FALLOC_FL_KEEP_SIZE) != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let size = device.len_bytes();
        let len = len.min(size.saturating_sub(offset));
        device.write_zeroes(offset.min(size), len).map_err(|e| block_errno(&e))
    }

    /// Checks that the inode is the disk's.
    fn disk(&self, inode: Inode) -> Result<&dyn BlockDevice, Errno> {
        match self.node(inode) {
            Some(Node::Disk) => Ok(&*self.device),
            _ => Err(Errno(libc::EPERM)),
        }
    }
}

/// The errno that the FUSE reply carries: ENOSPC, which file systems on the disk return to their writers, or EIO.
///
/// The block layer maps most errors to EIO itself. The block layer must not get ENOMEM: it takes ENOMEM for a request
/// that the driver will retry, and the loop driver does not retry.
fn block_errno(error: &BlockError) -> Errno {
    match error.errno() {
        libc::ENOSPC => Errno(libc::ENOSPC),
        _ => Errno(libc::EIO),
    }
}

impl FileSystem for OneFile {
    fn init(&mut self, offer: &Offer) -> Result<Settings, Unsupported> {
        // Without FUSE_ASYNC_DIO the kernel sends the requests of one asynchronous caller one after the other.
        if !offer.features.contains(Features::ASYNC_DIO) {
            return Err(Unsupported("the kernel's FUSE has no asynchronous direct I/O"));
        }
        let features = Features::ASYNC_DIO;
        Ok(Settings { features, ..Settings::for_requests_of(MAX_IO_BYTES, MAX_BACKGROUND) })
    }

    fn begin_thread(&self) {
        self.warmup.begin();
    }

    const TIMES_REPLIES: bool = true;

    fn replied(&self, transfer: Transfer, took: Duration) {
        let operation = match transfer {
            Transfer::Read => Operation::Read,
            Transfer::Write => Operation::Write,
        };
        self.device.note_reply(operation, took);
    }

    fn lookup(&self, parent: Inode, name: &OsStr) -> Result<Entry, Errno> {
        let found = self.inode_named(name).filter(|_| parent == Inode::ROOT);
        let attr = self.attributes(found.ok_or(Errno(libc::ENOENT))?)?;
        Ok(Entry { attr: Some(attr), ttl: FOREVER })
    }

    fn attr(&self, inode: Inode) -> Result<CachedAttr, Errno> {
        Ok(CachedAttr { attr: self.attributes(inode)?, ttl: FOREVER })
    }

    fn set_attr(&self, inode: Inode, changes: &Changes) -> Result<CachedAttr, Errno> {
        let size = changes.size.ok_or(Errno(libc::ENOSYS))?;
        match self.attr(inode) {
            Ok(cached) if cached.attr.size == size => Ok(cached),
            _ => Err(Errno(libc::EPERM)),
        }
    }

    fn open(&self, _: Inode, _: i32) -> Result<Opened, Errno> {
        // Do not set DIRECT_IO: an open with O_DIRECT bypasses the cache anyway, on a faster path.
        Ok(Opened { handle: Handle(0), mode: OpenMode::KEEP_CACHE | OpenMode::NOFLUSH })
    }

    fn read(&self, inode: Inode, range: Range, buffer: &mut [u8]) -> Result<usize, Errno> {
        let device = self.disk(inode)?;
        // Return fewer bytes at the end of the file, as `read` does.
        let left = device.len_bytes().saturating_sub(range.offset);
        let len = buffer.len().min(range.size as usize).min(usize::try_from(left).unwrap_or(usize::MAX));
        if len > 0 {
            device.read_at(range.offset, &mut buffer[..len]).map_err(|e| block_errno(&e))?;
        }
        Ok(len)
    }

    fn write(&self, inode: Inode, _: Handle, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        self.disk(inode)?.write_at(offset, data).map_err(|e| block_errno(&e))?;
        Ok(data.len())
    }

    fn sync(&self, _: Inode) -> Result<(), Errno> {
        self.device.flush().map_err(|e| block_errno(&e))
    }

    fn fallocate(&self, inode: Inode, offset: u64, len: u64, mode: i32) -> Result<(), Errno> {
        self.zero(inode, offset, len, mode)
    }

    fn read_dir(&self, inode: Inode, offset: u64, entries: &mut Entries<'_>) -> Result<(), Errno> {
        if inode != Inode::ROOT {
            return Err(Errno(libc::ENOTDIR));
        }
        let all = [
            (Inode::ROOT, FileType::Directory, "."),
            (Inode::ROOT, FileType::Directory, ".."),
            (Inode(self.inode), FileType::Regular, FILE_NAME),
        ];
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        for (i, (inode, kind, name)) in all.into_iter().enumerate().skip(start) {
            if !entries.add(inode, i as u64 + 1, kind, OsStr::new(name)) {
                break;
            }
        }
        Ok(())
    }

    fn stat_fs(&self) -> StatFs {
        // The loop driver uses the block size as the granularity of discards.
        let blocks = self.device.len_bytes() / PAGE_SIZE as u64;
        StatFs { blocks, files: 1, block_bytes: PAGE_SIZE as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RamDevice;
    use pagefold_page::PageIndex;

    fn file(len_bytes: u64) -> OneFile {
        OneFile::new(Arc::new(RamDevice::new(len_bytes)), 1 << 40, Arc::default())
    }

    #[test]
    fn reads_end_at_the_end_of_the_device() {
        let fs = file(8192);
        let mut buffer = vec![1; MAX_IO_BYTES];
        let disk = Inode(fs.inode);
        for (offset, size, len) in [(0, 4096, 4096), (4096, 65536, 4096), (8192, 1, 0), (u64::MAX, 512, 0)] {
            let range = Range { handle: Handle(0), offset, size };
            assert_eq!(fs.read(disk, range, &mut buffer), Ok(len), "{offset}+{size}");
        }
        let range = Range { handle: Handle(0), offset: 0, size: 512 };
        assert!(fs.read(Inode::ROOT, range, &mut buffer).is_err());
    }

    #[test]
    fn zeroing_accepts_holes_and_ranges_and_nothing_else() {
        use libc::{
            FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE,
        };
        let fs = file(16384);
        let disk = Inode(fs.inode);
        fs.device.write_at(0, &[7; 16384]).unwrap();
        fs.zero(disk, 4096, 4096, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE).unwrap();
        fs.zero(disk, 12288, u64::MAX, FALLOC_FL_ZERO_RANGE).unwrap();
        let mut got = vec![1; 16384];
        fs.device.read_at(0, &mut got).unwrap();
        let want: Vec<u8> = [7, 0, 7, 0].into_iter().flat_map(|b| [b; 4096]).collect();
        assert_eq!(got, want);
        for mode in [0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_COLLAPSE_RANGE] {
            assert_eq!(fs.zero(disk, 0, 4096, mode).unwrap_err().0, libc::EOPNOTSUPP);
        }
        assert!(fs.zero(Inode::ROOT, 0, 4096, FALLOC_FL_ZERO_RANGE).is_err());
    }

    #[test]
    fn errors_become_enospc_or_eio() {
        let index = PageIndex(0);
        assert_eq!(block_errno(&BlockError::NoSpace { index }).0, libc::ENOSPC);
        assert_eq!(block_errno(&BlockError::NoMemory { index }).0, libc::EIO);
        assert_eq!(block_errno(&BlockError::ReadOnly).0, libc::EIO);
    }

    #[test]
    fn inode_numbers_match_file_names() {
        let fs = file(4096);
        let disk = fs.inode_named(OsStr::new(FILE_NAME)).unwrap();
        assert_eq!(fs.attributes(disk).map(|a| (a.size, a.permissions)), Ok((4096, 0o600)));
        assert!(fs.inode_named(OsStr::new("disk2")).is_none());
        assert!(fs.node(Inode(disk.0 + 1)).is_none() && fs.node(Inode(2)).is_none());
    }
}
