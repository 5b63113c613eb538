//! The types that a file system and the session exchange: inode numbers, attributes, replies and error numbers.

use crate::abi::{self, opcode};
pub use pagefold_sys::Errno;
use std::ops::BitOr;
use std::time::Duration;

/// The number of an inode, which the kernel got from an entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Inode(pub u64);

impl Inode {
    /// The root of the mount.
    pub const ROOT: Inode = Inode(abi::ROOT);
}

/// The number that a file system returned when a file was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle(pub u64);

/// The number in a reply that fails with `error`. The kernel would refuse a reply with a number that is not one of its
/// errors.
pub(crate) fn error_in_reply(error: Errno) -> i32 {
    match error.0 {
        number @ 1..=511 => -number,
        _ => -libc::EIO,
    }
}

/// The type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the variants say it")]
pub enum FileType {
    Regular,
    Directory,
    Symlink,
    CharDevice,
    BlockDevice,
    Fifo,
    Socket,
}

impl FileType {
    /// The bits of the type in a mode.
    pub(crate) fn mode_bits(self) -> u32 {
        match self {
            FileType::Regular => libc::S_IFREG,
            FileType::Directory => libc::S_IFDIR,
            FileType::Symlink => libc::S_IFLNK,
            FileType::CharDevice => libc::S_IFCHR,
            FileType::BlockDevice => libc::S_IFBLK,
            FileType::Fifo => libc::S_IFIFO,
            FileType::Socket => libc::S_IFSOCK,
        }
    }

    /// The type in an entry of a directory.
    pub(crate) fn dirent_type(self) -> u32 {
        self.mode_bits() >> 12
    }
}

/// A time since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Time {
    /// Whole seconds, rounded down.
    pub seconds: i64,
    /// Nanoseconds, below 1 000 000 000.
    pub nanoseconds: u32,
}

/// The attributes of a file, as `stat` shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// Its number.
    pub inode: Inode,
    /// Its type.
    pub kind: FileType,
    /// Permissions, with the set-user-ID, set-group-ID and sticky bits.
    pub permissions: u16,
    /// Length, bytes.
    pub size: u64,
    /// Space, in units of 512 bytes.
    pub sectors: u64,
    /// Time of the last access, of the last modification, and of the last change.
    pub time: Time,
    /// Names that it has.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node.
    pub rdev: u32,
    /// Preferred length of a request, bytes.
    pub block_bytes: u32,
}

impl Attr {
    /// A file of root with one name, without contents and with the time 0. Other values replace these with `..`.
    pub fn new(inode: Inode, kind: FileType, permissions: u16, block_bytes: u32) -> Self {
        let time = Time::default();
        Attr {
            inode,
            kind,
            permissions,
            size: 0,
            sectors: 0,
            time,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            block_bytes,
        }
    }

    /// The structure of the protocol.
    pub(crate) fn encode(&self) -> abi::Attributes {
        let (seconds, nanoseconds) = (self.time.seconds as u64, self.time.nanoseconds);
        abi::Attributes {
            ino: self.inode.0,
            size: self.size,
            blocks: self.sectors,
            atime: seconds,
            mtime: seconds,
            ctime: seconds,
            atimensec: nanoseconds,
            mtimensec: nanoseconds,
            ctimensec: nanoseconds,
            mode: self.kind.mode_bits() | u32::from(self.permissions),
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            blksize: self.block_bytes,
            flags: 0,
        }
    }
}

/// Attributes, and for how long the kernel may cache them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachedAttr {
    /// The attributes.
    pub attr: Attr,
    /// Time for which the kernel does not ask again.
    pub ttl: Duration,
}

impl CachedAttr {
    pub(crate) fn encode(&self) -> abi::AttrOut {
        abi::AttrOut {
            attr_valid: self.ttl.as_secs(),
            attr_valid_nsec: self.ttl.subsec_nanos(),
            dummy: 0,
            attr: self.attr.encode(),
        }
    }
}

/// The part of a file that lseek(2) looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// SEEK_DATA: bytes that are stored.
    Data,
    /// SEEK_HOLE: a hole, or the end of the file.
    Hole,
}

/// An entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The attributes of its file; `None` for a name that does not exist, which the kernel may cache too.
    pub attr: Option<Attr>,
    /// Time for which the kernel asks again neither for the name nor for the attributes.
    pub ttl: Duration,
}

impl Entry {
    pub(crate) fn encode(&self) -> abi::EntryOut {
        let (seconds, nanoseconds) = (self.ttl.as_secs(), self.ttl.subsec_nanos());
        abi::EntryOut {
            // The number 0 means that there is no such name.
            nodeid: self.attr.map_or(0, |attr| attr.inode.0),
            generation: 0,
            entry_valid: seconds,
            attr_valid: seconds,
            entry_valid_nsec: nanoseconds,
            attr_valid_nsec: nanoseconds,
            attr: self.attr.map_or_else(abi::Attributes::default, |attr| attr.encode()),
        }
    }
}

/// How the kernel treats an open file or directory: a set of bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenMode(pub(crate) u32);

impl OpenMode {
    /// Does not cache the contents.
    pub const DIRECT_IO: Self = OpenMode(1);
    /// Keeps what is cached of the contents.
    pub const KEEP_CACHE: Self = OpenMode(1 << 1);
    /// Caches the entries of a directory.
    pub const CACHE_DIR: Self = OpenMode(1 << 3);
    /// Sends no request when a descriptor is closed.
    pub const NOFLUSH: Self = OpenMode(1 << 5);
    /// Sends writes of one file at the same time.
    pub const PARALLEL_DIRECT_WRITES: Self = OpenMode(1 << 6);
}

impl BitOr for OpenMode {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        OpenMode(self.0 | other.0)
    }
}

/// An open file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// Comes back in each request on it.
    pub handle: Handle,
    /// How the kernel treats it.
    pub mode: OpenMode,
}

impl Opened {
    pub(crate) fn encode(&self) -> abi::OpenOut {
        abi::OpenOut { fh: self.handle.0, open_flags: self.mode.0, backing_id: 0 }
    }
}

/// The reply to `statfs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatFs {
    /// Size of the file system, blocks. None of them is free.
    pub blocks: u64,
    /// Inodes. None of them is free.
    pub files: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
}

impl StatFs {
    pub(crate) fn encode(&self) -> abi::StatFsOut {
        abi::StatFsOut {
            blocks: self.blocks,
            files: self.files,
            bsize: self.block_bytes,
            namelen: 255,
            frsize: self.block_bytes,
            ..abi::StatFsOut::default()
        }
    }
}

/// A request that transfers data of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// A read.
    Read,
    /// A write.
    Write,
}

impl Transfer {
    pub(crate) fn of(opcode: u32) -> Option<Self> {
        match opcode {
            opcode::READ => Some(Transfer::Read),
            opcode::WRITE => Some(Transfer::Write),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_in_replies_are_numbers_that_the_kernel_accepts() {
        let sent = [libc::ENOSPC, 511, 0, -5, 512, i32::MIN, i32::MAX].map(|n| error_in_reply(Errno(n)));
        assert_eq!(sent, [-libc::ENOSPC, -511, -5, -5, -5, -5, -5]);
    }

    #[test]
    fn attributes_have_the_type_in_the_mode_and_one_time() {
        let time = Time { seconds: -3, nanoseconds: 7 };
        let attr = Attr { time, ..Attr::new(Inode(9), FileType::Socket, 0o4711, 4096) };
        let encoded = attr.encode();
        assert_eq!((encoded.ino, encoded.mode, encoded.nlink), (9, libc::S_IFSOCK | 0o4711, 1));
        assert_eq!((encoded.mtime as i64, encoded.mtimensec, encoded.ctime as i64), (-3, 7, -3));
        assert_eq!(FileType::Directory.dirent_type(), u32::from(libc::DT_DIR));
        assert_eq!(FileType::Fifo.dirent_type(), u32::from(libc::DT_FIFO));
    }

    #[test]
    fn an_entry_without_attributes_has_the_number_0() {
        let ttl = Duration::new(3, 4);
        let missing = Entry { attr: None, ttl }.encode();
        assert_eq!((missing.nodeid, missing.entry_valid, missing.entry_valid_nsec), (0, 3, 4));
        let attr = Attr::new(Inode(5), FileType::Regular, 0o644, 4096);
        let found = Entry { attr: Some(attr), ttl }.encode();
        assert_eq!((found.nodeid, found.attr.ino, found.attr_valid_nsec), (5, 5, 4));
    }
}
