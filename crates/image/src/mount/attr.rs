//! Conversion of inode numbers, attributes and errors to those of FUSE.

use crate::read::inode::{Inode, Timestamp};
use crate::read::{FileKind, Layout, Superblock};
use crate::{ImageError, Nid};
use fuser::{Errno, FileAttr, FileType, INodeNo};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Unit of `st_blocks`, bytes.
const SECTOR_BYTES: u64 = 512;

/// Returns the inode number that FUSE and `stat` use: 1 for the root; for other inodes the image's number, rotated so
/// that the metabox bit is the lowest, plus 2. So 0 and 1 are not used twice.
pub(super) fn number(nid: Nid, root: Nid) -> INodeNo {
    if nid == root {
        return INodeNo::ROOT;
    }
    INodeNo(nid.0.rotate_left(1).wrapping_add(2))
}

/// The inverse of [`number`].
pub(super) fn nid(number: INodeNo, root: Nid) -> Nid {
    if number == INodeNo::ROOT {
        return root;
    }
    Nid(number.0.wrapping_sub(2).rotate_right(1))
}

/// Converts an inode to the attributes that `stat` shows.
pub(super) fn attr(inode: &Inode, superblock: &Superblock) -> FileAttr {
    let block_bytes = u64::from(superblock.block_bytes());
    let blocks = match inode.layout {
        Layout::CompressedFull | Layout::CompressedCompact => inode.compressed_blocks,
        _ => inode.size.div_ceil(block_bytes),
    };
    let time = time(inode.mtime);
    FileAttr {
        ino: number(inode.nid, superblock.root_nid),
        size: inode.size,
        // A file that is a fragment has no blocks itself, but programs take a file without blocks for a hole.
        blocks: (blocks.saturating_mul(block_bytes) / SECTOR_BYTES).max(u64::from(inode.size > 0)),
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind: file_type(inode.kind),
        perm: inode.mode & 0o7777,
        nlink: inode.nlink,
        uid: inode.uid,
        gid: inode.gid,
        // 12 bits of major number and 20 of minor, laid out as Linux does.
        rdev: inode.device.map_or(0, |d| d.minor & 0xff | d.major << 8 | (d.minor & !0xff) << 12),
        blksize: superblock.block_bytes(),
        flags: 0,
    }
}

/// Returns placeholder attributes for an entry whose inode cannot be read: enough for `readdir`, but not to be cached.
pub(super) fn unknown(nid: Nid, kind: FileKind, superblock: &Superblock) -> FileAttr {
    FileAttr {
        ino: number(nid, superblock.root_nid),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: file_type(kind),
        perm: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: superblock.block_bytes(),
        flags: 0,
    }
}

pub(super) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
    }
}

/// Converts a time; the epoch if the system cannot represent it.
fn time(at: Timestamp) -> SystemTime {
    let whole = Duration::from_secs(at.seconds.unsigned_abs());
    let seconds = match at.seconds {
        0.. => UNIX_EPOCH.checked_add(whole),
        _ => UNIX_EPOCH.checked_sub(whole),
    };
    let nanoseconds = Duration::from_nanos(u64::from(at.nanoseconds));
    seconds.and_then(|time| time.checked_add(nanoseconds)).unwrap_or(UNIX_EPOCH)
}

/// Returns the errno for an error.
pub(super) fn errno(error: &ImageError) -> Errno {
    match error {
        ImageError::NotFound { .. } => Errno::ENOENT,
        ImageError::NotADirectory { .. } => Errno::ENOTDIR,
        ImageError::NoContents { .. } => Errno::EINVAL,
        // As listxattr(2) fails for a list that is too long.
        ImageError::TooManyNames { .. } => Errno::E2BIG,
        ImageError::TooLittleMemory { .. } | ImageError::Budget { .. } | ImageError::Threads { .. } => {
            Errno::ENOMEM
        }
        _ => Errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Address;

    #[test]
    fn inode_numbers_have_an_inverse_and_never_are_0_or_1() {
        let root = Nid(36);
        assert_eq!(number(root, root), INodeNo::ROOT);
        for n in [0, 1, 2, 35, 37, 1 << 58, 1 << 63, 1 << 63 | 5] {
            let number = number(Nid(n), root);
            assert!(number.0 > 1, "{n}");
            assert_eq!(nid(number, root), Nid(n));
        }
    }

    #[test]
    fn times_before_and_after_the_epoch_keep_their_nanoseconds() {
        let at = |seconds, nanoseconds| time(Timestamp { seconds, nanoseconds });
        assert_eq!(at(3, 7), UNIX_EPOCH + Duration::new(3, 7));
        assert_eq!(at(-3, 7), UNIX_EPOCH - Duration::new(3, 0) + Duration::from_nanos(7));
        // The largest and smallest times of an image cause no panic.
        let _ = (at(i64::MIN, 999_999_999), at(i64::MAX, 999_999_999));
    }

    #[test]
    fn errors_map_to_matching_errnos() {
        let code = |error| errno(&error).code();
        assert_eq!(code(ImageError::corrupt(Address::image(0), "x")), libc::EIO);
        let at = Address::image(0);
        assert_eq!(code(ImageError::Truncated { at, len_bytes: 1, end: 0 }), libc::EIO);
        assert_eq!(code(ImageError::NotFound { name: vec![] }), libc::ENOENT);
        assert_eq!(code(ImageError::NotADirectory { nid: Nid(1) }), libc::ENOTDIR);
        assert_eq!(code(ImageError::NoContents { nid: Nid(1), kind: "a socket" }), libc::EINVAL);
        assert_eq!(code(ImageError::TooLittleMemory { needed_bytes: 2, limit_bytes: 1 }), libc::ENOMEM);
    }
}
