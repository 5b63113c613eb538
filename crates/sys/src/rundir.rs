//! A directory that only one user can access, verified before it is used.
//!
//! Sockets, locks and state are in a runtime folder. An attacker who can write to that folder, or replace a component
//! of its path, could make the program connect to, unlink or unmount the wrong object. So the path is walked from the
//! root, one component at a time and never through a symbolic link; every component must belong to root or to this
//! user, and no other user may write to it. After that check only root and this user can change where the path leads,
//! so ordinary path calls below it are safe.
//!
//! In a user namespace that does not map all users ([`userns`]), the folders of all others, root's among them, seem to belong
//! to the overflow user. Such a folder may be a parent, because `/` is one, and the owner of `/` controls the programs too.
//! It must not be writable by others, nor lie in a folder that is, such as `/tmp`: there anybody could have made it. So only
//! root, or a user to whom root gave a folder, can own it. One path that is refused outside remains: through a folder that
//! another user shares with this one (`/home/other/mine/run`). No default place is such a path, and a user who names one
//! trusts that other user. The folder itself must always belong to this user.
//!
//! This module does not know the purpose of the folder or where it should be.

use crate::{SysError, failed, userns};
use rustix::fs::{self, Mode, OFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

/// Why a directory is not trusted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunDirError {
    /// The path does not start at the root, or contains `.` or `..`.
    #[error("'{0}' is not an absolute path without '.' and '..'")]
    NotAbsolute(PathBuf),
    /// The path does not exist.
    #[error("'{0}' does not exist")]
    Missing(PathBuf),
    /// A component is a symbolic link or not a directory.
    #[error("'{0}' is a symbolic link or not a directory")]
    NotADirectory(PathBuf),
    /// A component belongs to another user than root and this one, or the directory itself to another user than this
    /// one.
    #[error("'{path}' belongs to user {owner}, not to user {wanted}")]
    WrongOwner {
        /// The path of the component.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The owner it must have.
        wanted: u32,
    },
    /// A component lies in a folder that others can write to, and belongs to a user that this namespace does not map.
    #[error("'{path}' belongs to user {owner}, who may be anybody in this user namespace")]
    UnknownOwner {
        /// The path of the component.
        path: PathBuf,
        /// The owner that this namespace shows.
        owner: u32,
    },
    /// Other users may enter, read or write the directory itself.
    #[error("'{path}' has mode {mode:04o}, not 0700")]
    WrongMode {
        /// The directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Other users may write to a parent directory, such as a shared temporary folder.
    #[error("'{path}' (mode {mode:04o}) is writable by other users")]
    SharedParent {
        /// The path of the component.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A system call failed.
    #[error(transparent)]
    Sys(#[from] SysError),
}

/// A verified private directory.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
}

/// The effective user id of this process.
pub fn effective_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

const STICKY: u32 = 0o1000;
const SET_GROUP_ID: u32 = 0o2000;
const OTHERS_WRITE: u32 = 0o022;
/// Flags for opening components. O_PATH, because directories on the way to a home folder are often not readable.
const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::PATH);

impl RunDir {
    /// Opens and verifies `path`; [`RunDirError::Missing`] if it does not exist.
    pub fn open(path: &Path) -> Result<Self, RunDirError> {
        let (parent, name) = open_parent(path, None)?;
        Self::open_last(&parent, path, &name)
    }

    /// Opens and verifies `path`. Makes it with mode 0700 if it does not exist; its parent must exist.
    pub fn open_or_create(path: &Path) -> Result<Self, RunDirError> {
        let (parent, name) = open_parent(path, None)?;
        make_component(parent.as_fd(), &name, path)?;
        Self::open_last(&parent, path, &name)
    }

    /// Opens and verifies `path`. Makes missing components below `base` with mode 0700.
    pub fn open_or_create_below(base: &Path, path: &Path) -> Result<Self, RunDirError> {
        let (parent, name) = open_parent(path, Some(base))?;
        make_component(parent.as_fd(), &name, path)?;
        Self::open_last(&parent, path, &name)
    }

    fn open_last(parent: &OwnedFd, path: &Path, name: &Path) -> Result<Self, RunDirError> {
        let fd = open_component(parent.as_fd(), name, path)?;
        let st = stat(&fd, path)?;
        let wanted = rustix::process::geteuid().as_raw();
        if st.st_uid != wanted {
            return Err(RunDirError::WrongOwner { path: path.into(), owner: st.st_uid, wanted });
        }
        // A folder below one with the set-group-ID bit inherits it, which gives nobody access to this one.
        match st.st_mode & 0o7777 & !SET_GROUP_ID {
            0o700 => Ok(RunDir { path: path.into() }),
            mode => Err(RunDirError::WrongMode { path: path.into(), mode }),
        }
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of `name` in the directory.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

/// Opens the parent of `path` after verifying every component down to it. Makes missing components below `make_below`,
/// if that is set. Returns the parent and the last component's name.
fn open_parent(path: &Path, make_below: Option<&Path>) -> Result<(OwnedFd, PathBuf), RunDirError> {
    let not_absolute = || RunDirError::NotAbsolute(path.into());
    let mut parts = path.components();
    if parts.next() != Some(Component::RootDir) {
        return Err(not_absolute());
    }
    let mut names = Vec::new();
    for part in parts {
        match part {
            Component::Normal(name) => names.push(name),
            _ => return Err(not_absolute()),
        }
    }
    let last = names.pop().ok_or_else(not_absolute)?;
    let mut at = PathBuf::from("/");
    let mut fd = fs::open("/", FOLDER, Mode::empty()).map_err(failed("opening '/'"))?;
    let mut parents = Parents { unmapped_owner: userns::unmapped_owner(), is_shared: false };
    parents.check(&fd, &at, names.is_empty())?;
    for (i, name) in names.iter().enumerate() {
        at.push(name);
        if make_below.is_some_and(|base| at.starts_with(base) && at != base) {
            make_component(fd.as_fd(), Path::new(name), &at)?;
        }
        fd = open_component(fd.as_fd(), Path::new(name), &at)?;
        parents.check(&fd, &at, i + 1 == names.len())?;
    }
    Ok((fd, last.into()))
}

/// The check of the parent directories of a path, from the root down.
struct Parents {
    /// The owner of files of users that this namespace does not map.
    unmapped_owner: Option<u32>,
    /// Whether others may make entries in the directory that was checked last.
    is_shared: bool,
}

impl Parents {
    /// Verifies the owner and mode of the next directory.
    ///
    /// Above the last parent, a sticky directory may be writable by others: only an entry's owner can replace it, and the
    /// owner of the next component is checked. The last parent must not be: there any user could make the directory first.
    fn check(&mut self, fd: &OwnedFd, at: &Path, is_last: bool) -> Result<(), RunDirError> {
        let st = stat(fd, at)?;
        let (owner, wanted) = (st.st_uid, rustix::process::geteuid().as_raw());
        if owner != 0 && owner != wanted {
            match Some(owner) == self.unmapped_owner {
                false => return Err(RunDirError::WrongOwner { path: at.into(), owner, wanted }),
                true if self.is_shared => return Err(RunDirError::UnknownOwner { path: at.into(), owner }),
                true => {}
            }
        }
        let mode = st.st_mode & 0o7777;
        self.is_shared = mode & OTHERS_WRITE != 0;
        if self.is_shared && (is_last || mode & STICKY == 0) {
            return Err(RunDirError::SharedParent { path: at.into(), mode });
        }
        Ok(())
    }
}

/// Makes a directory with mode 0700, unless the name exists.
fn make_component(dir: BorrowedFd<'_>, name: &Path, whole: &Path) -> Result<(), RunDirError> {
    match fs::mkdirat(dir, name, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(e) => Err(SysError::new(format!("making '{}'", whole.display()), e.raw_os_error()).into()),
    }
}

fn open_component(dir: BorrowedFd<'_>, name: &Path, whole: &Path) -> Result<OwnedFd, RunDirError> {
    fs::openat(dir, name, FOLDER, Mode::empty()).map_err(|e| match e {
        rustix::io::Errno::NOENT => RunDirError::Missing(whole.into()),
        rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR => RunDirError::NotADirectory(whole.into()),
        e => SysError::new(format!("opening '{}'", whole.display()), e.raw_os_error()).into(),
    })
}

fn stat(fd: &OwnedFd, path: &Path) -> Result<fs::Stat, RunDirError> {
    Ok(fs::fstat(fd)
        .map_err(|e| SysError::new(format!("looking at '{}'", path.display()), e.raw_os_error()))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn private() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        dir
    }

    #[test]
    fn a_folder_below_one_with_the_set_group_id_bit_is_opened() {
        let top = private();
        std::fs::set_permissions(top.path(), std::fs::Permissions::from_mode(0o2700)).unwrap();
        let path = top.path().canonicalize().unwrap().join("run");
        RunDir::open_or_create(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o2700);
        RunDir::open(&path).unwrap();
    }

    #[test]
    fn a_private_folder_is_made_and_opened_again() {
        let top = private();
        let path = top.path().canonicalize().unwrap().join("run");
        assert_eq!(RunDir::open(&path).unwrap_err(), RunDirError::Missing(path.clone()));
        RunDir::open_or_create(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o700);
        RunDir::open(&path).unwrap();
    }

    #[test]
    fn missing_folders_are_made_below_the_base_only() {
        let top = private();
        let base = top.path().canonicalize().unwrap();
        let path = base.join("a/b/run");
        assert_eq!(RunDir::open_or_create(&path).unwrap_err(), RunDirError::Missing(base.join("a")));
        RunDir::open_or_create_below(&base, &path).unwrap();
        for made in ["a", "a/b", "a/b/run"] {
            assert_eq!(std::fs::metadata(base.join(made)).unwrap().permissions().mode() & 0o7777, 0o700);
        }
        RunDir::open_or_create_below(&base, &path).unwrap();
        let missing = base.join("missing");
        let refused = RunDir::open_or_create_below(&missing, &missing.join("run"));
        assert_eq!(refused.unwrap_err(), RunDirError::Missing(missing));
        // A parent that others can write to is refused, and its mode is not changed.
        std::fs::set_permissions(base.join("a"), std::fs::Permissions::from_mode(0o770)).unwrap();
        let refused = RunDir::open_or_create_below(&base, &path);
        assert!(matches!(refused, Err(RunDirError::SharedParent { mode: 0o770, .. })));
    }

    #[test]
    fn links_modes_and_shared_folders_are_refused() {
        let top = private();
        let top = top.path().canonicalize().unwrap();
        let real = top.join("real");
        RunDir::open_or_create(&real).unwrap();
        let link = top.join("link");
        symlink(&real, &link).unwrap();
        assert_eq!(RunDir::open_or_create(&link).unwrap_err(), RunDirError::NotADirectory(link.clone()));
        let below = link.join("run");
        assert_eq!(RunDir::open_or_create(&below).unwrap_err(), RunDirError::NotADirectory(link));

        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        mode(&real, 0o750);
        assert!(matches!(RunDir::open(&real), Err(RunDirError::WrongMode { mode: 0o750, .. })));
        mode(&real, 0o1777);
        assert!(matches!(
            RunDir::open_or_create(&real.join("run")),
            Err(RunDirError::SharedParent { mode: 0o1777, .. })
        ));
        std::fs::write(top.join("file"), "").unwrap();
        assert!(matches!(RunDir::open(&top.join("file")), Err(RunDirError::NotADirectory(_))));
    }

    #[test]
    fn only_absolute_paths_without_dots_are_accepted() {
        for path in ["run", "", "/", "/run/../tmp/x", "./x"] {
            assert!(matches!(RunDir::open(Path::new(path)), Err(RunDirError::NotAbsolute(_))), "{path}");
        }
    }

    #[test]
    fn another_users_folder_is_refused() {
        if !rustix::process::geteuid().is_root() {
            pagefold_testkit::skipped!("another_users_folder_is_refused: needs root to give a folder away");
            return;
        }
        let top = private();
        let path = top.path().canonicalize().unwrap().join("run");
        RunDir::open_or_create(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
        assert!(matches!(RunDir::open(&path), Err(RunDirError::WrongOwner { owner: 65534, .. })));
        assert!(matches!(RunDir::open_or_create(&path.join("x")), Err(RunDirError::WrongOwner { .. })));
    }

    #[test]
    fn a_folder_of_unmapped_users_is_a_parent_only_where_nobody_else_can_have_made_it() {
        if !rustix::process::geteuid().is_root() {
            pagefold_testkit::skipped!(
                "a_folder_of_unmapped_users_is_a_parent_only_where_nobody_else_can_have_made_it: needs root to give a folder away"
            );
            return;
        }
        let top = private();
        let path = top.path().join("folder");
        std::fs::create_dir(&path).unwrap();
        let fd = fs::open(&path, FOLDER, Mode::empty()).unwrap();
        let check = |unmapped_owner, is_shared, owner, mode| {
            std::os::unix::fs::chown(&path, Some(owner), None).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let mut parents = Parents { unmapped_owner, is_shared };
            parents.check(&fd, &path, false).map(|()| parents.is_shared)
        };
        let (unmapped, some) = (65534, Some(65534));
        assert_eq!(check(some, false, unmapped, 0o755), Ok(false));
        assert_eq!(check(some, false, unmapped, 0o1777), Ok(true));
        assert_eq!(check(some, true, 0, 0o755), Ok(false));
        assert!(matches!(check(some, true, unmapped, 0o755), Err(RunDirError::UnknownOwner { .. })));
        assert!(matches!(check(some, false, unmapped, 0o775), Err(RunDirError::SharedParent { .. })));
        assert!(matches!(check(some, false, 1234, 0o755), Err(RunDirError::WrongOwner { .. })));
        assert!(matches!(check(None, false, unmapped, 0o755), Err(RunDirError::WrongOwner { .. })));
    }
}
