//! A FUSE file system of one file, which holds the device's contents.
//!
//! [`crate::loop_export`] attaches a loop device to the file. The file itself is an ordinary file that only the
//! mounting user may open. [`pagefold_fuse`] mounts the file system and runs its session threads; each receives
//! requests, and `fs` answers them on that thread. `warmup` has every session thread touch its memory before
//! [`FuseDisk::mount`] returns. There are no locks here.
//!
//! [`FuseDisk::stop`] aborts the connection, unmounts, and joins the threads. Requests in flight then fail.
//!
//! This module does not know loop devices, and it caches no page. The kernel caches the file for processes that open it
//! without `O_DIRECT`; a loop device with direct I/O does not use that cache.

mod fs;
mod warmup;

use crate::BlockDevice;
use crate::export_error::{ExportError, Unavailable};
use fs::OneFile;
pub use fs::{FILE_NAME, MAX_IO_BYTES};
use pagefold_fuse::{
    FuseError, FuseMount, Keep, KeptMount, MOUNT_NAME, Mounter, OwnedMount, Serving, SessionEnd, Transport,
    free_directory,
};
use pagefold_sys::mounts::DeviceNumber;
use pagefold_sys::{entropy, fusedev};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
pub use warmup::ThreadReport;
use warmup::ThreadWarmup;

/// The mounted file and the threads that serve it. Dropping it takes both down.
pub struct FuseDisk {
    mount: FuseMount,
    inode: u64,
    threads: ThreadReport,
    kept: Option<KeptMount>,
}

impl FuseDisk {
    /// Mounts `device` as a file in the empty directory `mount_point`, served by `threads` threads.
    ///
    /// Returns when every thread has its buffers in memory. After a failure nothing stays mounted or running.
    pub fn mount(
        device: Arc<dyn BlockDevice>,
        mount_point: &Path,
        threads: usize,
    ) -> Result<Self, ExportError> {
        let mount_point = free_directory(mount_point)?;
        Self::mount_with(device, mount_point, threads.into(), false, Mounter::ThisProcess)
    }

    /// Mounts like [`FuseDisk::mount`], with rings if `serving` has them, by `mounter`. If `is_kept`, another process can [take
    /// the file over](FuseDisk::take_over) when this one has died, if the kernel allows that: see [`FuseDisk::kept`].
    /// `mount_point` is a path from [`free_directory`]; a broker knows it itself.
    pub fn mount_with(
        device: Arc<dyn BlockDevice>,
        mount_point: PathBuf,
        serving: Serving,
        is_kept: bool,
        mounter: Mounter<'_>,
    ) -> Result<Self, ExportError> {
        // A random number identifies the file even if another file system gets this device number later. Bit 40 is
        // set so that it never equals the root's number, and the top bits are 0 so that adding to it cannot overflow.
        let inode = entropy::random_u64()? >> 2 | 1 << 40;
        let warmup = Arc::new(ThreadWarmup::default());
        let file_system = OneFile::new(device, inode, warmup.clone());
        let request = fusedev::Request::private(MOUNT_NAME, MAX_IO_BYTES);
        let mut kept = None;
        let keep: Keep<'_> = Box::new(|mount| {
            kept = Some(mount);
            Ok(())
        });
        let keep = is_kept.then_some(keep);
        let mount =
            FuseMount::new_kept(file_system, mount_point, &request, mounter, serving, || Ok(()), keep)?;
        let threads = warmup.report();
        Ok(FuseDisk { mount, inode, threads, kept })
    }

    /// Serves the file with the number `inode` of `mounted` whose server has died, or is killed before this is called. `kept` is
    /// that of its server. After a failure the mount is as it was.
    pub fn take_over(
        device: Arc<dyn BlockDevice>,
        mounted: Box<dyn OwnedMount>,
        inode: u64,
        kept: KeptMount,
    ) -> Result<Self, ExportError> {
        let for_the_next = kept.try_clone()?;
        let warmup = Arc::new(ThreadWarmup::default());
        let file_system = OneFile::new(device, inode, warmup.clone());
        let mount = FuseMount::take_over_mount(file_system, mounted, false, kept)?;
        let threads = warmup.report();
        Ok(FuseDisk { mount, inode, threads, kept: Some(for_the_next) })
    }

    /// The things by which another process can take the file over. `None` if that is impossible, for the reason of
    /// [`FuseDisk::can_be_kept`].
    pub fn kept(&self) -> Option<&KeptMount> {
        self.kept.as_ref()
    }

    /// Whether another process can take the file over, or why that is impossible; `None` if nobody asked for that, or if
    /// rings serve.
    pub fn can_be_kept(&self) -> Option<&Result<(), String>> {
        self.mount.kept()
    }

    /// The file's path.
    pub fn file_path(&self) -> PathBuf {
        self.mount.path().join(FILE_NAME)
    }

    /// The device number of the file system.
    pub fn device(&self) -> DeviceNumber {
        self.mount.device()
    }

    /// The file's inode number, random.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// How requests reach the session threads.
    pub fn transport(&self) -> &Transport {
        self.mount.transport()
    }

    /// The end of the session threads, or of the first one; `None` while all serve.
    pub fn end(&self) -> Option<SessionEnd> {
        self.mount.end()
    }

    /// A descriptor that is readable from the end of the first session thread on, for `poll`.
    pub fn first_end(&self) -> Option<BorrowedFd<'_>> {
        self.mount.first_end()
    }

    /// The report of the session threads from their warm-up.
    pub fn threads(&self) -> ThreadReport {
        self.threads
    }

    /// Aborts the connection, unmounts, and waits for the threads to end. Can be repeated.
    pub fn stop(&mut self) -> Result<(), ExportError> {
        Ok(self.mount.stop()?)
    }
}

impl From<FuseError> for ExportError {
    fn from(error: FuseError) -> Self {
        match error {
            FuseError::Taken { path } => ExportError::MountPointTaken { path },
            FuseError::Open(e) => ExportError::from_facility(Unavailable::Fuse, e),
            FuseError::Mount(e) => match e.errno {
                libc::EPERM | libc::EACCES | libc::ENODEV | libc::ENOSYS => {
                    ExportError::Unavailable(Unavailable::Mount(e))
                }
                _ => ExportError::System(e),
            },
            FuseError::Unsupported(e) => ExportError::Unavailable(Unavailable::Fuse(e)),
            FuseError::System(e) => ExportError::System(e),
            // A disk is never mounted by the helper.
            FuseError::Helper { .. } | FuseError::Session(_) => ExportError::Session(error.to_string()),
        }
    }
}
