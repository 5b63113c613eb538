//! Clearing up after a server that died: loop device, mount, backing file, folder, in this order.

use super::DiskDir;
use super::kept_log;
use super::state::DoorState;
use crate::failure::Outcome;
use crate::service::door;

/// How a disk that is gone went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Another command removed it, and everything is cleared.
    Removed,
    /// Its server gave the device up: it was removed, or the server was told to end.
    Ended,
    /// Its server died.
    Died,
}

impl Fate {
    /// The end of a sentence about the disk.
    pub fn in_words(self) -> &'static str {
        match self {
            Fate::Removed => "it has been removed",
            Fate::Ended => "its server has ended",
            Fate::Died => "its server has died and its contents are lost",
        }
    }
}

/// What became of a disk that is gone.
pub struct Cleared {
    /// How it went.
    pub fate: Fate,
    /// Why not all of it could be cleared, if so.
    pub outcome: Outcome<()>,
    /// A sentence about it.
    pub note: String,
}

/// Clears what a dead disk left, and says what became of it.
pub fn clear(dir: &DiskDir) -> Cleared {
    let fate = match () {
        _ if !dir.exists() => Fate::Removed,
        _ if dir.has_ended() => Fate::Ended,
        _ => Fate::Died,
    };
    let was_served = dir.read_state().is_some_and(|s| !s.device().is_empty());
    let mut last_words = String::new();
    let outcome = clear_door(dir).and_then(|()| clear_backing(dir)).and_then(|()| {
        if fate == Fate::Died && was_served {
            last_words = keep_log(dir);
        }
        dir.remove()
    });
    let what = format!("disk '{}': {}", dir.name(), fate.in_words());
    let note = match &outcome {
        Ok(()) if fate == Fate::Removed => what,
        Ok(()) => format!("{what}; cleaned up{last_words}"),
        Err(e) => format!("{what}, and not all could be cleaned up: {e}"),
    };
    Cleared { fate, outcome, note }
}

/// Keeps the log, and returns the end of a sentence about it.
fn keep_log(dir: &DiskDir) -> String {
    match kept_log::keep(dir) {
        Ok(None) => String::new(),
        Ok(Some(kept)) => {
            format!("; its log, now '{}', ends with: {}", kept.path.display(), kept.last_line)
        }
        Err(e) => format!("; its log could not be kept: {e}"),
    }
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
