//! A walk over a tree that nobody vouches for.
//!
//! It goes on whatever it meets: what cannot be read, named or entered is a [`Finding`]. It ends whatever the image says: it
//! keeps a stack instead of recursing, enters each directory once, and counts names, inodes and levels against limits.
//! Memory: a name for each level, a block for the `BLOCKS_KEPT` deepest, a bit for each inode and what the table of them takes,
//! and files that have several names. The tables are counted in the image's budget.
//!
//! What is done with what it meets is the [`Visitor`]'s affair; check, extract, tar and statistics are visitors.

mod directory;
mod links;

use crate::account::Account;
use crate::read::FileKind;
use crate::{Finding, Image, ImageError, Nid, Node};
use directory::{Frame, Name};
use links::Links;
use std::ops::ControlFlow;

/// Directories of the deepest levels that keep the block that their names are read from. Others read it again.
const BLOCKS_KEPT: usize = 8;

/// How far a walk goes at most.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Levels of directories below the one that it begins with.
    pub depth: usize,
    /// Inodes.
    pub inodes: u64,
    /// Names, of which an inode may have several.
    pub names: u64,
    /// Bytes of the paths of files with several names that are remembered; beyond, their further names come without the first.
    pub link_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { depth: 1024, inodes: 1 << 24, names: 1 << 26, link_bytes: 64 << 20 }
    }
}

/// Which name of an inode this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link<'a> {
    /// The first.
    First,
    /// A further one, and the path of the first if it is remembered.
    Again(Option<&'a [u8]>),
}

/// A name, and what it stands for.
#[derive(Debug, Clone, Copy)]
pub struct Visit<'a> {
    /// The path from the root of the image, `/` first.
    pub path: &'a [u8],
    /// Its last part; empty for the root. Never `.` or `..`, and without `/` and NUL.
    pub name: &'a [u8],
    /// Levels below where the walk began.
    pub depth: usize,
    /// The inode.
    pub node: &'a Node,
    /// Which name of it this is.
    pub link: Link<'a>,
}

/// What is done on a walk. Breaking ends all of it.
pub trait Visitor {
    /// Whether the name is to be visited at all; asked before its inode is read.
    fn wants(&mut self, path: &[u8]) -> bool {
        let _ = path;
        true
    }

    /// A directory, before what is in it. False: do not go into it, and do not [`leave`](Self::leave) it.
    fn enter(&mut self, visit: &Visit<'_>) -> ControlFlow<(), bool>;

    /// The same directory, after what is in it, and how many directories that was.
    fn leave(&mut self, visit: &Visit<'_>, directories: u64) -> ControlFlow<()>;

    /// Anything else.
    fn file(&mut self, visit: &Visit<'_>) -> ControlFlow<()>;

    /// Something is wrong.
    fn finding(&mut self, finding: Finding);
}

/// What a walk met.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Walked {
    /// Inodes.
    pub inodes: u64,
    /// Names, without `.` and `..`.
    pub names: u64,
    /// It ended because the visitor or a limit said so.
    pub ended_early: bool,
}

/// Whether `path` is one of `wanted`, below one, or on the way to one; all are if there are none. Paths begin with `/`.
pub fn is_among(path: &[u8], wanted: &[Vec<u8>]) -> bool {
    let below = |a: &[u8], b: &[u8]| a.strip_prefix(b).is_some_and(|rest| matches!(rest, [] | [b'/', ..]));
    wanted.is_empty() || wanted.iter().any(|w| w == b"/" || below(path, w) || below(w, path))
}

/// Walks from the root.
pub fn walk(image: &Image, limits: &Limits, visitor: &mut dyn Visitor) -> Result<Walked, ImageError> {
    walk_from(&image.root()?, b"/", limits, visitor)
}

/// Walks from `node`, whose path is `path`. Errors are only of the beginning: that `node` is what the visitor is first shown.
pub fn walk_from(
    node: &Node,
    path: &[u8],
    limits: &Limits,
    visitor: &mut dyn Visitor,
) -> Result<Walked, ImageError> {
    let account = Account::new(node.image().budget());
    let mut walk = Walk {
        limits: *limits,
        visitor,
        stack: Vec::new(),
        path: path.strip_suffix(b"/").unwrap_or(path).to_vec(),
        links: Links::new(limits.link_bytes, &account),
        account,
        walked: Walked::default(),
        whole: path == b"/",
    };
    // Of a table's first entry there is always room: the tool's own memory.
    let _ = walk.links.meet(node, path);
    walk.walked.inodes = 1;
    walk.walked.ended_early = walk.run(node, path).is_break();
    walk.links.report(walk.whole && !walk.walked.ended_early, walk.visitor);
    Ok(walk.walked)
}

struct Walk<'a> {
    limits: Limits,
    visitor: &'a mut dyn Visitor,
    stack: Vec<Frame>,
    /// The path of the directory on top of the stack, without a slash at its end.
    path: Vec<u8>,
    links: Links,
    account: Account,
    walked: Walked,
    /// Whether all names of the image are met.
    whole: bool,
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
        match Frame::open(node, parent, parent_path_len, &self.account) {
            Ok(frame) => {
                let shallow = self.stack.len().checked_sub(BLOCKS_KEPT);
                if let Some(frame) = shallow.and_then(|level| self.stack.get_mut(level)) {
                    frame.forget_block();
                }
                self.stack.push(frame);
            }
            Err(error) => self.visitor.finding(Finding::of(&self.path, &error)),
        }
    }

    /// The next name of the directory on top, or the end of it.
    fn step(&mut self) -> ControlFlow<()> {
        let shown: &[u8] = if self.path.is_empty() { b"/" } else { &self.path };
        let Some(frame) = self.stack.last_mut() else { return ControlFlow::Continue(()) };
        let Some(name) = frame.next(shown, self.visitor) else { return self.pop() };
        self.walked.names += 1;
        if self.walked.names > self.limits.names {
            let what = format!("more than {} names; the rest was not looked at", self.limits.names);
            self.visitor.finding(Finding::error(shown, None, what));
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
        let Some(frame) = self.stack.pop() else { return ControlFlow::Continue(()) };
        let path: &[u8] = if self.path.is_empty() { b"/" } else { &self.path };
        let name = path.rsplit(|&b| b == b'/').next().unwrap_or(&[]);
        let depth = self.stack.len();
        let visit = Visit { path, name, depth, node: &frame.node, link: Link::First };
        let left = self.visitor.leave(&visit, frame.directories);
        self.path.truncate(frame.parent_path_len);
        left
    }

    /// Shows a name; true if it is a directory that was entered.
    fn visit(&mut self, name: &Name, parent_path_len: usize) -> ControlFlow<(), bool> {
        if !self.visitor.wants(&self.path) {
            self.whole = false;
            return ControlFlow::Continue(false);
        }
        let Some(frame) = self.stack.last_mut() else { return ControlFlow::Continue(false) };
        let (image, parent) = (frame.node.image().clone(), frame.node.nid());
        let node = match image.node(name.nid) {
            Ok(node) => node,
            Err(error) => {
                self.visitor.finding(Finding::of(&self.path, &error));
                return ControlFlow::Continue(false);
            }
        };
        if let Some(what) = name.disagrees(&node) {
            self.visitor.finding(Finding::error(&self.path, Some(node.inode().address), what));
        }
        let is_directory = node.kind() == FileKind::Directory;
        frame.directories += u64::from(is_directory);
        let Some(link) = self.links.meet(&node, &self.path) else {
            let what = format!(
                "there is too little memory to remember more than {} inodes; the rest was not looked at: --memory raises it",
                self.walked.inodes
            );
            self.visitor.finding(Finding::error(&self.path, None, what));
            return ControlFlow::Break(());
        };
        if link == Link::First {
            self.walked.inodes += 1;
            if self.walked.inodes > self.limits.inodes {
                let what = format!("more than {} inodes; the rest was not looked at", self.limits.inodes);
                self.visitor.finding(Finding::error(&self.path, None, what));
                return ControlFlow::Break(());
            }
        }
        let depth = self.stack.len();
        let visit = Visit { path: &self.path, name: &name.name, depth, node: &node, link };
        match (is_directory, link) {
            (false, _) => self.visitor.file(&visit).map_continue(|()| false),
            (true, Link::Again(_)) => {
                let what = format!("directory {} has this name beside another", node.nid());
                self.visitor.finding(Finding::error(&self.path, Some(node.inode().address), what));
                ControlFlow::Continue(false)
            }
            (true, Link::First) if depth > self.limits.depth => {
                let what = format!("more than {} levels of directories; not entered", self.limits.depth);
                self.visitor.finding(Finding::error(&self.path, None, what));
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
