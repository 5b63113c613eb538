//! The order of inodes in an image, their numbers of names, and the times that most of them have.

use super::tree::{Body, InodeId, Tree};
use crate::read::inode::Timestamp;
use std::collections::BTreeMap;

/// The inodes of the image, in order.
#[derive(Debug)]
pub struct Plan {
    /// The directories: a directory comes before those in it.
    pub directories: Vec<Planned>,
    /// All other inodes, by directory and name.
    pub others: Vec<Planned>,
    /// For each inode of the tree, its number of names; of a directory, with those of its `.` and of its directories'
    /// `..`. 0: it is not in the image.
    pub nlinks: Vec<u32>,
    /// Time of compact inodes: the most frequent one from which `build_time` can be stored.
    pub epoch: Timestamp,
    /// Time of creation, seconds since 1970.
    pub build_time: i64,
}

/// An inode of the image.
#[derive(Debug)]
pub struct Planned {
    /// The inode.
    pub id: InodeId,
    /// The directory that it is in; the root's is itself. Of hard links, that of the first name.
    pub parent: InodeId,
    /// Its path without a slash at the beginning; of hard links, the first.
    pub path: Box<[u8]>,
}

impl Plan {
    /// Plans a tree. The files of a directory come before those in its directories. The time of creation is
    /// `build_time`, or else the newest time of the tree.
    pub fn new(tree: &Tree, build_time: Option<i64>) -> Self {
        let mut plan = Plan {
            directories: Vec::new(),
            others: Vec::new(),
            nlinks: vec![0; tree.len()],
            epoch: Timestamp { seconds: 0, nanoseconds: 0 },
            build_time: 0,
        };
        let mut stack = vec![Planned { id: InodeId::ROOT, parent: InodeId::ROOT, path: Box::default() }];
        while let Some(directory) = stack.pop() {
            plan.visit(tree, &directory, &mut stack);
            plan.directories.push(directory);
        }
        plan.find_times(tree, build_time);
        plan
    }

    /// All inodes of the image.
    pub fn ids(&self) -> impl Iterator<Item = InodeId> {
        self.directories.iter().chain(&self.others).map(|planned| planned.id)
    }

    fn visit(&mut self, tree: &Tree, directory: &Planned, stack: &mut Vec<Planned>) {
        self.nlinks[directory.id.index()] += 2;
        let first = stack.len();
        for (name, id) in tree.directory(directory.id).into_iter().flat_map(|d| d.entries()) {
            let planned = || Planned { id, parent: directory.id, path: join(&directory.path, name) };
            match tree.inode(id).body {
                Body::Directory(_) => {
                    self.nlinks[directory.id.index()] += 1;
                    stack.push(planned());
                }
                _ => {
                    if self.nlinks[id.index()] == 0 {
                        self.others.push(planned());
                    }
                    self.nlinks[id.index()] += 1;
                }
            }
        }
        stack[first..].reverse();
    }

    /// Finds the time of creation, and the most frequent time, the earliest of several. The superblock has the time of
    /// creation as a number of 32 bits that is added to the time of compact inodes. If that is possible for no time of
    /// the tree, there are no compact inodes.
    fn find_times(&mut self, tree: &Tree, build_time: Option<i64>) {
        let mut counts: BTreeMap<Timestamp, u64> = BTreeMap::new();
        for id in self.ids() {
            *counts.entry(tree.inode(id).metadata.mtime).or_default() += 1;
        }
        let newest = counts.last_key_value().map_or(0, |(time, _)| time.seconds);
        self.build_time = build_time.unwrap_or(newest);
        counts.retain(|time, _| {
            self.build_time.checked_sub(time.seconds).is_some_and(|after| u32::try_from(after).is_ok())
        });
        let most = counts.values().copied().max().unwrap_or(0);
        let most_frequent = counts.iter().find(|(_, count)| **count == most);
        self.epoch = match most_frequent {
            Some((time, _)) => *time,
            None => Timestamp { seconds: self.build_time, nanoseconds: 0 },
        };
    }
}

fn join(directory: &[u8], name: &[u8]) -> Box<[u8]> {
    match directory {
        b"" => name.into(),
        directory => [directory, name].join(b"/".as_slice()).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::tree::{Body, Metadata};

    #[test]
    fn a_directory_comes_before_its_contents_and_links_count() {
        let mut tree = Tree::new(Metadata::default());
        let file = tree.add_bytes(b"b/file", *b"1").unwrap();
        tree.link(InodeId::ROOT, b"z", file).unwrap();
        tree.add_bytes(b"a/x/deep", *b"2").unwrap();
        let lost = tree.add(InodeId::ROOT, b"lost", Metadata::default(), Body::Fifo).unwrap();
        tree.remove(InodeId::ROOT, b"lost");
        let plan = Plan::new(&tree, None);
        let paths = |of: &[Planned]| {
            of.iter().map(|p| String::from_utf8_lossy(&p.path).into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(paths(&plan.directories), ["", "a", "a/x", "b"]);
        assert_eq!(paths(&plan.others), ["z", "a/x/deep"]);
        assert_eq!((plan.nlinks[file.index()], plan.nlinks[lost.index()], plan.nlinks[0]), (2, 0, 4));
    }

    #[test]
    fn the_time_of_creation_is_the_given_one_wherever_the_times_of_files_are() {
        let at = |seconds| Metadata { mtime: Timestamp { seconds, nanoseconds: 0 }, ..Metadata::default() };
        let mut tree = Tree::new(at(1_000_000));
        for (name, seconds) in [(b"a", 1_000_000), (b"b", 2_000_000), (b"c", 5_000_000_000)] {
            tree.add(InodeId::ROOT, name, at(seconds), Body::Fifo).unwrap();
        }
        let times = |build_time| {
            let plan = Plan::new(&tree, build_time);
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
