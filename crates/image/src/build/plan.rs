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
    /// Time of compact inodes: the most frequent one.
    pub epoch: Timestamp,
    /// The newest time.
    pub newest: Timestamp,
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
    /// Plans a tree. The files of a directory come before those in its directories.
    pub fn new(tree: &Tree) -> Self {
        let mut plan = Plan {
            directories: Vec::new(),
            others: Vec::new(),
            nlinks: vec![0; tree.len()],
            epoch: Timestamp { seconds: 0, nanoseconds: 0 },
            newest: Timestamp { seconds: 0, nanoseconds: 0 },
        };
        let mut stack = vec![Planned { id: InodeId::ROOT, parent: InodeId::ROOT, path: Box::default() }];
        while let Some(directory) = stack.pop() {
            plan.visit(tree, &directory, &mut stack);
            plan.directories.push(directory);
        }
        plan.find_times(tree);
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

    /// Finds the most frequent time, the earliest of several, and the newest one.
    fn find_times(&mut self, tree: &Tree) {
        let mut counts: BTreeMap<Timestamp, u64> = BTreeMap::new();
        for id in self.ids() {
            *counts.entry(tree.inode(id).metadata.mtime).or_default() += 1;
        }
        let most = counts.values().copied().max().unwrap_or(0);
        if let Some((time, _)) = counts.iter().find(|(_, count)| **count == most) {
            self.epoch = *time;
        }
        if let Some((time, _)) = counts.last_key_value() {
            self.newest = *time;
        }
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
        let plan = Plan::new(&tree);
        let paths = |of: &[Planned]| {
            of.iter().map(|p| String::from_utf8_lossy(&p.path).into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(paths(&plan.directories), ["", "a", "a/x", "b"]);
        assert_eq!(paths(&plan.others), ["z", "a/x/deep"]);
        assert_eq!((plan.nlinks[file.index()], plan.nlinks[lost.index()], plan.nlinks[0]), (2, 0, 4));
    }
}
