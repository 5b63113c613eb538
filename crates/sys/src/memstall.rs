//! How much tasks near this process wait for memory: those of its control group, and of groups above it.
//!
//! In version 2 of control groups each group has its own pressure stall information, `memory.pressure`, which counts
//! the tasks of the groups below it too (Documentation/admin-guide/cgroup-v2.rst). So the machine's figure grows when
//! any group is short of memory at its own limit, which says nothing about this process. The figure of the process's
//! own group counts, and that of a group above it if that group has a limit, because its tasks wait for memory that
//! this process may have. Without such a figure, the machine's counts: in version 1, in the root group, or if the
//! kernel keeps no figures of groups.

use crate::memroom::{group_and_those_above, own_groups};
use crate::pressure::{self, Resource, Stall};
use std::path::{Path, PathBuf};

/// Reads the stall of this process's surroundings again and again.
#[derive(Debug)]
pub struct StallReader {
    /// Directories of the group of this process and of those above it, from below to above, in version 2.
    groups: Vec<PathBuf>,
}

/// The tasks whose waiting a [`Stall`] is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Those of a control group.
    Group,
    /// All of the machine.
    Machine,
}

impl StallReader {
    /// Finds the groups in which this process is now. If it is moved to another group later, that is not seen.
    pub fn open() -> Self {
        let (text, mounts) = own_groups();
        let own = text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"0::"));
        let mut mounts = mounts.iter().filter(|mount| mount.fs_type == "cgroup2");
        let groups = own.and_then(|own| mounts.find_map(|m| group_and_those_above(&m.mount_point, own)));
        StallReader { groups: groups.unwrap_or_default() }
    }

    /// Reads the largest stall of the groups that count, or that of the machine; `None` if the kernel has neither.
    pub fn read(&self) -> Option<(Scope, Stall)> {
        let of_group = self.read_groups().map(|stall| (Scope::Group, stall));
        of_group.or_else(|| Some((Scope::Machine, pressure::read(Resource::Memory)?)))
    }

    fn read_groups(&self) -> Option<Stall> {
        let counts =
            |(above, group): &(usize, &PathBuf)| !is_root(group) && (*above == 0 || has_limit(group));
        let stalls = self.groups.iter().enumerate().filter(counts);
        stalls
            .filter_map(|(_, group)| pressure::read_file(&group.join("memory.pressure")))
            .max_by_key(|stall| stall.avg10_centipercent)
    }
}

/// Returns whether a group is the root of all: its figures are those of the machine.
fn is_root(group: &Path) -> bool {
    !group.join("cgroup.type").exists()
}

/// Returns whether a group may run out of memory before the groups above it do.
fn has_limit(group: &Path) -> bool {
    let limits = ["memory.max", "memory.high"].map(|name| std::fs::read(group.join(name)));
    limits.iter().flatten().any(|text| text.trim_ascii() != b"max")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Groups `/a/b/c`, and the reader of the last. The figure of each has its depth as per cent.
    fn groups() -> (tempfile::TempDir, StallReader) {
        let root = tempfile::tempdir().unwrap();
        for (depth, path) in ["", "a", "a/b", "a/b/c"].into_iter().enumerate() {
            let group = root.path().join(path);
            std::fs::create_dir_all(&group).unwrap();
            let text = format!("some avg10={}.00 avg60=0.00 avg300=0.00 total=7\n", 9 - depth);
            std::fs::write(group.join("memory.pressure"), text).unwrap();
            if depth > 0 {
                std::fs::write(group.join("cgroup.type"), "domain\n").unwrap();
                std::fs::write(group.join("memory.max"), "max\n").unwrap();
                std::fs::write(group.join("memory.high"), "max\n").unwrap();
            }
        }
        let groups = group_and_those_above(root.path(), b"/a/b/c").unwrap();
        (root, StallReader { groups })
    }

    fn percent(reader: &StallReader) -> Option<u32> {
        reader.read_groups().map(|stall| stall.avg10_centipercent / 100)
    }

    #[test]
    fn the_own_group_counts_and_those_above_it_if_they_have_a_limit() {
        let (root, reader) = groups();
        assert_eq!(percent(&reader), Some(6));
        for (name, path, expected) in [("memory.high", "a/b", 7), ("memory.max", "a", 8)] {
            std::fs::write(root.path().join(path).join(name), "1048576\n").unwrap();
            assert_eq!(percent(&reader), Some(expected));
        }
        // The root has the figures of the machine, whatever else it has.
        std::fs::write(root.path().join("memory.max"), "1\n").unwrap();
        assert_eq!(percent(&reader), Some(8));
        assert!(matches!(reader.read(), Some((Scope::Group, Stall { avg10_centipercent: 800, .. }))));
    }

    #[test]
    fn without_a_figure_of_a_group_that_of_the_machine_counts() {
        let machine = pressure::read(Resource::Memory).is_some();
        let (root, reader) = groups();
        std::fs::remove_file(root.path().join("a/b/c/memory.pressure")).unwrap();
        let in_root = StallReader { groups: vec![root.path().to_path_buf()] };
        for reader in [reader, in_root, StallReader { groups: Vec::new() }] {
            assert_eq!(percent(&reader), None);
            assert_eq!(reader.read().map(|(scope, _)| scope), machine.then_some(Scope::Machine));
        }
    }

    #[test]
    fn this_process_has_a_stall_if_the_kernel_has_figures() {
        assert_eq!(StallReader::open().read().is_some(), pressure::read(Resource::Memory).is_some());
    }
}
