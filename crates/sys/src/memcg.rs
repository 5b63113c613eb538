//! Memory control groups: which of them have no room for what they have swapped out.
//!
//! When a swap area is given up, the kernel charges each page that comes back to the group that swapped it
//! out. If the group is at its limit and nothing of it can be pushed out, the kernel kills a process of the
//! group, however much memory the machine has. See Documentation/admin-guide/cgroup-v2.rst and
//! cgroup-v1/memory.rst.
//!
//! Both versions of the interface are read. Groups of other mount namespaces are not seen here.

use crate::{SysError, mounts};
use std::path::{Path, PathBuf};

/// Memory that a group must have to spare: the kernel charges in batches on each CPU.
const MARGIN_BYTES: u64 = 2 << 20;

/// A group whose swapped pages do not fit within its limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShortGroup {
    /// Its folder.
    pub path: PathBuf,
    /// Its limit, bytes.
    pub limit_bytes: u64,
    /// What it has swapped out, bytes.
    pub swapped_bytes: u64,
    /// By how much the limit is too low, bytes.
    pub short_bytes: u64,
}

/// What a group says of itself, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Usage {
    limit: u64,
    used: u64,
    swapped: u64,
    /// Page cache, which is dropped when memory is needed.
    cache: u64,
}

impl Usage {
    /// By how much the limit is too low for `coming` bytes.
    fn short_by(&self, coming: u64) -> u64 {
        let held = self.used.saturating_sub(self.cache);
        held.saturating_add(coming).saturating_add(MARGIN_BYTES).saturating_sub(self.limit)
    }
}

/// The groups that have swapped out more than fits within their limits, if `area_bytes` come back of which
/// other swap areas can take `other_swap_bytes`.
///
/// No group says on which area its pages are; each is taken to have all that it can on this one.
pub fn short_groups(area_bytes: u64, other_swap_bytes: u64) -> Result<Vec<ShortGroup>, SysError> {
    let mut short = Vec::new();
    for mount in mounts::all()? {
        let read = match mount.fs_type.as_str() {
            "cgroup" => version_1,
            "cgroup2" => version_2,
            _ => continue,
        };
        let mut folders = vec![mount.mount_point];
        while let Some(folder) = folders.pop() {
            // A group may be removed while it is looked at.
            let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
            folders.extend(entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()));
            let Some(usage) = read(&folder) else { continue };
            let short_bytes = usage.short_by(usage.swapped.min(area_bytes)).saturating_sub(other_swap_bytes);
            if usage.swapped > 0 && short_bytes > 0 {
                let Usage { limit, swapped, .. } = usage;
                let found =
                    ShortGroup { path: folder, limit_bytes: limit, swapped_bytes: swapped, short_bytes };
                short.push(found);
            }
        }
    }
    Ok(short)
}

/// `None` for a folder of another controller, or of a group without memory of its own.
fn version_1(folder: &Path) -> Option<Usage> {
    let stat = std::fs::read_to_string(folder.join("memory.stat")).ok()?;
    Some(Usage {
        limit: number(folder, "memory.limit_in_bytes")?,
        used: number(folder, "memory.usage_in_bytes")?,
        swapped: field(&stat, "total_swap")?,
        cache: field(&stat, "total_inactive_file")? + field(&stat, "total_active_file")?,
    })
}

fn version_2(folder: &Path) -> Option<Usage> {
    let stat = std::fs::read_to_string(folder.join("memory.stat")).ok()?;
    Some(Usage {
        limit: number(folder, "memory.max")?,
        used: number(folder, "memory.current")?,
        swapped: number(folder, "memory.swap.current")?,
        cache: field(&stat, "inactive_file")? + field(&stat, "active_file")?,
    })
}

fn number(folder: &Path, name: &str) -> Option<u64> {
    match std::fs::read_to_string(folder.join(name)).ok()?.trim() {
        "max" => Some(u64::MAX),
        text => text.parse().ok(),
    }
}

fn field(stat: &str, name: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_short_by_what_does_not_fit() {
        let usage = Usage { limit: 64 << 20, used: 60 << 20, swapped: 100 << 20, cache: 10 << 20 };
        assert_eq!(usage.short_by(12 << 20), 0);
        assert_eq!(usage.short_by(13 << 20), 1 << 20);
        assert_eq!(Usage { limit: u64::MAX, ..usage }.short_by(100 << 20), 0);
        assert_eq!(Usage { limit: 0, used: u64::MAX, cache: 0, ..usage }.short_by(1), u64::MAX);
    }

    #[test]
    fn groups_are_read_as_the_kernel_writes_them() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        assert_eq!((version_1(dir.path()), version_2(dir.path())), (None, None));
        write(
            "memory.stat",
            "inactive_file 1\nactive_file 2\ntotal_swap 7\ntotal_inactive_file 3\n\
                              total_active_file 4\n",
        );
        write("memory.limit_in_bytes", "100\n");
        write("memory.usage_in_bytes", "50\n");
        assert_eq!(version_1(dir.path()), Some(Usage { limit: 100, used: 50, swapped: 7, cache: 7 }));
        write("memory.max", "max\n");
        write("memory.current", "60\n");
        write("memory.swap.current", "8\n");
        assert_eq!(version_2(dir.path()), Some(Usage { limit: u64::MAX, used: 60, swapped: 8, cache: 3 }));
    }

    #[test]
    fn without_swap_nothing_is_short() {
        assert_eq!(short_groups(0, u64::MAX).unwrap(), []);
    }
}
