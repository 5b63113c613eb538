//! Which inodes were met, how often, and where files with several names were first.
//!
//! That an inode was met is a bit: builders put inodes close together, so 64 neighbours share an entry of a table. Files with
//! several names are remembered until all of the names that they say they have were met. Both are counted in the tool's
//! account. Without room for the first the walk ends; without room for the second it goes on, and says that it did not
//! count all names.

use super::{Link, Visitor};
use crate::account::{Account, TableRoom};
use crate::read::FileKind;
use crate::{Finding, Nid, Node};
use std::collections::HashMap;

/// Bytes that an allocation takes beside its own.
const ALLOCATION_BYTES: u64 = 16;

/// A file that says that it has several names, or has.
struct Several {
    /// Its first name, if there was room for it.
    path: Option<Box<[u8]>>,
    nlink: u32,
    names: u32,
}

/// The inodes of a walk.
pub(super) struct Links {
    account: Account,
    /// A bit for each inode that was met, by its number: 64 to an entry.
    met: HashMap<u64, u64>,
    met_room: TableRoom,
    /// Files whose names were not all met, or more than all.
    several: HashMap<Nid, Several>,
    several_room: TableRoom,
    /// The first name of the file of which the last name was just met.
    last_path: Option<Box<[u8]>>,
    left_bytes: usize,
    /// There was no room to count the names of all files.
    uncounted: bool,
}

impl Links {
    /// Remembers `max_bytes` of paths.
    pub(super) fn new(max_bytes: usize, account: &Account) -> Self {
        Links {
            account: account.clone(),
            met: HashMap::new(),
            met_room: TableRoom::of::<(u64, u64)>(account),
            several: HashMap::new(),
            several_room: TableRoom::of::<(Nid, Several)>(account),
            last_path: None,
            left_bytes: max_bytes,
            uncounted: false,
        }
    }

    /// Takes note of a name; `None` if there is no room for that.
    pub(super) fn meet(&mut self, node: &Node, path: &[u8]) -> Option<Link<'_>> {
        let (nid, nlink) = (node.nid(), node.inode().nlink);
        let is_first = self.mark(nid)?;
        if node.kind() == FileKind::Directory {
            return Some(if is_first { Link::First } else { Link::Again(None) });
        }
        if is_first {
            if nlink != 1 {
                self.remember(nid, Some(path), Several { path: None, nlink, names: 1 });
            }
            return Some(Link::First);
        }
        let Some(several) = self.several.get_mut(&nid) else {
            // It has had all of its names, so this is one more; or there was no room for it.
            if !self.uncounted || nlink == 1 {
                self.remember(nid, None, Several { path: None, nlink, names: nlink.saturating_add(1) });
            }
            return Some(Link::Again(None));
        };
        several.names = several.names.saturating_add(1);
        if several.names != nlink {
            return Some(Link::Again(self.several.get(&nid).and_then(|several| several.path.as_deref())));
        }
        self.last_path = self.several.remove(&nid).and_then(|several| several.path);
        if let Some(path) = &self.last_path {
            self.left_bytes += path.len();
            self.account.give_back(path.len() as u64 + ALLOCATION_BYTES);
        }
        Some(Link::Again(self.last_path.as_deref()))
    }

    /// Marks an inode; whether it was not marked before. `None` if there is no room.
    fn mark(&mut self, nid: Nid) -> Option<bool> {
        let (key, bit) = (nid.0 / 64, 1 << (nid.0 % 64));
        if !self.met.contains_key(&key) && !self.met_room.for_one_more(self.met.len(), self.met.capacity()) {
            return None;
        }
        let bits = self.met.entry(key).or_default();
        let is_first = *bits & bit == 0;
        *bits |= bit;
        Some(is_first)
    }

    fn remember(&mut self, nid: Nid, path: Option<&[u8]>, mut several: Several) {
        if !self.several_room.for_one_more(self.several.len(), self.several.capacity()) {
            self.uncounted = true;
            return;
        }
        let fits = |path: &&[u8]| {
            path.len() <= self.left_bytes && self.account.take(path.len() as u64 + ALLOCATION_BYTES)
        };
        several.path = path.filter(fits).map(Into::into);
        self.left_bytes -= several.path.as_deref().map_or(0, <[u8]>::len);
        self.several.insert(nid, several);
    }

    /// Tells of files that have more or fewer names than they say. Of a part of a tree, only of those with more.
    pub(super) fn report(&self, whole: bool, visitor: &mut dyn Visitor) {
        // First: of the others there may be more than are kept.
        if self.uncounted {
            let what = "there was too little memory to count the names of all files with several names; --memory \
                        raises it";
            visitor.finding(Finding::warning(b"", None, what));
        }
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
