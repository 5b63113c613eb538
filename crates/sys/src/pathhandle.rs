//! A file that is held but not opened (`O_PATH`): how owner, mode, time and attributes of symbolic links and special files are
//! set without going by their names.
//!
//! Opening a named pipe waits, opening a device can have effects, and a symbolic link cannot be opened at all. Their metadata
//! could be set by name, but a name can change hands: whoever may write to the directory can replace the file between two
//! calls, and chmod(2) follows a symbolic link that it finds there. A handle stays with the inode.
//!
//! It does not find files: [`Folder`](crate::beneath::Folder) makes them and hands out their handles.

use crate::SysError;
use crate::beneath::{failed, group, owner, timestamps};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// A symbolic link or a special file, held by its inode.
#[derive(Debug)]
pub struct PathHandle(OwnedFd);

impl PathHandle {
    /// Takes hold of the file `name` in `folder`, which the caller has just made there as a file of this type and device
    /// number.
    ///
    /// Fails if another file has taken its place. One of the same type can only be told by a second name, so the caller
    /// may change what was moved there by somebody who could have removed it as well.
    pub(crate) fn of_new(
        folder: BorrowedFd<'_>,
        name: &[u8],
        kind: FileType,
        device: u64,
    ) -> Result<Self, SysError> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = fs::openat(folder, name, flags, Mode::empty());
        let handle = opened.map_err(failed("taking hold of the new file"))?;
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

    /// Sets the permissions of a special file. Symbolic links have none: do not call it for one.
    pub fn set_mode(&self, mode: u16) -> Result<(), SysError> {
        let mode = Mode::from_raw_mode(u32::from(mode) & 0o7777);
        // fchmod(2) refuses such a descriptor, and fchmodat2(2) is of Linux 6.6.
        fs::chmod(self.proc_path(), mode).map_err(failed("setting the mode"))
    }

    /// Sets when it was changed, and accessed.
    pub fn set_time(&self, seconds: i64, nanoseconds: u32) -> Result<(), SysError> {
        let times = timestamps(seconds, nanoseconds);
        match fs::utimensat(&self.0, c"", &times, AtFlags::EMPTY_PATH) {
            // Linux before 5.8 has no such flag for this call.
            Err(Errno::INVAL) => fs::utimensat(fs::CWD, self.proc_path(), &times, AtFlags::empty()),
            set => set,
        }
        .map_err(failed("setting the time"))
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&self, xattr: &[u8], value: &[u8]) -> Result<(), SysError> {
        let set = fs::setxattr(self.proc_path(), xattr, value, XattrFlags::empty());
        set.map_err(failed("setting an attribute"))
    }

    /// A path that leads to the inode itself, and no further if that is a symbolic link.
    fn proc_path(&self) -> String {
        format!("/proc/self/fd/{}", self.0.as_raw_fd())
    }
}

#[cfg(test)]
mod tests {
    use crate::beneath::{Folder, Special};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    /// A file with mode 0600 and old times, outside of `folder`.
    fn victim(top: &std::path::Path) -> std::path::PathBuf {
        let victim = top.join("victim");
        std::fs::write(&victim, "secret").unwrap();
        std::fs::set_permissions(&victim, std::fs::Permissions::from_mode(0o600)).unwrap();
        victim
    }

    #[test]
    fn what_takes_the_place_of_a_new_file_is_left_alone() {
        let top = tempfile::tempdir().unwrap();
        let victim = victim(top.path());
        let before = victim.metadata().unwrap();
        let target = top.path().join("target");
        std::fs::create_dir(&target).unwrap();
        let folder = Folder::open(&target).unwrap();
        let handle = folder.make_special(b"pipe", Special::Fifo).unwrap();
        std::fs::rename(target.join("pipe"), top.path().join("moved")).unwrap();
        symlink(&victim, target.join("pipe")).unwrap();
        handle.set_mode(0o666).unwrap();
        handle.set_time(7, 8).unwrap();
        let after = victim.metadata().unwrap();
        assert_eq!((after.mode(), after.mtime()), (before.mode(), before.mtime()));
        let moved = top.path().join("moved").symlink_metadata().unwrap();
        assert_eq!((moved.mode() & 0o7777, moved.mtime(), moved.mtime_nsec()), (0o666, 7, 8));
    }

    #[test]
    fn a_handle_of_a_symbolic_link_does_not_follow_it() {
        let top = tempfile::tempdir().unwrap();
        let victim = victim(top.path());
        let before = victim.metadata().unwrap();
        let folder = Folder::open(top.path()).unwrap();
        let handle = folder.make_symlink(b"link", b"victim").unwrap();
        handle.set_time(7, 8).unwrap();
        // Nobody but root may give anything away.
        if crate::rundir::effective_uid() == 0 {
            handle.set_owner(1234, 5678).unwrap();
            match handle.set_xattr(b"trusted.of-the-link", b"1") {
                Ok(()) => {
                    assert!(rustix::fs::getxattr(&victim, "trusted.of-the-link", &mut [0u8; 8]).is_err())
                }
                Err(e) => assert_eq!(e.errno, libc::EOPNOTSUPP),
            }
            let link = top.path().join("link").symlink_metadata().unwrap();
            assert_eq!((link.uid(), link.gid()), (1234, 5678));
        }
        let (link, after) = (top.path().join("link").symlink_metadata().unwrap(), victim.metadata().unwrap());
        assert_eq!((link.mtime(), link.mtime_nsec()), (7, 8));
        assert_eq!((after.mtime(), after.uid(), after.mode()), (before.mtime(), before.uid(), before.mode()));
    }
}
