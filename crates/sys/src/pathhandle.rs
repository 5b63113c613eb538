//! Setting owner, mode, time and attributes of symbolic links and special files, through an `O_PATH` descriptor.
//!
//! Opening a named pipe waits, opening a device can have side effects, and a symbolic link cannot be opened at all.
//! Setting their metadata by name would be unsafe: another process that may write to the directory can replace the file
//! between two calls, and chmod(2) follows a symbolic link that it finds there. An `O_PATH` descriptor refers to the
//! inode.
//!
//! Old kernels set modes and attributes of such descriptors by the paths of `/proc/self/fd` only. In a process whose root is
//! another one, these are in the working directory (`find_descriptors_in_working_directory`).
//!
//! This module does not make files: `Folder` in the module `beneath` does, and returns their handles.

use crate::{SysError, failed};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// See [`find_descriptors_in_working_directory`].
static ARE_IN_WORKING_DIRECTORY: AtomicBool = AtomicBool::new(false);

/// Says that the working directory of this process is `/proc/self/fd`, and stays so.
pub(crate) fn find_descriptors_in_working_directory() {
    ARE_IN_WORKING_DIRECTORY.store(true, Ordering::Relaxed);
}

/// A handle of a symbolic link or a special file, which refers to its inode.
#[derive(Debug)]
pub struct PathHandle(OwnedFd);
pub(crate) fn owner(uid: u32) -> Option<fs::Uid> {
    (uid != u32::MAX).then(|| fs::Uid::from_raw(uid))
}

pub(crate) fn group(gid: u32) -> Option<fs::Gid> {
    (gid != u32::MAX).then(|| fs::Gid::from_raw(gid))
}

pub(crate) fn timestamps(seconds: i64, nanoseconds: u32) -> Timestamps {
    let time = Timespec { tv_sec: seconds, tv_nsec: i64::from(nanoseconds) };
    Timestamps { last_access: time, last_modification: time }
}

impl AsFd for PathHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl PathHandle {
    /// Opens a handle of the file `name` in `folder`, which the caller has just made with this type and device number.
    ///
    /// Fails if another file has replaced it. A file of the same type is noticed only if it has a second link. So the
    /// caller may change a file that another process moved there; but that process could have removed the file as well.
    pub(crate) fn of_new(
        folder: BorrowedFd<'_>,
        name: &[u8],
        kind: FileType,
        device: u64,
    ) -> Result<Self, SysError> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = fs::openat(folder, name, flags, Mode::empty());
        let handle = opened.map_err(failed("opening the new file"))?;
        let stat = fs::fstat(&handle).map_err(failed("looking at the new file"))?;
        let is_ours = FileType::from_raw_mode(stat.st_mode) == kind && stat.st_rdev == device;
        match is_ours && stat.st_nlink <= 1 {
            true => Ok(PathHandle(handle)),
            false => {
                Err(SysError::new("another file took the place of the one that was just made", libc::EEXIST))
            }
        }
    }

    /// Sets the owner.
    pub fn set_owner(&self, uid: u32, gid: u32) -> Result<(), SysError> {
        let set = fs::chownat(&self.0, c"", owner(uid), group(gid), AtFlags::EMPTY_PATH);
        set.map_err(failed("setting the owner"))
    }

    /// Sets the permissions of a special file. Do not call it for a symbolic link, which has none.
    pub fn set_mode(&self, mode: u16) -> Result<(), SysError> {
        let mode = Mode::from_raw_mode(u32::from(mode) & 0o7777);
        // fchmod(2) refuses an O_PATH descriptor, and fchmodat2(2) needs Linux 6.6.
        fs::chmodat(fs::CWD, descriptor_path(&self.0), mode, AtFlags::empty())
            .map_err(failed("setting the mode"))
    }

    /// Sets the times of last modification and last access.
    pub fn set_time(&self, seconds: i64, nanoseconds: u32) -> Result<(), SysError> {
        let times = timestamps(seconds, nanoseconds);
        match fs::utimensat(&self.0, c"", &times, AtFlags::EMPTY_PATH) {
            // Linux before 5.8 does not support this flag here.
            Err(Errno::INVAL) => fs::utimensat(fs::CWD, descriptor_path(&self.0), &times, AtFlags::empty()),
            set => set,
        }
        .map_err(failed("setting the time"))
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&self, xattr: &[u8], value: &[u8]) -> Result<(), SysError> {
        let set = fs::setxattr(descriptor_path(&self.0), xattr, value, XattrFlags::empty());
        set.map_err(failed("setting an attribute"))
    }
}

/// A path that resolves to the inode of a descriptor itself, also if that is a symbolic link.
pub(crate) fn descriptor_path(fd: &OwnedFd) -> String {
    let number = fd.as_raw_fd();
    match ARE_IN_WORKING_DIRECTORY.load(Ordering::Relaxed) {
        true => number.to_string(),
        false => format!("/proc/self/fd/{number}"),
    }
}
