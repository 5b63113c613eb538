//! Memory control groups: one for each measured process.
//!
//! A group limits the kernel's side and measures both sides: it counts all memory that the kernel charges to a process,
//! including page tables and other kernel memory. If the memory controller of version 1 is mounted, it is used, else
//! version 2. Groups are made at the root of the hierarchy, because in version 2 a group with processes cannot have
//! child groups with limits.

use crate::output;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time limit for killed processes to leave a group, and for the removal of the group.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(20);
/// The files of the limit and of the charged memory, in version 1 and in version 2.
const LIMIT: [&str; 2] = ["memory.limit_in_bytes", "memory.max"];
const USAGE: [&str; 2] = ["memory.usage_in_bytes", "memory.current"];

/// Finds the folder of the memory controller. Fails if none is mounted or, in version 2, if it is off.
pub fn find_root() -> anyhow::Result<PathBuf> {
    let mounts = std::fs::read("/proc/self/mounts").context("reading /proc/self/mounts")?;
    let root = parse(&String::from_utf8_lossy(&mounts)).context("no memory cgroup is mounted")?;
    let control = root.join("cgroup.subtree_control");
    // Only version 2 has this file.
    if control.exists() {
        let is_on = read(&control)?.split_whitespace().any(|name| name == "memory");
        anyhow::ensure!(is_on, "the memory controller is off: echo +memory > {}", control.display());
    }
    Ok(root)
}

/// Finds the memory controller in the text of `/proc/self/mounts`. Prefers version 1: if both versions are mounted
/// and version 1 has the option `memory`, the controller is not available in version 2.
fn parse(mounts: &str) -> Option<PathBuf> {
    let find = |wanted: &str, option: &str| {
        mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (path, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
            let is_wanted = kind == wanted && (option.is_empty() || options.split(',').any(|o| o == option));
            is_wanted.then(|| PathBuf::from(path))
        })
    };
    find("cgroup", "memory").or_else(|| find("cgroup2", ""))
}

/// A group that this process has made. Dropping it kills its processes and removes it.
#[derive(Debug)]
pub struct OwnedGroup(pub Group);

/// The path of a group.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Group(PathBuf);

impl OwnedGroup {
    /// Makes an empty group, with a memory limit if `limit_bytes` is set.
    pub fn new(path: PathBuf, limit_bytes: Option<u64>) -> anyhow::Result<Self> {
        std::fs::create_dir(&path).with_context(|| format!("making the cgroup {}", path.display()))?;
        let owned = OwnedGroup(Group(path));
        if let Some(limit) = limit_bytes {
            let path = owned.0.file(LIMIT);
            std::fs::write(&path, limit.to_string())
                .with_context(|| format!("writing '{limit}' to {}", path.display()))?;
        }
        Ok(owned)
    }

    /// Kills the processes in all groups whose paths begin with `prefix`, and removes these groups. It cleans up after
    /// a measuring process that has died.
    pub fn clear(prefix: &str) {
        let (root, _) = prefix.rsplit_once('/').unwrap_or_default();
        let paths = std::fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
        let of_prefix = paths.filter(|path| path.to_string_lossy().starts_with(prefix));
        of_prefix.for_each(|path| drop(OwnedGroup(Group(path))));
    }
}

impl Group {
    /// Moves the calling process into the group. Memory that the process already uses stays charged to the old group.
    pub fn enter(&self) -> anyhow::Result<()> {
        let pid = std::process::id().to_string();
        std::fs::write(self.processes(), pid).with_context(|| format!("entering {}", self.0.display()))
    }

    /// Memory charged to the group now, bytes.
    pub fn usage_bytes(&self) -> anyhow::Result<u64> {
        let path = self.file(USAGE);
        let text = read(&path)?;
        text.trim().parse().with_context(|| format!("'{}' in {}", text.trim(), path.display()))
    }

    fn processes(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }

    /// The file of the group's version: the first that exists.
    fn file(&self, names: [&str; 2]) -> PathBuf {
        let [one, two] = names.map(|name| self.0.join(name));
        if one.exists() { one } else { two }
    }
}

impl Drop for OwnedGroup {
    fn drop(&mut self) {
        let Group(path) = &self.0;
        let deadline = Instant::now() + REMOVAL_TIMEOUT;
        // The kernel may report a group as busy for a short time after its last process has left.
        while let Err(e) = std::fs::remove_dir(path) {
            if e.kind() == std::io::ErrorKind::NotFound {
                break;
            }
            if Instant::now() >= deadline {
                output::error(&format!("the cgroup {} could not be removed: {e}", path.display()));
                break;
            }
            // This program made the group, so all processes in it are processes of this program.
            let processes = std::fs::read_to_string(self.0.processes()).unwrap_or_default();
            for pid in processes.lines().filter_map(|line| rustix::process::Pid::from_raw(line.parse().ok()?))
            {
                // An error means that the process has died meanwhile.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_1_is_found_by_its_option_among_other_controllers() {
        let text = "tmpfs /sys/fs/cgroup tmpfs rw,mode=755 0 0\n\
                    cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0\n\
                    cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n\
                    cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n";
        assert_eq!(parse(text), Some("/sys/fs/cgroup/memory".into()));
    }

    #[test]
    fn version_2_is_found_alone() {
        let text = "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n";
        assert_eq!(parse(text), Some("/sys/fs/cgroup".into()));
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
