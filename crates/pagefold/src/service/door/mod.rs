//! The door of a disk: how the block device reaches its users.
//!
//! A server has one door. Both are crates' work; here they get one face: open, say
//! who uses it, close. To add a door, implement [`Door`] and add it to [`open`].

mod loop_device;
mod nbd;

pub use loop_device::{
    PreparedForSwap, clear, prepare_for_swap, refuse_if_claimed, stop_swapping, unavailable,
};

use super::config::{DoorChoice, ServeConfig};
use super::disk::Disk;
use super::report::ClientsReport;
use crate::failure::Outcome;
use crate::runtime::DiskDir;
use crate::runtime::state::DoorState;
use pagefold_sys::privileges::CapabilitySet;

/// An open door.
pub trait Door: Send + Sync {
    /// `nbd` or `loop`.
    fn kind(&self) -> &'static str;

    /// What it left in the system, for the state file.
    fn state(&self) -> DoorState;

    /// Who uses it now, in words.
    fn users(&self) -> Vec<String>;

    /// What became of its clients, if it counts them.
    fn clients(&self) -> Option<ClientsReport> {
        None
    }

    /// Stops serving. Refused as busy while somebody uses it: for NBD unless `force`, for
    /// a loop device always. Can be repeated.
    fn close(&self, force: bool) -> Outcome<()>;
}

/// Opens the door that was chosen. On the way, the calling thread gives up its capabilities but
/// those in `keep`, before other threads inherit them.
pub fn open(config: &ServeConfig, disk: &Disk, dir: &DiskDir, keep: CapabilitySet) -> Outcome<Box<dyn Door>> {
    match config.door {
        DoorChoice::Nbd | DoorChoice::Auto => Ok(Box::new(nbd::Nbd::open(config, disk, dir)?)),
        DoorChoice::Loop => Ok(Box::new(loop_device::Loop::open(disk, dir, keep)?)),
    }
}

/// What is written down before the door is opened, so that a server killed half-way can be cleared.
pub fn planned(config: &ServeConfig, dir: &DiskDir) -> Option<DoorState> {
    (config.door == DoorChoice::Loop).then(|| DoorState::Loop {
        device: None,
        backing: None,
        mount_point: dir.mount_path(),
    })
}
