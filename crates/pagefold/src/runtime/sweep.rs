//! Clearing up after a server that died: loop device, mount, backing file, folder, in this order.

use super::DiskDir;
use super::state::DoorState;
use crate::failure::Outcome;
use crate::service::door;

/// What became of a dead disk.
pub struct Cleared {
    /// Why not all of it could be cleared, if so.
    pub outcome: Outcome<()>,
    /// A sentence about it.
    pub note: String,
}

/// Clears what a dead disk left, and says what became of it.
pub fn clear(dir: &DiskDir) -> Cleared {
    let ended = dir.has_ended();
    let what = if ended { "has ended" } else { "has died and its contents are lost" };
    let outcome = try_clear(dir);
    let note = match &outcome {
        Ok(()) => format!("disk '{}': its server {what}; cleaned up", dir.name()),
        Err(e) => format!("disk '{}': its server {what}, and not all could be cleaned up: {e}", dir.name()),
    };
    Cleared { outcome, note }
}

fn try_clear(dir: &DiskDir) -> Outcome<()> {
    clear_door(dir)?;
    clear_backing(dir)?;
    dir.remove()
}

/// Removes the backing file that was made for the disk.
fn clear_backing(dir: &DiskDir) -> Outcome<()> {
    match dir.read_state().and_then(|s| s.backing) {
        Some(backing) => backing.remove(),
        None => Ok(()),
    }
}

/// Takes away loop device and mount.
pub fn clear_door(dir: &DiskDir) -> Outcome<()> {
    match dir.read_state().and_then(|s| s.door) {
        Some(DoorState::Loop { backing, mount_point, .. }) => door::clear(backing, &mount_point),
        _ => Ok(()),
    }
}
