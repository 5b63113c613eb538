//! The loop export: a FUSE file system with one file, and a loop device attached to it.
//!
//! The server cannot unmount: it dropped the capability before it began to serve. Commands unmount after it has exited
//! (`pagefold_control::instance::loop_device`).

use super::interface::{Export, Kept, Opening, TakenOver};
use crate::disk::Disk;
use crate::log;
use pagefold_block::loop_export::{KeptLoop, LoopExport, LoopOptions, RING_BYTES_MAX, Users};
use pagefold_control::config::{DiskConfig, FuseUring};
use pagefold_control::error::{CliError, Result};
use pagefold_control::export_kind::ExportKind;
use pagefold_control::instance::InstanceDir;
use pagefold_control::instance::loop_device::describe_use;
use pagefold_control::instance::state::{ExportState, LoopBackingFile};
use pagefold_control::report::disk::RingsReport;
use pagefold_fuse::SessionEnd;
use pagefold_store::MemLimit;
use pagefold_sys::blockuse;
use pagefold_sys::fusering;
use pagefold_sys::harden;
use pagefold_sys::loopdev::LoopIdentity;
use pagefold_sys::privileges::CapabilitySet;
use std::fs::DirBuilder;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

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
    /// Mounts, drops all capabilities except `keep`, starts to serve, and attaches the loop device.
    pub(super) fn open(opening: &Opening<'_>) -> Result<Self> {
        let Opening { config, disk, dir, keep, is_kept } = *opening;
        let uring = config.fuse_uring;
        let mount_point = dir.mount_path();
        DirBuilder::new()
            .mode(0o700)
            .create(&mount_point)
            .map_err(|e| CliError::io(format!("creating '{}'", mount_point.display()), &e))?;
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
            keep_capabilities: Some(keep),
            is_kept,
            ..usual
        };
        let export = LoopExport::start(disk.device(), &mount_point, options)?;
        Ok(Loop {
            export,
            mount_point,
            sector_bytes: options.sector_bytes,
            wants_rings: uring == FuseUring::On || uses_rings && fusering::is_enabled(),
        })
    }

    /// Serves the loop device of a former server.
    pub(super) fn take_over(
        config: &DiskConfig,
        disk: &Disk,
        dir: &InstanceDir,
        taken: TakenOver,
    ) -> Result<Self> {
        let ExportState::Loop { device: Some(path), backing: Some(backing), mount_point } = taken.state
        else {
            return Err(CliError::failed("the former server handed over no loop device"));
        };
        let mount = taken.mount;
        let mount = mount.ok_or_else(|| CliError::failed("the former server handed over no mount"))?;
        let LoopBackingFile { device: lo_device, inode } = backing;
        let identity = LoopIdentity { lo_device, lo_inode: inode };
        let resolved = dir.path().canonicalize();
        let folder = resolved.map_err(|e| CliError::io("resolving the folder of the disk", &e))?;
        let at = folder.join(mount_point.file_name().unwrap_or_default());
        let export = LoopExport::take_over(disk.device(), at, KeptLoop { mount, inode, path, identity })?;
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
        if !self.export.is_attached() {
            return Vec::new();
        }
        let claims = blockuse::claims(self.export.device_path()).unwrap_or_default();
        claims.iter().map(describe_use).collect()
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

/// Locks the memory of a server that takes such a disk over; it has inherited the rest. Returns the reason that swapping to the
/// disk is not safe, if it is not. `before` is that of the former server.
pub fn prepare_again_for_swap(before: Option<String>) -> Option<String> {
    let locked = harden::lock_memory_again();
    before.or_else(|| locked.err().map(|e| format!("swapping to this disk is not safe here: {e}")))
}

/// The result of [`prepare_for_swap`].
pub struct PreparedForSwap {
    /// The capabilities to keep.
    pub keep: CapabilitySet,
    /// The reason that swapping to the disk is not safe, if it is not.
    pub warning: Option<String>,
}

/// Prepares the process for a disk that may be used as swap: locks its memory, makes it an I/O flusher, and protects it
/// from the OOM killer. The caller has started no other threads yet. The warning names the refused steps, and is also
/// logged.
pub fn prepare_for_swap() -> PreparedForSwap {
    let report = harden::for_swap();
    let refused: Vec<_> = report.refused().iter().map(|e| e.to_string()).collect();
    let warning = match refused.as_slice() {
        [] => None,
        refused => Some(format!("swapping to this disk is not safe here: {}", refused.join("; "))),
    };
    if let Some(warning) = &warning {
        log::warning(format_args!("{warning}"));
    }
    // New mappings are locked too. If RLIMIT_MEMLOCK could not be raised, the server needs this capability to map more.
    let keep = match (&report.lock_limit, &report.memory_locked) {
        (Err(_), Ok(())) => CapabilitySet::IPC_LOCK,
        _ => CapabilitySet::empty(),
    };
    PreparedForSwap { keep, warning }
}
