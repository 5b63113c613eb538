//! The order of inodes in an image, their numbers of names, and the times that most of them have.

use super::compression::Compression;
use super::rules::Rules;
use super::table::{Spill, Table};
use super::tree::{InodeId, Name, Tree};
use crate::{BuildError, Result};
use pagefold_image::read::FileKind;
use pagefold_image::read::inode::Timestamp;
use pagefold_image::walk::DEPTH_MAX;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The inodes of the image, in order.
#[derive(Debug)]
pub struct Plan {
    /// The directories: a directory comes before those in it.
    pub directories: Table<Planned>,
    /// All other inodes, by directory and name.
    pub others: Table<Planned>,
    /// For each inode of the tree, its number of names; of a directory, with those of its `.` and of its directories'
    /// `..`. 0: it is not in the image.
    nlinks: Table<u32>,
    /// Time of compact inodes: the most frequent one from which `build_time` can be stored.
    pub epoch: Timestamp,
    /// Time of creation, seconds since 1970.
    pub build_time: i64,
}

/// An inode of the image.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Planned {
    /// The name in that directory; the root has an empty one.
    pub name: Name,
    /// The inode.
    pub id: InodeId,
    /// The directory that it is in; the root's is itself. Of hard links, that of the first name.
    pub parent: InodeId,
}

impl Planned {
    /// Its path without a slash at the beginning; of hard links, the first.
    pub fn path(&self, tree: &Tree) -> Vec<u8> {
        tree.path(self.parent, self.name)
    }

    /// The compression that a rule has for it.
    pub fn rule(&self, tree: &Tree, rules: &Rules) -> Option<Option<Compression>> {
        if rules.is_empty() { None } else { rules.find(&self.path(tree)).map(|rule| rule.compression) }
    }

    /// The largest cluster that a rule has for it, bytes.
    pub fn rule_cluster(&self, tree: &Tree, rules: &Rules) -> Option<u32> {
        rules.clusters().next()?;
        rules.find(&self.path(tree))?.cluster_bytes
    }
}

/// A time of an inode, while times are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Time {
    seconds: i64,
    nanoseconds: u64,
}

impl Plan {
    /// Plans a tree. The files of a directory come before those in its directories. The time of creation is
    /// `build_time`, or else the newest time of the tree; and if compact inodes lose their times, they get this one.
    pub fn new(tree: &Tree, build_time: Option<i64>, loses_times: bool) -> Result<Self> {
        let spill = tree.spill();
        let mut plan = Plan {
            directories: Table::new(spill),
            others: Table::new(spill),
            nlinks: Table::filled(spill, tree.len(), 0)?,
            epoch: Timestamp { seconds: 0, nanoseconds: 0 },
            build_time: 0,
        };
        let (mut stack, mut depths) = (Table::new(spill), Table::new(spill));
        stack.push(Planned { id: InodeId::ROOT, parent: InodeId::ROOT, name: Name::default() })?;
        depths.push(0_u32)?;
        while let (Some(directory), Some(depth)) = (stack.pop(), depths.pop()) {
            if depth as usize > DEPTH_MAX {
                let what = format!("it is below {DEPTH_MAX} directories, and readers enter no more");
                return Err(BuildError::refused(&directory.path(tree), what));
            }
            plan.visit(tree, &directory, &mut stack)?;
            plan.directories.push(directory)?;
            while depths.len() < stack.len() {
                depths.push(depth + 1)?;
            }
        }
        plan.find_times(tree, build_time, spill)?;
        if loses_times {
            plan.epoch = Timestamp { seconds: plan.build_time, nanoseconds: 0 };
        }
        Ok(plan)
    }

    /// All inodes of the image.
    pub fn ids(&self) -> impl Iterator<Item = InodeId> {
        self.directories.iter().chain(self.others.iter()).map(|planned| planned.id)
    }

    /// Number of inodes of the image.
    pub fn count(&self) -> usize {
        self.directories.len() + self.others.len()
    }

    /// Names of an inode; of a directory, with those of its `.` and of its directories' `..`. 0: it is not in the image.
    pub fn nlink(&self, id: InodeId) -> u32 {
        self.nlinks.get(id.index())
    }

    fn visit(&mut self, tree: &Tree, directory: &Planned, stack: &mut Table<Planned>) -> Result<()> {
        let mut nlink = 2;
        let first = stack.len();
        let mut entries = tree.entries(directory.id);
        while let Some((name, id)) = entries.next_entry() {
            let planned = Planned { id, parent: directory.id, name };
            match tree.kind(id) {
                FileKind::Directory => {
                    nlink += 1;
                    stack.push(planned)?;
                }
                _ => {
                    let before = self.nlink(id);
                    if before == 0 {
                        self.others.push(planned)?;
                    }
                    self.nlinks.set(id.index(), before + 1);
                }
            }
        }
        self.nlinks.set(directory.id.index(), nlink);
        stack.reverse_from(first);
        Ok(())
    }

    /// Finds the time of creation, and the most frequent time, the earliest of several. The superblock has the time of
    /// creation as a number of 32 bits that is added to the time of compact inodes. If that is possible for no time of
    /// the tree, there are no compact inodes.
    fn find_times(&mut self, tree: &Tree, build_time: Option<i64>, spill: &Spill) -> Result<()> {
        let mut times = Table::new(spill);
        for id in self.ids() {
            let Timestamp { seconds, nanoseconds } = tree.mtime(id);
            times.push(Time { seconds, nanoseconds: nanoseconds.into() })?;
        }
        times.sort_by(Time::cmp)?;
        let newest = times.len().checked_sub(1).map_or(0, |last| times.get(last).seconds);
        self.build_time = build_time.unwrap_or(newest);
        let is_possible = |time: &Time| {
            self.build_time.checked_sub(time.seconds).is_some_and(|after| u32::try_from(after).is_ok())
        };
        // The times are sorted: equal ones follow each other, and earlier ones come first.
        let mut most_frequent = Time { seconds: self.build_time, nanoseconds: 0 };
        let (mut last, mut count, mut most) = (None, 0, 0);
        for time in times.iter().filter(is_possible) {
            count = if last == Some(time) { count + 1 } else { 1 };
            last = Some(time);
            if count > most {
                (most_frequent, most) = (time, count);
            }
        }
        let Time { seconds, nanoseconds } = most_frequent;
        self.epoch = Timestamp { seconds, nanoseconds: nanoseconds as u32 };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Body, Metadata};

    #[test]
    fn a_directory_comes_before_its_contents_and_links_count() {
        let mut tree = Tree::new(Metadata::default());
        let file = tree.add_bytes(b"b/file", *b"1").unwrap();
        tree.link(InodeId::ROOT, b"z", file).unwrap();
        tree.add_bytes(b"a/x/deep", *b"2").unwrap();
        let lost = tree.add(InodeId::ROOT, b"lost", Metadata::default(), Body::Fifo).unwrap();
        tree.remove(InodeId::ROOT, b"lost");
        let plan = Plan::new(&tree, None, false).unwrap();
        let paths = |of: &Table<Planned>| {
            of.iter().map(|p| String::from_utf8_lossy(&p.path(&tree)).into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(paths(&plan.directories), ["", "a", "a/x", "b"]);
        assert_eq!(paths(&plan.others), ["z", "a/x/deep"]);
        assert_eq!((plan.nlink(file), plan.nlink(lost), plan.nlink(InodeId::ROOT)), (2, 0, 4));
    }

    #[test]
    fn a_tree_has_as_many_levels_as_readers_enter() {
        let mut tree = Tree::new(Metadata::default());
        let mut at = InodeId::ROOT;
        let mut results = Vec::new();
        for _ in 0..=DEPTH_MAX {
            at = tree.add(at, b"d", Metadata::default(), Body::Directory).unwrap();
            results.push(Plan::new(&tree, None, false).err());
        }
        assert!(results[..DEPTH_MAX].iter().all(Option::is_none));
        let refused = results[DEPTH_MAX].take().unwrap().to_string();
        assert!(refused.contains("below 1024 directories, and readers enter no more"), "{refused}");
    }

    #[test]
    fn the_time_of_creation_is_the_given_one_wherever_the_times_of_files_are() {
        let at = |seconds| Metadata { mtime: Timestamp { seconds, nanoseconds: 0 }, ..Metadata::default() };
        let mut tree = Tree::new(at(1_000_000));
        for (name, seconds) in [(b"a", 1_000_000), (b"b", 2_000_000), (b"c", 5_000_000_000)] {
            tree.add(InodeId::ROOT, name, at(seconds), Body::Fifo).unwrap();
        }
        let times = |build_time| {
            let plan = Plan::new(&tree, build_time, false).unwrap();
            (plan.build_time, plan.epoch.seconds)
        };
        // The most frequent time is more than 2^32 seconds before the newest.
        assert_eq!(times(None), (5_000_000_000, 5_000_000_000));
        assert_eq!(times(Some(3_000_000)), (3_000_000, 1_000_000));
        assert_eq!(times(Some(1_000_000 + (1 << 32))), (4_295_967_296, 2_000_000));
        assert_eq!(times(Some(-5)), (-5, -5));
        assert_eq!(times(Some(i64::MAX)), (i64::MAX, i64::MAX));
        assert_eq!(times(Some(i64::MIN)), (i64::MIN, i64::MIN));
    }
}
