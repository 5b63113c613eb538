//! The part of debugfs that belongs to zram: the states of pages, and the size classes of pools.
//!
//! Every other entry of debugfs is a link, so that the tree can be mounted over it.

use super::fs::{ZramTree, exists, names_in};
use super::node::{Node, number_after};
use crate::disks::Errno;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Where debugfs is in sysfs.
const DEBUG_DIR: &str = "kernel/debug";

/// The entries that are not links.
pub(super) const DEBUG_ENTRIES: [(&str, Node); 2] =
    [("zram", Node::DebugZram), ("zsmalloc", Node::DebugZsmalloc)];

/// The path of an entry of debugfs below that of sysfs.
pub(super) fn debug_path(sysfs: &Path, name: &OsStr) -> PathBuf {
    sysfs.join(DEBUG_DIR).join(name)
}

impl ZramTree {
    /// Finds a name in a directory of this part. ENOENT: another directory, or another name.
    pub(super) fn find_in_debug(&self, parent: Node, name: &OsStr) -> Result<Node, Errno> {
        let missing = Errno(libc::ENOENT);
        let number = number_after("zram", name).ok_or(missing);
        match parent {
            Node::Debug => {
                exists(&debug_path(&self.sysfs.real, name))?;
                Ok(Node::DebugOther(self.names.number(name)))
            }
            Node::DebugZram => {
                let number = number?;
                self.disks.device(number).map_err(|_| missing)?;
                Ok(Node::DebugDisk(number))
            }
            Node::DebugZsmalloc => {
                let number = number?;
                if self.has_pool(number) { Ok(Node::DebugPool(number)) } else { Err(missing) }
            }
            Node::DebugDisk(number) if name == "block_state" => Ok(Node::BlockState(number)),
            Node::DebugPool(number) if name == "classes" => Ok(Node::Classes(number)),
            _ => Err(missing),
        }
    }

    /// The entries of a directory of this part, without [`DEBUG_ENTRIES`].
    pub(super) fn debug_entries(&self, node: Node) -> Result<Vec<(OsString, Node)>, Errno> {
        let of_disk = |node: fn(u32) -> Node| move |n: u32| (OsString::from(format!("zram{n}")), node(n));
        match node {
            Node::Debug => {
                // The folder may be missing.
                let others = names_in(&debug_path(&self.sysfs.real, OsStr::new(""))).unwrap_or_default();
                let is_other = |name: &OsString| DEBUG_ENTRIES.iter().all(|(own, _)| *name != **own);
                let others = others.into_iter().filter(is_other);
                Ok(others.map(|name| (name.clone(), Node::DebugOther(self.names.number(&name)))).collect())
            }
            Node::DebugZram => Ok(self.disks.numbers()?.into_iter().map(of_disk(Node::DebugDisk)).collect()),
            Node::DebugZsmalloc => {
                let numbers = self.disks.numbers()?.into_iter().filter(|number| self.has_pool(*number));
                Ok(numbers.map(of_disk(Node::DebugPool)).collect())
            }
            Node::DebugDisk(number) => Ok(vec![("block_state".into(), Node::BlockState(number))]),
            Node::DebugPool(number) => Ok(vec![("classes".into(), Node::Classes(number))]),
            _ => Err(Errno(libc::ENOTDIR)),
        }
    }

    /// Whether a disk has a size, and so a pool.
    fn has_pool(&self, number: u32) -> bool {
        self.disks.read(number, "initstate").is_ok_and(|state| state == "1")
    }
}
