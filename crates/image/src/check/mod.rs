//! Checking an image: everything that can be reached is read, decoded and compared.
//!
//! Opening the image has judged its super block. The calling thread walks the tree and judges inodes, directories, attributes and
//! links (`inode`, `attribute`); workers decode the contents of files (`contents`). What is wrong is a [`Finding`], and it goes on.
//! Memory: the walk's, a MiB for each worker, and the image's budget.
//!
//! The format has no checksums of contents: what decodes without a contradiction is taken to be right.

mod attribute;
mod contents;
mod inode;

use crate::finding::with_causes;
use crate::format::features::{self, compat};
use crate::walk::{self, Limits, Link, Visit, Visitor};
use crate::{Finding, Findings, Image, ImageError, Node};
use contents::Contents;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Time between two reports of progress.
const TELL_EVERY: Duration = Duration::from_millis(50);

/// How an image is checked.
#[derive(Debug, Clone)]
pub struct CheckOptions {
    /// Threads that decode.
    pub jobs: usize,
    /// How far the walk goes.
    pub limits: Limits,
}

impl Default for CheckOptions {
    fn default() -> Self {
        CheckOptions { jobs: 2, limits: Limits::default() }
    }
}

/// How far it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Inodes that were met.
    pub inodes: u64,
    /// Inodes that there are, as the image says; 0 if it does not.
    pub of_inodes: u64,
    /// Bytes of contents decoded.
    pub bytes: u64,
}

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Inodes.
    pub inodes: u64,
    /// Names, without `.` and `..`.
    pub names: u64,
    /// Bytes of contents decoded.
    pub bytes: u64,
    /// Whether everything was looked at: no limit was reached.
    pub complete: bool,
    /// What is wrong.
    pub findings: Findings,
}

/// Checks all of an image.
///
/// `progress` is called now and then by the calling thread. Errors are only of the root directory; all else is in the report.
pub fn check(
    image: &Image,
    options: &CheckOptions,
    progress: &dyn Fn(Progress),
) -> Result<Report, ImageError> {
    let contents = Contents::new(image, options.jobs);
    let walked = std::thread::scope(|scope| {
        // Workers end when this is dropped, however the walk ends.
        let open = contents.open();
        for _ in 1..options.jobs {
            let started = std::thread::Builder::new().spawn_scoped(scope, || contents.work());
            started.map_err(|e| ImageError::Threads { errno: e.raw_os_error() })?;
        }
        judge_superblock(image, &contents);
        let of_inodes = image.superblock().inos;
        let mut visitor =
            Checker { contents: &contents, progress, of_inodes, inodes: 0, told: Instant::now() };
        let walked = walk::walk(image, &options.limits, &mut visitor)?;
        visitor.own_files(image);
        contents.help_to_end(|| visitor.tell());
        drop(open);
        Ok::<_, ImageError>(walked)
    })?;
    let (mut findings, bytes) = contents.into_parts();
    findings.sort();
    let (inodes, names) = (walked.inodes, walked.names);
    Ok(Report { inodes, names, bytes, complete: !walked.ended_early, findings })
}

/// What opening has not refused, and is odd all the same.
fn judge_superblock(image: &Image, contents: &Contents) {
    let superblock = image.superblock();
    let warn = |what: String| contents.finding(Finding::warning(b"", None, what));
    if superblock.compat & compat::SB_CHKSUM == 0 {
        warn("the super block has no checksum".to_string());
    }
    let (_, unknown) = features::split(superblock.compat, &compat::ALL);
    if unknown != 0 {
        warn(format!("unknown features that may be ignored, bits {unknown:#x}"));
    }
    let says = superblock.blocks.saturating_mul(u64::from(superblock.block_bytes()));
    let has = image.0.core.source.len_bytes(0).unwrap_or(0);
    if superblock.devices.is_empty() && says > has.next_multiple_of(u64::from(superblock.block_bytes())) {
        let what = format!("the image has {has} bytes, and says that it has {says}: it is cut off");
        contents.finding(Finding::error(b"", None, what));
    }
}

struct Checker<'a> {
    contents: &'a Contents,
    progress: &'a dyn Fn(Progress),
    of_inodes: u64,
    inodes: u64,
    told: Instant,
}

impl Checker<'_> {
    fn tell(&mut self) {
        if self.told.elapsed() >= TELL_EVERY {
            self.told = Instant::now();
            let (inodes, of_inodes, bytes) = (self.inodes, self.of_inodes, self.contents.bytes());
            (self.progress)(Progress { inodes, of_inodes, bytes });
        }
    }

    /// The files of the image's own, which no directory names.
    fn own_files(&mut self, image: &Image) {
        let superblock = image.superblock();
        for (nid, name) in [(superblock.packed_nid, "(packed file)"), (superblock.metabox_nid, "(metabox)")] {
            let Some(nid) = nid else { continue };
            match image.node(nid) {
                Ok(node) => self.decode(&node, name.as_bytes()),
                Err(error) => self.contents.finding(Finding::of(name.as_bytes(), &error)),
            }
        }
    }

    fn inode(&mut self, visit: &Visit<'_>) {
        self.tell();
        if visit.link != Link::First {
            return;
        }
        self.inodes += 1;
        inode::judge(visit.node, visit.path, &mut |finding| self.contents.finding(finding));
    }

    fn decode(&mut self, node: &Node, path: &[u8]) {
        if let Some(task) = self.contents.give(node, path) {
            self.contents.run_here(task);
            self.tell();
        }
    }
}

impl Visitor for Checker<'_> {
    fn enter(&mut self, visit: &Visit<'_>) -> ControlFlow<(), bool> {
        self.inode(visit);
        ControlFlow::Continue(true)
    }

    fn leave(&mut self, visit: &Visit<'_>, directories: u64) -> ControlFlow<()> {
        let inode = visit.node.inode();
        // Itself, its name above, and `..` of each directory in it. Some builders say 1 of all directories.
        if u64::from(inode.nlink) != directories + 2 && inode.nlink != 1 {
            let what = format!("it has {directories} directories in it, and {} links", inode.nlink);
            self.contents.finding(Finding::error(visit.path, Some(inode.address), what));
        }
        ControlFlow::Continue(())
    }

    fn file(&mut self, visit: &Visit<'_>) -> ControlFlow<()> {
        self.inode(visit);
        if visit.link == Link::First && visit.node.kind() == crate::read::FileKind::Regular {
            self.decode(visit.node, visit.path);
        }
        ControlFlow::Continue(())
    }

    fn finding(&mut self, finding: Finding) {
        self.contents.finding(finding);
    }
}

/// The words of an error, for a finding that has a place of its own.
fn said(error: &ImageError) -> String {
    with_causes(error)
}
