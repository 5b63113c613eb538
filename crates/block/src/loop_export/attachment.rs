//! The loop device of an export, behind an interface: the process that serves the file may have no right to open either.
//!
//! [`LocalLoop`] does everything in this process. A server that is confined has a broker with another [`OwnedLoop`], whose
//! process has a [`LocalLoop`]. That process takes the server for hostile: it follows no link in the file system that the server
//! serves, and uses a file only if it is on that file system.

use super::cleanup::{detach_and_wait, in_use};
use super::{ExportError, Unavailable, Users};
use pagefold_sys::SysError;
use pagefold_sys::blockuse::{self, BlockUse};
use pagefold_sys::loopdev::{self, AttachError, AttachedLoop, Detach, Detached, LoopIdentity};
use pagefold_sys::mounts::DeviceNumber;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The properties of a loop device to attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopRequest {
    /// The size of its sectors, bytes.
    pub sector_bytes: u32,
    /// The kernel's readahead for sequential buffered readers, KiB.
    pub read_ahead_kib: u64,
    /// The longest request, KiB.
    pub io_kib: u64,
}

/// A process with the rights to mount and to attach loop devices, for a confined one.
pub trait LoopBroker: pagefold_fuse::Broker {
    /// Attaches a loop device to the file that this process serves.
    fn attach(&self, request: &LoopRequest) -> Result<Box<dyn OwnedLoop>, ExportError>;
}

/// A loop device that its owner detaches.
pub trait OwnedLoop: Send + Sync {
    /// The block device, `/dev/loopN`.
    fn path(&self) -> &Path;

    /// Its identity.
    fn identity(&self) -> LoopIdentity;

    /// Whether it is still attached to the file.
    fn is_attached(&self) -> bool;

    /// Its size, bytes.
    fn len_bytes(&self) -> Result<u64, ExportError>;

    /// Its mounts, swap and other claims.
    fn claims(&self) -> Vec<BlockUse>;

    /// Begins a change of the size. With [`Users::Refuse`], no process can claim the device until [`OwnedLoop::finish_resize`],
    /// and this fails if one has claimed it.
    fn begin_resize(&self, users: Users) -> Result<(), ExportError>;

    /// Gives the file and the device this size, which the file's server reports for it by now.
    fn finish_resize(&self, len_bytes: u64) -> Result<(), ExportError>;

    /// Detaches it. Fails with [`Detach::IfUnclaimed`] if it is in use.
    fn detach(&self, how: Detach) -> Result<(), ExportError>;
}

/// A loop device of this process.
#[derive(Debug)]
pub struct LocalLoop {
    attached: AttachedLoop,
    /// The file that it is attached to.
    file: PathBuf,
    /// The open device during a change of its size.
    resizing: Mutex<Option<File>>,
}

impl LocalLoop {
    /// Attaches a loop device to `file`, which is on the file system `mounted`. The open and the driver's reads of the file's
    /// attributes are requests to the threads that serve the file, which must already be running.
    pub fn attach(file: &Path, mounted: DeviceNumber, request: &LoopRequest) -> Result<Self, ExportError> {
        let opened = open_on(file, mounted, libc::O_DIRECT)?;
        let attached = loopdev::attach(&opened, request.sector_bytes).map_err(|e| match e {
            AttachError::Unavailable(e) => ExportError::from_facility(Unavailable::Loop, e),
            AttachError::NoDirectIo => Unavailable::DirectIo.into(),
            AttachError::Failed(e) => ExportError::System(e),
        })?;
        let attached = LocalLoop { attached, file: file.to_path_buf(), resizing: Mutex::default() };
        if attached.identity().file_system() != mounted {
            let _ = attached.detach(Detach::WhenLastUserCloses);
            return Err(foreign(file));
        }
        // These affect speed only, so a kernel that lacks one is no error.
        for (name, value) in [("read_ahead_kb", request.read_ahead_kib), ("max_sectors_kb", request.io_kib)] {
            let _ = loopdev::set_queue(attached.path(), name, value);
        }
        Ok(attached)
    }

    /// The loop device `path` with this identity, which another process has attached to `file`.
    pub fn taken_over(path: PathBuf, identity: LoopIdentity, file: PathBuf) -> Self {
        let attached = AttachedLoop { path, identity, backing_file: OsString::from(&file) };
        LocalLoop { attached, file, resizing: Mutex::default() }
    }

    fn lock_resizing(&self) -> std::sync::MutexGuard<'_, Option<File>> {
        self.resizing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OwnedLoop for LocalLoop {
    fn path(&self) -> &Path {
        &self.attached.path
    }

    fn identity(&self) -> LoopIdentity {
        self.attached.identity
    }

    fn is_attached(&self) -> bool {
        // If its status cannot be read, assume that nothing has changed.
        loopdev::identity(self.path()).map_or(true, |found| found == Some(self.identity()))
    }

    fn len_bytes(&self) -> Result<u64, ExportError> {
        Ok(loopdev::len_bytes(self.path())?)
    }

    fn claims(&self) -> Vec<BlockUse> {
        match self.is_attached() {
            true => blockuse::claims(self.path()).unwrap_or_default(),
            false => Vec::new(),
        }
    }

    fn begin_resize(&self, users: Users) -> Result<(), ExportError> {
        let path = self.path();
        let opened = loopdev::open_if(path, self.identity(), users == Users::Refuse)?;
        let device = opened.map_err(|taken| match taken {
            Detached::Claimed => in_use(path),
            _ => ExportError::Session(format!("{} is attached to another file now", path.display())),
        })?;
        drop_cache(&device);
        *self.lock_resizing() = Some(device);
        Ok(())
    }

    fn finish_resize(&self, len_bytes: u64) -> Result<(), ExportError> {
        let device = self.lock_resizing().take();
        let device = device.ok_or_else(|| ExportError::Session("no change of the size has begun".into()))?;
        // This only makes the kernel cache the size, which the server of the file has changed.
        let file = open_on(&self.file, self.identity().file_system(), 0)?;
        let resized = file.set_len(len_bytes);
        resized.map_err(|e| SysError::io(format!("resizing {}", self.file.display()), &e))?;
        drop_cache(&device);
        Ok(loopdev::set_capacity(&device)?)
    }

    fn detach(&self, how: Detach) -> Result<(), ExportError> {
        match detach_and_wait(&self.attached, how)? {
            Detached::Claimed => Err(in_use(self.path())),
            Detached::Now | Detached::NotOurs | Detached::WhenClosed => Ok(()),
        }
    }
}

/// Opens a regular file on the file system `mounted` for reading and writing.
fn open_on(path: &Path, mounted: DeviceNumber, flags: i32) -> Result<File, ExportError> {
    let failed = |e: &std::io::Error| SysError::io(format!("opening {}", path.display()), e);
    let flags = flags | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file =
        OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).map_err(|e| failed(&e))?;
    let meta = file.metadata().map_err(|e| failed(&e))?;
    match meta.is_file() && DeviceNumber::from_dev_t(meta.dev()) == mounted {
        true => Ok(file),
        false => Err(foreign(path)),
    }
}

fn foreign(path: &Path) -> ExportError {
    ExportError::Session(format!("{} is not the file of this export", path.display()))
}

/// Writes and drops the pages of the device that the kernel caches for a process that has it open, so that they do not
/// appear in the next contents. Without such a process there are none.
fn drop_cache(device: &File) {
    let _ = device.sync_data();
    let _ = rustix::fs::fadvise(device, 0, None, rustix::fs::Advice::DontNeed);
}
