//! The loop export: serves any device as `/dev/loopN`.
//!
//! The export combines two common kernel facilities: FUSE provides a file whose contents a process supplies
//! ([`crate::fuse`]), and the loop driver makes a block device of that file. The loop device takes file systems and
//! swap like a disk. The export needs root; without it, or where a sandbox forbids mounting, [`LoopExport::start`]
//! fails with [`ExportError::Unavailable`], and the caller may try another export.
//!
//! The process that serves may be confined: then another one mounts, attaches, resizes and detaches ([`LoopBroker`],
//! [`OwnedLoop`]).
//!
//! A request passes from the loop driver to the FUSE file and is executed on a FUSE session thread. This module has no
//! threads and no locks: [`LoopExport`] owns the loop device and the mount, and removes both in that order when it is
//! stopped or dropped.
//!
//! The loop device is not auto-cleared and this process keeps no descriptor of it. An auto-cleared device is detached
//! when its last descriptor is closed, so the server would have to keep one. When such a server is killed, the kernel
//! closes its descriptors one after the other. It may close the loop device's before `/dev/fuse`, and then waits for
//! dirty pages to be written to a file system whose server is already dying: a deadlock. Instead, the loop device of
//! a dead server stays attached and fails every request with EIO, until another process calls [`clean_up`].
//!
//! This module does not make directories, keep state between runs, or unmount file systems that users mounted.

mod attachment;
mod cleanup;

use crate::BlockDevice;
pub use crate::export_error::{ExportError, Unavailable};
use crate::fuse::{FuseDisk, MAX_IO_BYTES};
pub use attachment::{LocalLoop, LoopBroker, LoopRequest, OwnedLoop};
pub use cleanup::{CleanUp, clean_up};
use pagefold_fuse::{KeptMount, Mounter, OwnedMount, Rings, Serving, Transport, free_directory};
use pagefold_page::PAGE_SIZE;
use pagefold_sys::blockuse::BlockUse;
use pagefold_sys::loopdev::{self, Detach, LoopIdentity};
use pagefold_sys::{fusedev, fusering};
use std::path::Path;
use std::sync::Arc;

/// Threads for the queue of each CPU, and entries of the ring of each: requests that the kernel hands to a thread
/// together. Each entry has a buffer of the longest request.
const THREADS_PER_QUEUE: usize = 2;
const RING_ENTRIES: usize = 2;
/// Most bytes of the buffers of all rings. A machine may have many more possible CPUs than CPUs, and each of them has a
/// queue.
pub const RING_BYTES_MAX: u64 = 32 << 20;
/// The longest request if longer ones have no space. Sequential transfers gain little from requests beyond this.
const SHORT_IO_BYTES: usize = MAX_IO_BYTES / 8;

/// Settings of a loop export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopOptions {
    /// Threads that serve requests, at least 1.
    pub threads: usize,
    /// Whether requests come through io_uring where the kernel offers it. Then each possible CPU has a thread or more.
    pub uring: bool,
    /// Most bytes of the rings' buffers. Where they have no space, requests are shorter, there are fewer threads, or
    /// `/dev/fuse` serves.
    pub ring_bytes: u64,
    /// The size of the loop device's sectors, bytes: 512 to 4096. A write of a part of a page reads the rest.
    pub sector_bytes: u32,
    /// The kernel's readahead for sequential buffered readers, KiB.
    pub read_ahead_kib: u64,
    /// Whether another process is to [take the export over](LoopExport::take_over) when this one has died. That is impossible
    /// with rings.
    pub is_kept: bool,
}

impl Default for LoopOptions {
    fn default() -> Self {
        LoopOptions {
            threads: 2,
            uring: false,
            ring_bytes: RING_BYTES_MAX,
            sector_bytes: PAGE_SIZE as u32,
            read_ahead_kib: 128,
            is_kept: false,
        }
    }
}

/// An open loop export. [`LoopExport::stop`] refuses while the device is in use; dropping closes it even then.
pub struct LoopExport {
    // Dropped in this order: the loop device is detached while its file is still served.
    attached: Attachment,
    disk: FuseDisk,
    device: Arc<dyn BlockDevice>,
}

/// A loop device whose server has died, for [`LoopExport::take_over`].
pub struct KeptLoop {
    /// The FUSE mount of its file.
    pub mounted: Box<dyn OwnedMount>,
    /// The channels of the mount.
    pub kept: KeptMount,
    /// The loop device.
    pub attached: Box<dyn OwnedLoop>,
}

/// How [`LoopExport::resize`] acts if the loop device has users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Users {
    /// It fails.
    Refuse,
    /// It changes the size under them.
    Ignore,
}

impl LoopExport {
    /// Serves `device` as a loop device, through a FUSE file in the empty directory `mount_point`.
    ///
    /// Returns when the device is ready. After a failure nothing stays mounted, attached or running. If the device is
    /// to be used as swap, call `pagefold_sys::harden::for_swap` first, before any other thread is started.
    pub fn start(
        device: Arc<dyn BlockDevice>,
        mount_point: &Path,
        options: LoopOptions,
    ) -> Result<Self, ExportError> {
        check_size(device.len_bytes())?;
        check_facilities()?;
        let path = free_directory(mount_point)?;
        let serving = serving(options);
        let disk =
            FuseDisk::mount_with(device.clone(), path, serving, options.is_kept, Mounter::ThisProcess)?;
        let request = options.request(disk.transport());
        let attached = LocalLoop::attach(&disk.file_path(), disk.device(), &request)?;
        Self::over(device, disk, Box::new(attached))
    }

    /// As [`LoopExport::start`], by a confined process: `broker` mounts and attaches. [`check_facilities`] comes before this
    /// process is confined.
    pub fn start_by(
        device: Arc<dyn BlockDevice>,
        broker: &dyn LoopBroker,
        options: LoopOptions,
    ) -> Result<Self, ExportError> {
        check_size(device.len_bytes())?;
        let mounter = Mounter::Broker(broker);
        let serving = serving(options);
        let disk =
            FuseDisk::mount_with(device.clone(), Default::default(), serving, options.is_kept, mounter)?;
        let attached = broker.attach(&options.request(disk.transport()))?;
        Self::over(device, disk, attached)
    }

    fn over(
        device: Arc<dyn BlockDevice>,
        disk: FuseDisk,
        attached: Box<dyn OwnedLoop>,
    ) -> Result<Self, ExportError> {
        let attached = Attachment(attached);
        match attached.0.identity().lo_inode == disk.inode() {
            true => Ok(LoopExport { attached, disk, device }),
            false => Err(ExportError::Session(
                "the loop device is attached to another file than this export's".into(),
            )),
        }
    }

    /// Serves a loop device whose server has died, or is killed before this is called; its requests wait meanwhile. `device`
    /// has the contents of the former one. After a failure the loop device is as it was.
    pub fn take_over(device: Arc<dyn BlockDevice>, kept: KeptLoop) -> Result<Self, ExportError> {
        let KeptLoop { mounted, kept, attached } = kept;
        let inode = attached.identity().lo_inode;
        let disk = FuseDisk::take_over(device.clone(), mounted, inode, kept)?;
        Ok(LoopExport { attached: Attachment(attached), disk, device })
    }

    /// The block device, `/dev/loopN`.
    pub fn device_path(&self) -> &Path {
        self.attached.0.path()
    }

    /// The FUSE mount whose file is the loop device's.
    pub fn disk(&self) -> &FuseDisk {
        &self.disk
    }

    /// The identity of this loop device, which differs from that of a later one with the same number. Record it for
    /// [`clean_up`].
    pub fn identity(&self) -> LoopIdentity {
        self.attached.0.identity()
    }

    /// Whether the loop device is still attached to this export's file. Another privileged process may have detached
    /// it, and the number may then belong to another device.
    pub fn is_attached(&self) -> bool {
        self.attached.0.is_attached()
    }

    /// The mounts, swap and other claims of the loop device.
    pub fn claims(&self) -> Vec<BlockUse> {
        self.attached.0.claims()
    }

    /// Gives the file and the loop device the size of the device that is served, if the former server died while it changed
    /// that.
    pub fn complete_resize(&self) -> Result<(), ExportError> {
        match self.attached.0.len_bytes()? == self.device.len_bytes() || !self.is_attached() {
            true => Ok(()),
            false => self.resize(Users::Ignore, &mut || Ok(())),
        }
    }

    /// Calls `change`, which may change the size of the device that is served, and gives the file and the loop device the
    /// size that it has then.
    ///
    /// With [`Users::Refuse`], no process can claim the loop device meanwhile: this fails with [`ExportError::InUse`]
    /// if it is mounted, used as swap or otherwise claimed. It does not see processes that merely have it open.
    pub fn resize<E: From<ExportError>>(
        &self,
        users: Users,
        change: &mut dyn FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        self.attached.0.begin_resize(users)?;
        let changed = change();
        self.attached.0.finish_resize(self.device.len_bytes())?;
        changed
    }

    /// Detaches the loop device and leaves the file mounted and served. Refuses like [`LoopExport::stop`] and can be
    /// repeated. A process that may not unmount calls this before it exits.
    pub fn detach(&self) -> Result<(), ExportError> {
        self.attached.0.detach(Detach::IfUnclaimed)
    }

    /// Closes the export: detaches the loop device, unmounts the file, and joins the session threads.
    ///
    /// Refuses with [`ExportError::InUse`] while the device is mounted, used as swap or otherwise claimed, and goes on
    /// serving. A process that merely has the device open gets errors afterwards. Can be repeated after any failure.
    pub fn stop(&mut self) -> Result<(), ExportError> {
        self.attached.0.detach(Detach::IfUnclaimed)?;
        self.disk.stop()
    }
}

impl LoopOptions {
    fn request(&self, transport: &Transport) -> LoopRequest {
        LoopRequest {
            sector_bytes: self.sector_bytes,
            read_ahead_kib: self.read_ahead_kib,
            io_kib: longest_request(transport) as u64 >> 10,
        }
    }
}

/// The threads and rings for the options. A thread that waits for a medium keeps the requests
/// of its ring waiting, so with more threads than usual for each queue, each ring has one entry.
fn serving(options: LoopOptions) -> Serving {
    let threads = options.threads.max(1);
    let queues = options.uring.then(fusering::queues).and_then(Result::ok);
    let rings = queues.and_then(|queues| choose_rings(threads, queues, options.ring_bytes));
    Serving { threads, rings }
}

/// The longest request of a transport, bytes. Without rings, short requests would save nothing.
fn longest_request(transport: &Transport) -> usize {
    match transport {
        Transport::Device { .. } => MAX_IO_BYTES,
        Transport::Rings { request_bytes, .. } => *request_bytes,
    }
}

/// The best shape whose buffers take at most `bytes_max`; `None` if there is none.
fn choose_rings(threads: usize, queues: usize, bytes_max: u64) -> Option<Rings> {
    let wanted = threads.div_ceil(queues).max(THREADS_PER_QUEUE);
    let entries = if wanted > THREADS_PER_QUEUE { 1 } else { RING_ENTRIES };
    let choices = [
        (wanted, entries, MAX_IO_BYTES),
        (wanted, 1, MAX_IO_BYTES),
        (wanted, 1, MAX_IO_BYTES / 2),
        (wanted, 1, MAX_IO_BYTES / 4),
        (wanted, 1, SHORT_IO_BYTES),
        (THREADS_PER_QUEUE, 1, SHORT_IO_BYTES),
        (1, 1, SHORT_IO_BYTES),
    ];
    let fits = |(threads, entries, bytes): &(usize, usize, usize)| {
        (threads * entries * queues) as u64 * *bytes as u64 <= bytes_max
    };
    let (threads_per_queue, entries, request_bytes) = choices.into_iter().find(fits)?;
    Some(Rings { threads_per_queue, entries, request_bytes })
}

fn check_size(len_bytes: u64) -> Result<(), ExportError> {
    if !len_bytes.is_multiple_of(PAGE_SIZE as u64) || i64::try_from(len_bytes).is_err() {
        return Err(ExportError::BadSize { len_bytes });
    }
    Ok(())
}

/// Checks the privilege and the drivers, before anything is mounted.
pub fn check_facilities() -> Result<(), ExportError> {
    if !rustix::process::geteuid().is_root() {
        return Err(Unavailable::NotRoot.into());
    }
    fusedev::open().map_err(|e| ExportError::from_facility(Unavailable::Fuse, e))?;
    loopdev::open_control().map_err(|e| ExportError::from_facility(Unavailable::Loop, e))?;
    Ok(())
}

/// A loop device of an export, detached on drop.
///
/// A drop does not refuse because of users: the kernel detaches the device when the last of them closes it. Until then
/// they get errors, because the file below is gone.
struct Attachment(Box<dyn OwnedLoop>);

impl Drop for Attachment {
    fn drop(&mut self) {
        let _ = self.0.detach(Detach::WhenLastUserCloses);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buffers_of_rings_fit_their_memory() {
        const KIB: usize = 1 << 10;
        let wanted = [
            ((2, 1, 32), Some((2, 2, 1024))),
            ((2, 2, 32), Some((2, 2, 1024))),
            ((2, 8, 32), Some((2, 2, 1024))),
            ((2, 16, 32), Some((2, 1, 1024))),
            ((2, 32, 32), Some((2, 1, 512))),
            ((2, 128, 32), Some((2, 1, 128))),
            ((2, 256, 32), Some((1, 1, 128))),
            ((2, 257, 32), None),
            ((2, 2, 4), Some((2, 1, 1024))),
            ((2, 2, 3), Some((2, 1, 512))),
            ((2, 2, 1), Some((2, 1, 256))),
            ((2, 2, 0), None),
            ((16, 2, 32), Some((8, 1, 1024))),
            ((16, 2, 4), Some((8, 1, 256))),
            ((16, 2, 1), Some((2, 1, 128))),
        ];
        for ((threads, queues, mib), shape) in wanted {
            let expected = shape.map(|(threads_per_queue, entries, kib)| Rings {
                threads_per_queue,
                entries,
                request_bytes: kib * KIB,
            });
            let found = choose_rings(threads, queues, mib << 20);
            assert_eq!(found, expected, "{threads} threads, {queues} queues, {mib} MiB");
        }
    }
}
