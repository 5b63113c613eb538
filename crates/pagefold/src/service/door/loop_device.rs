//! The loop door, and what commands do about its device with their own rights.

use super::Door;
use crate::failure::{Exit, Failure, Outcome};
use crate::runtime::DiskDir;
use crate::runtime::state::{Backing, DoorState};
use crate::service::disk::Disk;
use crate::service::log;
use pagefold_block::loopdoor::{self, DoorError, LoopDoor, LoopOptions};
use pagefold_page::size::Human;
use pagefold_sys::blockuse::{self, BlockUse};
use pagefold_sys::loopdev::{self, LoopIdentity};
use pagefold_sys::privileges::CapabilitySet;
use pagefold_sys::{fusedev, harden, memcg, rundir, swap};
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Threads that serve a disk with a backing: one that reads a parked page waits for the medium, and requests for
/// pages in memory are not to wait with it.
const THREADS_WITH_BACKING: usize = 16;

/// The open door, and where its file is mounted.
pub struct Loop {
    door: LoopDoor,
    mount_point: PathBuf,
}

impl Loop {
    /// Mounts, gives up the capabilities but those in `keep`, then serves and attaches the loop device.
    pub fn open(disk: &Disk, dir: &DiskDir, keep: CapabilitySet) -> Outcome<Self> {
        let mount_point = dir.mount_path();
        DirBuilder::new()
            .mode(0o700)
            .create(&mount_point)
            .map_err(|e| Failure::io(format!("making '{}'", mount_point.display()), &e))?;
        let usual = LoopOptions::default();
        let threads = if disk.store().parking().is_some() { THREADS_WITH_BACKING } else { usual.threads };
        let options = LoopOptions { threads, keep_capabilities: Some(keep), ..usual };
        let door = LoopDoor::start(disk.device(), &mount_point, options)?;
        Ok(Loop { door, mount_point })
    }
}

impl Door for Loop {
    fn kind(&self) -> &'static str {
        "loop"
    }

    fn state(&self) -> DoorState {
        let LoopIdentity { lo_device, lo_inode } = self.door.identity();
        DoorState::Loop {
            device: self.door.is_attached().then(|| self.door.device_path().to_path_buf()),
            backing: Some(Backing { device: lo_device, inode: lo_inode }),
            mount_point: self.mount_point.clone(),
        }
    }

    fn users(&self) -> Vec<String> {
        if !self.door.is_attached() {
            return Vec::new();
        }
        let claims = blockuse::claims(self.door.device_path()).unwrap_or_default();
        claims.iter().map(in_words).collect()
    }

    fn close(&self, _force: bool) -> Outcome<()> {
        Ok(self.door.detach()?)
    }
}

fn in_words(claim: &BlockUse) -> String {
    match claim {
        BlockUse::Swap { used_bytes } => format!("swap, {} of it taken", Human(*used_bytes)),
        other => other.to_string(),
    }
}

impl From<DoorError> for Failure {
    fn from(e: DoorError) -> Self {
        match &e {
            DoorError::Unavailable(_) => Failure::new(Exit::Unavailable, e.to_string()),
            DoorError::BadSize { .. } => Failure::usage(e.to_string()),
            DoorError::InUse { device, uses } => in_use(device, uses),
            DoorError::System(e) => e.clone().into(),
            DoorError::MountPointTaken { .. } | DoorError::Session(_) => Failure::failed(e.to_string()),
        }
    }
}

fn in_use(device: &Path, uses: &[BlockUse]) -> Failure {
    let who = uses.iter().map(in_words).collect::<Vec<_>>().join(", ");
    let mut advice = Vec::new();
    for claim in uses {
        match claim {
            BlockUse::Mounted { mount_point } => advice.push(format!("umount '{}'", mount_point.display())),
            BlockUse::Swap { .. } => advice.push(format!("swapoff {}, or use --force", device.display())),
            _ => {}
        }
    }
    let advice = if advice.is_empty() { String::new() } else { format!("; first: {}", advice.join("; ")) };
    Failure::new(Exit::Busy, format!("{} is in use: {who}{advice}", device.display()))
}

/// What came of preparing a process for a disk that may be swapped to.
pub struct PreparedForSwap {
    /// The capabilities to keep.
    pub keep: CapabilitySet,
    /// Why swapping to the disk is not safe, if it is not.
    pub warning: Option<String>,
}

/// Prepares the process for a disk that may be swapped to; before the first other thread is
/// started. What was refused goes to the log too.
pub fn prepare_for_swap() -> PreparedForSwap {
    let report = harden::for_swap();
    let refused: Vec<_> = report.refused().iter().map(|e| e.to_string()).collect();
    let warning = match refused.as_slice() {
        [] => None,
        refused => Some(format!("swapping to this disk is not safe here: {}", refused.join("; "))),
    };
    if let Some(warning) = &warning {
        log::warning(format_args!("{warning}"));
    }
    // New mappings are locked too. Where the limit of locked memory stands, only this capability lets
    // a server have more.
    let keep = match (&report.lock_limit, &report.memory_locked) {
        (Err(_), Ok(())) => CapabilitySet::IPC_LOCK,
        _ => CapabilitySet::empty(),
    };
    PreparedForSwap { keep, warning }
}

/// Why there can be no loop device here, as far as one can tell without trying; `None` if there can.
pub fn unavailable() -> Option<String> {
    if rundir::effective_uid() != 0 {
        return Some("it needs root".to_string());
    }
    let fuse = fusedev::open().map(|_| ());
    fuse.and_then(|()| loopdev::open_control().map(|_| ())).err().map(|e| e.to_string())
}

/// Refuses as busy if the loop device is mounted, swapped to or otherwise claimed.
pub fn refuse_if_claimed(device: &Path) -> Outcome<()> {
    match blockuse::claims(device)? {
        uses if uses.is_empty() => Ok(()),
        uses => Err(in_use(device, &uses)),
    }
}

/// Stops swapping to the device, if it is; refused if memory cannot take its contents back.
pub fn stop_swapping(device: &Path) -> Outcome<()> {
    let Some(room) = swap::room_without(blockuse::device_number(device)?)? else {
        return Ok(());
    };
    if !room.fits() {
        return Err(Failure::new(
            Exit::Busy,
            format!(
                "swapoff {} is refused: {} would have to come back, and memory has {} and other swap {} to \
                 spare; end some processes or add swap first",
                device.display(),
                Human(room.used_bytes),
                Human(room.available_bytes),
                Human(room.other_swap_bytes)
            ),
        ));
    }
    let short = memcg::short_groups(room.used_bytes, room.other_swap_bytes)?;
    if let Some(group) = short.first() {
        return Err(Failure::new(
            Exit::Busy,
            format!(
                "swapoff {} is refused: the kernel would end a process of the memory control group '{}', which \
                 has swapped out {} and whose limit of {} is too low by {}; raise its limit, end some of its \
                 processes, or add other swap first",
                device.display(),
                group.path.display(),
                Human(group.swapped_bytes),
                Human(group.limit_bytes),
                Human(group.short_bytes)
            ),
        ));
    }
    swapoff(device)
}

/// Tries again while less and less is left on the area: the kernel gives up when it has no memory for a
/// moment, and when it ended the process whose pages it was bringing back.
fn swapoff(device: &Path) -> Outcome<()> {
    let number = blockuse::device_number(device)?;
    let mut left = u64::MAX;
    loop {
        let failed = match swap::swapoff(device) {
            Ok(()) => return Ok(()),
            Err(e) => e,
        };
        match swap::area_on(number)? {
            None => return Ok(()),
            Some(area) if failed.errno == libc::ENOMEM && area.used_bytes < left => left = area.used_bytes,
            Some(area) => {
                return Err(Failure::failed(format!("{failed}; {} of it are taken", Human(area.used_bytes))));
            }
        }
    }
}

/// Takes away what the loop door of a server that is gone left: its loop device, if it is still that
/// one, and its mount.
pub fn clear(backing: Option<Backing>, mount_point: &Path) -> Outcome<()> {
    let identity = backing.map(|b| LoopIdentity { lo_device: b.device, lo_inode: b.inode });
    Ok(loopdoor::clean_up(mount_point, identity).map(|_| ())?)
}
