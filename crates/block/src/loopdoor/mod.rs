//! The loop door: any device as `/dev/loopN`.
//!
//! Two kernel facilities that are nearly everywhere make one that is not: FUSE gives a file whose
//! contents a process supplies, and the loop driver makes a block device of a file. What comes out
//! takes file systems and swap like a disk. It needs root; without it, or where a sandbox forbids
//! mounting, [`LoopDoor::start`] says so ([`DoorError::Unavailable`]) and another door has to do.
//!
//! The loop device is not auto-cleared and this process keeps no descriptor of it. An auto-cleared
//! device lives as long as someone has it open, so the server would have to be that someone; and when
//! such a server is killed, the kernel closes its descriptors one after the other, may come to the loop
//! device first, and waits for dirty pages to be written to a file system whose server it is just
//! burying. Instead the device stays behind a dead server, answers every request with an error, and is
//! cleaned up from outside by [`clean_up`].
//!
//! It does not make directories, remember anything between runs, or unmount what users mounted.

mod cleanup;
mod error;

use crate::BlockDevice;
use crate::fuse::{FuseDisk, ThreadReport};
pub use cleanup::{CleanUp, clean_up};
pub use error::{DoorError, Unavailable};
use pagefold_page::PAGE_SIZE;
use pagefold_sys::loopdev::{self, AttachError, AttachedLoop, Detach, Detached, LoopIdentity};
use pagefold_sys::privileges::{self, CapabilitySet};
use pagefold_sys::{SysError, blockuse, fusedev};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Whoever looks at new devices (udev, blkid) has them open for a moment.
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);

/// How to open a door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopOptions {
    /// Threads that serve requests, at least 1.
    pub threads: usize,
    /// What the kernel reads ahead of sequential buffered readers, KiB.
    pub read_ahead_kib: u64,
    /// Give up every capability of the calling thread but these once the file is mounted, so that the
    /// threads that serve have no others either. Without CAP_SYS_ADMIN this process can detach the loop
    /// device ([`LoopDoor::detach`]) but not unmount: [`clean_up`] is left to a process that may.
    pub keep_capabilities: Option<CapabilitySet>,
}

impl Default for LoopOptions {
    fn default() -> Self {
        LoopOptions { threads: 2, read_ahead_kib: 128, keep_capabilities: None }
    }
}

/// An open door. Dropping it closes it whoever uses it; [`LoopDoor::stop`] asks first.
pub struct LoopDoor {
    // Dropped in this order: the loop device goes while its file is still served.
    attached: Attachment,
    disk: FuseDisk,
}

impl LoopDoor {
    /// Serves `device` as a loop device, through a FUSE file in the empty directory `mount_point`.
    ///
    /// Returns when the device is ready. A failure leaves nothing behind. For a device that is to be
    /// swapped to, call `pagefold_sys::harden::for_swap` first, before any other thread is started.
    pub fn start(
        device: Arc<dyn BlockDevice>,
        mount_point: &Path,
        options: LoopOptions,
    ) -> Result<Self, DoorError> {
        preflight(device.len_bytes())?;
        let disk = FuseDisk::mount_then(device, mount_point, options.threads.max(1), || {
            options.keep_capabilities.map_or(Ok(()), privileges::drop_capabilities_except)
        })?;
        let attached = Attachment::new(&disk)?;
        tune(&attached.0.path, options);
        Ok(LoopDoor { attached, disk })
    }

    /// The block device, `/dev/loopN`.
    pub fn device_path(&self) -> &Path {
        &self.attached.0.path
    }

    /// What tells this loop device from one that gets its number later. To be kept for [`clean_up`].
    pub fn identity(&self) -> LoopIdentity {
        self.attached.0.identity
    }

    /// Whether the loop device still stands on this door's file. Anybody with the right to may detach it, and
    /// its number may then belong to another.
    pub fn is_attached(&self) -> bool {
        // If it cannot be asked, nothing says that it has changed.
        loopdev::identity(self.device_path()).map_or(true, |found| found == Some(self.identity()))
    }

    /// How many threads serve, and how many of them the kernel knows as I/O flushers.
    pub fn threads(&self) -> ThreadReport {
        self.disk.threads()
    }

    /// Takes the loop device away and leaves the file mounted and served; refuses as [`LoopDoor::stop`]
    /// does. For a process without the right to unmount, which then ends. Can be repeated.
    pub fn detach(&self) -> Result<(), DoorError> {
        self.attached.detach(Detach::IfUnclaimed)
    }

    /// Closes the door: detaches the loop device, unmounts the file, ends the threads.
    ///
    /// Refuses with [`DoorError::InUse`] while the device is mounted, swapped to or otherwise claimed,
    /// and goes on serving. A process that merely has the device open reads errors afterwards. Can be
    /// repeated after any failure.
    pub fn stop(&mut self) -> Result<(), DoorError> {
        self.attached.detach(Detach::IfUnclaimed)?;
        self.disk.stop()
    }
}

/// Finds out cheaply, and before anything is mounted, whether there is a point in trying.
fn preflight(len_bytes: u64) -> Result<(), DoorError> {
    if len_bytes == 0 || !len_bytes.is_multiple_of(PAGE_SIZE as u64) || i64::try_from(len_bytes).is_err() {
        return Err(DoorError::BadSize { len_bytes });
    }
    if !rustix::process::geteuid().is_root() {
        return Err(Unavailable::NotRoot.into());
    }
    fusedev::open().map_err(|e| DoorError::missing(Unavailable::Fuse, e))?;
    loopdev::open_control().map_err(|e| DoorError::missing(Unavailable::Loop, e))?;
    Ok(())
}

/// Settings of the request queue that are a matter of speed only: a kernel without one is no error.
fn tune(path: &Path, options: LoopOptions) {
    let max_io_kib = crate::fuse::MAX_IO_BYTES as u64 >> 10;
    for (attribute, value) in [("read_ahead_kb", options.read_ahead_kib), ("max_sectors_kb", max_io_kib)] {
        let _ = loopdev::set_queue(path, attribute, value);
    }
}

/// A loop device of ours, detached on drop.
///
/// Dropping does not ask: whoever stands on the device gets errors from then on, and the number is
/// free again when they let go.
struct Attachment(AttachedLoop);

impl Attachment {
    /// Opening the file, and the driver's looking at it, are requests to our own session threads.
    fn new(disk: &FuseDisk) -> Result<Self, DoorError> {
        let file = open_direct(&disk.file_path())?;
        let attached = loopdev::attach(&file, PAGE_SIZE as u32).map_err(|e| match e {
            AttachError::Unavailable(e) => DoorError::missing(Unavailable::Loop, e),
            AttachError::NoDirectIo => Unavailable::DirectIo.into(),
            AttachError::Failed(e) => DoorError::System(e),
        })?;
        let attached = Attachment(attached);
        match attached.0.identity.lo_inode == disk.inode() {
            true => Ok(attached),
            false => Err(DoorError::Session("the loop device stands on another file than ours".into())),
        }
    }

    fn detach(&self, how: Detach) -> Result<(), DoorError> {
        match detach_and_wait(&self.0, how)? {
            Detached::Claimed => Err(in_use(&self.0.path)),
            Detached::Now | Detached::NotOurs | Detached::WhenClosed => Ok(()),
        }
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let _ = self.detach(Detach::WhenLastUserCloses);
    }
}

/// Detaches, and gives a passing reader the time to let go. One that does not is not waited for.
fn detach_and_wait(device: &AttachedLoop, how: Detach) -> Result<Detached, SysError> {
    let AttachedLoop { path, identity, .. } = device;
    let deadline = Instant::now() + CLOSE_PATIENCE;
    let mut outcome = loopdev::detach_if(path, *identity, how)?;
    while outcome == Detached::WhenClosed && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
        if loopdev::identity(path)? != Some(*identity) {
            outcome = Detached::Now;
        }
    }
    Ok(outcome)
}

fn in_use(path: &Path) -> DoorError {
    let uses = blockuse::claims(path).unwrap_or_default();
    DoorError::InUse { device: path.to_path_buf(), uses }
}

fn open_direct(path: &Path) -> Result<File, SysError> {
    let opened = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path);
    opened.map_err(|e| SysError::io(format!("opening {}", path.display()), &e))
}
