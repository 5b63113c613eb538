//! Checking by a file lease whether any process has a file open for writing.
//!
//! The kernel grants a read lease only on a file that no process has open for writing. That includes descriptors that
//! were opened before the file's mode or owner changed, which the inode does not show. The lease is released at once,
//! so it does not keep writers away afterwards. Reference: fcntl(2).

use crate::SysError;
use std::fs::File;
use std::os::fd::AsRawFd;

/// The fcntl command that sets the signal of a broken lease; the same number on every architecture.
const F_SETSIG: libc::c_int = 10;

/// Whether any process has the regular file open for writing now; `None` if the file system grants no leases.
///
/// `file` must be open for reading only. The caller must own it or have CAP_LEASE.
pub fn is_open_for_writing(file: &File) -> Result<Option<bool>, SysError> {
    let fd = file.as_raw_fd();
    // A broken lease sends SIGIO, which would end the process; SIGURG is ignored by default.
    // SAFETY: the request takes a signal number and changes only the settings of this open file.
    unsafe { libc::fcntl(fd, F_SETSIG, libc::SIGURG) };
    // SAFETY: the request takes a lease type, and no memory.
    if unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_RDLCK) } == 0 {
        // SAFETY: as for the request before it: a lease type, and no memory.
        unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK) };
        return Ok(Some(false));
    }
    match SysError::last("checking whether a file is open for writing") {
        e if e.errno == libc::EAGAIN => Ok(Some(true)),
        e if matches!(e.errno, libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS) => Ok(None),
        e => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_is_detected_and_a_reader_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let writer = File::create(&path).unwrap();
        let (reader, other) = (File::open(&path).unwrap(), File::open(&path).unwrap());
        let Some(open) = is_open_for_writing(&reader).unwrap() else {
            return pagefold_testkit::skipped!("a_writer_is_detected_and_a_reader_is_not: no leases here");
        };
        assert!(open);
        drop(writer);
        assert_eq!(is_open_for_writing(&reader).unwrap(), Some(false));
        drop(other);
    }
}
