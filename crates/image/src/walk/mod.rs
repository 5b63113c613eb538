//! Depth-first walk over the tree of an untrusted image.
//!
//! The walk calls a [`Visitor`] for each name; check, extract, tar and the tree statistics are visitors. It runs in the
//! calling thread and takes no locks but that of the memory account.
//!
//! A fault of the image does not stop the walk: an entry that cannot be read, named or entered is reported as a
//! [`Finding`] and skipped. The walk always ends: it uses a stack instead of recursion, enters each directory once, and
//! counts names, inodes and levels against [`Limits`]. Its work, and that of the visitor, has the limit of `work` besides.
//!
//! Path of a walk: [`walk_from`] -> `directory` (the next valid name of the directory on top of the stack) -> `links`
//! (whether its inode was visited before) -> the visitor.
//!
//! Memory: a name for each level, a directory block for each of the `MAX_LOADED_BLOCKS` deepest levels, a bit for each
//! visited inode, and an entry for each file with several names. The tables are charged to the image's budget. Without
//! room for the table of visited inodes the walk ends with a finding; `links` and `directory` say what the other tables
//! do.

mod directory;
mod links;
mod visitor;

use crate::account::Account;
use crate::read::FileKind;
use crate::work::WorkLimit;
use crate::{Finding, Image, Nid, Node, Result, rules};
use directory::{Context, DirCursor, Name};
use links::LinkTracker;
use std::ops::ControlFlow;
pub use visitor::{Link, Visit, Visitor};

/// The deepest levels, which hold the directory block that they are read from. Levels above read their block again.
const MAX_LOADED_BLOCKS: usize = 8;

/// Levels of directories below the root that are entered, or recorded. The builder makes no more.
pub const DEPTH_MAX: usize = 1024;

/// Limits of a walk.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Levels of directories below the first one. Deeper directories are reported and not entered.
    pub depth: usize,
    /// Inodes. One more is reported and ends the walk.
    pub inodes: u64,
    /// Names, of which an inode may have several. One more is reported and ends the walk.
    pub names: u64,
    /// Bytes of remembered paths of files with several names. Beyond that, further names of a file come without its
    /// first one.
    pub link_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { depth: DEPTH_MAX, inodes: 1 << 24, names: 1 << 26, link_bytes: 64 << 20 }
    }
}

/// Counts of a finished walk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WalkSummary {
    /// Inodes.
    pub inodes: u64,
    /// Names, without `.` and `..`.
    pub names: u64,
    /// Whether the visitor or a limit ended the walk.
    pub ended_early: bool,
}

/// Whether `path` is one of `wanted`, below one of them, or on the way to one. An empty `wanted` matches every path.
/// Paths begin with `/`.
pub fn is_among(path: &[u8], wanted: &[Vec<u8>]) -> bool {
    let below = |a: &[u8], b: &[u8]| a.strip_prefix(b).is_some_and(|rest| matches!(rest, [] | [b'/', ..]));
    wanted.is_empty() || wanted.iter().any(|w| w == b"/" || below(path, w) || below(w, path))
}

/// Walks over the whole image, from its root.
pub fn walk(image: &Image, limits: &Limits, visitor: &mut dyn Visitor) -> Result<WalkSummary> {
    walk_from(&image.root()?, b"/", limits, visitor)
}

/// Walks from `node`, whose path is `path`. The visitor's first entry is `node` itself. Later faults are findings, not
/// errors.
pub fn walk_from(
    node: &Node,
    path: &[u8],
    limits: &Limits,
    visitor: &mut dyn Visitor,
) -> Result<WalkSummary> {
    walk_within(node, path, limits, &WorkLimit::of_image(node.image().stored_bytes()), visitor)
}

/// As [`walk_from`], with a limit of work that the visitor shares.
pub fn walk_within(
    node: &Node,
    path: &[u8],
    limits: &Limits,
    work: &WorkLimit,
    visitor: &mut dyn Visitor,
) -> Result<WalkSummary> {
    let account = Account::new(node.image().budget());
    let mut walk = Walk {
        limits: *limits,
        work,
        visitor,
        stack: Vec::new(),
        path: path.strip_suffix(b"/").unwrap_or(path).to_vec(),
        links: LinkTracker::new(limits.link_bytes, &account),
        account,
        summary: WalkSummary::default(),
        covers_image: path == b"/",
    };
    // The first entry of a table always fits into the account's uncharged bytes.
    let _ = walk.links.record(node, path);
    walk.summary.inodes = 1;
    walk.summary.ended_early = walk.run(node, path).is_break();
    walk.links.report(walk.covers_image && !walk.summary.ended_early, walk.visitor);
    Ok(walk.summary)
}

struct Walk<'a> {
    limits: Limits,
    work: &'a WorkLimit,
    visitor: &'a mut dyn Visitor,
    stack: Vec<DirCursor>,
    /// The path of the directory on top of the stack, without a slash at its end.
    path: Vec<u8>,
    links: LinkTracker,
    account: Account,
    summary: WalkSummary,
    /// Whether the walk visits all names of the image.
    covers_image: bool,
}

impl Walk<'_> {
    fn run(&mut self, node: &Node, path: &[u8]) -> ControlFlow<()> {
        let name = path.rsplit(|&b| b == b'/').next().unwrap_or(&[]);
        let visit = Visit { path, name, depth: 0, node, link: Link::First };
        if node.kind() != FileKind::Directory {
            return self.visitor.file(&visit);
        }
        if self.visitor.enter(&visit)? {
            let parent = (path == b"/").then(|| node.nid());
            self.push(node.clone(), parent, self.path.len());
        }
        while !self.stack.is_empty() {
            self.step()?;
        }
        ControlFlow::Continue(())
    }

    fn push(&mut self, node: Node, parent: Option<Nid>, parent_path_len: usize) {
        match DirCursor::open(node, parent, parent_path_len, &self.account) {
            Ok(cursor) => {
                let shallow = self.stack.len().checked_sub(MAX_LOADED_BLOCKS);
                if let Some(cursor) = shallow.and_then(|level| self.stack.get_mut(level)) {
                    cursor.drop_block();
                }
                self.stack.push(cursor);
            }
            Err(error) => self.visitor.finding(Finding::of(&self.path, &error)),
        }
    }

    /// Visits the next name of the directory on top of the stack, or pops the directory after its last name.
    fn step(&mut self) -> ControlFlow<()> {
        let shown: &[u8] = if self.path.is_empty() { b"/" } else { &self.path };
        let Some(cursor) = self.stack.last_mut() else { return ControlFlow::Continue(()) };
        let name = match cursor.next(&mut Context { path: shown, work: self.work, visitor: self.visitor }) {
            Ok(Some(name)) => name,
            Ok(None) => return self.pop(),
            Err(error) => {
                let finding = Finding::of(shown, &error);
                self.visitor.finding(finding.described(|what| format!("{what}; the rest was not checked")));
                return ControlFlow::Break(());
            }
        };
        self.summary.names += 1;
        if self.summary.names > self.limits.names {
            let what = format!("more than {} names; the rest was not checked", self.limits.names);
            self.visitor.finding(Finding::failure(shown, what));
            return ControlFlow::Break(());
        }
        let parent_path_len = self.path.len();
        self.path.push(b'/');
        self.path.extend_from_slice(&name.name);
        let entered = self.visit(&name, parent_path_len)?;
        if !entered {
            self.path.truncate(parent_path_len);
        }
        ControlFlow::Continue(())
    }

    fn pop(&mut self) -> ControlFlow<()> {
        let Some(cursor) = self.stack.pop() else { return ControlFlow::Continue(()) };
        let path: &[u8] = if self.path.is_empty() { b"/" } else { &self.path };
        let name = path.rsplit(|&b| b == b'/').next().unwrap_or(&[]);
        let depth = self.stack.len();
        let visit = Visit { path, name, depth, node: &cursor.node, link: Link::First };
        let left = self.visitor.leave(&visit, cursor.directories);
        self.path.truncate(cursor.parent_path_len);
        left
    }

    /// Visits a name; returns whether it is a directory that was entered.
    fn visit(&mut self, name: &Name, parent_path_len: usize) -> ControlFlow<(), bool> {
        if !self.visitor.wants(&self.path) {
            self.covers_image = false;
            return ControlFlow::Continue(false);
        }
        let Some(cursor) = self.stack.last_mut() else { return ControlFlow::Continue(false) };
        let (image, parent) = (cursor.node.image().clone(), cursor.node.nid());
        let node = match image.node(name.nid) {
            Ok(node) => node,
            Err(error) => {
                self.visitor.unreadable(name.nid, &self.path);
                self.visitor.finding(Finding::of(&self.path, &error));
                return ControlFlow::Continue(false);
            }
        };
        if let Some(what) = name.type_mismatch(&node) {
            let at = Some(node.inode().address);
            self.visitor.finding(Finding::breaks(&rules::DIR_TYPE, &self.path, at, what));
        }
        let is_directory = node.kind() == FileKind::Directory;
        cursor.directories += u64::from(is_directory);
        let Some(link) = self.links.record(&node, &self.path) else {
            let what = format!(
                "too little memory to remember more than {} inodes; the rest was not checked: raise it with --memory",
                self.summary.inodes
            );
            self.visitor.finding(Finding::failure(&self.path, what));
            return ControlFlow::Break(());
        };
        if link == Link::First {
            self.summary.inodes += 1;
            if self.summary.inodes > self.limits.inodes {
                let what = format!("more than {} inodes; the rest was not checked", self.limits.inodes);
                self.visitor.finding(Finding::failure(&self.path, what));
                return ControlFlow::Break(());
            }
        }
        let depth = self.stack.len();
        let visit = Visit { path: &self.path, name: &name.name, depth, node: &node, link };
        match (is_directory, link) {
            (false, _) => self.visitor.file(&visit).map_continue(|()| false),
            (true, Link::Again(_)) => {
                let what = format!("directory {} has this name and another one", node.nid());
                let at = Some(node.inode().address);
                self.visitor.finding(Finding::breaks(&rules::INODE_LINKS, &self.path, at, what));
                ControlFlow::Continue(false)
            }
            (true, Link::First) if depth > self.limits.depth => {
                let what = format!("more than {} levels of directories; not entered", self.limits.depth);
                self.visitor.finding(Finding::failure(&self.path, what));
                ControlFlow::Continue(false)
            }
            (true, Link::First) => {
                let wanted = self.visitor.enter(&visit)?;
                let before = self.stack.len();
                if wanted {
                    self.push(node, Some(parent), parent_path_len);
                }
                ControlFlow::Continue(self.stack.len() > before)
            }
        }
    }
}
