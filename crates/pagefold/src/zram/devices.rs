//! The devices of a zram shell: for each disk, a node in `/dev` and the directory with zram's files over that of its loop
//! device. Runs on the thread whose mounts are those of the shell.

use pagefold_control::error::{CliError, Result};
use pagefold_sys::{blockuse, mountns};
use pagefold_zram::disks::Disks;
use pagefold_zram::tree::number_after;
use std::collections::BTreeMap;
use std::fs;
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
    present: DeviceList,
}

impl ShellDevices {
    /// No devices. `tree`: where the tree is mounted.
    pub fn new(tree: PathBuf) -> Self {
        ShellDevices { tree, present: DeviceList::new() }
    }

    /// Makes what `wanted` has more, and removes what it has less. Returns the errors of devices that stay incomplete.
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
            errors.extend(self.add(number, &device).err().map(|e| e.message));
            self.present.insert(number, device);
        }
        errors
    }

    fn add(&self, number: u32, device: &Path) -> Result<()> {
        let directory = directory(device);
        let name = directory.file_name().unwrap_or_default();
        mountns::bind(&self.tree.join("devices/virtual/block").join(name), &directory)?;
        let node = Path::new(DEV).join(format!("zram{number}"));
        // A node of a former disk may have another device number.
        let _ = fs::remove_file(&node);
        mountns::make_block_node(&node, blockuse::device_number(device)?, 0o600)?;
        let meta = fs::metadata(device);
        let shared = meta.and_then(|meta| {
            chown(&node, Some(meta.uid()), Some(meta.gid()))?;
            fs::set_permissions(&node, meta.permissions())
        });
        shared.map_err(|e| CliError::io(format!("setting the owner of {}", node.display()), &e))
    }
}

/// The directory of a loop device in sysfs.
fn directory(device: &Path) -> PathBuf {
    Path::new(BLOCK_DIR).join(device.file_name().unwrap_or_default())
}

/// Removes the nodes of zram devices that are none of `wanted`: those of removed disks, and of the kernel's zram.
fn remove_other_nodes(wanted: &DeviceList) -> Vec<String> {
    let nodes = fs::read_dir(DEV).into_iter().flatten().flatten();
    let others = nodes
        .filter(|node| number_after("zram", &node.file_name()).is_some_and(|n| !wanted.contains_key(&n)));
    let removed = others.map(|node| fs::remove_file(node.path()).map_err(|e| (node.path(), e)));
    removed.filter_map(|r| r.err().map(|(path, e)| format!("removing {}: {e}", path.display()))).collect()
}
