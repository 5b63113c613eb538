//! Mounting an image: a FUSE file system of its files, for the whole system to read.
//!
//! A [`Mount`] takes an open [`Image`] and serves it from threads of this process until it is unmounted, by
//! whomever. What the kernel holds of it (names, attributes, pages) is the kernel's, and given up under
//! pressure as with any file system; what this process holds is bounded by the image's budget, answers in the making
//! included. `fs` answers requests, `attr` has the numbers and the errors, `nodes` and `buffer` the
//! little that is kept.
//!
//! It needs root, or the program `fusermount3`, which mounts for others.

mod attr;
mod buffer;
mod fs;
mod nodes;

use crate::{Image, ImageError};
pub use buffer::LEAST_REPLY_BYTES;
use buffer::ReplyMemory;
use fs::ImageFs;
use fuser::{BackgroundSession, Session, SessionACL};
use pagefold_sys::fusedev::{self, Mounted};
use pagefold_sys::fusermount::{HelperError, HelperMount};
use pagefold_sys::mounts::{self, MountPoint};
use pagefold_sys::{SysError, cpu};
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// What the mount table shows after `fuse.` as the type.
pub const MOUNT_NAME: &str = "pagefold";

/// How long the session threads get to end after their connection was aborted.
const JOIN_PATIENCE: Duration = Duration::from_secs(10);

/// How an image is mounted.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// Threads that answer requests; 0: one for each CPU, and one more, up to 4.
    pub threads: usize,
    /// Whether users other than the mounting one get in. Modes, owners and lists of the image then decide.
    pub allow_other: bool,
    /// Whether programs of the image give the rights of their owner. Only for root.
    pub suid: bool,
    /// Whether device nodes of the image lead to devices. Only for root.
    pub devices: bool,
    /// How far the kernel may read ahead in a file, KiB, where that can be set; 0: as far as it does by itself.
    pub kernel_read_ahead_kib: u64,
    /// What the mount table shows as the source.
    pub source: OsString,
}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            threads: 0,
            allow_other: false,
            suid: false,
            devices: false,
            kernel_read_ahead_kib: 1024,
            source: MOUNT_NAME.into(),
        }
    }
}

/// Why an image cannot be mounted, or unmounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The image, or its budget.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The mount point has something mounted on it.
    #[error("something is mounted on {} already", .path.display())]
    Taken {
        /// The mount point.
        path: PathBuf,
    },
    /// The kernel has no FUSE, or keeps it from this user.
    #[error("FUSE cannot be used: {0}; load the module 'fuse', and let this user open /dev/fuse")]
    NoFuse(SysError),
    /// A privilege is missing.
    #[error("{0}; the right to mount (CAP_SYS_ADMIN) is missing")]
    NotPermitted(SysError),
    /// The program that mounts for users who are not root did not.
    #[error("mounting or unmounting at {}", .path.display())]
    Helper {
        /// The mount point.
        path: PathBuf,
        /// Its reason.
        source: HelperError,
    },
    /// The system refused.
    #[error(transparent)]
    System(#[from] SysError),
    /// The threads that serve it.
    #[error("serving the mount: {0}")]
    Session(String),
}

/// A mounted image and the threads that serve it. Dropping it takes both down.
#[derive(Debug)]
pub struct Mount {
    session: Option<BackgroundSession>,
    mounted: MountedBy,
    /// At its end when nothing is served any more.
    ended: UnixStream,
    _memory: ReplyMemory,
    threads: usize,
    read_bytes: usize,
    requests: Arc<AtomicU64>,
}

/// Who mounted, and has to unmount.
#[derive(Debug)]
enum MountedBy {
    /// This process.
    Itself(Mounted),
    /// `fusermount3`, for a user who is not root.
    Helper(HelperMount),
}

impl Mount {
    /// Mounts `image` at the directory `mount_point`. When it returns, files can be read.
    ///
    /// A failure leaves nothing behind.
    pub fn new(image: Image, mount_point: &Path, options: &MountOptions) -> Result<Self, MountError> {
        Self::new_then(image, mount_point, options, || Ok(()))
    }

    /// As [`Mount::new`]; calls `then` on this thread between the mount, which needs a privilege, and the start of
    /// the threads, which inherit what this thread has and need none.
    pub fn new_then(
        image: Image,
        mount_point: &Path,
        options: &MountOptions,
        then: impl FnOnce() -> Result<(), SysError>,
    ) -> Result<Self, MountError> {
        let path = free_directory(mount_point)?;
        // What has no root directory could be mounted, and then not be listed.
        image.root()?;
        let threads = if options.threads == 0 { default_threads() } else { options.threads };
        let memory = ReplyMemory::take(&image, threads)?;
        let (threads, read_bytes) = (memory.threads, memory.read_bytes);
        let (alive, ended) = UnixStream::pair().map_err(|e| SysError::io("making a pair of sockets", &e))?;
        let fs = ImageFs::new(image, read_bytes, options.allow_other, alive);
        let requests = fs.requests();
        let mut config = fuser::Config::default();
        config.n_threads = Some(threads);
        config.clone_fd = true;
        let (session, mounted) = match pagefold_sys::rundir::effective_uid() {
            0 => mount_directly(fs, path, options, read_bytes, config, then)?,
            _ => mount_by_helper(fs, path, options, read_bytes, config)?,
        };
        let session = session.spawn().map_err(|e| SysError::io("starting the FUSE threads", &e))?;
        if let MountedBy::Itself(mounted) = &mounted
            && options.kernel_read_ahead_kib > 0
        {
            // Only speed depends on it.
            let _ = fusedev::set_read_ahead(mounted.device(), options.kernel_read_ahead_kib);
        }
        Ok(Mount { session: Some(session), mounted, ended, _memory: memory, threads, read_bytes, requests })
    }

    /// The least budget that `image` can be mounted with, bytes.
    pub fn least_bytes(image: &Image) -> u64 {
        buffer::least_bytes(image)
    }

    /// How many threads answer requests.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The longest read request, bytes.
    pub fn read_bytes(&self) -> usize {
        self.read_bytes
    }

    /// How many requests the kernel has sent; goes on counting.
    pub fn requests(&self) -> Arc<AtomicU64> {
        self.requests.clone()
    }

    /// Readable when nothing is served any more, because somebody unmounted: for polling. See [`Mount::wait`].
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Waits until it is unmounted by somebody else.
    pub fn wait(mut self) -> Result<(), MountError> {
        pagefold_sys::ready::wait([self.ended.as_fd()], None)?;
        self.stop()
    }

    /// Aborts what is being read, unmounts, and waits for the threads to end. Can be repeated.
    pub fn stop(&mut self) -> Result<(), MountError> {
        match &mut self.mounted {
            MountedBy::Itself(mounted) => mounted.unmount()?,
            MountedBy::Helper(mounted) => mounted.unmount().map_err(|source| {
                let path = mounted.path().to_path_buf();
                MountError::Helper { path, source }
            })?,
        }
        let Some(session) = self.session.take() else { return Ok(()) };
        let deadline = Instant::now() + JOIN_PATIENCE;
        while !session.guard.is_finished() {
            if Instant::now() > deadline {
                // Another mount name space holds a copy of the mount, or someone moved it away, or nothing could break the
                // connection and files are open.
                return Err(MountError::Session("its threads still serve after unmounting".into()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        outcome(session.guard.join())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Whoever wants to know calls `stop` first; here there is nobody to tell.
        let _ = self.stop();
    }
}

fn outcome(joined: std::thread::Result<std::io::Result<()>>) -> Result<(), MountError> {
    match joined {
        Ok(Ok(())) => Ok(()),
        // What a thread is told that was reading just when the connection was aborted.
        Ok(Err(e)) if e.raw_os_error() == Some(libc::ECONNABORTED) => Ok(()),
        Ok(Err(e)) => Err(MountError::Session(e.to_string())),
        Err(_) => Err(MountError::Session("a thread panicked".into())),
    }
}

fn default_threads() -> usize {
    (cpu::count() + 1).min(4)
}

/// The path, free of links, of an existing directory that nothing is mounted on.
fn free_directory(path: &Path) -> Result<PathBuf, MountError> {
    match mounts::mount_point(path)? {
        MountPoint::Free(path) => Ok(path),
        MountPoint::Taken(path) => Err(MountError::Taken { path }),
    }
}

fn mount_directly(
    fs: ImageFs,
    path: PathBuf,
    options: &MountOptions,
    read_bytes: usize,
    mut config: fuser::Config,
    then: impl FnOnce() -> Result<(), SysError>,
) -> Result<(Session<ImageFs>, MountedBy), MountError> {
    config.acl = acl(options);
    let channel = fusedev::open().map_err(MountError::NoFuse)?;
    let request = fusedev::Request {
        source: &options.source,
        read_only: true,
        allow_other: options.allow_other,
        checks_modes: true,
        programs: true,
        suid: options.suid,
        devices: options.devices,
        ..fusedev::Request::private(MOUNT_NAME, read_bytes)
    };
    let mounted = Mounted::new(&channel, path, &request).map_err(|e| match e.errno {
        libc::EPERM | libc::EACCES => MountError::NotPermitted(e),
        libc::ENODEV | libc::ENOSYS => MountError::NoFuse(e),
        _ => MountError::System(e),
    })?;
    then()?;
    let session = Session::from_fd(fs, channel.into(), config.acl, config).map_err(|e| handshake(&e))?;
    Ok((session, MountedBy::Itself(mounted)))
}

/// Whose requests are answered.
fn acl(options: &MountOptions) -> SessionACL {
    if options.allow_other { SessionACL::All } else { SessionACL::Owner }
}

/// For users without the privilege to mount: `fusermount3` has it, and hands the channel over.
fn mount_by_helper(
    fs: ImageFs,
    path: PathBuf,
    options: &MountOptions,
    read_bytes: usize,
    mut config: fuser::Config,
) -> Result<(Session<ImageFs>, MountedBy), MountError> {
    fusedev::open().map_err(MountError::NoFuse)?;
    config.acl = acl(options);
    let others = if options.allow_other { ",allow_other" } else { "" };
    let source = escaped(&options.source.to_string_lossy());
    let words = format!(
        "ro,nosuid,nodev,default_permissions,fsname={source},subtype={MOUNT_NAME},max_read={read_bytes}{others}"
    );
    let mounted = HelperMount::new(path.clone(), &words);
    let (channel, mounted) = mounted.map_err(|source| MountError::Helper { path, source })?;
    let session = Session::from_fd(fs, channel.into(), config.acl, config).map_err(|e| handshake(&e))?;
    Ok((session, MountedBy::Helper(mounted)))
}

/// A value among mount options, in which a comma would end it.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,")
}

fn handshake(error: &std::io::Error) -> MountError {
    let failed = SysError::io("agreeing with the kernel on the FUSE protocol", error);
    match error.kind() {
        std::io::ErrorKind::Unsupported => MountError::NoFuse(failed),
        _ => MountError::System(failed),
    }
}
