//! The loop export: a FUSE file system with one file, and a loop device attached to it.
//!
//! The broker of the server mounts, attaches and resizes. Neither unmounts: the right to that is dropped before the disk serves.
//! Commands unmount after the server has exited (`pagefold_control::instance::loop_device`).

use super::interface::{Export, Kept, Opening, TakenOver};
use crate::broker::{Broker, ByBroker};
use crate::disk::Disk;
use crate::log;
use pagefold_block::loop_export::{KeptLoop, LoopExport, LoopOptions, RING_BYTES_MAX, Users};
use pagefold_control::config::{DiskConfig, FuseUring};
use pagefold_control::error::{CliError, Result};
use pagefold_control::export_kind::ExportKind;
use pagefold_control::instance::loop_device::describe_use;
use pagefold_control::instance::state::{ExportState, LoopBackingFile};
use pagefold_control::report::disk::RingsReport;
use pagefold_fuse::SessionEnd;
use pagefold_store::MemLimit;
use pagefold_sys::fusering;
use pagefold_sys::harden;
use pagefold_sys::loopdev::LoopIdentity;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;

/// Threads that serve a disk with a backing. A thread that reads a written-back page waits for the medium; the others
/// serve pages in memory meanwhile.
const THREADS_WITH_BACKING: usize = 16;

/// The rings' buffers are a part of the disk's memory, and take at most one part in so many of it: those of a small disk are
/// small.
const MEMORY_PER_RINGS: u64 = 8;

/// An open loop export.
pub struct Loop {
    export: LoopExport,
    mount_point: PathBuf,
    sector_bytes: u32,
    /// Whether the administrator wants to know that rings do not serve.
    wants_rings: bool,
}

impl Loop {
    /// Lets the broker mount, starts to serve, and lets the broker attach the loop device.
    pub(super) fn open(opening: &Opening<'_>) -> Result<Self> {
        let Opening { config, disk, dir, broker, is_kept } = *opening;
        let uring = config.fuse_uring;
        let usual = LoopOptions::default();
        // A disk without a size can get a backing.
        let may_have_backing = disk.running().is_none() || disk.setup().medium.is_some();
        let threads = if may_have_backing { THREADS_WITH_BACKING } else { usual.threads };
        let uses_rings = match uring {
            FuseUring::On => true,
            FuseUring::Off => false,
            // Requests that a server has read from a ring die with it. Besides, the kernel chooses the ring of a request by its
            // CPU: if all threads of one wait for the medium, requests for pages in memory wait behind them, although threads
            // of others are idle.
            FuseUring::Auto => !is_kept && !may_have_backing,
        };
        let options = LoopOptions {
            threads,
            uring: uses_rings,
            ring_bytes: ring_bytes(crate::disk::memory_limit(&disk.setup())),
            sector_bytes: config.sector_size.bytes(),
            is_kept,
            ..usual
        };
        let export = LoopExport::start_by(disk.device(), &ByBroker(broker.clone()), options)?;
        Ok(Loop {
            export,
            mount_point: dir.mount_path(),
            sector_bytes: options.sector_bytes,
            wants_rings: uring == FuseUring::On || uses_rings && fusering::is_enabled(),
        })
    }

    /// Serves the loop device of a former server.
    pub(super) fn take_over(
        config: &DiskConfig,
        disk: &Disk,
        broker: &Arc<Broker>,
        taken: TakenOver,
    ) -> Result<Self> {
        let ExportState::Loop { device: Some(path), backing: Some(backing), mount_point } = taken.state
        else {
            return Err(CliError::failed("the former server handed over no loop device"));
        };
        let kept = taken.mount;
        let kept = kept.ok_or_else(|| CliError::failed("the former server handed over no mount"))?;
        let LoopBackingFile { device: lo_device, inode: lo_inode } = backing;
        let attached = broker.former_loop(path, LoopIdentity { lo_device, lo_inode });
        let mounted = broker.former_mount(kept.device, kept.is_by_helper);
        let export = LoopExport::take_over(disk.device(), KeptLoop { mounted, kept, attached })?;
        let sector_bytes = config.sector_size.bytes();
        Ok(Loop { export, mount_point, sector_bytes, wants_rings: config.fuse_uring == FuseUring::On })
    }
}

impl Loop {
    fn state_with(&self, device: Option<PathBuf>) -> ExportState {
        let LoopIdentity { lo_device, lo_inode } = self.export.identity();
        let backing = Some(LoopBackingFile { device: lo_device, inode: lo_inode });
        ExportState::Loop { device, backing, mount_point: self.mount_point.clone() }
    }
}

/// Most bytes of the rings' buffers on a disk with this limit of memory.
fn ring_bytes(limit: MemLimit) -> u64 {
    (limit.bytes() / MEMORY_PER_RINGS).min(RING_BYTES_MAX)
}

impl Export for Loop {
    fn kind(&self) -> ExportKind {
        ExportKind::Loop
    }

    fn transport(&self) -> Option<&'static str> {
        Some(crate::transport::name(self.export.disk().transport()))
    }

    fn rings(&self) -> Option<RingsReport> {
        crate::transport::rings(self.export.disk().transport())
    }

    fn sector_bytes(&self) -> Option<u32> {
        Some(self.sector_bytes)
    }

    fn warnings(&self) -> Vec<String> {
        let no_rings = crate::transport::warning(self.export.disk().transport()).filter(|_| self.wants_rings);
        no_rings.into_iter().collect()
    }

    fn end(&self) -> Option<SessionEnd> {
        self.export.disk().end()
    }

    fn first_end(&self) -> Option<BorrowedFd<'_>> {
        self.export.disk().first_end()
    }

    fn not_kept(&self) -> Option<String> {
        let disk = self.export.disk();
        crate::transport::not_kept(disk.can_be_kept(), disk.transport())
    }

    fn kept(&self) -> Kept<'_> {
        let state = self.state_with(Some(self.export.device_path().to_path_buf()));
        Kept { state, mount: self.export.disk().kept(), listener: None }
    }

    fn state(&self) -> ExportState {
        self.state_with(self.export.is_attached().then(|| self.export.device_path().to_path_buf()))
    }

    fn users(&self) -> Vec<String> {
        self.export.claims().iter().map(describe_use).collect()
    }

    fn resize(&self, users: Users, change: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.export.resize(users, change)
    }

    fn complete_resize(&self) -> Result<()> {
        Ok(self.export.complete_resize()?)
    }

    fn close(&self, _force: bool) -> Result<()> {
        Ok(self.export.detach()?)
    }
}

/// Whether a server with this configuration may use io_uring, for requests or for I/O to a backing. A disk that gets a backing
/// only after a reset does its I/O without.
pub fn may_use_rings(config: &DiskConfig, is_kept: bool) -> bool {
    let for_requests = match config.fuse_uring {
        FuseUring::On => true,
        FuseUring::Auto => !is_kept,
        FuseUring::Off => false,
    };
    for_requests && config.export.facts().uses_fuse || config.backing.is_some() || config.size_bytes == 0
}

/// Locks the memory of a server that takes such a disk over; it has inherited the rest. Returns the reason that swapping to the
/// disk is not safe, if it is not.
pub fn prepare_again_for_swap() -> Option<String> {
    let locked = harden::lock_memory_again();
    locked.err().map(|e| format!("swapping to this disk is not safe here: {e}"))
}

/// Prepares the process for a disk that may be used as swap: locks its memory, makes it an I/O flusher, and protects it
/// from the OOM killer. The caller has started no other threads yet, and a change of its user does not undo it. Returns the
/// reason that swapping to the disk is not safe, if it is not, with the refused steps, and logs it.
pub fn prepare_for_swap() -> Option<String> {
    let report = harden::for_swap();
    let refused: Vec<_> = report.refused().iter().map(|e| e.to_string()).collect();
    let warning = match refused.as_slice() {
        [] => None,
        refused => Some(format!("swapping to this disk is not safe here: {}", refused.join("; "))),
    };
    if let Some(warning) = &warning {
        log::warning(format_args!("{warning}"));
    }
    warning
}
