//! A directory on the way: its names one after the other, and what is wrong with them.
//!
//! One block is in memory. A name that is no name, or that was there before, is passed over; a block that is no block
//! too, and after [`MAX_TROUBLE`] of those the rest of the directory: one that says it has a million broken blocks is
//! told in a few lines. What `.` and `..` stand for is compared, and they are never handed on.
//!
//! In a directory in order the last name is all that is remembered. In one in disorder it is a hash of every name: 64 bits,
//! with a key that nobody knows, so that names that differ are as good as never taken for one. These are counted in the
//! tool's account; when that has no room, the rest of the directory is passed over.

use super::Visitor;
use crate::account::{Account, TableRoom};
use crate::read::FileKind;
use crate::read::dir::{DirBlock, Directory};
use crate::{Finding, ImageError, Nid, Node};
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

/// Broken names and blocks of one directory, after which the rest of it is passed over.
const MAX_TROUBLE: u32 = 64;

/// A name that may be followed.
pub(super) struct Name {
    pub(super) name: Vec<u8>,
    pub(super) nid: Nid,
    kind: Option<FileKind>,
    file_type: u8,
}

impl Name {
    /// What the entry says that its inode does not.
    pub(super) fn disagrees(&self, node: &Node) -> Option<String> {
        if self.kind == Some(node.kind()) || self.file_type == 0 {
            return None;
        }
        let said = self.kind.map_or_else(|| format!("type {}", self.file_type), |k| k.name().to_string());
        Some(format!("its entry says that it is {said}, and it is {}", node.kind().name()))
    }
}

/// A directory whose names are being visited.
pub(super) struct Frame {
    pub(super) node: Node,
    /// Directories in it so far.
    pub(super) directories: u64,
    /// How long the path of the directory above is.
    pub(super) parent_path_len: usize,
    /// What `..` is to be; `None`: not known.
    parent: Option<Nid>,
    directory: Directory,
    block: Vec<u8>,
    /// The block, and the entry of it that is next.
    at: (u64, usize),
    loaded: bool,
    order: Order,
    account: Account,
    trouble: u32,
    dots: [bool; 2],
}

/// Which names were there.
enum Order {
    /// All up to this one, which is the greatest.
    Sorted(Vec<u8>),
    /// These, in no order.
    Disordered(Names),
}

/// What became of adding a name to those that were there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Added {
    New,
    Known,
    /// There is no room to remember it.
    NoRoom,
}

/// Names in no order, by their hashes.
struct Names {
    hashes: HashSet<u64>,
    room: TableRoom,
    key: RandomState,
}

impl Names {
    fn new(account: &Account) -> Self {
        Names { hashes: HashSet::new(), room: TableRoom::of::<u64>(account), key: RandomState::new() }
    }

    fn add(&mut self, name: &[u8]) -> Added {
        let hash = self.key.hash_one(name);
        if self.hashes.contains(&hash) {
            return Added::Known;
        }
        if !self.room.for_one_more(self.hashes.len(), self.hashes.capacity()) {
            return Added::NoRoom;
        }
        self.hashes.insert(hash);
        Added::New
    }
}

impl Frame {
    pub(super) fn open(
        node: Node,
        parent: Option<Nid>,
        parent_path_len: usize,
        account: &Account,
    ) -> Result<Self, ImageError> {
        let directory = Directory::of(node.image().superblock(), node.inode())?;
        let dots = [node.inode().dot_omitted, false];
        Ok(Frame {
            node,
            directories: 0,
            parent_path_len,
            parent,
            directory,
            block: Vec::new(),
            at: (0, 0),
            loaded: false,
            order: Order::Sorted(Vec::new()),
            account: account.clone(),
            trouble: 0,
            dots,
        })
    }

    /// The next name; `None` behind the last.
    pub(super) fn next(&mut self, path: &[u8], visitor: &mut dyn Visitor) -> Option<Name> {
        while self.at.0 < self.directory.blocks() {
            if self.trouble >= MAX_TROUBLE {
                let what = "too much is wrong with this directory; the rest of it was not looked at";
                visitor.finding(Finding::error(path, Some(self.node.inode().address), what));
                self.end();
                return None;
            }
            match self.next_of_block(path, visitor) {
                Ok(Some(name)) => return Some(name),
                Ok(None) => {}
                Err(error) => {
                    let number = self.at.0;
                    let mut finding = Finding::of(path, &error);
                    finding.what = format!("block {number} of the directory: {}", finding.what);
                    visitor.finding(finding);
                    self.trouble += 1;
                    self.end_block();
                }
            }
        }
        self.judge_dots(path, visitor);
        None
    }

    /// Gives up the block's memory until its next name is wanted.
    pub(super) fn forget_block(&mut self) {
        self.block = Vec::new();
        self.loaded = false;
    }

    /// Passes over the names that are left.
    fn end(&mut self) {
        self.at.0 = self.directory.blocks();
        self.dots = [true; 2];
        self.forget_block();
    }

    fn end_block(&mut self) {
        self.at = (self.at.0 + 1, 0);
        self.loaded = false;
    }

    /// One step in the block: a name, or nothing. Errors are of the whole block.
    fn next_of_block(&mut self, path: &[u8], visitor: &mut dyn Visitor) -> Result<Option<Name>, ImageError> {
        let address = self.node.inode().address;
        if !self.loaded {
            let node = &self.node;
            let mut read = |number, block: &mut [u8]| node.read_block(number, block);
            self.directory.read_block(self.at.0, &mut self.block, &mut read)?;
            self.loaded = true;
        }
        let block = DirBlock::parse(&self.block, address)?;
        if self.at.1 >= block.count() {
            self.end_block();
            return Ok(None);
        }
        let index = self.at.1;
        self.at.1 += 1;
        let entry = match block.entry(index) {
            Ok(entry) => entry,
            Err(error) => {
                visitor.finding(Finding::of(path, &error));
                self.trouble += 1;
                return Ok(None);
            }
        };
        let (name, nid) = (entry.name.to_vec(), entry.nid);
        let (kind, file_type) = (entry.kind, entry.file_type);
        if !self.is_new(&name, path, visitor) || self.is_dot(&name, nid, path, visitor) {
            return Ok(None);
        }
        Ok(Some(Name { name, nid, kind, file_type }))
    }

    /// Whether the name comes for the first time. Out of order is told once.
    fn is_new(&mut self, name: &[u8], path: &[u8], visitor: &mut dyn Visitor) -> bool {
        let at = Some(self.node.inode().address);
        let added = match &mut self.order {
            Order::Sorted(last) if name > last.as_slice() => {
                last.clear();
                last.extend_from_slice(name);
                Added::New
            }
            Order::Sorted(last) if name == last.as_slice() => Added::Known,
            Order::Sorted(_) => {
                let what = format!("names are not in order, from '{}' on", name.escape_ascii());
                visitor.finding(Finding::error(path, at, what));
                let mut names = Names::new(&self.account);
                let added = match self.add_names_before(&mut names) {
                    Added::NoRoom => Added::NoRoom,
                    _ => names.add(name),
                };
                self.order = Order::Disordered(names);
                added
            }
            Order::Disordered(names) => names.add(name),
        };
        match added {
            Added::New => true,
            Added::Known => {
                let what = format!("the name '{}' is there twice", name.escape_ascii());
                visitor.finding(Finding::error(path, at, what));
                self.trouble += 1;
                false
            }
            Added::NoRoom => {
                let what = "there is too little memory to tell which names of this directory are there twice; the rest of it \
                            was not looked at: --memory raises it";
                visitor.finding(Finding::error(path, at, what));
                self.end();
                false
            }
        }
    }

    /// Adds the names before this one, read once more. What could not be read then cannot be now, and had no name.
    fn add_names_before(&self, names: &mut Names) -> Added {
        let mut bytes = Vec::new();
        let mut read = |number, block: &mut [u8]| self.node.read_block(number, block);
        for number in 0..=self.at.0 {
            let Ok(block) = self.directory.read_block(number, &mut bytes, &mut read) else { continue };
            let before = if number == self.at.0 { self.at.1 - 1 } else { block.count() };
            let mut entries = block.entries().take(before).flatten();
            if entries.any(|entry| names.add(entry.name) == Added::NoRoom) {
                return Added::NoRoom;
            }
        }
        Added::New
    }

    /// Whether it is `.` or `..`, which are compared with what they are to be.
    fn is_dot(&mut self, name: &[u8], nid: Nid, path: &[u8], visitor: &mut dyn Visitor) -> bool {
        let (which, wanted) = match name {
            b"." => (0, Some(self.node.nid())),
            b".." => (1, self.parent),
            _ => return false,
        };
        self.dots[which] = true;
        if let Some(wanted) = wanted.filter(|wanted| *wanted != nid) {
            let name = name.escape_ascii();
            let what = format!("'{name}' is inode {nid}, and should be {wanted}");
            visitor.finding(Finding::error(path, Some(self.node.inode().address), what));
        }
        true
    }

    fn judge_dots(&mut self, path: &[u8], visitor: &mut dyn Visitor) {
        for (there, name) in self.dots.into_iter().zip([".", ".."]) {
            if !there {
                let what = format!("'{name}' is missing");
                visitor.finding(Finding::error(path, Some(self.node.inode().address), what));
            }
        }
        self.dots = [true; 2];
    }
}
