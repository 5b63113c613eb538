//! The files and directories of the tree, and their inode numbers.
//!
//! An inode number says which file it is, so nothing has to be remembered between requests. Only the names of files of
//! sysfs and debugfs are kept ([`Names`]), which are few: no name enters that these do not have.

use pagefold_fuse::Inode;
use std::ffi::{OsStr, OsString};
use std::sync::{Mutex, PoisonError};

/// A file or directory of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// `/`
    Root,
    /// `/block`
    Block,
    /// `/class`
    Class,
    /// `/class/zram-control`
    ZramControl,
    /// `/class/zram-control/hot_add`
    HotAdd,
    /// `/class/zram-control/hot_remove`
    HotRemove,
    /// `/devices`
    Devices,
    /// `/devices/virtual`
    Virtual,
    /// `/devices/virtual/block`
    VirtualBlock,
    /// `/kernel`
    Kernel,
    /// `/kernel/debug`
    Debug,
    /// `/kernel/debug/zram`
    DebugZram,
    /// `/kernel/debug/zsmalloc`
    DebugZsmalloc,
    /// `/zramN`, a link to the directory of disk N.
    DiskLink(u32),
    /// `/block/zramN`, a link to the directory of disk N.
    BlockDisk(u32),
    /// `/block/NAME`, a link to the directory of another block device; the number of its name.
    BlockOther(u32),
    /// `/devices/virtual/block/loopM`, the directory of the disk whose device is `/dev/loopM`.
    Disk(u32),
    /// A file in the directory of `loopM`: an index of `ATTRIBUTE_FILES`.
    Attribute(u32, u32),
    /// A link in the directory of `loopM`, to what sysfs has for the loop device; the number of its name.
    OfLoop(u32, u32),
    /// `/kernel/debug/NAME`, a link to what debugfs has; the number of its name.
    DebugOther(u32),
    /// `/kernel/debug/zram/zramN`
    DebugDisk(u32),
    /// `/kernel/debug/zram/zramN/block_state`
    BlockState(u32),
    /// `/kernel/debug/zsmalloc/zramN`
    DebugPool(u32),
    /// `/kernel/debug/zsmalloc/zramN/classes`
    Classes(u32),
}

/// The files and directories that are always there.
pub(super) const FIXED: [Node; 13] = [
    Node::Root,
    Node::Block,
    Node::Class,
    Node::ZramControl,
    Node::HotAdd,
    Node::HotRemove,
    Node::Devices,
    Node::Virtual,
    Node::VirtualBlock,
    Node::Kernel,
    Node::Debug,
    Node::DebugZram,
    Node::DebugZsmalloc,
];

/// Minor numbers of devices have 20 bits.
const MINOR_BITS: u32 = 24;
/// The field after the minor number has 32 bits, and the kind is above both.
const INDEX_BITS: u32 = 32;

impl Node {
    /// Its inode number. That of the root is 1, as FUSE requires.
    pub fn inode(self) -> Inode {
        let number = |kind: u64, minor: u32, index: u32| {
            kind << (MINOR_BITS + INDEX_BITS) | u64::from(minor) << INDEX_BITS | u64::from(index)
        };
        Inode(match self {
            Node::DiskLink(n) => number(1, 0, n),
            Node::BlockDisk(n) => number(2, 0, n),
            Node::BlockOther(name) => number(3, 0, name),
            Node::Disk(minor) => number(4, minor, 0),
            Node::Attribute(minor, index) => number(5, minor, index),
            Node::OfLoop(minor, name) => number(6, minor, name),
            Node::DebugOther(name) => number(7, 0, name),
            Node::DebugDisk(n) => number(8, 0, n),
            Node::BlockState(n) => number(9, 0, n),
            Node::DebugPool(n) => number(10, 0, n),
            Node::Classes(n) => number(11, 0, n),
            fixed => FIXED.iter().position(|node| *node == fixed).map_or(0, |i| i as u64 + 1),
        })
    }

    /// The node with an inode number; `None` for a number that no node has.
    pub fn of(inode: Inode) -> Option<Node> {
        let kind = inode.0 >> (MINOR_BITS + INDEX_BITS);
        let minor = (inode.0 >> INDEX_BITS) as u32 & ((1 << MINOR_BITS) - 1);
        let index = inode.0 as u32;
        match kind {
            0 if minor == 0 => FIXED.get((index as usize).checked_sub(1)?).copied(),
            1 => Some(Node::DiskLink(index)),
            2 => Some(Node::BlockDisk(index)),
            3 => Some(Node::BlockOther(index)),
            4 => Some(Node::Disk(minor)),
            5 => Some(Node::Attribute(minor, index)),
            6 => Some(Node::OfLoop(minor, index)),
            7 => Some(Node::DebugOther(index)),
            8 => Some(Node::DebugDisk(index)),
            9 => Some(Node::BlockState(index)),
            10 => Some(Node::DebugPool(index)),
            11 => Some(Node::Classes(index)),
            _ => None,
        }
    }
}

/// The names of files of sysfs that the tree has links for, by number.
#[derive(Default)]
pub struct Names(Mutex<Vec<OsString>>);

impl Names {
    /// The number of a name. The caller has found the name in sysfs.
    pub fn number(&self, name: &OsStr) -> u32 {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = names.iter().position(|n| n == name);
        known.unwrap_or_else(|| {
            names.push(name.to_os_string());
            names.len() - 1
        }) as u32
    }

    /// The name with a number.
    pub fn name(&self, number: u32) -> Option<OsString> {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.get(number as usize).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inode_numbers_and_nodes_map_to_each_other() {
        let mut all = FIXED.to_vec();
        for n in [0, 1, 0xfffff, u32::MAX] {
            let minor = n & 0xfffff;
            all.extend([Node::DiskLink(n), Node::BlockDisk(n), Node::BlockOther(n), Node::Disk(minor)]);
            all.extend([Node::Attribute(minor, 21), Node::OfLoop(minor, n), Node::DebugOther(n)]);
            all.extend([Node::DebugDisk(n), Node::BlockState(n), Node::DebugPool(n), Node::Classes(n)]);
        }
        for node in all {
            assert_eq!(Node::of(node.inode()), Some(node));
        }
        assert_eq!(Node::Root.inode(), Inode::ROOT);
        for none in [0, 14, 1 << 40, 12 << 56, u64::MAX] {
            assert_eq!(Node::of(Inode(none)), None);
        }
    }

    #[test]
    fn a_name_keeps_its_number() {
        let names = Names::default();
        let number = |name: &str| names.number(OsStr::new(name));
        assert_eq!((number("queue"), number("size"), number("queue")), (0, 1, 0));
        assert_eq!(names.name(1).unwrap(), "size");
        assert_eq!(names.name(2), None);
    }
}
