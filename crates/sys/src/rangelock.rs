//! Advisory locks of ranges of a file, between processes: fcntl(2), locks of open file descriptions.
//!
//! Such a lock belongs to the open file and not to the process: two files opened by one process exclude each other, threads
//! that share one do not, and the kernel releases it when the last descriptor is closed, so also when a process is killed.
//! Nothing here waits.

use crate::SysError;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// Locks a range of bytes, which need not exist, for this open file alone; the file must be open for writing. False if
/// another open file has a lock on a part of it.
pub fn try_lock(file: &File, range: &Range<u64>) -> Result<bool, SysError> {
    match set(file, range, libc::F_WRLCK) {
        Ok(()) => Ok(true),
        Err(e) if matches!(e.errno, libc::EAGAIN | libc::EACCES) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Releases a range.
pub fn unlock(file: &File, range: &Range<u64>) -> Result<(), SysError> {
    set(file, range, libc::F_UNLCK)
}

fn set(file: &File, range: &Range<u64>, kind: i32) -> Result<(), SysError> {
    let what = "locking a range of a file";
    let (Ok(start), Ok(len)) =
        (i64::try_from(range.start), i64::try_from(range.end.saturating_sub(range.start)))
    else {
        return Err(SysError::new(what, libc::EOVERFLOW));
    };
    if len == 0 {
        // To the kernel, a length of 0 is all from the start on.
        return Err(SysError::new(what, libc::EINVAL));
    }
    // SAFETY: `flock` is a structure of integers, so all zeroes are a value of it.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = start;
    lock.l_len = len;
    // SAFETY: the descriptor is open, and the kernel only reads the structure, which lives until the call returns.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if result == 0 { Ok(()) } else { Err(SysError::last(what)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_files_exclude_each_other_on_common_ranges_and_closing_releases() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let open =
            || File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        let (a, b) = (open(), open());
        assert!(try_lock(&a, &(10..20)).unwrap());
        assert!(try_lock(&a, &(15..30)).unwrap(), "a file does not exclude itself");
        assert!(!try_lock(&b, &(29..31)).unwrap());
        assert!(try_lock(&b, &(30..31)).unwrap());
        unlock(&a, &(15..30)).unwrap();
        assert!(try_lock(&b, &(15..30)).unwrap());
        assert!(!try_lock(&b, &(10..11)).unwrap());
        drop(a);
        assert!(try_lock(&b, &(10..11)).unwrap());
        assert!(try_lock(&b, &(5..5)).is_err() && try_lock(&b, &(1 << 63..u64::MAX)).is_err());
    }
}
