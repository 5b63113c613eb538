//! The exports of a disk: an NBD server, or a loop device over a FUSE file.
//!
//! `pagefold_block` implements both; this module puts them behind one interface, [`Export`]. A server has one export.
//! To add a kind of export, implement [`Export`] and add it to [`open`].

mod loop_device;
mod nbd;

pub use loop_device::{PreparedForSwap, prepare_for_swap};
pub use pagefold_block::loop_export::Users;

use crate::disk::Disk;
use pagefold_control::config::{DiskConfig, ExportChoice};
use pagefold_control::error::Result;
use pagefold_control::instance::InstanceDir;
use pagefold_control::instance::state::ExportState;
use pagefold_control::report::disk::ClientsReport;
use pagefold_sys::privileges::CapabilitySet;

/// An open export.
pub trait Export: Send + Sync {
    /// `nbd` or `loop`.
    fn kind(&self) -> &'static str;

    /// How requests reach the server; `None` for an export without FUSE.
    fn transport(&self) -> Option<&'static str> {
        None
    }

    /// Warnings for the administrator, in words.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// The things in the system that outlive a killed server, for the state file.
    fn state(&self) -> ExportState;

    /// The present users, in words.
    fn users(&self) -> Vec<String>;

    /// The counters of clients; `None` if the export has none.
    fn clients(&self) -> Option<ClientsReport> {
        None
    }

    /// Calls `change`, which may change the size of the disk's device, and makes the new size known. With
    /// [`Users::Refuse`] it fails as busy, and calls nothing, while the export is in use.
    fn resize(&self, users: Users, change: &mut dyn FnMut() -> Result<()>) -> Result<()>;

    /// Stops serving. Fails as busy while the export is in use: NBD unless `force`, a loop device always. May be called
    /// again.
    fn close(&self, force: bool) -> Result<()>;
}

/// Opens the export that `config` chooses. The calling thread drops its capabilities except `keep` before it starts
/// threads, which inherit them.
pub fn open(
    config: &DiskConfig,
    disk: &Disk,
    dir: &InstanceDir,
    keep: CapabilitySet,
) -> Result<Box<dyn Export>> {
    match config.export {
        ExportChoice::Nbd | ExportChoice::Auto => Ok(Box::new(nbd::Nbd::open(config, disk, dir)?)),
        ExportChoice::Loop => Ok(Box::new(loop_device::Loop::open(config.fuse_uring, disk, dir, keep)?)),
    }
}

/// The state to record before the export is opened, so that commands can clean up if the server is killed meanwhile.
pub fn planned_state(config: &DiskConfig, dir: &InstanceDir) -> Option<ExportState> {
    (config.export == ExportChoice::Loop).then(|| ExportState::Loop {
        device: None,
        backing: None,
        mount_point: dir.mount_path(),
    })
}
