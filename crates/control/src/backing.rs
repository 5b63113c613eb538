//! Opening the backing of a disk by its path, in the command, or in the server for the attribute `backing_dev`.
//!
//! The command runs with the rights of the user who typed the path, and passes the open descriptor to the server. So a
//! server with more rights is no confused deputy. It opens a path itself only for clients of the same user, or root.
//!
//! Nothing is overwritten by accident. Symbolic links are not followed, except names of block devices such as those in
//! /dev/disk. A new file is made exclusively, a block device is opened exclusively (O_EXCL), a file is locked (flock).
//! A backing that holds other data, or a file of another user (who could read and change the pages), is refused unless
//! the caller forces it.
//!
//! This module does not know the format of a backing (the caller passes its magic), and writes nothing: the store
//! clears the old contents.

use pagefold_page::size::Human;
use pagefold_sys::SysError;
use pagefold_sys::blockdev;
use pagefold_sys::blockuse::{self, BlockUse};
use pagefold_sys::rundir::effective_uid;
use std::ffi::OsString;
use std::fs::{File, Metadata, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

/// Bytes at the beginning of a backing that are read to see whether it holds other data.
pub const PROBE_BYTES: usize = 1 << 20;

/// How long to wait for a lock or an exclusive open. A server that has just ended may hold its backing a moment longer,
/// because the kernel tears down its io_uring rings after the process has ended.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);
/// Links that are followed, as many as the kernel follows.
const LINKS_MAX: usize = 40;
/// Pause between two attempts.
const LOCK_RETRY: Duration = Duration::from_millis(10);

/// How to open a backing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenOptions {
    /// The size of a file that does not exist yet. An existing file keeps its size.
    pub size_bytes: Option<u64>,
    /// The least size; a smaller backing is refused.
    pub min_bytes: u64,
    /// The first bytes of a backing that this program wrote.
    pub magic: [u8; 8],
    /// Accept a backing that holds other data or belongs to another user. One that is in use is refused all the same.
    pub force: bool,
}

/// An open backing. Its lock or exclusive claim lasts as long as the descriptor or a duplicate of it.
#[derive(Debug)]
pub struct Opened {
    /// Open for reading and writing.
    pub file: File,
    /// The path that was passed, or the device to which the link at that path points.
    pub path: PathBuf,
    /// Whether this call made the file.
    pub created: bool,
    /// Its size.
    pub len_bytes: u64,
    /// Whether it is a block device; otherwise it is a regular file.
    pub is_block_device: bool,
}

/// Why a backing was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A new file needs a size.
    #[error("{} does not exist; say how large it shall be, to have it made", path.display())]
    NoSize {
        /// The path that the user named.
        path: PathBuf,
    },
    /// The file does not exist, and neither does the folder for it; folders are not made.
    #[error("{} cannot be made: there is no folder {}; make it first, or name another", path.display(), folder.display())]
    NoFolder {
        /// The path that the user named.
        path: PathBuf,
        /// The missing folder.
        folder: PathBuf,
    },
    /// It is smaller than the least size.
    #[error("a backing of {} at {} is too small; at least {} are needed", Human(*len_bytes), path.display(), Human(*min_bytes))]
    TooSmall {
        /// The path that the user named.
        path: PathBuf,
        /// Its size, or the requested size of a new file.
        len_bytes: u64,
        /// The least size.
        min_bytes: u64,
    },
    /// The file system does not support files of this size.
    #[error("{} cannot be made with {}: the file system has no files that large; ask for less", path.display(), Human(*size_bytes))]
    TooLarge {
        /// The path that the user named.
        path: PathBuf,
        /// The requested size.
        size_bytes: u64,
    },
    /// It is a symbolic link. Links are followed only to a block device, and only if root or this user made all of them.
    #[error("{} is a symbolic link; name what it points to instead: {}", path.display(), target.display())]
    SymbolicLink {
        /// The path that the user named.
        path: PathBuf,
        /// Its target.
        target: PathBuf,
    },
    /// It is neither a regular file nor a block device.
    #[error("{} is {what}; a backing is a regular file or a block device", path.display())]
    WrongType {
        /// The path that the user named.
        path: PathBuf,
        /// Its type: "a folder", "a pipe" and so on.
        what: &'static str,
    },
    /// This user may not read and write it.
    #[error("{} cannot be opened for reading and writing: {}; change its permissions, or name another", path.display(), std::io::Error::from_raw_os_error(*errno))]
    NotWritable {
        /// The path that the user named.
        path: PathBuf,
        /// The kernel's error number.
        errno: i32,
    },
    /// Another process holds its lock.
    #[error("{} is in use by another pagefold disk; remove that disk first, or name another file", path.display())]
    InUse {
        /// The path that the user named.
        path: PathBuf,
    },
    /// The block device is in use: mounted, swapped to, or open exclusively.
    #[error("{} is in use: {}; free it first, or name another device", path.display(), list(uses))]
    Claimed {
        /// The path that the user named.
        path: PathBuf,
        /// Its uses, as far as this process can see them.
        uses: Vec<BlockUse>,
    },
    /// It holds data that this program did not write.
    #[error("{} holds something else, which would be overwritten; name another, or force it", path.display())]
    HoldsSomething {
        /// The path that the user named.
        path: PathBuf,
    },
    /// The file belongs to another user.
    #[error("{} belongs to user {owner}, who could read and change its contents; name another, or force it", path.display())]
    NotYours {
        /// The path that the user named.
        path: PathBuf,
        /// The user id of its owner.
        owner: u32,
    },
    /// A system call failed for another reason.
    #[error(transparent)]
    Failed(#[from] SysError),
}

fn list(uses: &[BlockUse]) -> String {
    match uses {
        [] => "somebody has it open exclusively, perhaps another pagefold disk".to_string(),
        uses => uses.iter().map(BlockUse::to_string).collect::<Vec<_>>().join("; "),
    }
}

/// Opens `path` as a backing. If it does not exist, makes a sparse file of exactly the requested size.
pub fn open_backing(path: &Path, options: &OpenOptions) -> Result<Opened, OpenError> {
    let kind = match path.symlink_metadata() {
        Ok(meta) => match device_named_by(path, &meta) {
            Some(device) => return check(open_device(&device)?, options),
            None => meta.file_type(),
        },
        Err(e) if e.kind() == ErrorKind::NotFound => return create(path, options),
        Err(e) => return Err(SysError::io(format!("looking at {}", path.display()), &e).into()),
    };
    if kind.is_block_device() {
        check(open_device(path)?, options)
    } else if kind.is_file() {
        check(open_file(path, options.force)?, options)
    } else {
        Err(wrong_type(path, kind))
    }
}

/// The block device to which the symbolic link `path` points, as the links in /dev/disk do; `None` for anything else.
///
/// Another user with access to a shared folder must not choose the device. The type of the file at the resulting path is
/// checked again after it is opened.
fn device_named_by(path: &Path, meta: &Metadata) -> Option<PathBuf> {
    let target = meta.is_symlink().then(|| follow_trusted(path)).flatten()?;
    target.symlink_metadata().is_ok_and(|m| m.file_type().is_block_device()).then_some(target)
}

/// Follows all symbolic links of a path, those in place of its folders too, if each belongs to root or to this user.
/// `None` if one does not, or leads nowhere.
fn follow_trusted(path: &Path) -> Option<PathBuf> {
    let mut found = PathBuf::from("/");
    // The last part comes first.
    let mut rest = parts(&std::path::absolute(path).ok()?);
    let mut links = 0;
    while let Some(part) = rest.pop() {
        if part == ".." {
            found.pop();
            continue;
        }
        let next = found.join(part);
        let meta = next.symlink_metadata().ok()?;
        if !meta.is_symlink() {
            found = next;
            continue;
        }
        links += 1;
        if meta.uid() != 0 && meta.uid() != effective_uid() || links > LINKS_MAX {
            return None;
        }
        let target = next.read_link().ok()?;
        if target.has_root() {
            found = PathBuf::from("/");
        }
        rest.extend(parts(&target));
    }
    Some(found)
}

/// The parts of a path, the last one first.
fn parts(path: &Path) -> Vec<OsString> {
    let named = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().rev().filter(|part| named(*part)).map(|part| part.as_os_str().to_os_string()).collect()
}

/// Refuses an open backing that is too small or holds other data.
fn check(opened: Opened, options: &OpenOptions) -> Result<Opened, OpenError> {
    let path = opened.path.as_path();
    if opened.len_bytes < options.min_bytes {
        let (len_bytes, min_bytes) = (opened.len_bytes, options.min_bytes);
        return Err(OpenError::TooSmall { path: path.into(), len_bytes, min_bytes });
    }
    if !options.force && holds_something(path, &opened, options.magic)? {
        return Err(OpenError::HoldsSomething { path: path.into() });
    }
    Ok(opened)
}

fn wrong_type(path: &Path, kind: std::fs::FileType) -> OpenError {
    let path = path.to_path_buf();
    let what = match kind {
        k if k.is_symlink() => {
            let target = std::fs::canonicalize(&path).or_else(|_| std::fs::read_link(&path));
            return OpenError::SymbolicLink { target: target.unwrap_or_default(), path };
        }
        k if k.is_dir() => "a folder",
        k if k.is_fifo() => "a pipe",
        k if k.is_socket() => "a socket",
        k if k.is_char_device() => "a character device",
        _ => "of an unknown type",
    };
    OpenError::WrongType { path, what }
}

/// Opens for reading and writing. Another file may have replaced the one whose type was checked: so this call follows
/// no links and does not wait for a pipe, and the caller checks the type of the open file again.
fn open(path: &Path, flags: i32) -> Result<File, std::io::Error> {
    let flags = flags | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    std::fs::OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)
}

fn open_failed(path: &Path, error: &std::io::Error) -> OpenError {
    match error.raw_os_error() {
        Some(errno @ (libc::EACCES | libc::EPERM | libc::EROFS | libc::ETXTBSY)) => {
            OpenError::NotWritable { path: path.into(), errno }
        }
        _ => SysError::io(format!("opening {}", path.display()), error).into(),
    }
}

fn open_file(path: &Path, force: bool) -> Result<Opened, OpenError> {
    let file = open(path, 0).map_err(|e| open_failed(path, &e))?;
    let meta = file.metadata().map_err(|e| SysError::io(format!("looking at {}", path.display()), &e))?;
    if !meta.is_file() {
        return Err(wrong_type(path, meta.file_type()));
    }
    if meta.uid() != effective_uid() && meta.uid() != 0 && !force {
        return Err(OpenError::NotYours { path: path.into(), owner: meta.uid() });
    }
    lock(path, &file)?;
    // Read the size again, now under the lock.
    let meta = file.metadata().map_err(|e| SysError::io(format!("looking at {}", path.display()), &e))?;
    Ok(Opened { file, path: path.into(), created: false, len_bytes: meta.len(), is_block_device: false })
}

/// Locks the open file (flock(2)). A descriptor that is passed to another process keeps the lock.
fn lock(path: &Path, file: &File) -> Result<(), OpenError> {
    retry_until_timeout(|| match file.try_lock() {
        Err(TryLockError::WouldBlock) => None,
        Err(TryLockError::Error(e)) => {
            Some(Err(SysError::io(format!("locking {}", path.display()), &e).into()))
        }
        Ok(()) => Some(Ok(())),
    })
    .unwrap_or_else(|| Err(OpenError::InUse { path: path.into() }))
}

/// Calls `attempt` until it returns a result, or [`LOCK_TIMEOUT`] has passed.
fn retry_until_timeout<T>(mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    for _ in 0..LOCK_TIMEOUT.as_millis() / LOCK_RETRY.as_millis() {
        if let Some(result) = attempt() {
            return Some(result);
        }
        std::thread::sleep(LOCK_RETRY);
    }
    attempt()
}

/// Opens a block device exclusively. The open fails if the device is mounted, swapped to, or part of another device,
/// and prevents all of these while the descriptor is open.
fn open_device(path: &Path) -> Result<Opened, OpenError> {
    let is_busy = |e: &std::io::Error| e.raw_os_error() == Some(libc::EBUSY);
    let claims = || blockuse::claims(path).unwrap_or_default();
    // A mount or a swap area stays; an exclusive open of a server that is ending passes.
    let may_end_soon = || claims().iter().all(|u| *u == BlockUse::Claimed);
    let opened = retry_until_timeout(|| match open(path, libc::O_EXCL) {
        Err(e) if is_busy(&e) && may_end_soon() => None,
        result => Some(result),
    });
    let file = match opened {
        Some(Ok(file)) => file,
        Some(Err(e)) if !is_busy(&e) => return Err(open_failed(path, &e)),
        _ => return Err(OpenError::Claimed { path: path.into(), uses: claims() }),
    };
    let meta = file.metadata().map_err(|e| SysError::io(format!("looking at {}", path.display()), &e))?;
    if !meta.file_type().is_block_device() {
        return Err(wrong_type(path, meta.file_type()));
    }
    let len_bytes = blockdev::len_bytes(&file)?;
    Ok(Opened { file, path: path.into(), created: false, len_bytes, is_block_device: true })
}

/// Whether the backing holds other data: its first [`PROBE_BYTES`] are neither all zero nor begin with our magic.
fn holds_something(path: &Path, opened: &Opened, magic: [u8; 8]) -> Result<bool, OpenError> {
    let mut beginning = vec![0; PROBE_BYTES.min(opened.len_bytes as usize)];
    let read = opened.file.read_exact_at(&mut beginning, 0);
    read.map_err(|e| SysError::io(format!("reading the beginning of {}", path.display()), &e))?;
    Ok(!beginning.starts_with(&magic) && beginning.iter().any(|&byte| byte != 0))
}

fn create(path: &Path, options: &OpenOptions) -> Result<Opened, OpenError> {
    let size_bytes = options.size_bytes.ok_or_else(|| OpenError::NoSize { path: path.into() })?;
    if size_bytes < options.min_bytes {
        let min_bytes = options.min_bytes;
        return Err(OpenError::TooSmall { path: path.into(), len_bytes: size_bytes, min_bytes });
    }
    if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty() && !f.exists()) {
        return Err(OpenError::NoFolder { path: path.into(), folder: folder.into() });
    }
    let created = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(path);
    let file = created.map_err(|e| match e.raw_os_error() {
        Some(errno @ (libc::EACCES | libc::EPERM | libc::EROFS)) => {
            OpenError::NotWritable { path: path.into(), errno }
        }
        _ => SysError::io(format!("making the file {}", path.display()), &e).into(),
    })?;
    // A process that opens and locks the new file before this one finds it empty, and so too small.
    match lock(path, &file).and_then(|()| resize(path, &file, size_bytes)) {
        Ok(()) => Ok(Opened {
            file,
            path: path.into(),
            created: true,
            len_bytes: size_bytes,
            is_block_device: false,
        }),
        Err(e) => {
            // If this fails too, an empty file stays; the first error says more than this one.
            let _ = std::fs::remove_file(path);
            Err(e)
        }
    }
}

fn resize(path: &Path, file: &File, size_bytes: u64) -> Result<(), OpenError> {
    file.set_len(size_bytes).map_err(|e| match e.raw_os_error() {
        // The standard library refuses sizes beyond the kernel's signed 64 bits itself, without an error number.
        Some(libc::EFBIG | libc::EINVAL) | None => OpenError::TooLarge { path: path.into(), size_bytes },
        _ => SysError::io(format!("giving {} its size", path.display()), &e).into(),
    })
}
