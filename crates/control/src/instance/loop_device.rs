//! The loop device of a disk, for commands: its users in words, and its removal after the server has exited.

use super::InstanceDir;
use super::state::LoopBackingFile;
use crate::error::{CliError, Exit, Result};
use pagefold_block::loop_export::{self, ExportError};
use pagefold_page::size::Human;
use pagefold_sys::blockuse::{self, BlockUse};
use pagefold_sys::loopdev::LoopIdentity;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a process may have a device open that is about to be removed or reset.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// Describes one use of a block device, for messages.
pub fn describe_use(claim: &BlockUse) -> String {
    match claim {
        BlockUse::Swap { used_bytes } => format!("swap, {} of it taken", Human(*used_bytes)),
        other => other.to_string(),
    }
}

impl From<ExportError> for CliError {
    fn from(e: ExportError) -> Self {
        match &e {
            ExportError::Unavailable(_) => CliError::new(Exit::Unavailable, e.to_string()),
            ExportError::BadSize { .. } => CliError::usage(e.to_string()),
            ExportError::InUse { device, uses } => in_use(device, uses),
            ExportError::System(e) => e.clone().into(),
            ExportError::MountPointTaken { .. } | ExportError::Session(_) => CliError::failed(e.to_string()),
        }
    }
}

/// The error for a device that cannot be removed because it is in use. It says how to end the uses.
pub fn in_use(device: &Path, uses: &[BlockUse]) -> CliError {
    let users = uses.iter().map(describe_use).collect::<Vec<_>>().join(", ");
    let mut advice = Vec::new();
    for claim in uses {
        match claim {
            BlockUse::Mounted { mount_point } => advice.push(format!("umount '{}'", mount_point.display())),
            BlockUse::Swap { .. } => advice.push(format!("swapoff {}, or use --force", device.display())),
            _ => {}
        }
    }
    let advice = if advice.is_empty() { String::new() } else { format!("; first: {}", advice.join("; ")) };
    CliError::new(Exit::Busy, format!("{} is in use: {users}{advice}", device.display()))
}

/// Fails as busy if a process has the loop device of the disk open, and does not close it soon: udev opens new devices and
/// those of a new size for a moment. The server does not check that, because it may not see the files of other processes.
pub fn refuse_if_open(dir: &InstanceDir) -> Result<()> {
    let Some(device) = dir.read_state().and_then(|s| s.loop_device()) else { return Ok(()) };
    let deadline = Instant::now() + CLOSE_TIMEOUT;
    loop {
        match blockuse::openers(&device) {
            // The server refuses a device that is mounted or claimed otherwise, and knows by what.
            Ok(_) if blockuse::claims(&device).is_ok_and(|claims| !claims.is_empty()) => return Ok(()),
            Ok(openers) if openers.is_empty() => return Ok(()),
            Ok(openers) if Instant::now() >= deadline => return Err(in_use(&device, &openers)),
            Ok(_) => std::thread::sleep(Duration::from_millis(10)),
            // The device is gone, so nobody uses it.
            Err(e) if e.errno == libc::ENOENT => return Ok(()),
            Err(e) => return Err(e.into()),
        }
    }
}

/// Removes what the loop export of a server that has exited left: its mount and its loop device, unless another file is
/// attached to that by now.
pub fn clean_up(backing: Option<LoopBackingFile>, mount_point: &Path) -> Result<()> {
    let identity = backing.map(|b| LoopIdentity { lo_device: b.device, lo_inode: b.inode });
    Ok(loop_export::clean_up(mount_point, identity).map(|_| ())?)
}
