//! The exports of a disk: one module for each kind of [`ExportKind`].
//!
//! `pagefold_block` implements them; this module puts them behind one interface, [`Export`]. A server has one export.
//! To add a kind of export, add its facts to [`ExportKind`], and here a module with an [`Export`].

mod interface;
mod loop_device;
mod nbd;

pub use interface::{Export, Kept, Opening, TakenOver};
pub use loop_device::{may_use_rings, prepare_again_for_swap, prepare_for_swap};
use nbd::Bound;
pub use pagefold_block::loop_export::Users;

use crate::broker::Broker;
use crate::disk::Disk;
use pagefold_block::loop_export::check_facilities;
use pagefold_block::nbd::TlsConfig;
use pagefold_control::config::DiskConfig;
use pagefold_control::error::Result;
use pagefold_control::export_kind::ExportKind;
use pagefold_control::instance::InstanceDir;
use pagefold_control::instance::state::ExportState;
use std::sync::Arc;

/// Opens the export that the configuration chooses. The server is confined.
pub fn open(opening: &Opening<'_>, prepared: Prepared) -> Result<Box<dyn Export>> {
    Ok(match prepared {
        Prepared::Loop => Box::new(loop_device::Loop::open(opening)?),
        Prepared::Nbd { tls, bound } => Box::new(nbd::Nbd::open(opening.disk, tls, bound)?),
    })
}

/// Takes an export over whose server has died. The server is confined. After a failure the export is as it was.
pub fn take_over(
    config: &DiskConfig,
    disk: &Disk,
    broker: &Arc<Broker>,
    taken: TakenOver,
    prepared: Prepared,
) -> Result<Box<dyn Export>> {
    Ok(match prepared {
        Prepared::Loop => Box::new(loop_device::Loop::take_over(config, disk, broker, taken)?),
        Prepared::Nbd { tls, .. } => Box::new(nbd::Nbd::take_over(disk, taken, tls)?),
    })
}

/// The things that a server opens before it is confined.
pub enum Prepared {
    /// There are none.
    Loop,
    /// The files of TLS, and the socket of a new disk.
    Nbd { tls: Option<TlsConfig>, bound: Option<Bound> },
}

/// Opens these things for a new disk.
pub fn prepare(config: &DiskConfig, dir: &InstanceDir) -> Result<Prepared> {
    let prepared = prepare_again(config)?;
    Ok(match prepared {
        Prepared::Loop => {
            check_facilities()?;
            Prepared::Loop
        }
        Prepared::Nbd { tls, .. } => {
            let bound = Some(nbd::bind(config.listen.as_ref(), tls.is_some(), dir)?);
            Prepared::Nbd { tls, bound }
        }
    })
}

/// Opens these things for a server that takes an export over, so that an error leaves the former server.
pub fn prepare_again(config: &DiskConfig) -> Result<Prepared> {
    Ok(match config.export {
        ExportKind::Loop => Prepared::Loop,
        ExportKind::Nbd => Prepared::Nbd { tls: nbd::tls(config.listen.as_ref())?, bound: None },
    })
}

/// The state to record before an export of this kind is opened, so that commands can clean up if the server is killed
/// meanwhile.
pub fn planned_state(prepared: &Prepared, dir: &InstanceDir) -> Option<ExportState> {
    match prepared {
        Prepared::Loop => {
            Some(ExportState::Loop { device: None, backing: None, mount_point: dir.mount_path() })
        }
        Prepared::Nbd { bound, .. } => bound.as_ref().map(Bound::state),
    }
}
