//! How much more memory this process can take: what the machine has available, and what its control groups allow.
//!
//! A process is in one memory group, and the limits of all groups above it count too. Both versions of the kernel's
//! interface are read (Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst). Page cache of a group counts
//! as available, because the kernel drops it when the group needs memory. Groups that are not mounted here are not
//! seen. Callers decide how to react to little space.

use crate::mem::{self, Available};
use crate::memcg::{self, Usage};
use crate::mounts::{self, Mount};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The room of a process at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// The memory of the machine, or the lowest limit of a group, bytes.
    pub total_bytes: u64,
    /// The memory that the process can take until the machine or a group has none left, bytes.
    pub available_bytes: u64,
}

/// Reads the room of this process again and again.
#[derive(Debug)]
pub struct RoomReader {
    machine: Available,
    /// Directories of the group of this process and of those above it.
    groups: Vec<PathBuf>,
}

impl RoomReader {
    /// Finds the groups in which this process is now. If it is moved to another group later, that is not seen.
    pub fn open() -> Self {
        let (text, mounts) = own_groups();
        let groups = mounts.iter().flat_map(|m| groups_below(&m.mount_point, &text)).collect();
        RoomReader { machine: Available::open(), groups }
    }

    /// Reads the room.
    pub fn read(&self) -> Room {
        let machine = Room { total_bytes: mem::total_bytes(), available_bytes: self.machine.bytes() };
        let usages = self.groups.iter().filter_map(|group| memcg::usage(group));
        usages.fold(machine, |room, usage| room.within(&usage))
    }
}

impl Room {
    fn within(self, usage: &Usage) -> Room {
        let held = usage.used.saturating_sub(usage.cache);
        Room {
            total_bytes: self.total_bytes.min(usage.limit),
            available_bytes: self.available_bytes.min(usage.limit.saturating_sub(held)),
        }
    }
}

/// The text of `/proc/self/cgroup`, and the mounts of control groups of both versions; empty if they cannot be read.
pub(crate) fn own_groups() -> (Vec<u8>, Vec<Mount>) {
    let mut mounts = mounts::all().unwrap_or_default();
    mounts.retain(|mount| mount.fs_type == "cgroup" || mount.fs_type == "cgroup2");
    (std::fs::read("/proc/self/cgroup").unwrap_or_default(), mounts)
}

/// Returns the directories of the process's groups in a hierarchy that is mounted at `root`, where `text` is that of
/// `/proc/self/cgroup`: lines of `number:controllers:path`. A line of another hierarchy names a directory that does not
/// exist, or that has no file of the memory controller.
fn groups_below(root: &Path, text: &[u8]) -> Vec<PathBuf> {
    let path = |line| -> Option<&[u8]> {
        let mut fields = <[u8]>::splitn(line, 3, |&byte| byte == b':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_memory = controllers.is_empty() || controllers.split(|&b| b == b',').any(|c| c == b"memory");
        is_memory.then_some(path)
    };
    let lines = text.split(|&byte| byte == b'\n').filter_map(path);
    let mut groups: Vec<PathBuf> =
        lines.filter_map(|path| group_and_those_above(root, path)).flatten().collect();
    groups.sort();
    groups.dedup();
    groups
}

/// Returns the directory of a group and of those above it, from below to above, in a hierarchy that is mounted at
/// `root`. `path` is that of a line of `/proc/self/cgroup`.
pub(crate) fn group_and_those_above(root: &Path, path: &[u8]) -> Option<Vec<PathBuf>> {
    // In a container the hierarchy may be mounted from the container's group on, which is a prefix of the path.
    let parts: Vec<_> = Path::new(OsStr::from_bytes(path)).components().skip(1).collect();
    let mut tails = (0..=parts.len()).map(|skipped| root.join(parts[skipped..].iter().collect::<PathBuf>()));
    let own = tails.find(|folder| folder.is_dir())?;
    Some(own.ancestors().take_while(|folder| folder.starts_with(root)).map(Path::to_path_buf).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_with_less_room_than_the_machine_counts() {
        let machine = Room { total_bytes: 1000, available_bytes: 500 };
        let usage = Usage { limit: 300, used: 280, swapped: 0, cache: 30 };
        assert_eq!(machine.within(&usage), Room { total_bytes: 300, available_bytes: 50 });
        assert_eq!(machine.within(&Usage { limit: u64::MAX, ..usage }), machine);
        let full = Usage { limit: 300, used: 400, ..usage };
        assert_eq!(machine.within(&full).available_bytes, 0);
    }

    #[test]
    fn the_groups_above_count_and_those_of_other_controllers_do_not() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("a/b")).unwrap();
        let expected = ["", "a", "a/b"].map(|name| root.path().join(name).components().collect::<PathBuf>());
        assert_eq!(groups_below(root.path(), b"0::/a/b\n"), expected);
        assert_eq!(groups_below(root.path(), b"4:cpu,memory:/a/b\n3:pids:/\n"), expected);
        assert_eq!(groups_below(root.path(), b"3:pids:/a/b\n"), [] as [PathBuf; 0]);
        // The hierarchy is mounted from the group /docker/1 on.
        assert_eq!(groups_below(root.path(), b"4:memory:/docker/1/a/b\n"), expected);
    }

    #[test]
    fn this_process_has_room() {
        let room = RoomReader::open().read();
        assert!(0 < room.available_bytes && room.available_bytes <= room.total_bytes, "{room:?}");
    }
}
