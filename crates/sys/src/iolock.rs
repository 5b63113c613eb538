//! Opening a medium anew so that a later process can wait for the end of all I/O of this one.
//!
//! A request that a process has given to io_uring can end after the process is gone. Until then the kernel keeps the open
//! file of the request, and with it the locks that belong to it (F_OFD_SETLK in fcntl(2)). So a process that uses a medium
//! opens it anew, and locks one byte of that open file: the next process gets the lock when nothing is under way any more.

use crate::SysError;
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::time::{Duration, Instant};

/// The byte that is locked: the last one that a file can have.
const BYTE: libc::off_t = libc::off_t::MAX - 1;
/// The errors of file systems without such locks.
const NO_LOCKS: [i32; 4] = [libc::ENOLCK, libc::EOPNOTSUPP, libc::ENOSYS, libc::EINVAL];
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(2);

/// Opens a regular file or block device anew, which is open for reading and writing: the result has its own locks and flags.
///
/// Another process may ask this one to do that: so a descriptor that shows no right to read and write everything is refused, such
/// as one of a path alone (O_PATH).
pub fn reopen(file: &File) -> Result<File, SysError> {
    let failed = |e: &std::io::Error| SysError::io("opening the medium anew", e);
    let flags = rustix::fs::fcntl_getfl(file).map_err(|e| failed(&e.into()))?;
    let shown = flags & (OFlags::PATH | OFlags::RWMODE | OFlags::APPEND);
    let kind = file.metadata().map_err(|e| failed(&e))?.file_type();
    if shown != OFlags::RDWR || !(kind.is_file() || kind.is_block_device()) {
        return Err(SysError::new("opening the medium anew", libc::EACCES));
    }
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().read(true).write(true).open(path).map_err(|e| failed(&e))
}

/// Waits until no I/O is under way through another file that this function has returned, in this process or another, and all
/// descriptors of that are closed. `opened` is `file` [opened anew](reopen), if that was possible. Fails with ETIMEDOUT after
/// `limit`.
///
/// Returns `None` where that is impossible: only another process could open the file, or its file system has no locks.
/// Then a thread must do its I/O itself, because it does not end before that. The I/O of files that were opened before has
/// ended then too, if the file system has locks.
pub fn open_alone(file: &File, opened: Option<File>, limit: Duration) -> Result<Option<File>, SysError> {
    let deadline = Instant::now() + limit;
    loop {
        let taken = match &opened {
            Some(opened) => lock(opened, libc::F_OFD_SETLK).map(|_| true),
            None => lock(file, libc::F_OFD_GETLK).map(|found| found == libc::F_UNLCK),
        };
        match taken {
            Ok(true) => return Ok(opened),
            Err(e) if NO_LOCKS.contains(&e.errno) => return Ok(None),
            Err(e) if !matches!(e.errno, libc::EAGAIN | libc::EACCES) => return Err(e),
            _ if Instant::now() >= deadline => {
                return Err(SysError::new("waiting for the end of I/O to the medium", libc::ETIMEDOUT));
            }
            _ => std::thread::sleep(PAUSE),
        }
    }
}

/// Takes the lock, or returns the type of the one that would keep it from being taken.
fn lock(file: &File, command: libc::c_int) -> Result<libc::c_int, SysError> {
    // SAFETY: zeroes are a valid value of each field.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = BYTE;
    lock.l_len = 1;
    // SAFETY: the descriptor is open, and the kernel only reads and writes the structure.
    let code = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) };
    crate::done(code, || "locking the medium").map(|()| libc::c_int::from(lock.l_type))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open_alone(file: &File, limit: Duration) -> Result<Option<File>, SysError> {
        super::open_alone(file, reopen(file).ok(), limit)
    }

    #[test]
    fn a_descriptor_without_the_right_to_read_and_write_is_not_opened_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "x").unwrap();
        let open =
            |flags: OFlags| File::from(rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).unwrap());
        reopen(&open(OFlags::RDWR)).unwrap();
        for flags in [OFlags::PATH, OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR | OFlags::APPEND] {
            assert_eq!(reopen(&open(flags)).unwrap_err().errno, libc::EACCES, "{flags:?}");
        }
        assert!(reopen(&OpenOptions::new().read(true).write(true).open("/dev/null").unwrap()).is_err());
    }

    #[test]
    fn the_next_one_waits_until_all_descriptors_are_closed() {
        let file = tempfile::tempfile().unwrap();
        let first = open_alone(&file, Duration::ZERO).unwrap().unwrap();
        let copy = first.try_clone().unwrap();
        let refused =
            |file: &File| open_alone(file, Duration::from_millis(10)).map(drop).map_err(|e| e.errno);
        assert_eq!(refused(&file), Err(libc::ETIMEDOUT));
        drop(first);
        assert_eq!(refused(&copy), Err(libc::ETIMEDOUT));
        let waiting = std::thread::scope(|s| {
            let waiting = s.spawn(|| open_alone(&file, Duration::from_secs(60)));
            std::thread::sleep(Duration::from_millis(20));
            drop(copy);
            waiting.join().unwrap()
        });
        assert_eq!(lock(&file, libc::F_OFD_GETLK).unwrap(), libc::F_WRLCK);
        assert_eq!(refused(&file), Err(libc::ETIMEDOUT));
        drop(waiting.unwrap());
        assert_eq!(lock(&file, libc::F_OFD_GETLK).unwrap(), libc::F_UNLCK);
        assert_eq!(refused(&file), Ok(()));
    }
}
