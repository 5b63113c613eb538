//! Reads the names of one directory in order, and reports its faults.
//!
//! A cursor holds one block in memory. It reports and skips invalid names, duplicate names and unreadable blocks. After
//! [`MAX_DIRECTORY_ERRORS`] faults it skips the rest of the directory, so that a directory with a million broken blocks
//! yields a few findings. It compares `.` and `..` with the inodes that they should name, and never returns them.
//!
//! In a sorted directory, duplicates are adjacent, so the cursor remembers only the last name. In an unsorted one it
//! remembers a 64-bit hash of each name. The hash has a random key, so that an image cannot provoke collisions. These
//! tables are charged to the tool's account; at its limit the cursor reports that and skips the rest of the directory.

use super::visitor::Visitor;
use crate::account::{Account, TableAccount};
use crate::read::FileKind;
use crate::read::dir::{DirBlock, Directory};
use crate::rules::Rule;
use crate::work::WorkLimit;
use crate::{Address, Finding, ImageError, Nid, Node, Result, rules};
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

/// Invalid names and blocks of one directory after which the rest of it is skipped.
const MAX_DIRECTORY_ERRORS: u32 = 64;

/// The path, limit of work and visitor with which a directory is read.
pub(super) struct Context<'a> {
    /// The path of the directory, for findings.
    pub(super) path: &'a [u8],
    pub(super) work: &'a WorkLimit,
    pub(super) visitor: &'a mut dyn Visitor,
}

impl Context<'_> {
    fn breaks(&mut self, rule: &Rule, at: Address, what: impl Into<String>) {
        self.visitor.finding(Finding::breaks(rule, self.path, Some(at), what));
    }
}

/// A valid name of a directory.
pub(super) struct Name {
    pub(super) name: Vec<u8>,
    pub(super) nid: Nid,
    kind: Option<FileKind>,
    file_type: u8,
}

impl Name {
    /// Describes how the file type in the entry differs from that of its inode; `None` if they agree.
    pub(super) fn type_mismatch(&self, node: &Node) -> Option<String> {
        if self.kind == Some(node.kind()) || self.file_type == 0 {
            return None;
        }
        let claimed = self.kind.map_or_else(|| format!("type {}", self.file_type), |k| k.name().to_string());
        Some(format!("its entry says that it is {claimed}, and it is {}", node.kind().name()))
    }
}

/// A position in a directory whose names are being visited.
pub(super) struct DirCursor {
    pub(super) node: Node,
    /// Directories among the names so far.
    pub(super) directories: u64,
    /// Length of the parent directory's path, bytes.
    pub(super) parent_path_len: usize,
    /// The inode that `..` should name; `None` if it is not known.
    parent: Option<Nid>,
    directory: Directory,
    block: Vec<u8>,
    /// The number of the current block, and the index of its next entry.
    at: (u64, usize),
    loaded: bool,
    order: Order,
    account: Account,
    errors: u32,
    dots: [bool; 2],
}

/// The names so far, for finding duplicates.
enum Order {
    /// The names were in ascending order; this is the last one.
    Sorted(Vec<u8>),
    /// The names were not in order.
    Unsorted(NameHashes),
}

/// Result of adding a name to the names so far.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Insertion {
    New,
    Known,
    /// The budget has no room for remembering it.
    OverBudget,
}

/// Hashes of the names of an unsorted directory.
struct NameHashes {
    hashes: HashSet<u64>,
    table: TableAccount,
    key: RandomState,
}

impl NameHashes {
    fn new(account: &Account) -> Self {
        let table = TableAccount::new::<u64>(account);
        NameHashes { hashes: HashSet::new(), table, key: RandomState::new() }
    }

    fn add(&mut self, name: &[u8]) -> Insertion {
        let hash = self.key.hash_one(name);
        if self.hashes.contains(&hash) {
            return Insertion::Known;
        }
        if !self.table.reserve_one(self.hashes.len(), self.hashes.capacity()) {
            return Insertion::OverBudget;
        }
        self.hashes.insert(hash);
        Insertion::New
    }
}

impl DirCursor {
    pub(super) fn open(
        node: Node,
        parent: Option<Nid>,
        parent_path_len: usize,
        account: &Account,
    ) -> Result<Self> {
        let directory = Directory::of(node.image().superblock(), node.inode())?;
        let dots = [node.inode().dot_omitted, false];
        Ok(DirCursor {
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
            errors: 0,
            dots,
        })
    }

    /// Returns the next name; `None` after the last. Fails only at the limit of work.
    pub(super) fn next(&mut self, context: &mut Context<'_>) -> Result<Option<Name>> {
        let path = context.path;
        while self.at.0 < self.directory.blocks() {
            if self.errors >= MAX_DIRECTORY_ERRORS {
                let what = "too many faults in this directory; the rest of it was not checked";
                context.visitor.finding(Finding::error(path, Some(self.node.inode().address), what));
                self.skip_rest();
                return Ok(None);
            }
            // A step for each entry, of which each costs one for its inode too; and one for each fault.
            context.work.steps(2)?;
            match self.next_in_block(context) {
                Ok(Some(name)) => return Ok(Some(name)),
                Ok(None) => {}
                Err(error @ (ImageError::TooMuchWork { .. } | ImageError::Interrupted)) => return Err(error),
                Err(error) => {
                    let number = self.at.0;
                    let describe = |what: &str| format!("block {number} of the directory: {what}");
                    context.visitor.finding(Finding::of(path, &error).described(describe));
                    self.errors += 1;
                    self.skip_block();
                }
            }
        }
        self.check_dots(context);
        Ok(None)
    }

    /// Frees the block's memory. [`next`](Self::next) reads the block again.
    pub(super) fn drop_block(&mut self) {
        self.block = Vec::new();
        self.loaded = false;
    }

    /// Skips the remaining names.
    fn skip_rest(&mut self) {
        self.at.0 = self.directory.blocks();
        self.dots = [true; 2];
        self.drop_block();
    }

    fn skip_block(&mut self) {
        self.at = (self.at.0 + 1, 0);
        self.loaded = false;
    }

    /// Takes the next entry of the block; `None` if it is not a name to visit, or the block has ended. An error
    /// concerns the whole block.
    fn next_in_block(&mut self, context: &mut Context<'_>) -> Result<Option<Name>> {
        let address = self.node.inode().address;
        if !self.loaded {
            let (node, work) = (&self.node, context.work);
            let mut read = |number, block: &mut [u8]| node.read_block(number, block, work);
            self.directory.read_block(self.at.0, &mut self.block, &mut read)?;
            self.loaded = true;
        }
        let block = DirBlock::parse(&self.block, address)?;
        if self.at.1 >= block.count() {
            self.skip_block();
            return Ok(None);
        }
        let index = self.at.1;
        self.at.1 += 1;
        let entry = match block.entry(index) {
            Ok(entry) => entry,
            Err(error) => {
                context.visitor.finding(Finding::of(context.path, &error));
                self.errors += 1;
                return Ok(None);
            }
        };
        let (name, nid) = (entry.name.to_vec(), entry.nid);
        let (kind, file_type) = (entry.kind, entry.file_type);
        if !self.is_new(&name, context)? || self.check_if_dot(&name, nid, context) {
            return Ok(None);
        }
        Ok(Some(Name { name, nid, kind, file_type }))
    }

    /// Whether this is the first entry with this name. Reports the first name that is out of order, and each duplicate.
    fn is_new(&mut self, name: &[u8], context: &mut Context<'_>) -> Result<bool> {
        let at = self.node.inode().address;
        let insertion = match &mut self.order {
            Order::Sorted(last) if name > last.as_slice() => {
                last.clear();
                last.extend_from_slice(name);
                Insertion::New
            }
            Order::Sorted(last) if name == last.as_slice() => Insertion::Known,
            Order::Sorted(_) => {
                let what = format!("names are not in order, from '{}' on", name.escape_ascii());
                context.breaks(&rules::DIR_ORDER, at, what);
                let mut names = NameHashes::new(&self.account);
                let insertion = match self.add_earlier_names(&mut names, context.work)? {
                    Insertion::OverBudget => Insertion::OverBudget,
                    _ => names.add(name),
                };
                self.order = Order::Unsorted(names);
                insertion
            }
            Order::Unsorted(names) => names.add(name),
        };
        Ok(match insertion {
            Insertion::New => true,
            Insertion::Known => {
                let what = format!("the name '{}' occurs twice", name.escape_ascii());
                context.breaks(&rules::DIR_ORDER, at, what);
                self.errors += 1;
                false
            }
            Insertion::OverBudget => {
                let what = "too little memory to find duplicate names in this directory; the rest of it was not \
                            checked: raise it with --memory";
                context.visitor.finding(Finding { at: Some(at), ..Finding::failure(context.path, what) });
                self.skip_rest();
                false
            }
        })
    }

    /// Reads the directory again and adds the names before the current one. Blocks that cannot be read are skipped:
    /// they had no names the first time either.
    fn add_earlier_names(&self, names: &mut NameHashes, work: &WorkLimit) -> Result<Insertion> {
        let mut bytes = Vec::new();
        let mut read = |number, block: &mut [u8]| self.node.read_block(number, block, work);
        for number in 0..=self.at.0 {
            work.step()?;
            let Ok(block) = self.directory.read_block(number, &mut bytes, &mut read) else { continue };
            let before = if number == self.at.0 { self.at.1 - 1 } else { block.count() };
            work.steps(before as u64)?;
            let mut entries = block.entries().take(before).flatten();
            if entries.any(|entry| names.add(entry.name) == Insertion::OverBudget) {
                return Ok(Insertion::OverBudget);
            }
        }
        Ok(Insertion::New)
    }

    /// Whether the name is `.` or `..`. If so, reports an inode that it should not name.
    fn check_if_dot(&mut self, name: &[u8], nid: Nid, context: &mut Context<'_>) -> bool {
        let (which, wanted) = match name {
            b"." => (0, Some(self.node.nid())),
            b".." => (1, self.parent),
            _ => return false,
        };
        self.dots[which] = true;
        if let Some(wanted) = wanted.filter(|wanted| *wanted != nid) {
            let name = name.escape_ascii();
            let what = format!("'{name}' is inode {nid}, and should be {wanted}");
            context.breaks(&rules::DIR_DOTS, self.node.inode().address, what);
        }
        true
    }

    fn check_dots(&mut self, context: &mut Context<'_>) {
        for (there, name) in self.dots.into_iter().zip([".", ".."]) {
            if !there {
                context.breaks(&rules::DIR_DOTS, self.node.inode().address, format!("'{name}' is missing"));
            }
        }
        self.dots = [true; 2];
    }
}
