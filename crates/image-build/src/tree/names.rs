//! The entries of directories: a binary tree for each, in one table.
//!
//! The trees are treaps (Aragon and Seidel, "Randomized search trees", 1996): sorted by name, and each node has a higher
//! priority than those below it. Priorities are keyed hashes of names, so a source cannot choose names that make a tree
//! deep. The order of entries does not depend on them.
//!
//! Nodes of entries that are removed are not used again.

use super::InodeId;
use crate::table::{Spill, Table};
use crate::{BuildError, Result};
use std::cmp::Ordering;
use std::hash::{BuildHasher, RandomState};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The number of no node: an empty tree.
pub const NO_NODE: u32 = u32::MAX;

/// A name in a [`Names`]: its position, and its length in the lowest 16 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable)]
#[repr(transparent)]
pub struct Name(u64);

/// An entry, and the trees of the entries before and after it.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Node {
    name: Name,
    id: InodeId,
    left: u32,
    right: u32,
    priority: u32,
}

/// Where the number of a node stands.
#[derive(Debug, Clone, Copy)]
enum Link {
    Root,
    Left(u32),
    Right(u32),
}

/// The names and entries of all directories.
#[derive(Debug)]
pub struct Names {
    bytes: Table<u8>,
    nodes: Table<Node>,
    priorities: RandomState,
}

impl Names {
    /// No names.
    pub fn new(spill: &Spill) -> Self {
        Names { bytes: Table::new(spill), nodes: Table::new(spill), priorities: RandomState::new() }
    }

    /// Stores bytes, fewer than 64 KiB: a name, or the target of a link.
    pub fn add(&mut self, bytes: &[u8]) -> Result<Name> {
        debug_assert!(bytes.len() <= usize::from(u16::MAX));
        let at = if bytes.is_empty() { 0 } else { self.bytes.append_run(bytes)? };
        Ok(Name(at << 16 | bytes.len() as u64))
    }

    /// The bytes of a name.
    pub fn get(&self, name: Name) -> &[u8] {
        self.bytes.run(name.0 >> 16, (name.0 & 0xffff) as usize)
    }

    /// The inode of an entry of the tree `root`.
    pub fn find(&self, root: u32, name: &[u8]) -> Option<InodeId> {
        self.find_node(root, name).map(|(_, at)| self.nodes.get(at as usize).id)
    }

    /// Enters a name into the tree `root`, or gives it another inode. Returns the root, and the name.
    pub fn enter(&mut self, root: u32, name: &[u8], id: InodeId) -> Result<(u32, Name)> {
        if let Some((_, at)) = self.find_node(root, name) {
            let node = Node { id, ..self.nodes.get(at as usize) };
            self.nodes.set(at as usize, node);
            return Ok((root, node.name));
        }
        let priority = self.priorities.hash_one(name) as u32;
        let (stored, mut root) = (self.add(name)?, root);
        let number = self.nodes.len();
        let new = u32::try_from(number).ok().filter(|number| *number != NO_NODE);
        let new = new.ok_or_else(|| BuildError::TooLarge { what: "2^32 names".into() })?;
        self.nodes.push(Node { name: stored, id, left: NO_NODE, right: NO_NODE, priority })?;
        let (mut link, mut at) = (Link::Root, root);
        while at != NO_NODE {
            let node = self.nodes.get(at as usize);
            if node.priority < priority {
                break;
            }
            (link, at) = match name.cmp(self.get(node.name)) {
                Ordering::Less => (Link::Left(at), node.left),
                _ => (Link::Right(at), node.right),
            };
        }
        self.set_link(link, new, &mut root);
        // The tree that was there is divided into the names before and after the new one.
        let (mut before, mut after) = (Link::Left(new), Link::Right(new));
        while at != NO_NODE {
            let node = self.nodes.get(at as usize);
            if self.get(node.name) < name {
                self.set_link(before, at, &mut root);
                (before, at) = (Link::Right(at), node.right);
            } else {
                self.set_link(after, at, &mut root);
                (after, at) = (Link::Left(at), node.left);
            }
        }
        self.set_link(before, NO_NODE, &mut root);
        self.set_link(after, NO_NODE, &mut root);
        Ok((root, stored))
    }

    /// Removes a name from the tree `root`. Returns the root, if the name was there.
    pub fn remove(&mut self, root: u32, name: &[u8]) -> Option<u32> {
        let (mut link, at) = self.find_node(root, name)?;
        let Node { mut left, mut right, .. } = self.nodes.get(at as usize);
        let mut root = root;
        while left != NO_NODE && right != NO_NODE {
            let (first, second) = (self.nodes.get(left as usize), self.nodes.get(right as usize));
            if first.priority >= second.priority {
                self.set_link(link, left, &mut root);
                (link, left) = (Link::Right(left), first.right);
            } else {
                self.set_link(link, right, &mut root);
                (link, right) = (Link::Left(right), second.left);
            }
        }
        self.set_link(link, if left == NO_NODE { right } else { left }, &mut root);
        Some(root)
    }

    /// The entries of the tree `root`, in order.
    pub fn entries(&self, root: u32) -> Entries<'_> {
        let mut entries = Entries { names: self, stack: Vec::new() };
        entries.descend(root);
        entries
    }

    fn find_node(&self, root: u32, name: &[u8]) -> Option<(Link, u32)> {
        let (mut link, mut at) = (Link::Root, root);
        while at != NO_NODE {
            let node = self.nodes.get(at as usize);
            (link, at) = match name.cmp(self.get(node.name)) {
                Ordering::Equal => return Some((link, at)),
                Ordering::Less => (Link::Left(at), node.left),
                Ordering::Greater => (Link::Right(at), node.right),
            };
        }
        None
    }

    fn set_link(&mut self, link: Link, to: u32, root: &mut u32) {
        match link {
            Link::Root => *root = to,
            Link::Left(at) => {
                let node = Node { left: to, ..self.nodes.get(at as usize) };
                self.nodes.set(at as usize, node);
            }
            Link::Right(at) => {
                let node = Node { right: to, ..self.nodes.get(at as usize) };
                self.nodes.set(at as usize, node);
            }
        }
    }
}

/// The entries of a directory, in the order of their names' bytes.
#[derive(Debug, Clone)]
pub struct Entries<'n> {
    names: &'n Names,
    /// Nodes whose trees of earlier names are done.
    stack: Vec<u32>,
}

impl<'n> Entries<'n> {
    /// The next entry, with the place of its name.
    pub(crate) fn next_entry(&mut self) -> Option<(Name, InodeId)> {
        let node = self.names.nodes.get(self.stack.pop()? as usize);
        self.descend(node.right);
        Some((node.name, node.id))
    }

    fn descend(&mut self, root: u32) {
        let mut at = root;
        while at != NO_NODE {
            self.stack.push(at);
            at = self.names.nodes.get(at as usize).left;
        }
    }
}

impl<'n> Iterator for Entries<'n> {
    type Item = (&'n [u8], InodeId);

    fn next(&mut self) -> Option<Self::Item> {
        let (name, id) = self.next_entry()?;
        Some((self.names.get(name), id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn a_tree_holds_what_a_map_holds(
            steps in proptest::collection::vec((0u8..4, proptest::collection::vec(0u8..4, 1..5), any::<u32>()), 0..200),
        ) {
            let mut names = Names::new(&Spill::none());
            let (mut root, mut twin) = (NO_NODE, BTreeMap::new());
            for (step, name, id) in steps {
                match step {
                    0 => {
                        let removed = names.remove(root, &name);
                        prop_assert_eq!(removed.is_some(), twin.remove(&name).is_some());
                        root = removed.unwrap_or(root);
                    }
                    _ => {
                        twin.insert(name.clone(), InodeId(id));
                        root = names.enter(root, &name, InodeId(id)).unwrap().0;
                    }
                }
                prop_assert_eq!(names.find(root, &name), twin.get(&name).copied());
            }
            let found: Vec<_> = names.entries(root).map(|(name, id)| (name.to_vec(), id)).collect();
            prop_assert_eq!(found, twin.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn sorted_names_make_no_deep_tree() {
        let mut names = Names::new(&Spill::none());
        let mut root = NO_NODE;
        for n in 0..100_000u32 {
            root = names.enter(root, format!("{n:06}").as_bytes(), InodeId(n)).unwrap().0;
        }
        let mut entries = names.entries(root);
        let (mut deepest, mut count) = (0, 0);
        while entries.next_entry().is_some() {
            (deepest, count) = (entries.stack.len().max(deepest), count + 1);
        }
        // The expected depth is 2 ln n, 23; that of a list would be 100 000.
        assert!(count == 100_000 && deepest < 100, "{deepest}");
    }
}
