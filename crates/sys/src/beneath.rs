//! Making files under untrusted names inside a directory: never through a symbolic link, never outside of it.
//!
//! A [`Folder`] is an open directory. Each file in it is made, and each directory opened, by a single name, which is
//! checked to have no `/` and not to be `..`, and with `O_NOFOLLOW`, so the kernel refuses links instead of following them.
//! (openat2(2) could open whole paths so, but a filter of system calls cannot see the mode that it gives new files, and
//! sandboxes refuse it.) New files are made exclusively: an existing file is refused. Metadata of a new file is set through its
//! descriptor and never by its name, because others who may write to the directory can move another file to that name.
//!
//! This module does not decide which files may be made.

use crate::pathhandle::{PathHandle, descriptor_path, group, owner, timestamps};
use crate::{SysError, failed};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

const OPEN_DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// An open directory.
#[derive(Debug)]
pub struct Folder(OwnedFd);

/// The type of a special file, with major and minor number for devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice(u32, u32),
    /// A block device.
    BlockDevice(u32, u32),
}

/// The free space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreeSpace {
    /// Bytes that this user may still write.
    pub free_bytes: u64,
    /// Files that may still be made; `None` if the file system does not report it.
    pub free_files: Option<u64>,
}

/// The deepest directory that is removed with one that a file replaces: each level takes a descriptor.
const REMOVE_DEPTH_MAX: usize = 128;

/// The operation in the error of an invalid name.
const MAKING: &str = "making";

/// Checks that `name` is a single file name: not empty, not `.` or `..`, without `/` and NUL.
pub(crate) fn one_name<'a>(name: &'a [u8], operation: &str) -> Result<&'a [u8], SysError> {
    let bad = matches!(name, b"" | b"." | b"..") || name.iter().any(|b| matches!(b, 0 | b'/'));
    let failed = || SysError::new(format!("{operation} a file with an invalid name"), libc::EINVAL);
    if bad { Err(failed()) } else { Ok(name) }
}

impl Folder {
    /// Opens a directory that the user named. Symbolic links in this path are followed.
    pub fn open(path: &Path) -> Result<Self, SysError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        fs::open(path, flags, Mode::empty()).map(Folder).map_err(failed("opening the directory"))
    }

    /// Opens a directory below this one, name by name. The path may be longer than PATH_MAX.
    pub fn open_folder(&self, path: &[u8]) -> Result<Self, SysError> {
        let mut names =
            path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".").peekable();
        let mut above: Option<OwnedFd> = None;
        while let Some(name) = names.next() {
            let name = one_name(name, "opening")?;
            // Directories above the last may be searched, but not read.
            let flags = if names.peek().is_some() { OPEN_DIRECTORY | OFlags::PATH } else { OPEN_DIRECTORY };
            let opened = fs::openat(above.as_ref().unwrap_or(&self.0), name, flags, Mode::empty());
            above = Some(opened.map_err(failed("opening the directory"))?);
        }
        above.map_or_else(|| self.open_again(), |last| Ok(Folder(last)))
    }

    /// Opens the same directory again, with a separate descriptor.
    pub fn open_again(&self) -> Result<Self, SysError> {
        let opened = fs::openat(&self.0, c".", OPEN_DIRECTORY, Mode::empty());
        opened.map(Folder).map_err(failed("opening the directory"))
    }

    /// Device and inode number of the directory, which identify it.
    pub fn identity(&self) -> Result<(u64, u64), SysError> {
        let stat = fs::fstat(&self.0).map_err(failed("looking at the directory"))?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// Whether the directory has the set-group-ID bit, so that new files in it get its group and not the process's.
    pub fn is_set_group_id(&self) -> Result<bool, SysError> {
        let stat = fs::fstat(&self.0).map_err(failed("looking at the directory"))?;
        Ok(stat.st_mode & 0o2000 != 0)
    }

    /// Makes a directory that only its owner may use, and opens it. Fails if another process replaced it meanwhile by a
    /// directory that is not empty.
    pub fn make_folder(&self, name: &[u8]) -> Result<Self, SysError> {
        let name = one_name(name, MAKING)?;
        fs::mkdirat(&self.0, name, Mode::RWXU).map_err(failed("making the directory"))?;
        let made = self.open_folder(name)?;
        match made.is_empty()? {
            true => Ok(made),
            false => {
                let what = "another directory took the place of the one that was just made";
                Err(SysError::new(what, libc::ENOTEMPTY))
            }
        }
    }

    /// Makes a file, with `mode` reduced by the process's umask, and opens it for writing.
    pub fn make_file(&self, name: &[u8], mode: u16) -> Result<File, SysError> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(u32::from(mode) & 0o777);
        let opened = fs::openat(&self.0, one_name(name, MAKING)?, flags, mode);
        opened.map(File::from).map_err(failed("making the file"))
    }

    /// Makes a symbolic link.
    pub fn make_symlink(&self, name: &[u8], target: &[u8]) -> Result<PathHandle, SysError> {
        let name = one_name(name, MAKING)?;
        fs::symlinkat(target, &self.0, name).map_err(failed("making the symbolic link"))?;
        PathHandle::of_new(self.as_fd(), name, FileType::Symlink, 0)
    }

    /// Makes a special file that only its owner may use.
    pub fn make_special(&self, name: &[u8], special: Special) -> Result<PathHandle, SysError> {
        let name = one_name(name, MAKING)?;
        let (kind, device) = match special {
            Special::Fifo => (FileType::Fifo, 0),
            Special::Socket => (FileType::Socket, 0),
            Special::CharDevice(major, minor) => (FileType::CharacterDevice, fs::makedev(major, minor)),
            Special::BlockDevice(major, minor) => (FileType::BlockDevice, fs::makedev(major, minor)),
        };
        let mode = Mode::RUSR | Mode::WUSR;
        fs::mknodat(&self.0, name, kind, mode, device).map_err(failed("making the special file"))?;
        PathHandle::of_new(self.as_fd(), name, kind, device)
    }

    /// Makes a hard link in this directory to the file `old` in `from`. If that is a symbolic link, the link itself is
    /// linked.
    pub fn make_link(&self, name: &[u8], from: &Folder, old: &[u8]) -> Result<(), SysError> {
        let made =
            fs::linkat(&from.0, one_name(old, MAKING)?, &self.0, one_name(name, MAKING)?, AtFlags::empty());
        made.map_err(failed("making the hard link"))
    }

    /// Checks that there is a file of this name, of any type.
    pub fn check_has(&self, name: &[u8]) -> Result<(), SysError> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = fs::openat(&self.0, one_name(name, "opening")?, flags, Mode::empty());
        opened.map(drop).map_err(failed("opening the file"))
    }

    /// Removes a file that is not a directory. A missing file is no error.
    pub fn remove(&self, name: &[u8]) -> Result<(), SysError> {
        match fs::unlinkat(&self.0, one_name(name, MAKING)?, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(failed("removing the existing file")(e)),
        }
    }

    /// Removes a file of any type, a directory with all below it. Mount points stay, with an error. A missing file is no
    /// error.
    pub fn remove_all(&self, name: &[u8]) -> Result<(), SysError> {
        match self.remove(name) {
            // Some file systems answer EPERM for a directory, as POSIX says.
            Err(e) if matches!(e.errno, libc::EISDIR | libc::EPERM) => {
                self.remove_folder(name, REMOVE_DEPTH_MAX, e)
            }
            removed => removed,
        }
    }

    /// Removes a directory with all below it, down to a depth. `refusal` is the error if it is none.
    fn remove_folder(&self, name: &[u8], depth: usize, refusal: SysError) -> Result<(), SysError> {
        const WHAT: &str = "removing the existing directory";
        match fs::unlinkat(&self.0, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::NOTDIR) => return Err(refusal),
            Err(Errno::NOTEMPTY | Errno::EXIST) if depth > 0 => {}
            Err(e @ Errno::BUSY) => {
                return Err(failed("removing the existing directory, on which a file system is mounted")(e));
            }
            Err(e) => return Err(failed(WHAT)(e)),
        }
        let folder = self.open_for_change(name)?;
        for below in folder.names()? {
            let below = below?;
            match folder.remove(&below) {
                Err(e) if matches!(e.errno, libc::EISDIR | libc::EPERM) => {
                    folder.remove_folder(&below, depth - 1, e)?
                }
                removed => removed?,
            }
        }
        fs::unlinkat(&self.0, name, AtFlags::REMOVEDIR).map_err(failed(WHAT))
    }

    /// Opens a directory that exists, for changes: gives its owner the permissions for them where they lack. A mount point is
    /// refused.
    pub fn open_for_change(&self, name: &[u8]) -> Result<Self, SysError> {
        let name = one_name(name, MAKING)?;
        let opened = fs::openat(&self.0, name, OPEN_DIRECTORY | OFlags::PATH, Mode::empty());
        let handle = opened.map_err(failed("opening the directory"))?;
        if self.is_other_mount(&handle)? {
            return Err(SysError::new(
                "opening the directory, on which a file system is mounted",
                libc::EXDEV,
            ));
        }
        allow_changes(&handle)?;
        Folder(handle).open_again()
    }

    /// Whether a directory in this one is the root of a mount.
    fn is_other_mount(&self, child: &OwnedFd) -> Result<bool, SysError> {
        let looking = "looking at the directory";
        let device = |fd| fs::fstat(fd).map(|stat| stat.st_dev).map_err(failed(looking));
        if device(&self.0)? != device(child)? {
            return Ok(true);
        }
        // Linux 5.8 says so; before, and where a sandbox refuses the call, mounts of the same file system are not recognized.
        match fs::statx(child, c"", AtFlags::EMPTY_PATH, fs::StatxFlags::BASIC_STATS) {
            Ok(stat) => Ok(stat.stx_attributes.contains(fs::StatxAttributes::MOUNT_ROOT)),
            Err(Errno::NOSYS | Errno::PERM) => Ok(false),
            Err(e) => Err(failed(looking)(e)),
        }
    }

    /// Gives the owner of the directory the permissions to change it, where they lack.
    pub fn allow_changes(&self) -> Result<(), SysError> {
        allow_changes(&self.0)
    }

    /// Gives a file another name, in place of the file that had it.
    pub fn rename(&self, name: &[u8], new_name: &[u8]) -> Result<(), SysError> {
        let renamed = fs::renameat(&self.0, one_name(name, MAKING)?, &self.0, one_name(new_name, MAKING)?);
        renamed.map_err(failed("renaming the file"))
    }

    /// The names in this directory, in any order, without `.` and `..`. They are read while the iterator is used.
    pub fn names(&self) -> Result<impl Iterator<Item = Result<Box<[u8]>, SysError>> + use<>, SysError> {
        let entries = fs::Dir::read_from(&self.0).map_err(failed("reading the directory"))?;
        Ok(entries.filter_map(|entry| match entry {
            Ok(entry) => {
                let name = entry.file_name().to_bytes();
                (!matches!(name, b"." | b"..")).then(|| Ok(name.into()))
            }
            Err(error) => Some(Err(failed("reading the directory")(error))),
        }))
    }

    /// Whether the directory has no entries.
    pub fn is_empty(&self) -> Result<bool, SysError> {
        Ok(self.names()?.next().transpose()?.is_none())
    }

    /// The free space of the directory's file system.
    pub fn free_space(&self) -> Result<FreeSpace, SysError> {
        free_space(self)
    }
}

/// Gives the owner of a directory the permissions to change it. If another user owns it, changes in it will fail and say so.
fn allow_changes(folder: &OwnedFd) -> Result<(), SysError> {
    let stat = fs::fstat(folder).map_err(failed("looking at the directory"))?;
    let is_owner = stat.st_uid == rustix::process::geteuid().as_raw();
    if is_owner && stat.st_mode & 0o700 != 0o700 {
        // Set-ID bits go: a filter of system calls may refuse modes with them.
        let mode = Mode::from_raw_mode(stat.st_mode & 0o1777 | 0o700);
        // Of a descriptor that is not open for reading, fchmod(2) cannot change the mode.
        fs::chmodat(fs::CWD, descriptor_path(folder), mode, AtFlags::empty())
            .map_err(failed("making the directory writable"))?;
    }
    Ok(())
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The free space of an open file's file system.
pub fn free_space(file: impl AsFd) -> Result<FreeSpace, SysError> {
    let stat = fs::fstatvfs(file).map_err(failed("reading the free space of the file system"))?;
    let free_files = (stat.f_files > 0).then_some(stat.f_favail);
    Ok(FreeSpace { free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize), free_files })
}

/// Sets the owner of an open file.
pub fn set_owner(file: impl AsFd, uid: u32, gid: u32) -> Result<(), SysError> {
    fs::fchown(file, owner(uid), group(gid)).map_err(failed("setting the owner"))
}

/// User and group of an open file, or of a handle.
pub fn owner_of(file: impl AsFd) -> Result<(u32, u32), SysError> {
    let stat = fs::fstat(file).map_err(failed("looking at the owner"))?;
    Ok((stat.st_uid, stat.st_gid))
}

/// Sets the permissions of an open file.
pub fn set_mode(file: impl AsFd, mode: u16) -> Result<(), SysError> {
    let mode = Mode::from_raw_mode(u32::from(mode) & 0o7777);
    fs::fchmod(file, mode).map_err(failed("setting the mode"))
}

/// Sets the times of last modification and last access of an open file.
pub fn set_time(file: impl AsFd, seconds: i64, nanoseconds: u32) -> Result<(), SysError> {
    fs::futimens(file, &timestamps(seconds, nanoseconds)).map_err(failed("setting the time"))
}

/// Sets an extended attribute of an open file.
pub fn set_xattr(file: impl AsFd, name: &[u8], value: &[u8]) -> Result<(), SysError> {
    fs::fsetxattr(file, name, value, XattrFlags::empty()).map_err(failed("setting an attribute"))
}

/// The process's umask. It is read without changing it, unless `/proc` is not there, as in a confined process: then files that
/// other threads make meanwhile are their owner's alone.
pub fn umask() -> u16 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    let read = line.and_then(|digits| u16::from_str_radix(digits.trim(), 8).ok());
    read.unwrap_or_else(|| {
        let umask = rustix::process::umask(Mode::RWXG | Mode::RWXO);
        rustix::process::umask(umask);
        umask.as_raw_mode() as u16 & 0o777
    })
}

/// Raises the soft limit of open files of this process to its hard limit.
pub fn raise_open_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // If that fails, the old limit is enough for most trees.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    #[test]
    fn links_are_not_followed_and_invalid_names_are_refused() {
        let top = tempfile::tempdir().unwrap();
        let folder = Folder::open(top.path()).unwrap();
        folder.make_symlink(b"out", b"/tmp").unwrap();
        // A link is not followed, and it is not a directory.
        assert_eq!(folder.open_folder(b"out").unwrap_err().errno, libc::ENOTDIR);
        assert_eq!(folder.open_folder(b"out/.").unwrap_err().errno, libc::ENOTDIR);
        assert_eq!(folder.open_folder(b"..").unwrap_err().errno, libc::EINVAL);
        assert_eq!(folder.make_file(b"out", 0o644).unwrap_err().errno, libc::EEXIST);
        for name in [&b""[..], b".", b"..", b"a/b", b"/tmp/x"] {
            assert_eq!(folder.make_file(name, 0o644).unwrap_err().errno, libc::EINVAL);
            assert!(folder.make_folder(name).is_err() && folder.make_symlink(name, b"x").is_err());
        }
        assert!(!folder.is_empty().unwrap());
        assert!(folder.make_folder(b"in").unwrap().is_empty().unwrap());
    }

    #[test]
    fn a_directory_is_removed_with_all_below_it_and_nothing_else() {
        let top = tempfile::tempdir().unwrap();
        let victim = victim(top.path());
        let root = top.path().join("root");
        std::fs::create_dir_all(root.join("d/e/f")).unwrap();
        std::fs::write(root.join("d/e/file"), "").unwrap();
        symlink(top.path(), root.join("d/link")).unwrap();
        symlink("d", root.join("link")).unwrap();
        for (path, mode) in [("d/e/f", 0o000), ("d/e", 0o500), ("d", 0o500)] {
            std::fs::set_permissions(root.join(path), std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let folder = Folder::open(&root).unwrap();
        assert_eq!(folder.open_for_change(b"link").unwrap_err().errno, libc::ENOTDIR);
        for name in [b"link".as_slice(), b"d", b"none"] {
            folder.remove_all(name).unwrap();
        }
        assert!(folder.is_empty().unwrap() && victim.exists());
        for name in [&b"."[..], b"..", b"a/b"] {
            assert!(folder.remove_all(name).is_err() && folder.open_for_change(name).is_err());
        }
    }

    /// A file with mode 0600 outside of the test's folder, which no call may change.
    fn victim(top: &Path) -> std::path::PathBuf {
        let victim = top.join("victim");
        std::fs::write(&victim, "secret").unwrap();
        std::fs::set_permissions(&victim, std::fs::Permissions::from_mode(0o600)).unwrap();
        victim
    }

    #[test]
    fn a_file_that_replaces_a_new_one_is_not_changed() {
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
        // Only root may change the owner of a file.
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
