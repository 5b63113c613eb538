//! Memory control groups: one for each measured process.
//!
//! A group limits the kernel's side and measures both sides: it counts all memory that the kernel charges to a process,
//! including page tables and other kernel memory. If the memory controller of version 1 is mounted, it is used, else
//! version 2. Groups are made at the root of the hierarchy, because in version 2 a group with processes cannot have
//! child groups with limits.

use crate::output;
use anyhow::Context;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time limit for killed processes to leave a group, and for the removal of the group.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(20);

/// The version of the kernel's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Version {
    /// Files `memory.usage_in_bytes` and so on.
    V1,
    /// Files `memory.current` and so on.
    V2,
}

/// The mounted memory controller.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Controller {
    root: PathBuf,
    version: Version,
}

impl Controller {
    /// Finds the memory controller. Fails if none is mounted or, in version 2, if it is off.
    pub fn find() -> anyhow::Result<Self> {
        let mounts = std::fs::read("/proc/self/mounts").context("reading /proc/self/mounts")?;
        let found = Self::parse(&mounts).context("no memory cgroup is mounted")?;
        if found.version == Version::V2 {
            let enabled = read(&found.root.join("cgroup.subtree_control"))?;
            let enabled = enabled.split_whitespace().any(|name| name == "memory");
            let root = found.root.display();
            anyhow::ensure!(
                enabled,
                "the memory controller is off: echo +memory > {root}/cgroup.subtree_control"
            );
        }
        Ok(found)
    }

    /// Finds the memory controller in the text of `/proc/self/mounts`. Prefers version 1: if both versions are mounted
    /// and version 1 has the option `memory`, the controller is not available in version 2.
    fn parse(mounts: &[u8]) -> Option<Self> {
        let lines = || mounts.split(|&b| b == b'\n').map(MountLine::parse);
        let one = lines().flatten().find(|m| m.kind == b"cgroup" && m.has_option(b"memory"));
        let two = || lines().flatten().find(|m| m.kind == b"cgroup2");
        let controller = |m: MountLine<'_>, version| Controller { root: m.path(), version };
        one.map(|m| controller(m, Version::V1)).or_else(|| two().map(|m| controller(m, Version::V2)))
    }

    /// Makes an empty group, with a memory limit if `limit_bytes` is set.
    pub fn make(&self, name: &str, limit_bytes: Option<u64>) -> anyhow::Result<Group> {
        let path = self.root.join(name);
        std::fs::create_dir(&path).with_context(|| format!("making the cgroup {}", path.display()))?;
        let group = Group { path, version: self.version };
        if let Some(limit) = limit_bytes {
            group.write("memory.limit_in_bytes", "memory.max", &limit.to_string())?;
        }
        Ok(group)
    }

    /// Kills the processes in all groups whose names begin with `prefix`, and removes these groups. It cleans up after
    /// a measuring process that has died.
    pub fn clear(&self, prefix: &str) {
        let entries = std::fs::read_dir(&self.root).into_iter().flatten().flatten();
        for entry in entries.filter(|e| e.file_name().as_bytes().starts_with(prefix.as_bytes())) {
            drop(Group { path: entry.path(), version: self.version });
        }
    }
}

/// A line of `/proc/self/mounts`.
struct MountLine<'a> {
    path: &'a [u8],
    kind: &'a [u8],
    options: &'a [u8],
}

impl<'a> MountLine<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.split(|&b| b == b' ').skip(1);
        Some(MountLine { path: fields.next()?, kind: fields.next()?, options: fields.next()? })
    }

    fn has_option(&self, wanted: &[u8]) -> bool {
        self.options.split(|&b| b == b',').any(|option| option == wanted)
    }

    fn path(&self) -> PathBuf {
        OsStr::from_bytes(self.path).into()
    }
}

/// A group. Dropping it kills its processes and removes it.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
    version: Version,
}

/// The path and the version of a group, for the process that enters it.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct GroupPath {
    path: PathBuf,
    version: Version,
}

impl Group {
    /// The path of the group, to pass to another process.
    pub fn to_path(&self) -> GroupPath {
        GroupPath { path: self.path.clone(), version: self.version }
    }

    fn write(&self, v1: &str, v2: &str, value: &str) -> anyhow::Result<()> {
        let name = if self.version == Version::V1 { v1 } else { v2 };
        let path = self.path.join(name);
        std::fs::write(&path, value).with_context(|| format!("writing '{value}' to {}", path.display()))
    }

    fn has_processes(&self) -> bool {
        let list = std::fs::read_to_string(self.path.join("cgroup.procs"));
        list.is_ok_and(|text| !text.is_empty())
    }
}

impl GroupPath {
    /// Moves the calling process into the group. Memory that the process already uses stays charged to the old group.
    pub fn enter(&self) -> anyhow::Result<()> {
        let path = self.path.join("cgroup.procs");
        let pid = std::process::id().to_string();
        std::fs::write(&path, pid).with_context(|| format!("entering {}", path.display()))
    }

    /// Memory charged to the group now, bytes.
    pub fn usage_bytes(&self) -> anyhow::Result<u64> {
        self.number("memory.usage_in_bytes", "memory.current")
    }

    /// Maximum of the memory that was charged to the group, bytes. In version 2, needs Linux 5.19.
    pub fn peak_bytes(&self) -> anyhow::Result<u64> {
        self.number("memory.max_usage_in_bytes", "memory.peak")
    }

    fn number(&self, v1: &str, v2: &str) -> anyhow::Result<u64> {
        let path = self.path.join(if self.version == Version::V1 { v1 } else { v2 });
        let text = read(&path)?;
        text.trim().parse().with_context(|| format!("'{}' in {}", text.trim(), path.display()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let deadline = Instant::now() + REMOVAL_TIMEOUT;
        while self.has_processes() && Instant::now() < deadline {
            kill_all(&self.path);
            std::thread::sleep(Duration::from_millis(10));
        }
        // The kernel may report a group as busy for a short time after its last process has left.
        while let Err(e) = std::fs::remove_dir(&self.path) {
            if e.kind() == std::io::ErrorKind::NotFound {
                break;
            }
            if Instant::now() >= deadline {
                output::error(&format!("the cgroup {} could not be removed: {e}", self.path.display()));
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Kills the processes of a group. This program made the group, so all of them are processes of this program.
fn kill_all(group: &Path) {
    let list = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    for pid in list.lines().filter_map(|line| rustix::process::Pid::from_raw(line.parse().ok()?)) {
        // An error means that the process has died meanwhile.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<(String, Version)> {
        Controller::parse(text.as_bytes()).map(|c| (c.root.display().to_string(), c.version))
    }

    #[test]
    fn version_1_is_found_by_its_option_among_other_controllers() {
        let text = "tmpfs /sys/fs/cgroup tmpfs rw,mode=755 0 0\n\
                    cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0\n\
                    cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n\
                    cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n";
        assert_eq!(parse(text), Some(("/sys/fs/cgroup/memory".into(), Version::V1)));
    }

    #[test]
    fn version_2_is_found_alone() {
        let text = "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n";
        assert_eq!(parse(text), Some(("/sys/fs/cgroup".into(), Version::V2)));
    }

    #[test]
    fn malformed_lines_and_similar_names_are_ignored() {
        for text in [
            "",
            "\n\n",
            "cgroup",
            "cgroup /x",
            "cgroup /x cgroup rw,memoryless 0 0",
            "memory /x tmpfs memory 0 0",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
