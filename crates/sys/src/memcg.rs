//! Memory control groups whose swapped pages do not fit within their limits.
//!
//! When a swap area is removed (swapoff), the kernel charges each page that it reads back to the group that swapped it
//! out. If the group is at its limit and its pages cannot be reclaimed, the kernel kills a process of the group, even
//! if the machine has free memory. See Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
//!
//! Both versions of the interface are read. Groups in other mount namespaces are not visible here.

use crate::{SysError, mounts};
use std::path::{Path, PathBuf};

/// Safety margin for each group: the kernel charges memory in batches on each CPU.
const MARGIN_BYTES: u64 = 2 << 20;

/// A group whose swapped pages do not fit within its limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShortGroup {
    /// Its directory in the cgroup file system.
    pub path: PathBuf,
    /// Its limit, bytes.
    pub limit_bytes: u64,
    /// Bytes that it has swapped out.
    pub swapped_bytes: u64,
    /// Bytes by which the limit is too low.
    pub short_bytes: u64,
}

/// The counters of a group, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) limit: u64,
    pub(crate) used: u64,
    pub(crate) swapped: u64,
    /// Page cache, which the kernel drops when the group needs memory.
    pub(crate) cache: u64,
}

impl Usage {
    /// Bytes by which the limit is too low if `coming` bytes are read back.
    fn short_by(&self, coming: u64) -> u64 {
        let held = self.used.saturating_sub(self.cache);
        held.saturating_add(coming).saturating_add(MARGIN_BYTES).saturating_sub(self.limit)
    }
}

/// The groups that have swapped out more than fits within their limits, if a swap area with `area_bytes` in use is
/// removed and the other swap areas have room for `other_swap_bytes`.
///
/// The kernel does not report on which area a group's pages are, so each group is assumed to have as many of them as
/// possible on this area.
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
            // A group may be removed while it is read.
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

/// Reads the counters of a group of either version; `None` for a directory without them.
pub(crate) fn usage(folder: &Path) -> Option<Usage> {
    version_2(folder).or_else(|| version_1(folder))
}

/// `None` for a directory of another controller, or of a group without a memory controller.
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
        // Without swap accounting there is no such file.
        swapped: number(folder, "memory.swap.current").unwrap_or(0),
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
    fn a_group_is_short_by_the_bytes_that_do_not_fit() {
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
