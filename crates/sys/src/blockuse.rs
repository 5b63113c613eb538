//! Who uses a block device.
//!
//! A device may only be taken away when nobody stands on it. The kernel has no one answer, so this
//! module asks the mount table, the swap areas, the holders in sysfs, the open files of all
//! processes, and at last the device itself: an exclusive open fails if anything in the kernel has
//! claimed it, be it a mount in a name space that this process cannot see.

use crate::SysError;
use crate::mounts::{self, DeviceNumber};
use crate::swap;
use std::fs::OpenOptions;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// One use of a block device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockUse {
    /// A file system on it is mounted.
    Mounted {
        /// Where.
        mount_point: PathBuf,
    },
    /// It is swapped to.
    Swap {
        /// What it holds, bytes.
        used_bytes: u64,
    },
    /// Another block device is built on it, such as a RAID or a device-mapper volume.
    Holder {
        /// The name of that device.
        name: String,
    },
    /// Something in the kernel has claimed it, and none of the above explains it: as a rule a mount in
    /// another mount name space.
    Claimed,
    /// A process has it open.
    Open {
        /// The process.
        pid: u32,
        /// Its name, as the kernel keeps it (15 bytes).
        command: String,
    },
}

impl BlockUse {
    /// Whether the use stands in the way of taking the device away. An open file does not: it reads
    /// errors from then on.
    pub fn is_claim(&self) -> bool {
        !matches!(self, BlockUse::Open { .. })
    }
}

impl std::fmt::Display for BlockUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BlockUse::Mounted { mount_point } => write!(f, "mounted at {}", mount_point.display()),
            BlockUse::Swap { used_bytes } => write!(f, "used as swap, {used_bytes} bytes of it taken"),
            BlockUse::Holder { name } => write!(f, "held by the block device {name}"),
            BlockUse::Claimed => write!(
                f,
                "claimed, perhaps by a mount in another name space, or as the backing of another disk"
            ),
            BlockUse::Open { pid, command } => write!(f, "open in process {pid} ({command})"),
        }
    }
}

/// The number of the block device `path`.
pub fn device_number(path: &Path) -> Result<DeviceNumber, SysError> {
    let what = || format!("looking at the block device {}", path.display());
    let meta = std::fs::metadata(path).map_err(|e| SysError::io(what(), &e))?;
    match meta.file_type().is_block_device() {
        true => Ok(DeviceNumber::from_dev_t(meta.rdev())),
        false => Err(SysError::new(what(), libc::ENOTBLK)),
    }
}

/// What claims the block device `path`: mounts, swap, holders.
///
/// Empty means that it could be taken away at this moment.
pub fn claims(path: &Path) -> Result<Vec<BlockUse>, SysError> {
    let device = device_number(path)?;
    let mut uses = mounted(device)?;
    if let Some(area) = swap::area_on(device)? {
        uses.push(BlockUse::Swap { used_bytes: area.used_bytes });
    }
    uses.extend(holders(device));
    if uses.is_empty() && is_claimed(path)? {
        uses.push(BlockUse::Claimed);
    }
    Ok(uses)
}

/// [`claims`], and the processes that have the device open.
///
/// Walks all of `/proc`; processes that this one may not look into are left out.
pub fn uses(path: &Path) -> Result<Vec<BlockUse>, SysError> {
    let mut uses = claims(path)?;
    uses.extend(open_files(device_number(path)?));
    Ok(uses)
}

fn mounted(device: DeviceNumber) -> Result<Vec<BlockUse>, SysError> {
    // Some file systems (btrfs) show a number of their own: then the source names the device.
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

/// An exclusive open takes the claim for a moment; nobody else can then take it at that moment.
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
    // Only links into /dev are followed: looking at anything else could hang on a dead file system.
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

    #[test]
    fn an_open_file_is_no_claim() {
        assert!(!BlockUse::Open { pid: 1, command: "init".into() }.is_claim());
        assert!(BlockUse::Claimed.is_claim());
    }
}
