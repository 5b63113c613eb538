//! Memory control groups: one for each measured process.
//!
//! A group limits the kernel's side, and is the meter of both: it counts what the kernel charges to
//! a process, page tables and other kernel memory included. Version 1 of the hierarchy is used where
//! its memory controller is mounted, else version 2. Groups are made at the root of the hierarchy,
//! because with version 2 a group that has processes cannot have groups with limits below it.

use crate::output;
use anyhow::Context;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long dying processes may take to leave a group.
const LEAVING: Duration = Duration::from_secs(20);

/// Which of the kernel's two interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Version {
    /// `memory.usage_in_bytes` and so on.
    One,
    /// `memory.current` and so on.
    Two,
}

/// Where the memory controller is mounted.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Controller {
    root: PathBuf,
    version: Version,
}

impl Controller {
    /// Finds it; says what is missing.
    pub fn find() -> anyhow::Result<Self> {
        let mounts = std::fs::read("/proc/self/mounts").context("reading /proc/self/mounts")?;
        let found = Self::parse(&mounts).context("no memory cgroup is mounted")?;
        if found.version == Version::Two {
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

    /// Finds it in the text of `/proc/self/mounts`. Version 1 goes first: where both are mounted, the
    /// memory controller belongs to it.
    fn parse(mounts: &[u8]) -> Option<Self> {
        let lines = || mounts.split(|&b| b == b'\n').map(MountLine::parse);
        let one = lines().flatten().find(|m| m.kind == b"cgroup" && m.has_option(b"memory"));
        let two = || lines().flatten().find(|m| m.kind == b"cgroup2");
        let controller = |m: MountLine<'_>, version| Controller { root: m.path(), version };
        one.map(|m| controller(m, Version::One)).or_else(|| two().map(|m| controller(m, Version::Two)))
    }

    /// Makes an empty group, limited if `limit_bytes` says so.
    pub fn make(&self, name: &str, limit_bytes: Option<u64>) -> anyhow::Result<Group> {
        let path = self.root.join(name);
        std::fs::create_dir(&path).with_context(|| format!("making the cgroup {}", path.display()))?;
        let group = Group { path, version: self.version };
        if let Some(limit) = limit_bytes {
            group.write("memory.limit_in_bytes", "memory.max", &limit.to_string())?;
        }
        Ok(group)
    }

    /// Removes all groups whose names begin with `prefix`, killing what is in them: what is left when
    /// whoever made them has died.
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

/// A group; removed when dropped.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
    version: Version,
}

/// What a process needs to know of the group it is to enter.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct GroupAt {
    path: PathBuf,
    version: Version,
}

impl Group {
    /// For another process.
    pub fn at(&self) -> GroupAt {
        GroupAt { path: self.path.clone(), version: self.version }
    }

    fn write(&self, one: &str, two: &str, value: &str) -> anyhow::Result<()> {
        let name = if self.version == Version::One { one } else { two };
        let path = self.path.join(name);
        std::fs::write(&path, value).with_context(|| format!("writing '{value}' to {}", path.display()))
    }

    fn has_processes(&self) -> bool {
        let list = std::fs::read_to_string(self.path.join("cgroup.procs"));
        list.is_ok_and(|text| !text.is_empty())
    }
}

impl GroupAt {
    /// Moves the calling process into the group. What it holds already stays charged elsewhere.
    pub fn enter(&self) -> anyhow::Result<()> {
        let path = self.path.join("cgroup.procs");
        let pid = std::process::id().to_string();
        std::fs::write(&path, pid).with_context(|| format!("entering {}", path.display()))
    }

    /// What is charged to it now, bytes.
    pub fn usage_bytes(&self) -> anyhow::Result<u64> {
        self.number("memory.usage_in_bytes", "memory.current")
    }

    /// The most that was ever charged to it, bytes. Version 2 has it from Linux 5.19 on.
    pub fn peak_bytes(&self) -> anyhow::Result<u64> {
        self.number("memory.max_usage_in_bytes", "memory.peak")
    }

    fn number(&self, one: &str, two: &str) -> anyhow::Result<u64> {
        let path = self.path.join(if self.version == Version::One { one } else { two });
        let text = read(&path)?;
        text.trim().parse().with_context(|| format!("'{}' in {}", text.trim(), path.display()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let deadline = Instant::now() + LEAVING;
        while self.has_processes() && Instant::now() < deadline {
            kill_all(&self.path);
            std::thread::sleep(Duration::from_millis(10));
        }
        // A group that was just left may be busy for a moment.
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

/// Kills the processes of a group that this program made, so all of them are its own.
fn kill_all(group: &Path) {
    let list = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    for pid in list.lines().filter_map(|line| rustix::process::Pid::from_raw(line.parse().ok()?)) {
        // It may have died meanwhile.
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
        assert_eq!(parse(text), Some(("/sys/fs/cgroup/memory".into(), Version::One)));
    }

    #[test]
    fn version_2_is_found_alone() {
        let text = "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n";
        assert_eq!(parse(text), Some(("/sys/fs/cgroup".into(), Version::Two)));
    }

    #[test]
    fn odd_lines_and_likenesses_are_not_taken() {
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
