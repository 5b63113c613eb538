//! A FUSE file system of one file, the device's contents.
//!
//! The file is what a loop device is put on ([`crate::loopdoor`]); by itself it is an ordinary file
//! that only the mounting user may open. This module mounts it, runs the threads that serve it, and
//! takes both down; `fs` answers the requests, and `muster` makes every thread ready before the first
//! request counts.
//!
//! It does not know of loop devices, and it keeps no page: the kernel may cache the file for those
//! who open it without `O_DIRECT`, which a loop device with direct I/O does not.

mod fs;
mod muster;

use crate::BlockDevice;
use crate::loopdoor::{DoorError, Unavailable};
use fs::OneFile;
use muster::Muster;
pub use muster::ThreadReport;
use pagefold_sys::fusedev::Mounted;
use pagefold_sys::mounts::{self, MountPoint};
use pagefold_sys::{SysError, entropy, fusedev};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The name of the one file.
pub const FILE_NAME: &str = "disk";
/// What the mount table shows as the source, and after `fuse.` as the type.
pub const MOUNT_NAME: &str = "pagefold";
/// The largest read or write request, bytes; also what the kernel allows at most by default.
pub const MAX_IO_BYTES: usize = 1 << 20;

/// How long the session threads get to end after their connection was aborted.
const JOIN_PATIENCE: Duration = Duration::from_secs(10);

/// The mounted file and the threads that serve it. Dropping it takes both down.
pub struct FuseDisk {
    session: Option<JoinHandle<std::io::Result<()>>>,
    mounted: Mounted,
    inode: u64,
    threads: ThreadReport,
}

impl FuseDisk {
    /// Mounts `device` as a file in the empty directory `mount_point`, served by `threads` threads.
    ///
    /// Returns when every thread has its buffers in memory. A failure leaves nothing behind.
    pub fn mount(
        device: Arc<dyn BlockDevice>,
        mount_point: &Path,
        threads: usize,
    ) -> Result<Self, DoorError> {
        Self::mount_then(device, mount_point, threads, || Ok(()))
    }

    /// As [`FuseDisk::mount`]; calls `then` on this thread between the mount, which needs a privilege,
    /// and the start of the threads, which inherit what this thread has and need none.
    pub fn mount_then(
        device: Arc<dyn BlockDevice>,
        mount_point: &Path,
        threads: usize,
        then: impl FnOnce() -> Result<(), SysError>,
    ) -> Result<Self, DoorError> {
        let mount_point = free_directory(mount_point)?;
        let channel = fusedev::open().map_err(|e| DoorError::missing(Unavailable::Fuse, e))?;
        let request = fusedev::Request::private(MOUNT_NAME, MAX_IO_BYTES);
        let mounted = Mounted::new(&channel, mount_point, &request).map_err(mount_error)?;
        then()?;
        // Random, so that no other file on any file system that gets this device number later can be
        // mistaken for it; bit 40 keeps it clear of the root's number, the top bits of overflow.
        let inode = entropy::random_u64()? >> 2 | 1 << 40;
        let muster = Arc::new(Muster::new(threads));
        let file_system = OneFile::new(device, inode, muster.clone());
        let mut config = fuser::Config::default();
        config.n_threads = Some(threads);
        config.clone_fd = true;
        let session = fuser::Session::from_fd(file_system, channel.into(), config.acl, config)
            .map_err(|e| handshake_error(&e))?;
        // Only the guard is kept, and the rest dropped at once: it holds the channel open, and with it
        // the connection, even when no thread is left to serve it.
        let guard = session.spawn().map(|background| background.guard);
        let guard = guard.map_err(|e| SysError::io("starting the FUSE threads", &e))?;
        let mut disk = FuseDisk { session: Some(guard), mounted, inode, threads: ThreadReport::default() };
        disk.threads = muster.call(disk.mounted.path())?;
        Ok(disk)
    }

    /// The file's path.
    pub fn file_path(&self) -> PathBuf {
        self.mounted.path().join(FILE_NAME)
    }

    /// The file's inode number, random.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// What the session threads found when they were called up.
    pub fn threads(&self) -> ThreadReport {
        self.threads
    }

    /// Aborts the connection, unmounts, and waits for the threads to end. Can be repeated.
    pub fn stop(&mut self) -> Result<(), DoorError> {
        self.mounted.unmount()?;
        let Some(session) = self.session.take() else { return Ok(()) };
        let deadline = Instant::now() + JOIN_PATIENCE;
        while !session.is_finished() {
            if Instant::now() > deadline {
                // Another mount name space holds a copy of the mount, or someone moved it away.
                return Err(DoorError::Session("the FUSE threads still serve after unmounting".into()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        match session.join() {
            Ok(Ok(())) => Ok(()),
            // What a thread is told that was reading just when the connection was aborted: by us, above.
            Ok(Err(e)) if e.raw_os_error() == Some(libc::ECONNABORTED) => Ok(()),
            Ok(Err(e)) => Err(DoorError::Session(e.to_string())),
            Err(_) => Err(DoorError::Session("a FUSE thread panicked".into())),
        }
    }
}

impl Drop for FuseDisk {
    fn drop(&mut self) {
        // Whoever wants to know calls `stop` first; here there is nobody to tell.
        let _ = self.stop();
    }
}

/// The path, free of links, of an existing directory that nothing is mounted on.
fn free_directory(path: &Path) -> Result<PathBuf, DoorError> {
    match mounts::mount_point(path)? {
        MountPoint::Free(path) => Ok(path),
        MountPoint::Taken(path) => Err(DoorError::MountPointTaken { path }),
    }
}

fn handshake_error(error: &std::io::Error) -> DoorError {
    let failed = SysError::io("agreeing with the kernel on the FUSE protocol", error);
    match error.kind() {
        std::io::ErrorKind::Unsupported => DoorError::Unavailable(Unavailable::Fuse(failed)),
        _ => DoorError::System(failed),
    }
}

fn mount_error(error: SysError) -> DoorError {
    match error.errno {
        libc::EPERM | libc::EACCES | libc::ENODEV | libc::ENOSYS => {
            DoorError::Unavailable(Unavailable::Mount(error))
        }
        _ => DoorError::System(error),
    }
}
