//! The users of a block device: mounts, swap, other block devices, processes.
//!
//! A device may be removed only if nothing uses it. The kernel has no single interface for that, so this module reads
//! the mount table, the swap areas, the holders in sysfs and the open files of all processes. At last it opens the
//! device exclusively: that fails if anything in the kernel has claimed the device, also a mount in a mount namespace
//! that this process cannot see.

use crate::SysError;
use crate::mounts::{self, DeviceNumber};
use crate::swap::{self, SwapArea};
use std::fs::OpenOptions;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The unit of lengths of block devices in sysfs.
const SECTOR_BYTES: u64 = 512;

/// One use of a block device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockUse {
    /// A file system on it is mounted.
    Mounted {
        /// The directory.
        mount_point: PathBuf,
    },
    /// It is a swap area in use.
    Swap {
        /// Bytes swapped out to it.
        used_bytes: u64,
    },
    /// Another block device is built on it, such as a RAID or a device-mapper volume.
    Holder {
        /// The name of that device.
        name: String,
    },
    /// The kernel refuses an exclusive open for none of the reasons above: usually a mount in another mount namespace,
    /// or another exclusive open.
    Claimed,
    /// A process has it open.
    Open {
        /// The process id.
        pid: u32,
        /// The process name as the kernel stores it (15 bytes).
        command: String,
    },
}

impl std::fmt::Display for BlockUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BlockUse::Mounted { mount_point } => write!(f, "mounted at {}", mount_point.display()),
            BlockUse::Swap { used_bytes } => write!(f, "used as swap, {used_bytes} bytes of it in use"),
            BlockUse::Holder { name } => write!(f, "held by the block device {name}"),
            BlockUse::Claimed => write!(
                f,
                "claimed, perhaps by a mount in another mount namespace, or as the backing of another disk"
            ),
            BlockUse::Open { pid, command } => write!(f, "open in process {pid} ({command})"),
        }
    }
}

/// The device number of the block device `path`. ENOTBLK for any other file.
pub fn device_number(path: &Path) -> Result<DeviceNumber, SysError> {
    let what = || format!("looking at the block device {}", path.display());
    let meta = std::fs::metadata(path).map_err(|e| SysError::io(what(), &e))?;
    match meta.file_type().is_block_device() {
        true => Ok(DeviceNumber::from_dev_t(meta.rdev())),
        false => Err(SysError::new(what(), libc::ENOTBLK)),
    }
}

/// The uses of the block device `path` that prevent its removal: mounts, swap, holders. Empty if it can be removed now.
pub fn claims(path: &Path) -> Result<Vec<BlockUse>, SysError> {
    let device = device_number(path)?;
    let as_swap = |area: SwapArea| BlockUse::Swap { used_bytes: area.used_bytes };
    let mut uses = mounted(device)?;
    uses.extend(swap::area_on(device)?.map(as_swap));
    uses.extend(holders(device));
    if uses.is_empty() && is_claimed(path)? {
        uses.push(swap::area_elsewhere(len_bytes(device)?)?.map_or(BlockUse::Claimed, as_swap));
    }
    Ok(uses)
}

/// The swap area on the block device `path`; `None` if it is not one in use.
///
/// The kernel names an area by the path that swapon was called with. A path of another mount namespace, such as that of a
/// shell that has ended, may lead nowhere here. So an area with such a path and the length of the device is taken for
/// that on the device, if something unknown has claimed the device.
pub fn swap_area(path: &Path) -> Result<Option<SwapArea>, SysError> {
    let device = device_number(path)?;
    match swap::area_on(device)? {
        None if matches!(claims(path)?[..], [BlockUse::Swap { .. }]) => {
            swap::area_elsewhere(len_bytes(device)?)
        }
        found => Ok(found),
    }
}

fn len_bytes(device: DeviceNumber) -> Result<u64, SysError> {
    let path = format!("/sys/dev/block/{device}/size");
    let text = std::fs::read_to_string(&path).map_err(|e| SysError::io(format!("reading {path}"), &e))?;
    let sectors: Option<u64> = text.trim().parse().ok();
    Ok(sectors.map_or(0, |sectors| sectors.saturating_mul(SECTOR_BYTES)))
}

/// The [`claims`] and the [`openers`].
pub fn uses(path: &Path) -> Result<Vec<BlockUse>, SysError> {
    let mut uses = claims(path)?;
    uses.extend(openers(path)?);
    Ok(uses)
}

/// The processes that have the block device `path` open by a name in `/dev`.
///
/// Reads all of `/proc`; processes whose open files this one may not list are left out.
pub fn openers(path: &Path) -> Result<Vec<BlockUse>, SysError> {
    Ok(open_files(device_number(path)?))
}

fn mounted(device: DeviceNumber) -> Result<Vec<BlockUse>, SysError> {
    // Some file systems (btrfs) show an anonymous device number: then the mount's source names the device.
    let is_on = |m: &mounts::Mount| {
        m.device == device
            || (m.source.as_encoded_bytes().starts_with(b"/dev/")
                && device_number(Path::new(&m.source)) == Ok(device))
    };
    let found = mounts::all()?.into_iter().filter(is_on);
    Ok(found.map(|m| BlockUse::Mounted { mount_point: m.mount_point }).collect())
}

fn holders(device: DeviceNumber) -> Vec<BlockUse> {
    let entries = std::fs::read_dir(format!("/sys/dev/block/{device}/holders"));
    let names = entries.into_iter().flatten().flatten();
    names.map(|e| BlockUse::Holder { name: e.file_name().to_string_lossy().into_owned() }).collect()
}

/// Whether an exclusive open of the device fails. If it succeeds, this process holds the claim for a moment, in which
/// an exclusive open by others fails.
fn is_claimed(path: &Path) -> Result<bool, SysError> {
    match OpenOptions::new().read(true).custom_flags(libc::O_EXCL | libc::O_NONBLOCK).open(path) {
        Ok(_) => Ok(false),
        Err(e) => match SysError::io(format!("opening {}", path.display()), &e) {
            e if e.errno == libc::EBUSY => Ok(true),
            e if e.errno == libc::ENXIO => Ok(false),
            e => Err(e),
        },
    }
}

fn open_files(device: DeviceNumber) -> Vec<BlockUse> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|&pid| has_open(pid, device))
        .map(|pid| {
            let command = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            BlockUse::Open { pid, command: command.trim_end().to_string() }
        })
        .collect()
}

fn has_open(pid: u32, device: DeviceNumber) -> bool {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    // Only links into /dev are followed: a stat of another file could hang on a dead file system.
    files.map(|e| e.path()).any(|link| {
        std::fs::read_link(&link).is_ok_and(|target| target.starts_with("/dev"))
            && device_number(&link) == Ok(device)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_block_devices_have_a_number() {
        assert_eq!(device_number(Path::new("/dev/null")).unwrap_err().errno, libc::ENOTBLK);
        assert_eq!(device_number(Path::new("/nonexistent")).unwrap_err().errno, libc::ENOENT);
    }
}
