//! [`Server`]: what the threads of a disk's server share.

use crate::disk::{self, Disk, Passes};
use crate::export::Export;
use crate::log;
use pagefold_control::error::Result;
use pagefold_control::instance::InstanceDir;
use pagefold_control::instance::state::{BackingFile, ExportState, State};
use pagefold_sys::pidfd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

/// The disk and its export, shared by the main thread and the threads of the control socket.
pub(super) struct Server {
    pub(super) dir: InstanceDir,
    pub(super) disk: Disk,
    pub(super) export: Box<dyn Export>,
    /// The reason that swapping to the disk is not safe, if it is not.
    pub(super) swap_warning: Option<String>,
    /// Other warnings for the administrator.
    pub(super) warnings: Vec<String>,
    /// The backing file that is removed with the disk.
    pub(super) created: Option<BackingFile>,
    /// Set when the device was closed on request.
    pub(super) removed: AtomicBool,
    pub(super) passes: Passes,
    /// Shut down to wake the main thread, which polls the other end.
    pub(super) wake_sender: UnixStream,
}

/// The state for the state file.
pub(super) fn state(disk: &Disk, export: Option<ExportState>, backing: Option<BackingFile>) -> State {
    State {
        name: disk.name().clone(),
        server: pidfd::Identity::of_self().map(Into::into),
        size_bytes: disk.size_bytes(),
        created_unix_s: disk.created_unix_s(),
        export,
        backing,
    }
}

impl Server {
    /// The state for the state file, with that of the open export.
    pub(super) fn state(&self) -> State {
        state(&self.disk, Some(self.export.state()), self.created.clone())
    }

    /// The warnings of a report.
    pub(super) fn all_warnings(&self) -> Vec<String> {
        let has_large_sectors = self.export.sector_bytes().is_some_and(|bytes| bytes > 512);
        let live = self.disk.running().filter(|_| has_large_sectors);
        let of_sectors = live.and_then(|live| disk::sector_warning(&live));
        self.swap_warning.iter().chain(&self.warnings).cloned().chain(of_sectors).collect()
    }

    /// Closes the device; fails if it is in use (an NBD export only without `force`). Records that it is closed: if the
    /// process dies from now on, commands report that the disk has ended, not that its server died.
    pub(super) fn close_device(&self, force: bool) -> Result<()> {
        self.export.close(force)?;
        match self.dir.mark_ended() {
            Err(e) if self.dir.exists() => {
                log::warning(format_args!("{e}; the next command takes this server for one that died"));
            }
            // Without the folder, no command finds the disk.
            _ => {}
        }
        Ok(())
    }

    /// Closes the device, and lets the main thread end when the reply has been sent.
    pub(super) fn remove(&self, force: bool) -> Result<()> {
        self.close_device(force)?;
        self.removed.store(true, Ordering::Release);
        Ok(())
    }
}
