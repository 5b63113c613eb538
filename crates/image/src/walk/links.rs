//! Tracks the inodes that a walk has visited, and counts the names of files with several names.
//!
//! A visited inode takes one bit. Image builders place inodes close together, so 64 neighbours share an entry of a hash
//! table. A file with several names (`nlink` above 1) has an entry of a second table until the walk has met `nlink`
//! names of it. Both tables are charged to the tool's account. If the first cannot grow, the walk ends. If the second
//! cannot grow, the walk goes on and reports that it did not count all names.

use super::visitor::{Link, Visitor};
use crate::account::{Account, TableAccount};
use crate::read::FileKind;
use crate::{Finding, Nid, Node, rules};
use std::collections::HashMap;

/// Overhead of a heap allocation, bytes.
const ALLOCATION_BYTES: u64 = 16;

/// A file that has several names, or whose inode says so.
struct MultiLinkFile {
    /// The path of its first name, if there was room for it.
    path: Option<Box<[u8]>>,
    nlink: u32,
    names: u32,
}

/// The visited inodes of a walk.
pub(super) struct LinkTracker {
    account: Account,
    /// Bitmap of visited inodes: the key is the inode number divided by 64.
    visited: HashMap<u64, u64>,
    visited_account: TableAccount,
    /// Files whose number of names so far differs from their `nlink`.
    multi_link: HashMap<Nid, MultiLinkFile>,
    multi_link_account: TableAccount,
    /// The first path of the file whose last name was just recorded; [`record`](Self::record) returns a reference to
    /// it.
    completed_path: Option<Box<[u8]>>,
    path_bytes_left: usize,
    /// Whether the names of some file were not counted for want of memory.
    uncounted: bool,
}

impl LinkTracker {
    /// A tracker without inodes, which remembers at most `max_bytes` of paths.
    pub(super) fn new(max_bytes: usize, account: &Account) -> Self {
        LinkTracker {
            account: account.clone(),
            visited: HashMap::new(),
            visited_account: TableAccount::new::<(u64, u64)>(account),
            multi_link: HashMap::new(),
            multi_link_account: TableAccount::new::<(Nid, MultiLinkFile)>(account),
            completed_path: None,
            path_bytes_left: max_bytes,
            uncounted: false,
        }
    }

    /// Records a name of `node`, and returns whether it is the first one. `None` if the budget has no room for it.
    pub(super) fn record(&mut self, node: &Node, path: &[u8]) -> Option<Link<'_>> {
        let (nid, nlink) = (node.nid(), node.inode().nlink);
        let is_first = self.mark_visited(nid)?;
        if node.kind() == FileKind::Directory {
            return Some(if is_first { Link::First } else { Link::Again(None) });
        }
        if is_first {
            if nlink != 1 {
                self.track(nid, Some(path), MultiLinkFile { path: None, nlink, names: 1 });
            }
            return Some(Link::First);
        }
        let Some(file) = self.multi_link.get_mut(&nid) else {
            // Either the walk has met all `nlink` names already, and this is one too many; or there was no room to
            // track the file.
            if !self.uncounted || nlink == 1 {
                self.track(nid, None, MultiLinkFile { path: None, nlink, names: nlink.saturating_add(1) });
            }
            return Some(Link::Again(None));
        };
        file.names = file.names.saturating_add(1);
        if file.names != nlink {
            return Some(Link::Again(self.multi_link.get(&nid).and_then(|file| file.path.as_deref())));
        }
        self.completed_path = self.multi_link.remove(&nid).and_then(|file| file.path);
        if let Some(path) = &self.completed_path {
            self.path_bytes_left += path.len();
            self.account.uncharge(path.len() as u64 + ALLOCATION_BYTES);
        }
        Some(Link::Again(self.completed_path.as_deref()))
    }

    /// Marks an inode as visited, and returns whether this is its first visit. `None` if the budget has no room for it.
    fn mark_visited(&mut self, nid: Nid) -> Option<bool> {
        let (key, bit) = (nid.0 / 64, 1 << (nid.0 % 64));
        if !self.visited.contains_key(&key)
            && !self.visited_account.reserve_one(self.visited.len(), self.visited.capacity())
        {
            return None;
        }
        let bits = self.visited.entry(key).or_default();
        let is_first = *bits & bit == 0;
        *bits |= bit;
        Some(is_first)
    }

    /// Starts to count the names of a file, if the budget has room for its entry.
    fn track(&mut self, nid: Nid, path: Option<&[u8]>, mut file: MultiLinkFile) {
        if !self.multi_link_account.reserve_one(self.multi_link.len(), self.multi_link.capacity()) {
            self.uncounted = true;
            return;
        }
        let fits = |path: &&[u8]| {
            path.len() <= self.path_bytes_left
                && self.account.try_charge(path.len() as u64 + ALLOCATION_BYTES)
        };
        file.path = path.filter(fits).map(Into::into);
        self.path_bytes_left -= file.path.as_deref().map_or(0, <[u8]>::len);
        self.multi_link.insert(nid, file);
    }

    /// Reports files whose number of names differs from their `nlink`. If the walk did not cover the whole image, names
    /// may be elsewhere, so only files with too many names are reported.
    pub(super) fn report(&self, covers_image: bool, visitor: &mut dyn Visitor) {
        // This comes first, because the list of findings may not have room for all that follow.
        if self.uncounted {
            let what = "too little memory to count the names of all files with several names; raise it with --memory";
            visitor.finding(Finding::warning(b"", None, what));
        }
        for (nid, file) in &self.multi_link {
            let too_few = covers_image && file.names < file.nlink;
            if too_few || file.names > file.nlink {
                let path = file.path.as_deref().unwrap_or_default();
                let what =
                    format!("inode {nid} says that it has {} names, and has {}", file.nlink, file.names);
                visitor.finding(Finding::breaks(&rules::INODE_LINKS, path, None, what));
            }
        }
    }
}
