//! The user namespace of this process: which users it has, and whether its root is the system's root.
//!
//! An ordinary user can make a user namespace and is root there (`unshare -rm`, rootless containers). Files of users that
//! the namespace does not map belong to the *overflow user* there, 65534 by default: to root outside, or to anybody else. So
//! a process in such a namespace must not take "uid 0" for the system's root, nor the overflow user for one user.
//!
//! The table `/proc/self/uid_map` is the source. Only the identity of all numbers means that users here are those outside;
//! the initial namespace has it. Without `/proc` nothing is known, and this module reports the initial namespace, for which
//! the checks of owners are strictest. Reference: user_namespaces(7).

use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The overflow user, if `/proc/sys/fs/overflowuid` cannot be read: the kernel's default.
const OVERFLOW_UID: u32 = 65534;
/// All users: -1 is none.
const ALL: Range<u64> = 0..0xffff_ffff;

/// A table of a user namespace: its lines are a first number inside, a first number outside, and a count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IdMap(String);

impl IdMap {
    /// The table of this process's users.
    pub(crate) fn of_users() -> std::io::Result<Self> {
        std::fs::read_to_string("/proc/self/uid_map").map(IdMap)
    }

    /// The table of this process's groups.
    pub(crate) fn of_groups() -> std::io::Result<Self> {
        std::fs::read_to_string("/proc/self/gid_map").map(IdMap)
    }

    /// The lines: numbers inside, and the first number outside. Lines in an unknown format are left out.
    fn ranges(&self) -> impl Iterator<Item = (Range<u64>, u64)> {
        self.0.lines().filter_map(|line| {
            let mut numbers = line.split_ascii_whitespace().map(str::parse::<u64>);
            let (inside, outside) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
            let count = numbers.next()?.ok()?;
            Some((inside..inside.saturating_add(count), outside))
        })
    }

    /// Whether one line maps all of `range`.
    pub(crate) fn maps_all(&self, range: &Range<u64>) -> bool {
        self.ranges().any(|(inside, _)| inside.start <= range.start && range.end <= inside.end)
    }

    /// Whether every number is the same inside and outside.
    fn is_identity(&self) -> bool {
        self.ranges().any(|(inside, outside)| inside == ALL && outside == 0)
    }
}

/// Whether the users of this process are those of the system: it is in the initial user namespace, or in one that maps every
/// user to itself. Also if that is unknown.
pub fn has_system_users() -> bool {
    IdMap::of_users().map_or(true, |map| map.is_identity())
}

/// The owner that this process sees for files of users that its user namespace does not map; `None` if it maps all.
pub fn unmapped_owner() -> Option<u32> {
    (!has_system_users()).then(|| {
        let text = std::fs::read_to_string("/proc/sys/fs/overflowuid");
        text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(OVERFLOW_UID)
    })
}

/// Whether this process is root, and `folder`, which is the system's, belongs to it. In the user namespace of an ordinary
/// user such a folder belongs to the overflow user, but in a container with its own files to its root.
pub fn is_root_of(folder: &Path) -> bool {
    let belongs_to_root = || folder.metadata().is_ok_and(|meta| meta.uid() == 0);
    rustix::process::geteuid().is_root() && (has_system_users() || belongs_to_root())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(table: &str) -> IdMap {
        IdMap(table.into())
    }

    #[test]
    fn only_the_identity_of_all_numbers_has_the_systems_users() {
        assert!(map("         0          0 4294967295\n").is_identity());
        for other in ["", "0 1000 1\n", "0 100000 65536\n", "0 0 65536\n", "0 0 4294967294", "1 1 4294967295"]
        {
            assert!(!map(other).is_identity(), "{other}");
        }
    }

    #[test]
    fn a_range_is_mapped_if_one_line_has_all_of_it() {
        let rootless = map("0 1000 1\n1 100000 65536\n");
        assert!(rootless.maps_all(&(60706..61184)) && rootless.maps_all(&(0..1)));
        assert!(!rootless.maps_all(&(0..2)) && !rootless.maps_all(&(60706..65538)));
        assert!(!map("0 0\nx y z\n0 1 2 3").maps_all(&(0..3)) && !map("").maps_all(&(0..1)));
        assert!(map("5 0 18446744073709551615").maps_all(&(5..1 << 40)));
    }

    #[test]
    fn the_table_of_this_process_maps_its_user() {
        let user = u64::from(rustix::process::geteuid().as_raw());
        assert!(IdMap::of_users().unwrap().maps_all(&(user..user + 1)));
        assert_eq!(unmapped_owner().is_none(), has_system_users());
    }
}
