//! Checks an EROFS image: reads everything that can be reached from its root, and decodes the contents of all files.
//!
//! ```
//! use pagefold_image::{Image, Options};
//! use pagefold_image_check::{CheckOptions, check};
//!
//! # std::env::set_current_dir("../image/tests/fixtures")?;
//! let image = Image::open_file("app.erofs".as_ref(), Options::default())?;
//! let options = CheckOptions { strict: true, ..CheckOptions::default() };
//! let report = check(&image, &options, &|progress| println!("{} files", progress.inodes))?;
//! assert!(report.complete && report.findings.recorded().is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Opening the image has checked its super block. The calling thread walks the tree, checks inodes, directories,
//! attributes and links (`inode`, `attribute`), and puts the contents of files into a bounded queue.
//! [`CheckOptions::threads`] threads, the calling one among them, decode them (`contents`): it decodes a range itself
//! when the queue is full, and helps to empty the queue after the walk. A fault becomes a [`Finding`], and the check
//! goes on. With [`CheckOptions::strict`] the calling thread also judges the bytes that readers ignore (`strict`).
//!
//! Locks: the queue's, and the one of the list of findings; no thread holds both. Memory: the walk's, 1 MiB for each
//! thread, and the image's budget. The workers end when the guard that keeps the queue open is dropped, on errors too.
//!
//! The format has no checksums of contents, so the check cannot find damage that still decodes.

// Printing panics when it cannot write. Only the binary prints, in one file.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod attribute;
mod contents;
mod inode;
mod strict;

use contents::Contents;
use pagefold_image::format::features::{self, compat};
use pagefold_image::walk::{self, Limits, Link, Visit, Visitor};
use pagefold_image::work::WorkLimit;
use pagefold_image::{Finding, Findings, Image, ImageError, Nid, Node, Result, rules};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};
use strict::Strict;

/// Least time between two reports of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(50);

/// Options of a check.
#[derive(Debug, Clone)]
pub struct CheckOptions {
    /// Threads that decode, the calling one included.
    pub threads: usize,
    /// Limits of the walk.
    pub limits: Limits,
    /// Whether to judge what readers ignore, too: all [rules].
    pub strict: bool,
}

impl Default for CheckOptions {
    fn default() -> Self {
        CheckOptions { threads: 2, limits: Limits::default(), strict: false }
    }
}

/// Progress of a check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Inodes visited.
    pub inodes: u64,
    /// Inodes of the image, as its super block says; 0 if it does not say.
    pub of_inodes: u64,
    /// Bytes of contents decoded.
    pub bytes: u64,
}

/// Result of a check.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Inodes.
    pub inodes: u64,
    /// Names, without `.` and `..`.
    pub names: u64,
    /// Bytes of contents decoded.
    pub bytes: u64,
    /// Whether the walk visited everything: no limit ended it.
    pub complete: bool,
    /// Faults of the image.
    pub findings: Findings,
}

/// Checks a whole image.
///
/// The calling thread calls `progress` about every 50 ms. Fails if the root directory cannot be read or a thread cannot
/// be started; every other fault is in the report.
pub fn check(image: &Image, options: &CheckOptions, progress: &dyn Fn(Progress)) -> Result<Report> {
    let contents = Contents::new(image, options.threads);
    let summary = std::thread::scope(|scope| {
        // The workers end when this guard is dropped, on errors too.
        let open = contents.open();
        for _ in 1..options.threads {
            let started = std::thread::Builder::new().spawn_scoped(scope, || contents.run_worker());
            started.map_err(|e| ImageError::Threads { errno: e.raw_os_error() })?;
        }
        check_superblock(image, &contents);
        let report = |finding| contents.finding(finding);
        let work = contents.work();
        let strict = options.strict.then(|| Strict::new(image, &work, &report)).transpose()?;
        let of_inodes = image.superblock().inos;
        let mut visitor = Checker {
            contents: &contents,
            work: &work,
            strict,
            progress,
            of_inodes,
            inodes: 0,
            last_report: Instant::now(),
        };
        let summary = walk::walk_within(&image.root()?, b"/", &options.limits, &work, &mut visitor)?;
        visitor.enqueue_special_files(image);
        if let Some(strict) = visitor.strict.take() {
            strict.finish(&summary);
        }
        contents.drain(&work, || visitor.report_progress());
        drop(open);
        Ok::<_, ImageError>(summary)
    })?;
    let decoded_all = !contents.has_ended_early();
    let (mut findings, bytes) = contents.into_parts();
    findings.sort();
    let (inodes, names) = (summary.inodes, summary.names);
    Ok(Report { inodes, names, bytes, complete: decoded_all && !summary.ended_early, findings })
}

/// Reports faults of the super block that opening the image accepts.
fn check_superblock(image: &Image, contents: &Contents) {
    let superblock = image.superblock();
    let warn = |what: String| contents.finding(Finding::warning(b"", None, what));
    if superblock.compat & compat::SB_CHKSUM == 0 {
        let what = "the super block has no checksum";
        contents.finding(Finding::breaks(&rules::SB_CHECKSUM, b"", None, what));
    }
    let (_, unknown) = features::split(superblock.compat, &compat::ALL);
    if unknown != 0 {
        warn(format!("unknown compatible features, bits {unknown:#x}"));
    }
    for short in image.short_devices() {
        contents.finding(Finding::breaks(&rules::SB_BLOCKS, b"", None, short.to_string()));
    }
}

struct Checker<'a> {
    contents: &'a Contents,
    work: &'a WorkLimit,
    strict: Option<Strict<'a>>,
    progress: &'a dyn Fn(Progress),
    of_inodes: u64,
    inodes: u64,
    last_report: Instant,
}

impl Checker<'_> {
    fn report_progress(&mut self) {
        if self.last_report.elapsed() >= PROGRESS_INTERVAL {
            self.last_report = Instant::now();
            let (inodes, of_inodes, bytes) = (self.inodes, self.of_inodes, self.contents.bytes());
            (self.progress)(Progress { inodes, of_inodes, bytes });
        }
    }

    /// Enqueues the packed file and the metabox, which no directory names.
    fn enqueue_special_files(&mut self, image: &Image) {
        let superblock = image.superblock();
        for (nid, name) in [(superblock.packed_nid, "(packed file)"), (superblock.metabox_nid, "(metabox)")] {
            let Some(nid) = nid else { continue };
            if let Some(strict) = &mut self.strict {
                strict.hidden_inode(nid, name.as_bytes());
            }
            match image.node(nid) {
                Ok(node) => self.enqueue(&node, name.as_bytes()),
                Err(error) => self.contents.finding(Finding::of(name.as_bytes(), &error)),
            }
        }
    }

    fn inode(&mut self, visit: &Visit<'_>) {
        self.report_progress();
        if visit.link != Link::First {
            return;
        }
        self.inodes += 1;
        if let Some(strict) = &mut self.strict {
            strict.inode(visit.node.nid(), visit.path);
        }
        inode::check(visit.node, visit.path, self.work, &mut |finding| self.contents.finding(finding));
    }

    fn enqueue(&mut self, node: &Node, path: &[u8]) {
        if let Some(task) = self.contents.enqueue(node, path, self.work) {
            self.contents.decode_here(task, self.work);
            self.report_progress();
        }
    }
}

impl Visitor for Checker<'_> {
    fn leave(&mut self, visit: &Visit<'_>, directories: u64) -> ControlFlow<()> {
        let inode = visit.node.inode();
        // Its own `.`, its name in the parent, and `..` of each subdirectory. Some builders set 1 for all directories.
        if u64::from(inode.nlink) != directories + 2 && inode.nlink != 1 {
            let what =
                format!("it contains {directories} directories, and its link count is {}", inode.nlink);
            let at = Some(inode.address);
            self.contents.finding(Finding::breaks(&rules::INODE_LINKS, visit.path, at, what));
        }
        ControlFlow::Continue(())
    }

    fn file(&mut self, visit: &Visit<'_>) -> ControlFlow<()> {
        self.inode(visit);
        if visit.link == Link::First && visit.node.kind() == pagefold_image::read::FileKind::Regular {
            self.enqueue(visit.node, visit.path);
        }
        ControlFlow::Continue(())
    }

    fn unreadable(&mut self, nid: Nid, path: &[u8]) {
        if let Some(strict) = &mut self.strict {
            strict.unreadable_inode(nid, path);
        }
    }

    fn finding(&mut self, finding: Finding) {
        self.contents.finding(finding);
    }
}
