//! Hard links: names of a directory tree whose inodes have the same device and number.
//!
//! File systems that make numbers up (union, network and FUSE file systems) give one to several files. So names are those of
//! one file only if all else that stat(2) says of them agrees, but for the length of symbolic links, which some of these file
//! systems report as 0. A file that changed between two of its names fails likewise, as it would when its contents are read.

use super::contents::Identity;
use crate::Result;
use crate::table::{Hashes, Key, Spill};
use crate::tree::{InodeId, Tree};
use pagefold_image::read::FileKind;
use pagefold_image::read::inode::DeviceNumber;
use pagefold_sys::source_tree::SourceStat;

/// The treatment of names whose inodes have the same device and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HardLinks {
    /// They are names of one file; if they cannot be, the scan fails.
    #[default]
    Keep,
    /// Each name is a file.
    Ignore,
}

/// The inodes with several names: by device and number their numbers in the tree, with the numbers of names above.
#[derive(Debug)]
pub(super) struct Links {
    inodes: Hashes,
}

/// The inode in the tree that has this device and number, or the property in which the name differs from it.
pub(super) enum Found {
    Nothing,
    Link(InodeId),
    Different(InodeId, &'static str),
}

impl Links {
    pub(super) fn new(spill: &Spill) -> Self {
        Links { inodes: Hashes::new(spill) }
    }

    /// Looks for the inode of a name, which is no directory.
    pub(super) fn find(&self, stat: &SourceStat, tree: &Tree) -> Found {
        let Some(number) = self.inodes.get(&key(stat)) else { return Found::Nothing };
        let id = InodeId::at(number as u32 as usize);
        match difference(tree, id, number >> 32, stat) {
            Some(property) => Found::Different(id, property),
            None => Found::Link(id),
        }
    }

    /// Adds an inode, if it has further names.
    pub(super) fn add(&mut self, stat: &SourceStat, id: InodeId) -> Result<()> {
        if stat.nlink > 1 {
            self.inodes.get_or_insert(&key(stat), id.index() as u64 | names(stat) << 32)?;
        }
        Ok(())
    }
}

fn key(stat: &SourceStat) -> Key {
    Hashes::key_of(stat.device, stat.inode)
}

/// The number of names, which fits in half a word, and with an inode is not the number that no table has.
fn names(stat: &SourceStat) -> u64 {
    stat.nlink.min(u64::from(u32::MAX) - 1)
}

/// A property of a name that is not that of an inode in the tree, which had so many names.
fn difference(tree: &Tree, id: InodeId, nlink: u64, stat: &SourceStat) -> Option<&'static str> {
    let kind = tree.kind(id);
    let metadata = tree.plain_metadata(id);
    let len_bytes = match kind {
        FileKind::Regular => tree.content_bytes(id),
        // Some FUSE file systems report the length 0 for symbolic links.
        _ => stat.len_bytes,
    };
    let number = DeviceNumber { major: stat.special.0, minor: stat.special.1 };
    let mtime = (metadata.mtime.seconds, metadata.mtime.nanoseconds);
    let is_same_change = tree.stored(id).is_none_or(|stored| Identity::of(stat).has_same_times(&stored));
    [
        (FileKind::from_mode(stat.mode as u16) == Some(kind), "type"),
        (len_bytes == stat.len_bytes, "length"),
        (mtime == stat.mtime && is_same_change, "time"),
        (nlink == names(stat), "number of names"),
        (tree.device(id).is_none_or(|device| device == number), "device number"),
        ((metadata.uid, metadata.gid) == (stat.uid, stat.gid), "owner"),
        (u32::from(metadata.permissions) == stat.mode & 0o7777, "mode"),
    ]
    .into_iter()
    .find_map(|(agrees, property)| (!agrees).then_some(property))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Body, Metadata};
    use pagefold_image::read::inode::Timestamp;

    const REGULAR: u32 = 0o100_000;

    fn stat() -> SourceStat {
        SourceStat {
            mode: REGULAR | 0o644,
            uid: 1,
            gid: 2,
            len_bytes: 9,
            mtime: (5, 6),
            ctime_ns: 7,
            nlink: 2,
            device: 3,
            inode: 4,
            special: (0, 0),
            may_have_holes: false,
        }
    }

    /// A tree with a file of these properties under the name `first`, and its links.
    fn tree_of(stat: &SourceStat, body: Body) -> (Tree, Links, InodeId) {
        let mut tree = Tree::new(Metadata::default());
        let (seconds, nanoseconds) = stat.mtime;
        let metadata = Metadata {
            permissions: stat.mode as u16 & 0o7777,
            uid: stat.uid,
            gid: stat.gid,
            mtime: Timestamp { seconds, nanoseconds },
            xattrs: Vec::new(),
        };
        let id = tree.add(InodeId::ROOT, b"first", metadata, body).unwrap();
        let mut links = Links::new(&Spill::none());
        links.add(stat, id).unwrap();
        (tree, links, id)
    }

    fn difference_to(links: &Links, tree: &Tree, stat: SourceStat) -> Option<&'static str> {
        match links.find(&stat, tree) {
            Found::Nothing => Some("nothing"),
            Found::Link(_) => None,
            Found::Different(_, property) => Some(property),
        }
    }

    #[test]
    fn names_are_those_of_one_file_only_if_everything_agrees() {
        let first = stat();
        let (tree, links, id) = tree_of(&first, Body::Stored(Identity::of(&first).stored()));
        let difference = |stat| difference_to(&links, &tree, stat);
        assert_eq!(difference(first), None);
        assert_eq!(difference(SourceStat { inode: 5, ..first }), Some("nothing"));
        assert_eq!(difference(SourceStat { mode: 0o040_644, ..first }), Some("type"));
        assert_eq!(difference(SourceStat { len_bytes: 8, ..first }), Some("length"));
        assert_eq!(difference(SourceStat { mtime: (5, 7), ..first }), Some("time"));
        assert_eq!(difference(SourceStat { ctime_ns: 8, ..first }), Some("time"));
        assert_eq!(difference(SourceStat { nlink: 1, ..first }), Some("number of names"));
        assert_eq!(difference(SourceStat { nlink: 3, ..first }), Some("number of names"));
        assert_eq!(difference(SourceStat { gid: 9, ..first }), Some("owner"));
        assert_eq!(difference(SourceStat { mode: REGULAR | 0o600, ..first }), Some("mode"));
        assert_eq!(tree.path_of(id), b"first");
    }

    #[test]
    fn links_and_devices_are_compared_too() {
        let link = SourceStat { mode: 0o120_777, len_bytes: 4, ..stat() };
        let (tree, links, _) = tree_of(&link, Body::Symlink(Box::from(*b"away")));
        assert_eq!(difference_to(&links, &tree, link), None);
        // Some file systems do not report the length of a link.
        assert_eq!(difference_to(&links, &tree, SourceStat { len_bytes: 0, ..link }), None);
        let device = SourceStat { mode: 0o020_600, special: (1, 2), nlink: u64::MAX, ..stat() };
        let (tree, links, _) = tree_of(&device, Body::CharDevice(DeviceNumber { major: 1, minor: 2 }));
        assert_eq!(difference_to(&links, &tree, device), None);
        assert_eq!(
            difference_to(&links, &tree, SourceStat { special: (1, 3), ..device }),
            Some("device number")
        );
    }
}
