//! Open block devices: size, block size and discard; and punching holes in files. Reference: `include/uapi/linux/fs.h`,
//! blkdiscard(8), fallocate(2).

use crate::{SysError, done, failed};
use rustix::fs::FallocateFlags;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// `_IOR(0x12, 114, size_t)`.
const BLKGETSIZE64: libc::Ioctl = 0x8008_1272_u32 as libc::Ioctl;
/// `_IO(0x12, 119)`.
const BLKDISCARD: libc::Ioctl = 0x1277;

/// The size of a block device in bytes.
pub fn len_bytes(device: &File) -> Result<u64, SysError> {
    let mut len_bytes = 0_u64;
    // SAFETY: the argument points to the u64 that this request fills.
    done(
        unsafe { libc::ioctl(device.as_raw_fd(), BLKGETSIZE64, &raw mut len_bytes) },
        || "asking a block device for its size",
    )
    .map(|()| len_bytes)
}

/// The logical block size of a block device: the smallest unit that it reads or writes, bytes.
pub fn logical_block_bytes(device: &File) -> Result<usize, SysError> {
    let size = rustix::fs::ioctl_blksszget(device);
    size.map(|bytes| bytes as usize).map_err(failed("asking a block device for its block size"))
}

/// Discards a range of whole blocks of a block device (BLKDISCARD).
pub fn discard(device: &File, offset: u64, len_bytes: u64) -> Result<(), SysError> {
    let range = [offset, len_bytes];
    // SAFETY: the argument points to two u64 (offset and length), which this request only reads.
    done(unsafe { libc::ioctl(device.as_raw_fd(), BLKDISCARD, range.as_ptr()) }, || {
        format!("discarding {len_bytes} bytes at {offset}")
    })
}

/// Frees the space of a range of a regular file. The range then reads as zeroes; the file keeps its length. Not all file
/// systems can do that (EOPNOTSUPP). An empty range is no error.
pub fn punch_hole(file: &File, range: Range<u64>) -> Result<(), SysError> {
    let (offset, len_bytes) = (range.start, range.end.saturating_sub(range.start));
    if len_bytes == 0 {
        return Ok(());
    }
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, how, offset, len_bytes).map_err(|e| {
        SysError::new(format!("punching a hole of {len_bytes} bytes at {offset}"), e.raw_os_error())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileExt, MetadataExt};

    #[test]
    fn regular_files_are_refused() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(len_bytes(&file).unwrap_err().errno, libc::ENOTTY);
        assert_eq!(logical_block_bytes(&file).unwrap_err().errno, libc::ENOTTY);
        assert_eq!(discard(&file, 0, 4096).unwrap_err().errno, libc::ENOTTY);
    }

    #[test]
    fn a_hole_reads_as_zeroes_and_takes_no_space() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 65_536], 0).unwrap();
        file.sync_all().unwrap();
        let before = file.metadata().unwrap().blocks();
        punch_hole(&file, 4096..65_536).unwrap();
        let after = file.metadata().unwrap();
        assert!(after.blocks() < before);
        assert_eq!(after.len(), 65_536);
        let mut edge = [1; 2];
        file.read_exact_at(&mut edge, 4095).unwrap();
        assert_eq!(edge, [7, 0]);
    }
}
