//! Opening a backing by its path, on behalf of the person who named it.
//!
//! This is the client's part: it runs with the rights of whoever typed the path, and
//! what it opens is passed on as a descriptor, so that a server with more rights is
//! nobody's deputy. Nothing is overwritten by accident: links are not followed (but for
//! the names of devices, such as those in /dev/disk), new files must be new, devices are
//! taken exclusively, and something that holds other data is refused unless the caller
//! insists. So is a file of another user, who could read and change what is kept there.
//!
//! It does not know the format of what is kept (the caller names its magic), and it
//! writes nothing: clearing what was there is the store's work.

use pagefold_page::size::Human;
use pagefold_sys::SysError;
use pagefold_sys::blockdev;
use pagefold_sys::blockuse::{self, BlockUse};
use pagefold_sys::rundir::effective_uid;
use std::fs::{File, Metadata, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How much of a backing is looked at to see whether it holds something, bytes.
pub const PROBE_BYTES: usize = 1 << 20;

/// How long somebody else's lock is waited for, and how often it is tried. A server that has just ended
/// may hold its backing a moment longer: the kernel takes its rings apart afterwards.
const PATIENCE: Duration = Duration::from_millis(500);
const TRY_EVERY: Duration = Duration::from_millis(10);

/// How to open a backing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenOptions {
    /// The size of a file that does not exist yet; existing ones keep theirs.
    pub size_bytes: Option<u64>,
    /// Smaller ones are refused.
    pub min_bytes: u64,
    /// What a backing that is ours begins with.
    pub magic: [u8; 8],
    /// Take one that holds something else. Does not help against one that is in use.
    pub force: bool,
}

/// An open backing. Locks and claims live as long as the descriptor or a duplicate of it.
#[derive(Debug)]
pub struct Opened {
    /// Open for reading and writing.
    pub file: File,
    /// What was opened: the path given, or the device that a link there names.
    pub path: PathBuf,
    /// Whether it is a file made just now.
    pub created: bool,
    /// Its size.
    pub len_bytes: u64,
    /// A device, or else a regular file.
    pub is_block_device: bool,
}

/// Why a backing was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A new file needs a size.
    #[error("{} does not exist; say how large it shall be, to have it made", path.display())]
    NoSize {
        /// What was named.
        path: PathBuf,
    },
    /// A file is made, but not the folder it is to be in.
    #[error("{} cannot be made: there is no folder {}; make it first, or name another", path.display(), folder.display())]
    NoFolder {
        /// What was named.
        path: PathBuf,
        /// What is missing.
        folder: PathBuf,
    },
    /// There is no use for one of this size.
    #[error("a backing of {} at {} is too small; at least {} are needed", Human(*len_bytes), path.display(), Human(*min_bytes))]
    TooSmall {
        /// What was named.
        path: PathBuf,
        /// Its size, or the size asked for.
        len_bytes: u64,
        /// The least.
        min_bytes: u64,
    },
    /// The file system cannot have such a file.
    #[error("{} cannot be made with {}: the file system has no files that large; ask for less", path.display(), Human(*size_bytes))]
    TooLarge {
        /// What was named.
        path: PathBuf,
        /// The size asked for.
        size_bytes: u64,
    },
    /// A link is followed only to a block device, and only if root or this user made it.
    #[error("{} is a symbolic link; name what it points to instead: {}", path.display(), target.display())]
    SymbolicLink {
        /// What was named.
        path: PathBuf,
        /// Where it points.
        target: PathBuf,
    },
    /// Neither a regular file nor a block device.
    #[error("{} is {what}; a backing is a regular file or a block device", path.display())]
    WrongType {
        /// What was named.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// It may not be read and written.
    #[error("{} cannot be opened for reading and writing: {}; change its permissions, or name another", path.display(), std::io::Error::from_raw_os_error(*errno))]
    NotWritable {
        /// What was named.
        path: PathBuf,
        /// The kernel's answer.
        errno: i32,
    },
    /// Its lock is held.
    #[error("{} is in use by another pagefold disk; remove that disk first, or name another file", path.display())]
    InUse {
        /// What was named.
        path: PathBuf,
    },
    /// The block device is claimed.
    #[error("{} is in use: {}; free it first, or name another device", path.display(), list(uses))]
    Claimed {
        /// What was named.
        path: PathBuf,
        /// By whom.
        uses: Vec<BlockUse>,
    },
    /// It holds data that are not ours.
    #[error("{} holds something else, which would be overwritten; name another, or force it", path.display())]
    HoldsSomething {
        /// What was named.
        path: PathBuf,
    },
    /// The file belongs to another user.
    #[error("{} belongs to user {owner}, who could read and change what is kept there; name another, or force it", path.display())]
    NotYours {
        /// What was named.
        path: PathBuf,
        /// The user id of its owner.
        owner: u32,
    },
    /// Anything else.
    #[error(transparent)]
    Failed(#[from] SysError),
}

fn list(uses: &[BlockUse]) -> String {
    match uses {
        [] => "somebody has it open exclusively, perhaps another pagefold disk".to_string(),
        uses => uses.iter().map(BlockUse::to_string).collect::<Vec<_>>().join("; "),
    }
}

/// Opens `path` as a backing, or makes a new file of it, sparse and of exactly the size asked for.
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

/// Opens a regular file or a block device for reading alone. Anything else is refused without being opened: to open a named
/// pipe is to wait for its other end, and to open other devices can have effects.
pub fn open_for_reading(path: &Path) -> Result<File, SysError> {
    let failed = |e| SysError::io("opening it", &e);
    let kind = path.metadata().map_err(failed)?.file_type();
    // Something else may have taken its place since: then nobody waits for it either, and who uses the file looks again.
    let flags = match (kind.is_file(), kind.is_block_device()) {
        (true, _) => libc::O_NONBLOCK | libc::O_NOCTTY,
        (_, true) => libc::O_NOCTTY,
        _ => return Err(SysError::new("using neither a file nor a block device", libc::ENOTBLK)),
    };
    std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)
}

/// The block device that a link names, as those in /dev/disk do. Whoever may make a link in a folder that
/// others use must not choose the device: so only links of root and of this user count. What stands at
/// the resulting path is looked at again when it is opened.
fn device_named_by(path: &Path, meta: &Metadata) -> Option<PathBuf> {
    let is_trusted = meta.uid() == 0 || meta.uid() == effective_uid();
    let target = std::fs::canonicalize(path).ok().filter(|_| meta.is_symlink() && is_trusted)?;
    target.symlink_metadata().is_ok_and(|m| m.file_type().is_block_device()).then_some(target)
}

/// Whether what was opened can be used.
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

/// Opens for reading and writing. What was looked at before may have been replaced since: so links are
/// not followed, a pipe does not make it wait, and the caller looks again at what it got.
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
    // The size under the lock, not before.
    let meta = file.metadata().map_err(|e| SysError::io(format!("looking at {}", path.display()), &e))?;
    Ok(Opened { file, path: path.into(), created: false, len_bytes: meta.len(), is_block_device: false })
}

/// Locks the open file (flock(2)), which a passed descriptor keeps locked.
fn lock(path: &Path, file: &File) -> Result<(), OpenError> {
    patiently(|| match file.try_lock() {
        Err(TryLockError::WouldBlock) => None,
        Err(TryLockError::Error(e)) => {
            Some(Err(SysError::io(format!("locking {}", path.display()), &e).into()))
        }
        Ok(()) => Some(Ok(())),
    })
    .unwrap_or_else(|| Err(OpenError::InUse { path: path.into() }))
}

/// Tries until there is an answer, or patience runs out.
fn patiently<T>(mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    for _ in 0..PATIENCE.as_millis() / TRY_EVERY.as_millis() {
        if let Some(answer) = attempt() {
            return Some(answer);
        }
        std::thread::sleep(TRY_EVERY);
    }
    attempt()
}

/// An exclusive open fails for everything that is mounted, swapped to, or part of another device, and
/// keeps all of these away while it lasts.
fn open_device(path: &Path) -> Result<Opened, OpenError> {
    let is_busy = |e: &std::io::Error| e.raw_os_error() == Some(libc::EBUSY);
    let claims = || blockuse::claims(path).unwrap_or_default();
    let is_fleeting = || claims().iter().all(|u| *u == BlockUse::Claimed);
    let opened = patiently(|| match open(path, libc::O_EXCL) {
        Err(e) if is_busy(&e) && is_fleeting() => None,
        answer => Some(answer),
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

/// Whether there is any byte in the beginning that is neither zero nor announced by our magic.
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
    // Whoever opened it in the meantime found it empty and refused it.
    match lock(path, &file).and_then(|()| resize(path, &file, size_bytes)) {
        Ok(()) => Ok(Opened {
            file,
            path: path.into(),
            created: true,
            len_bytes: size_bytes,
            is_block_device: false,
        }),
        Err(e) => {
            // What is left if this fails is an empty file: the error that is returned says more.
            let _ = std::fs::remove_file(path);
            Err(e)
        }
    }
}

fn resize(path: &Path, file: &File, size_bytes: u64) -> Result<(), OpenError> {
    file.set_len(size_bytes).map_err(|e| match e.raw_os_error() {
        // The standard library refuses what the kernel's signed size cannot hold, without a number.
        Some(libc::EFBIG | libc::EINVAL) | None => OpenError::TooLarge { path: path.into(), size_bytes },
        _ => SysError::io(format!("giving {} its size", path.display()), &e).into(),
    })
}
