//! A directory for cached data of one user: private files, opened by name below an open descriptor.
//!
//! Readers believe cached data as far as its checksums do, so nobody else may write it. The directory must belong to this
//! user, and no other user may write to it; both are checked once, on the open directory. After that its path does not
//! matter: files are opened relative to the descriptor, never through a symbolic link, and are made with mode 0600. So a
//! process that has dropped its capabilities uses a directory whose path it could not walk any more.
//!
//! This module does not know what the files contain, nor which of them to remove.

use crate::beneath::{Folder, FreeSpace, one_name};
use crate::{SysError, failed};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Most names that [`CacheDir::names`] returns.
const MAX_NAMES: usize = 1 << 20;
/// The operation in the error of an invalid name.
const OPENING: &str = "opening";

/// Why a directory is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CacheDirError {
    /// It belongs to another user.
    #[error("'{path}' belongs to user {owner}, not to user {wanted}")]
    WrongOwner {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// This user.
        wanted: u32,
    },
    /// Other users may write to it.
    #[error("'{path}' (mode {mode:04o}) is writable by other users")]
    Shared {
        /// The directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A system call failed.
    #[error(transparent)]
    Sys(#[from] SysError),
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// For reading.
    Read,
    /// For reading and writing.
    Write,
    /// For reading and writing; a missing file is made with mode 0600.
    Create,
}

/// An open directory that only this user writes to.
#[derive(Debug)]
pub struct CacheDir {
    folder: Folder,
}

impl CacheDir {
    /// Opens the directory, and makes it and its missing parents with mode 0700. Symbolic links in the path are followed.
    pub fn open_or_create(path: &Path) -> Result<Self, CacheDirError> {
        let making = |e: &std::io::Error| SysError::io(format!("making '{}'", path.display()), e);
        let opening = |errno| SysError::new(format!("opening '{}'", path.display()), errno);
        // On a read-only file system making it fails although it exists.
        let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
        let folder = match (Folder::open(path), made) {
            (Ok(folder), _) => folder,
            (Err(_), Err(e)) => return Err(making(&e).into()),
            (Err(e), Ok(())) => return Err(opening(e.errno).into()),
        };
        let stat = fs::fstat(&folder).map_err(|e| opening(e.raw_os_error()))?;
        let wanted = rustix::process::geteuid().as_raw();
        let mode = stat.st_mode & 0o7777;
        match () {
            () if stat.st_uid != wanted => {
                Err(CacheDirError::WrongOwner { path: path.into(), owner: stat.st_uid, wanted })
            }
            () if mode & 0o022 != 0 => Err(CacheDirError::Shared { path: path.into(), mode }),
            () => Ok(CacheDir { folder }),
        }
    }

    /// Opens a regular file by a single name. The error of a missing file has the number ENOENT.
    pub fn open_file(&self, name: &str, access: Access) -> Result<File, SysError> {
        let flags = match access {
            Access::Read => OFlags::RDONLY,
            Access::Write => OFlags::RDWR,
            Access::Create => OFlags::RDWR | OFlags::CREATE,
        };
        // Without NONBLOCK, opening a FIFO would wait for a writer.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let failed = failed("opening a file of the cache");
        let file =
            fs::openat(&self.folder, one_name(name.as_bytes(), OPENING)?, flags, Mode::RUSR | Mode::WUSR)
                .map_err(failed)?;
        match FileType::from_raw_mode(fs::fstat(&file).map_err(failed)?.st_mode) {
            FileType::RegularFile => Ok(file.into()),
            _ => Err(failed(Errno::INVAL)),
        }
    }

    /// Removes a file. A missing file is no error.
    pub fn remove(&self, name: &str) -> Result<(), SysError> {
        match fs::unlinkat(&self.folder, one_name(name.as_bytes(), OPENING)?, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(failed("removing a file of the cache")(e)),
        }
    }

    /// The names in the directory, a million at most, that are UTF-8, in no order.
    pub fn names(&self) -> Result<Vec<String>, SysError> {
        let names = self.folder.names()?.take(MAX_NAMES).collect::<Result<Vec<_>, _>>()?;
        Ok(names.into_iter().filter_map(|name| String::from_utf8(name.into()).ok()).collect())
    }

    /// The free space of the directory's file system.
    pub fn free_space(&self) -> Result<FreeSpace, SysError> {
        self.folder.free_space()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};

    #[test]
    fn files_are_private_and_links_are_not_followed() {
        let top = tempfile::tempdir().unwrap();
        let path = top.path().join("a/cache");
        let dir = CacheDir::open_or_create(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o700);
        assert_eq!(dir.open_file("x", Access::Write).unwrap_err().errno, libc::ENOENT);
        let file = dir.open_file("x", Access::Create).unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
        file.write_all_at(b"abc", 0).unwrap();
        symlink(path.join("x"), path.join("link")).unwrap();
        assert_eq!(dir.open_file("link", Access::Read).unwrap_err().errno, libc::ELOOP);
        for name in ["", "..", "a/b", "/etc/passwd"] {
            assert_eq!(dir.open_file(name, Access::Create).unwrap_err().errno, libc::EINVAL);
            assert!(dir.remove(name).is_err());
        }
        let mut names = dir.names().unwrap();
        names.sort();
        assert_eq!(names, ["link", "x"]);
        // The path may go away: the directory is open.
        std::fs::rename(&path, top.path().join("moved")).unwrap();
        assert_eq!(dir.open_file("x", Access::Read).unwrap().metadata().unwrap().len(), 3);
        dir.remove("x").unwrap();
        dir.remove("x").unwrap();
        assert!(dir.free_space().unwrap().free_bytes > 0);
    }

    #[test]
    fn a_directory_that_others_may_write_to_or_own_is_refused() {
        let top = tempfile::tempdir().unwrap();
        let mode =
            |mode| std::fs::set_permissions(top.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o755);
        CacheDir::open_or_create(top.path()).unwrap();
        for bad in [0o775, 0o1777] {
            mode(bad);
            let refused = CacheDir::open_or_create(top.path()).unwrap_err();
            assert!(matches!(refused, CacheDirError::Shared { mode, .. } if mode == bad));
        }
        mode(0o700);
        if crate::rundir::effective_uid() == 0 {
            std::os::unix::fs::chown(top.path(), Some(65534), None).unwrap();
            let refused = CacheDir::open_or_create(top.path()).unwrap_err();
            assert!(matches!(refused, CacheDirError::WrongOwner { owner: 65534, .. }));
        }
        let file = top.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(matches!(CacheDir::open_or_create(&file), Err(CacheDirError::Sys(_))));
    }

    #[test]
    fn a_hole_reads_as_zeroes_and_takes_no_room() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 3 << 16], 0).unwrap();
        let before = file.metadata().unwrap().blocks();
        match crate::blockdev::punch_hole(&file, 1 << 16..2 << 16) {
            Err(e) if e.errno == libc::EOPNOTSUPP => {
                pagefold_testkit::skipped!("a_hole_reads_as_zeroes_and_takes_no_room: {e}");
            }
            punched => {
                punched.unwrap();
                let mut buf = [1; 3];
                file.read_exact_at(&mut buf, (1 << 16) + 5).unwrap();
                let after = file.metadata().unwrap();
                assert!(buf == [0; 3] && after.len() == 3 << 16 && after.blocks() < before);
            }
        }
    }
}
