//! Cleaning up after the server of a disk: its loop device, mount, backing file, log (saved if the server died after
//! its device was ready), and folder, in this order.
//!
//! The caller holds the lock of the runtime folder. If a step fails, the folder stays, and the next command tries
//! again.

use super::InstanceDir;
use super::loop_device;
use super::saved_log;
use super::state::ExportState;
use crate::error::Result;

/// Why a disk has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// Another command has removed it and cleaned up.
    Removed,
    /// Its server closed the device and exited, after a request or a signal.
    Ended,
    /// Its server died without closing the device.
    Died,
}

impl EndReason {
    /// The end of a sentence about the disk.
    pub fn in_words(self) -> &'static str {
        match self {
            EndReason::Removed => "it has been removed",
            EndReason::Ended => "its server has ended",
            EndReason::Died => "its server has died and its contents are lost",
        }
    }
}

/// The result of cleaning up after a disk.
pub struct CleanupReport {
    /// Why the disk has ended.
    pub reason: EndReason,
    /// The error of a step that failed.
    pub result: Result<()>,
    /// A message about both for the user.
    pub message: String,
}

/// Removes everything that a dead disk left.
pub fn clean_up(dir: &InstanceDir) -> CleanupReport {
    let reason = match () {
        _ if !dir.exists() => EndReason::Removed,
        _ if dir.has_ended() => EndReason::Ended,
        _ => EndReason::Died,
    };
    let was_served = dir.read_state().is_some_and(|s| !s.device().is_empty());
    let mut log_note = String::new();
    let result = remove_export(dir).and_then(|()| remove_backing(dir)).and_then(|()| {
        if reason == EndReason::Died && was_served {
            log_note = save_log(dir);
        }
        dir.remove()
    });
    let what = format!("disk '{}': {}", dir.name(), reason.in_words());
    let message = match &result {
        Ok(()) if reason == EndReason::Removed => what,
        Ok(()) => format!("{what}; cleaned up{log_note}"),
        Err(e) => format!("{what}, and not all could be cleaned up: {e}"),
    };
    CleanupReport { reason, result, message }
}

/// Saves the log, and returns the end of the message about the disk.
fn save_log(dir: &InstanceDir) -> String {
    match saved_log::save(dir) {
        Ok(None) => String::new(),
        Ok(Some(saved)) => {
            let path = saved.path.display();
            saved.last_words.map_or_else(
                || format!("; its log is '{path}' now"),
                |words| format!("; its log, now '{path}', ends with: {words}"),
            )
        }
        Err(e) => format!("; its log could not be saved: {e}"),
    }
}

/// Removes the backing file that was created for the disk.
fn remove_backing(dir: &InstanceDir) -> Result<()> {
    match dir.read_state().and_then(|s| s.backing) {
        Some(backing) => backing.remove(),
        None => Ok(()),
    }
}

/// Detaches the loop device and unmounts its file system.
pub fn remove_export(dir: &InstanceDir) -> Result<()> {
    match dir.read_state().and_then(|s| s.export) {
        Some(ExportState::Loop { backing, mount_point, .. }) => loop_device::clean_up(backing, &mount_point),
        // Its socket is removed with the folder.
        Some(ExportState::Nbd { .. }) | None => Ok(()),
    }
}
