//! The exports of a disk: one module for each kind of [`ExportKind`].
//!
//! `pagefold_block` implements them; this module puts them behind one interface, [`Export`]. A server has one export.
//! To add a kind of export, add its facts to [`ExportKind`], and here a module with an [`Export`].

mod interface;
mod loop_device;
mod nbd;

pub use interface::{Export, Kept, Opening, TakenOver};
pub use loop_device::{PreparedForSwap, prepare_again_for_swap, prepare_for_swap};
pub use pagefold_block::loop_export::Users;

use crate::disk::Disk;
use pagefold_block::nbd::TlsConfig;
use pagefold_control::config::DiskConfig;
use pagefold_control::error::{CliError, Result};
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

/// Takes an export over whose server has died. The calling thread has no capabilities. After a failure the export is as it was.
pub fn take_over(
    config: &DiskConfig,
    disk: &Disk,
    dir: &InstanceDir,
    taken: TakenOver,
    prepared: Prepared,
) -> Result<Box<dyn Export>> {
    Ok(match (config.export, prepared) {
        (ExportKind::Loop, Prepared::Loop) => {
            Box::new(loop_device::Loop::take_over(config, disk, dir, taken)?)
        }
        (ExportKind::Nbd, Prepared::Nbd { tls }) => Box::new(nbd::Nbd::take_over(disk, taken, tls)?),
        _ => return Err(CliError::failed("the export that was prepared is another")),
    })
}

/// The things that a server opens before it takes an export over.
pub enum Prepared {
    /// There are none.
    Loop,
    /// The files of TLS.
    Nbd { tls: Option<TlsConfig> },
}

/// Opens these things, so that an error leaves the former server.
pub fn prepare(config: &DiskConfig) -> Result<Prepared> {
    Ok(match config.export {
        ExportKind::Loop => Prepared::Loop,
        ExportKind::Nbd => Prepared::Nbd { tls: nbd::tls(config.listen.as_ref())? },
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
