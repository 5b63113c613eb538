//! Conversion of inode numbers, attributes and errors to those of FUSE.

use crate::read::inode::{Inode, Timestamp};
use crate::read::{FileKind, Layout, Superblock};
use crate::{ImageError, Nid};
use pagefold_fuse::{Attr, Errno, FileType, Inode as Number, Time};

/// Unit of `st_blocks`, bytes.
const SECTOR_BYTES: u64 = 512;
/// Nanoseconds of a second.
const NANOSECONDS: u32 = 1_000_000_000;

/// Returns the inode number that FUSE and `stat` use: 1 for the root; for other inodes the image's number, rotated so
/// that the metabox bit is the lowest, plus 2. So 0 and 1 are not used twice.
pub(super) fn number(nid: Nid, root: Nid) -> Number {
    if nid == root {
        return Number::ROOT;
    }
    Number(nid.0.rotate_left(1).wrapping_add(2))
}

/// The inverse of [`number`].
pub(super) fn nid(number: Number, root: Nid) -> Nid {
    if number == Number::ROOT {
        return root;
    }
    Nid(number.0.wrapping_sub(2).rotate_right(1))
}

/// Converts an inode to the attributes that `stat` shows. `data_bytes` is the length of what is no hole, if that is known.
pub(super) fn attr(inode: &Inode, data_bytes: Option<u64>, superblock: &Superblock) -> Attr {
    let block_bytes = u64::from(superblock.block_bytes());
    let blocks = match inode.layout {
        Layout::CompressedFull | Layout::CompressedCompact => inode.compressed_blocks,
        Layout::Plain { start: None } => 0,
        _ => data_bytes.unwrap_or(inode.size).div_ceil(block_bytes),
    };
    let is_hole = inode.size == 0 || data_bytes == Some(0) || inode.layout == Layout::Plain { start: None };
    Attr {
        inode: number(inode.nid, superblock.root_nid),
        kind: file_type(inode.kind),
        permissions: inode.mode & 0o7777,
        size: inode.size,
        // A file that is a fragment has no blocks itself, but programs take a file without blocks for a hole.
        sectors: (blocks.saturating_mul(block_bytes) / SECTOR_BYTES).max(u64::from(!is_hole)),
        time: time(inode.mtime),
        nlink: inode.nlink,
        uid: inode.uid,
        gid: inode.gid,
        // 12 bits of major number and 20 of minor, laid out as Linux does.
        rdev: inode.device.map_or(0, |d| d.minor & 0xff | d.major << 8 | (d.minor & !0xff) << 12),
        block_bytes: superblock.block_bytes(),
    }
}

/// Returns placeholder attributes for an entry whose inode cannot be read: enough for `readdir`, but not to be cached.
pub(super) fn unknown(nid: Nid, kind: FileKind, superblock: &Superblock) -> Attr {
    Attr::new(number(nid, superblock.root_nid), file_type(kind), 0, superblock.block_bytes())
}

pub(super) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::Regular,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Fifo => FileType::Fifo,
        FileKind::Socket => FileType::Socket,
    }
}

/// Converts a time, which may have more nanoseconds than a second has.
fn time(at: Timestamp) -> Time {
    let seconds = at.seconds.saturating_add(i64::from(at.nanoseconds / NANOSECONDS));
    Time { seconds, nanoseconds: at.nanoseconds % NANOSECONDS }
}

/// Returns the errno for an error.
pub(super) fn errno(error: &ImageError) -> Errno {
    match error {
        ImageError::NotFound { .. } => Errno(libc::ENOENT),
        ImageError::NotADirectory { .. } => Errno(libc::ENOTDIR),
        ImageError::NoContents { .. } => Errno(libc::EINVAL),
        ImageError::Interrupted => Errno(libc::EINTR),
        // As listxattr(2) fails for a list that is too long.
        ImageError::TooManyNames { .. } => Errno(libc::E2BIG),
        ImageError::TooLittleMemory { .. } | ImageError::Budget { .. } | ImageError::Threads { .. } => {
            Errno(libc::ENOMEM)
        }
        _ => Errno(libc::EIO),
    }
}

/// Returns the errno for an error of listing a directory: EFSCORRUPTED for a corrupt one, as the kernel's EROFS has it.
pub(super) fn directory_errno(error: &ImageError) -> Errno {
    match error {
        ImageError::Corrupt { .. } => Errno(libc::EUCLEAN),
        other => errno(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Address;

    #[test]
    fn inode_numbers_have_an_inverse_and_never_are_0_or_1() {
        let root = Nid(36);
        assert_eq!(number(root, root), Number::ROOT);
        for n in [0, 1, 2, 35, 37, 1 << 58, 1 << 63, 1 << 63 | 5] {
            let number = number(Nid(n), root);
            assert!(number.0 > 1, "{n}");
            assert_eq!(nid(number, root), Nid(n));
        }
    }

    #[test]
    fn times_before_and_after_the_epoch_keep_their_nanoseconds() {
        let at = |seconds, nanoseconds| {
            let time = time(Timestamp { seconds, nanoseconds });
            (time.seconds, time.nanoseconds)
        };
        assert_eq!((at(3, 7), at(-3, 7)), ((3, 7), (-3, 7)));
        assert_eq!(at(-3, 2_000_000_001), (-1, 1));
        // The largest and smallest times of an image cause no panic.
        assert_eq!((at(i64::MIN, 5), at(i64::MAX, u32::MAX).0), ((i64::MIN, 5), i64::MAX));
    }

    #[test]
    fn errors_map_to_matching_errnos() {
        let code = |error| errno(&error).0;
        assert_eq!(code(ImageError::corrupt(Address::image(0), "x")), libc::EIO);
        let at = Address::image(0);
        assert_eq!(code(ImageError::Truncated { at, len_bytes: 1, end: 0 }), libc::EIO);
        assert_eq!(code(ImageError::NotFound { name: vec![] }), libc::ENOENT);
        assert_eq!(code(ImageError::NotADirectory { nid: Nid(1) }), libc::ENOTDIR);
        assert_eq!(code(ImageError::NoContents { nid: Nid(1), kind: "a socket" }), libc::EINVAL);
        assert_eq!(code(ImageError::TooMuchWork { steps: 1 }), libc::EIO);
        assert_eq!(code(ImageError::Interrupted), libc::EINTR);
        assert_eq!(directory_errno(&ImageError::corrupt(at, "x")).0, libc::EUCLEAN);
        assert_eq!(directory_errno(&ImageError::TooMuchWork { steps: 1 }).0, libc::EIO);
        assert_eq!(code(ImageError::TooLittleMemory { needed_bytes: 2, limit_bytes: 1 }), libc::ENOMEM);
    }
}
