//! Making files in a directory that strangers chose the names for: never through a link, never outside.
//!
//! A [`Folder`] is a directory held open. Everything is made in it by one name, which is checked to be one; what is
//! opened is opened by `openat2` with `RESOLVE_BENEATH`, `RESOLVE_NO_SYMLINKS` and `RESOLVE_NO_MAGICLINKS`, so that a link, however it
//! came there, is refused and not followed. New files are made exclusively: one that is there is refused. What was made is
//! then changed by its descriptor and never by its name, which others who may write to the directory can give to another file.
//!
//! It does not decide what may be made.

use crate::SysError;
use crate::pathhandle::PathHandle;
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

const RESOLVE: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
const OPEN_DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A directory held open.
#[derive(Debug)]
pub struct Folder(OwnedFd);

/// What a special file is.
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

/// What a file system has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Bytes that this user may still write.
    pub free_bytes: u64,
    /// Files that may still be made; `None` if the file system does not say.
    pub free_files: Option<u64>,
}

pub(crate) fn failed(what: &'static str) -> impl Fn(Errno) -> SysError {
    move |e| SysError::new(what, e.raw_os_error())
}

/// As many names of a path as the kernel takes at once, and the rest of it.
fn split_path(path: &[u8]) -> (&[u8], &[u8]) {
    // With the NUL behind it a path has PATH_MAX bytes at most.
    let Some(first) = path.get(..libc::PATH_MAX as usize).map(|longest| &longest[..longest.len() - 1]) else {
        return (path, &[]);
    };
    match first.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        // One name that is too long: the kernel will say so.
        None => (path, &[]),
    }
}

/// One name: not empty, not `.` or `..`, without `/` and NUL.
fn one_name(name: &[u8]) -> Result<&[u8], SysError> {
    let bad = matches!(name, b"" | b"." | b"..") || name.iter().any(|b| matches!(b, 0 | b'/'));
    if bad { Err(SysError::new("making a file of a name that is none", libc::EINVAL)) } else { Ok(name) }
}

impl Folder {
    /// Opens a directory that the user named; links in its path are his own and followed.
    pub fn open(path: &Path) -> Result<Self, SysError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        fs::open(path, flags, Mode::empty()).map(Folder).map_err(failed("opening the directory"))
    }

    /// Opens a directory in this one, by a path of names, which may be longer than the kernel takes at once.
    pub fn open_folder(&self, path: &[u8]) -> Result<Self, SysError> {
        let (mut part, mut rest) = split_path(path);
        let mut folder = self.open_part(part)?;
        while !rest.is_empty() {
            (part, rest) = split_path(rest);
            folder = folder.open_part(part)?;
        }
        Ok(folder)
    }

    fn open_part(&self, path: &[u8]) -> Result<Self, SysError> {
        let opened = fs::openat2(&self.0, path, OPEN_DIRECTORY, Mode::empty(), RESOLVE);
        opened.map(Folder).map_err(failed("opening the directory"))
    }

    /// A descriptor of its own for the same directory.
    pub fn open_again(&self) -> Result<Self, SysError> {
        self.open_folder(b".")
    }

    /// Whether what is made here gets the directory's group, not the process's.
    pub fn gives_group(&self) -> Result<bool, SysError> {
        let stat = fs::fstat(&self.0).map_err(failed("looking at the directory"))?;
        Ok(stat.st_mode & 0o2000 != 0)
    }

    /// Makes a directory that only its owner may use, and opens it. Fails if another one, with something in it, has taken
    /// its place meanwhile.
    pub fn make_folder(&self, name: &[u8]) -> Result<Self, SysError> {
        let name = one_name(name)?;
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

    /// Makes a file, with `mode` less the process's mask, and opens it for writing.
    pub fn make_file(&self, name: &[u8], mode: u16) -> Result<File, SysError> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(u32::from(mode) & 0o777);
        let opened = fs::openat2(&self.0, one_name(name)?, flags, mode, RESOLVE);
        opened.map(File::from).map_err(failed("making the file"))
    }

    /// Makes a symbolic link.
    pub fn make_symlink(&self, name: &[u8], target: &[u8]) -> Result<PathHandle, SysError> {
        let name = one_name(name)?;
        fs::symlinkat(target, &self.0, name).map_err(failed("making the symbolic link"))?;
        PathHandle::of_new(self.as_fd(), name, FileType::Symlink, 0)
    }

    /// Makes a special file that only its owner may use.
    pub fn make_special(&self, name: &[u8], special: Special) -> Result<PathHandle, SysError> {
        let name = one_name(name)?;
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

    /// Gives the file `old` in `from` another name, in this directory. A symbolic link is linked itself.
    pub fn make_link(&self, name: &[u8], from: &Folder, old: &[u8]) -> Result<(), SysError> {
        let made = fs::linkat(&from.0, one_name(old)?, &self.0, one_name(name)?, AtFlags::empty());
        made.map_err(failed("making the hard link"))
    }

    /// Removes a file that is no directory; one that is not there is no error.
    pub fn remove(&self, name: &[u8]) -> Result<(), SysError> {
        match fs::unlinkat(&self.0, one_name(name)?, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(failed("removing what is there")(e)),
        }
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> Result<bool, SysError> {
        let entries = fs::Dir::read_from(&self.0).map_err(failed("reading the directory"))?;
        for entry in entries {
            let entry = entry.map_err(failed("reading the directory"))?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What its file system has room for.
    pub fn room(&self) -> Result<Room, SysError> {
        room(self)
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

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

/// Tells what the file system of an open file has room for.
pub fn room(file: impl AsFd) -> Result<Room, SysError> {
    let stat = fs::fstatvfs(file).map_err(failed("asking how much room there is"))?;
    let free_files = (stat.f_files > 0).then_some(stat.f_favail);
    Ok(Room { free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize), free_files })
}

/// Sets the owner of an open file.
pub fn set_owner(file: impl AsFd, uid: u32, gid: u32) -> Result<(), SysError> {
    fs::fchown(file, owner(uid), group(gid)).map_err(failed("setting the owner"))
}

/// Sets the permissions of an open file.
pub fn set_mode(file: impl AsFd, mode: u16) -> Result<(), SysError> {
    let mode = Mode::from_raw_mode(u32::from(mode) & 0o7777);
    fs::fchmod(file, mode).map_err(failed("setting the mode"))
}

/// Sets when an open file was changed, and accessed.
pub fn set_time(file: impl AsFd, seconds: i64, nanoseconds: u32) -> Result<(), SysError> {
    fs::futimens(file, &timestamps(seconds, nanoseconds)).map_err(failed("setting the time"))
}

/// Sets an extended attribute of an open file.
pub fn set_xattr(file: impl AsFd, name: &[u8], value: &[u8]) -> Result<(), SysError> {
    fs::fsetxattr(file, name, value, XattrFlags::empty()).map_err(failed("setting an attribute"))
}

/// The mask that new files' modes are reduced by; all bits if it cannot be known. Read without changing it.
pub fn umask() -> u16 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|digits| u16::from_str_radix(digits.trim(), 8).ok()).unwrap_or(0o777)
}

/// Lets this process hold as many files open as it may.
pub fn lift_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // What it had is enough for most trees.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_not_followed_and_names_are_names() {
        let top = tempfile::tempdir().unwrap();
        let folder = Folder::open(top.path()).unwrap();
        folder.make_symlink(b"out", b"/tmp").unwrap();
        // At the end of a path it is not followed, and so no directory; within one it is refused.
        assert_eq!(folder.open_folder(b"out").unwrap_err().errno, libc::ENOTDIR);
        assert_eq!(folder.open_folder(b"out/.").unwrap_err().errno, libc::ELOOP);
        assert_eq!(folder.open_folder(b"..").unwrap_err().errno, libc::EXDEV);
        assert_eq!(folder.make_file(b"out", 0o644).unwrap_err().errno, libc::EEXIST);
        for name in [&b""[..], b".", b"..", b"a/b", b"/tmp/x"] {
            assert_eq!(folder.make_file(name, 0o644).unwrap_err().errno, libc::EINVAL);
            assert!(folder.make_folder(name).is_err() && folder.make_symlink(name, b"x").is_err());
        }
        assert!(!folder.is_empty().unwrap());
        assert!(folder.make_folder(b"in").unwrap().is_empty().unwrap());
    }
}
