//! Which inodes were met, how often, and where files with several names were first.

use super::{Link, Visitor};
use crate::read::FileKind;
use crate::{Finding, Nid, Node};
use std::collections::{HashMap, HashSet};

/// A file that says that it has several names, or has.
struct Several {
    path: Option<Box<[u8]>>,
    nlink: u32,
    names: u32,
}

/// The inodes of a walk.
pub(super) struct Links {
    /// Those with one name: 8 bytes and what the table needs.
    single: HashSet<Nid>,
    several: HashMap<Nid, Several>,
    left_bytes: usize,
}

impl Links {
    /// Remembers `max_bytes` of paths.
    pub(super) fn new(max_bytes: usize) -> Self {
        Links { single: HashSet::new(), several: HashMap::new(), left_bytes: max_bytes }
    }

    /// Takes note of a name.
    pub(super) fn meet(&mut self, node: &Node, path: &[u8]) -> Link<'_> {
        let (nid, nlink) = (node.nid(), node.inode().nlink);
        if node.kind() == FileKind::Directory || nlink == 1 {
            if self.single.insert(nid) {
                return Link::First;
            }
            if node.kind() == FileKind::Directory {
                return Link::Again(None);
            }
        }
        let is_first = !self.several.contains_key(&nid);
        let several = self.several.entry(nid).or_insert_with(|| {
            let fits = path.len() <= self.left_bytes;
            self.left_bytes -= if fits { path.len() } else { 0 };
            // One name was before this, of a file that says it has one.
            let (path, names) = if nlink == 1 { (None, 1) } else { (fits.then(|| path.into()), 0) };
            Several { path, nlink, names }
        });
        several.names = several.names.saturating_add(1);
        match is_first && nlink != 1 {
            true => Link::First,
            false => Link::Again(several.path.as_deref()),
        }
    }

    /// Tells of files that have more or fewer names than they say. Of a part of a tree, only of those with more.
    pub(super) fn report(&self, whole: bool, visitor: &mut dyn Visitor) {
        for (nid, several) in &self.several {
            let too_few = whole && several.names < several.nlink;
            if too_few || several.names > several.nlink {
                let path = several.path.as_deref().unwrap_or_default();
                let what = format!(
                    "inode {nid} says that it has {} names, and has {}",
                    several.nlink, several.names
                );
                visitor.finding(Finding::error(path, None, what));
            }
        }
    }
}
