//! The devices of a zram shell: for each disk, a node in `/dev` and the directory with zram's files over that of its loop
//! device. Runs on the thread whose mounts are those of the shell.

use pagefold_control::error::{CliError, Exit, Result};
use pagefold_sys::mountns;
use pagefold_sys::mounts::DeviceNumber;
use pagefold_zram::disks::Disks;
use pagefold_zram::disks::number_after;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};

const DEV: &str = "/dev";
const BLOCK_DIR: &str = "/sys/devices/virtual/block";

/// The numbers of disks, and the paths of their loop devices.
pub type DeviceList = BTreeMap<u32, PathBuf>;

/// Lists the disks that have a device now. An error counts as no disk, and was logged.
pub fn list(disks: &dyn Disks) -> Option<DeviceList> {
    let numbers = disks.numbers().ok()?.into_iter();
    // A disk that has been removed since has no device any more.
    Some(numbers.filter_map(|number| Some((number, disks.device(number).ok()?))).collect())
}

/// The devices that the shell has.
pub struct ShellDevices {
    /// The tree.
    tree: PathBuf,
    /// The real sysfs.
    sysfs: PathBuf,
    present: DeviceList,
    /// The errors of the last call of `follow`.
    reported: BTreeSet<String>,
}

impl ShellDevices {
    /// No devices. `tree`: where the tree is mounted. `sysfs`: where the real sysfs is visible.
    pub fn new(tree: PathBuf, sysfs: PathBuf) -> Self {
        ShellDevices { tree, sysfs, present: DeviceList::new(), reported: BTreeSet::new() }
    }

    /// Makes what `wanted` has more, and removes what it has less. Returns the errors of devices that stay incomplete.
    /// The next call tries these again, and does not return an error that is the same.
    pub fn follow(&mut self, wanted: DeviceList) -> Vec<String> {
        let mut errors = Vec::new();
        let gone: Vec<u32> =
            self.present.iter().filter(|(n, path)| wanted.get(n) != Some(path)).map(|(n, _)| *n).collect();
        for number in gone {
            if let Some(device) = self.present.remove(&number) {
                errors.extend(mountns::detach(&directory(&device)).err().map(|e| e.to_string()));
            }
        }
        errors.extend(remove_other_nodes(&wanted));
        for (number, device) in wanted {
            if self.present.contains_key(&number) {
                continue;
            }
            match self.add(number, &device) {
                Ok(()) => drop(self.present.insert(number, device)),
                Err(e) => errors.push(e.message),
            }
        }
        let reported = std::mem::replace(&mut self.reported, errors.iter().cloned().collect());
        errors.retain(|e| !reported.contains(e));
        errors
    }

    /// Fails if `/dev` has an entry with the name of a zram device that is not the node of a disk here, such as the
    /// node of the host's own device: the command would write to it.
    pub fn refuse_other_nodes(&self) -> Result<()> {
        match zram_nodes().into_iter().find(|(number, _)| !self.present.contains_key(number)) {
            None => Ok(()),
            Some((_, path)) => {
                let text = format!("{} is not the device of a disk, and cannot be removed", path.display());
                Err(CliError::new(Exit::Unavailable, text))
            }
        }
    }

    /// Adds a disk's device, or nothing if that fails.
    fn add(&self, number: u32, device: &Path) -> Result<()> {
        let directory = directory(device);
        let name = directory.file_name().unwrap_or_default();
        let node = Path::new(DEV).join(format!("zram{number}"));
        // A node of a former disk, or of the kernel's zram, has another device number.
        remove_node(&node)?;
        mountns::bind(&self.tree.join("devices/virtual/block").join(name), &directory)?;
        self.make_node(&node, device).inspect_err(|_| {
            // The caller returns the first error.
            let _ = mountns::detach(&directory);
            let _ = remove_node(&node);
        })
    }

    /// Makes the node of a loop device, with the owner and the permissions of the node that is there.
    fn make_node(&self, node: &Path, device: &Path) -> Result<()> {
        mountns::make_block_node(node, self.device_number(device)?, 0o600)?;
        let failed = |e| CliError::io(format!("setting the owner of {}", node.display()), &e);
        let meta = match fs::metadata(device) {
            // The overlay over /dev may lack the node of a loop device that is new.
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            meta => meta.map_err(failed)?,
        };
        chown(node, Some(meta.uid()), Some(meta.gid())).map_err(failed)?;
        fs::set_permissions(node, meta.permissions()).map_err(failed)
    }

    /// The number of a loop device, from sysfs: the shell's `/dev` may lack its node.
    fn device_number(&self, device: &Path) -> Result<DeviceNumber> {
        let name = device.file_name().unwrap_or_default();
        let path = self.sysfs.join("devices/virtual/block").join(name).join("dev");
        let failed = |e| CliError::io(format!("reading '{}'", path.display()), &e);
        let text = fs::read_to_string(&path).map_err(failed)?;
        parse_number(&text).ok_or_else(|| failed(ErrorKind::InvalidData.into()))
    }
}

/// Parses the contents of `dev`, such as `7:0`.
fn parse_number(text: &str) -> Option<DeviceNumber> {
    let (major, minor) = text.trim_end().split_once(':')?;
    Some(DeviceNumber { major: major.parse().ok()?, minor: minor.parse().ok()? })
}

/// The directory of a loop device in sysfs.
fn directory(device: &Path) -> PathBuf {
    Path::new(BLOCK_DIR).join(device.file_name().unwrap_or_default())
}

/// The entries of `/dev` with names of zram devices, and their numbers.
fn zram_nodes() -> Vec<(u32, PathBuf)> {
    let entries = fs::read_dir(DEV).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((number_after("zram", &entry.file_name())?, entry.path()))).collect()
}

/// Removes the nodes of zram devices that are none of `wanted`: those of removed disks, and of the kernel's zram.
fn remove_other_nodes(wanted: &DeviceList) -> Vec<String> {
    let others = zram_nodes().into_iter().filter(|(number, _)| !wanted.contains_key(number));
    others.filter_map(|(_, node)| remove_node(&node).err().map(|e| e.message)).collect()
}

/// Removes a node, if it is there.
fn remove_node(node: &Path) -> Result<()> {
    match fs::remove_file(node) {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            Err(CliError::io(format!("removing {}", node.display()), &e))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;

    #[test]
    fn a_device_number_has_two_parts() {
        assert_eq!(parse_number("7:260\n"), Some(DeviceNumber { major: 7, minor: 260 }));
        for text in ["", "7", "7:", ":7", "7:x", "7:1:2"] {
            assert_eq!(parse_number(text), None, "{text}");
        }
    }
}
