//! The exports of a disk: one module for each kind of [`ExportKind`].
//!
//! `pagefold_block` implements them; this module puts them behind one interface, [`Export`]. A server has one export.
//! To add a kind of export, add its facts to [`ExportKind`], and here a module with an [`Export`].

mod interface;
mod loop_device;
mod nbd;

pub use interface::{Export, Opening};
pub use loop_device::{PreparedForSwap, prepare_for_swap};
pub use pagefold_block::loop_export::Users;

use pagefold_control::error::Result;
use pagefold_control::export_kind::ExportKind;
use pagefold_control::instance::InstanceDir;
use pagefold_control::instance::state::ExportState;

/// Opens the export that the configuration chooses. The calling thread drops its capabilities except `keep` before it
/// starts threads, which inherit them.
pub fn open(opening: &Opening<'_>) -> Result<Box<dyn Export>> {
    Ok(match opening.config.export {
        ExportKind::Loop => Box::new(loop_device::Loop::open(opening)?),
        ExportKind::Nbd => Box::new(nbd::Nbd::open(opening)?),
    })
}

/// The state to record before an export of this kind is opened, so that commands can clean up if the server is killed
/// meanwhile.
pub fn planned_state(kind: ExportKind, dir: &InstanceDir) -> Option<ExportState> {
    match kind {
        ExportKind::Loop => {
            Some(ExportState::Loop { device: None, backing: None, mount_point: dir.mount_path() })
        }
        ExportKind::Nbd => None,
    }
}
