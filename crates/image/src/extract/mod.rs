//! Writing the tree of an image into a directory, by several threads, with everything that belongs to it.
//!
//! The calling thread walks the tree and makes directories, links and special files; workers make files, large ones in pieces.
//! A directory gets its owner, mode and time when the last thing in it is done: it is counted by those who still need it
//! (`place`). Nothing is made but by one name in a directory that is held open, so there is no path that a link could bend.
//!
//! What fails is a [`Finding`](crate::Finding), and the rest goes on. What one must be privileged to make is left out unless asked for,
//! and counted. An image can say that it holds more than there is room for: bytes written and files made have limits.

mod dress;
mod files;
mod limits;
mod place;
mod tree;
mod zeroes;

use crate::walk::{self, Limits};
use crate::{Findings, Image, ImageError};
use limits::Budget;
use pagefold_sys::SysError;
use pagefold_sys::beneath::{self, Folder};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// What is extracted, and how.
#[derive(Debug, Clone)]
pub struct ExtractOptions {
    /// Threads that write files.
    pub jobs: usize,
    /// Make devices, set-id bits and attributes of the system (`security.`, `trusted.`).
    pub privileged: bool,
    /// Set owners and groups.
    pub owners: bool,
    /// Set extended attributes and access control lists.
    pub xattrs: bool,
    /// Set times.
    pub times: bool,
    /// Bytes of contents written at most; `None`: nine tenths of what is free.
    pub max_bytes: Option<u64>,
    /// Files made at most, of all kinds; also by what is free.
    pub max_inodes: u64,
    /// Take a directory that is not empty, and replace files in it.
    pub overwrite: bool,
}

impl Default for ExtractOptions {
    fn default() -> Self {
        ExtractOptions {
            jobs: 2,
            privileged: false,
            owners: true,
            xattrs: true,
            times: true,
            max_bytes: None,
            max_inodes: Limits::default().inodes,
            overwrite: false,
        }
    }
}

/// How far it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Files of all kinds that were made.
    pub files: u64,
    /// Bytes of contents written.
    pub bytes: u64,
    /// Files that there are, as the image says; 0 if it does not.
    pub of_files: u64,
}

/// What was done.
#[derive(Debug, Clone, Default)]
pub struct ExtractReport {
    /// Files of all kinds that were made, hard links not counted.
    pub files: u64,
    /// Hard links made.
    pub links: u64,
    /// Bytes of contents written; holes and long runs of zeroes are not.
    pub bytes: u64,
    /// Devices that were left out for want of privilege.
    pub skipped_devices: u64,
    /// Files whose set-id bits were left out.
    pub skipped_set_id: u64,
    /// Attributes that were left out.
    pub skipped_xattrs: u64,
    /// Attributes that were not set because the file system of the target has none such: one warning tells it.
    pub unsupported_xattrs: u64,
    /// It was interrupted; what there is is right but not all.
    pub interrupted: bool,
    /// What went wrong.
    pub findings: Findings,
}

/// Why nothing was extracted, or not all.
#[derive(Debug, thiserror::Error)]
pub enum ExtractError {
    /// The image cannot be read.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The directory cannot be used.
    #[error(transparent)]
    Target(#[from] SysError),
    /// The directory has something in it.
    #[error("the directory is not empty; choose another, or replace what is there with --overwrite")]
    NotEmpty,
    /// More than the limit.
    #[error("{what}")]
    Limit {
        /// Which limit, and what to do.
        what: String,
    },
}

/// What all threads share.
struct Shared<'a> {
    options: &'a ExtractOptions,
    budget: Budget,
    cancelled: &'a AtomicBool,
    umask: u16,
    /// Whether the user is root, who may give files away.
    root: bool,
    /// Owner and group of what is made; `None` if a group is inherited.
    made_as: Option<(u32, u32)>,
    findings: Mutex<Findings>,
    files: AtomicU64,
    bytes: AtomicU64,
    skipped_set_id: AtomicU64,
    skipped_xattrs: AtomicU64,
    /// Attributes that the file system of the target does not have.
    unsupported_xattrs: AtomicU64,
}

impl Shared<'_> {
    fn finding(&self, finding: crate::Finding) {
        self.findings.lock().unwrap_or_else(PoisonError::into_inner).push(finding);
    }

    /// Whether nothing further is to be begun.
    fn stopped(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed) || self.budget.exceeded().is_some()
    }
}

/// Extracts `paths` (all of the image if there are none) into `target`, an empty directory. Links on the way to them are
/// followed, and what is found gets the place that it has without them.
///
/// `progress` is called now and then by the calling thread. Setting `cancelled` ends it after what is being written.
pub fn extract(
    image: &Image,
    target: &Folder,
    paths: &[Vec<u8>],
    options: &ExtractOptions,
    cancelled: &AtomicBool,
    progress: &dyn Fn(Progress),
) -> Result<ExtractReport, ExtractError> {
    let paths = image.locate_all(paths)?;
    if !options.overwrite && !target.is_empty()? {
        return Err(ExtractError::NotEmpty);
    }
    let shared = Shared {
        options,
        budget: Budget::new(options, target.room()?),
        cancelled,
        umask: beneath::umask(),
        root: rustix::process::geteuid().is_root(),
        made_as: (!target.gives_group()?)
            .then(|| (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())),
        findings: Mutex::default(),
        files: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        skipped_set_id: AtomicU64::new(0),
        skipped_xattrs: AtomicU64::new(0),
        unsupported_xattrs: AtomicU64::new(0),
    };
    let counted = run(image, target, &paths, &shared, progress)?;
    if let Some(what) = shared.budget.exceeded() {
        return Err(ExtractError::Limit { what });
    }
    let mut findings = shared.findings.into_inner().unwrap_or_else(PoisonError::into_inner);
    findings.sort();
    let unsupported_xattrs = shared.unsupported_xattrs.into_inner();
    if unsupported_xattrs > 0 {
        findings.push(crate::Finding::warning(b"", None, unsupported(unsupported_xattrs)));
    }
    Ok(ExtractReport {
        files: shared.files.into_inner(),
        links: counted.links,
        bytes: shared.bytes.into_inner(),
        skipped_devices: counted.skipped_devices,
        skipped_set_id: shared.skipped_set_id.into_inner(),
        skipped_xattrs: shared.skipped_xattrs.into_inner(),
        unsupported_xattrs,
        interrupted: cancelled.load(Ordering::Relaxed),
        findings,
    })
}

/// What is told of attributes that the file system of the target does not have.
fn unsupported(n: u64) -> String {
    let attributes = if n == 1 { "1 attribute was".into() } else { format!("{n} attributes were") };
    format!("{attributes} left out: the file system of the directory does not support such")
}

/// Walks, with workers beside it, until all is done.
fn run(
    image: &Image,
    target: &Folder,
    paths: &[Vec<u8>],
    shared: &Shared<'_>,
    progress: &dyn Fn(Progress),
) -> Result<tree::Counted, ExtractError> {
    let queue = files::queue(shared.options.jobs);
    std::thread::scope(|scope| {
        let closed = queue.close_on_drop();
        // The walking thread helps, so it is one of them.
        for _ in 1..shared.options.jobs {
            let work = || files::work(&queue, shared);
            let started = std::thread::Builder::new().spawn_scoped(scope, work);
            started.map_err(|e| ImageError::Threads { errno: e.raw_os_error() })?;
        }
        let whole = paths.is_empty() || paths.iter().any(|path| path == b"/");
        let node = if whole { Some(image.root()?) } else { None };
        let root = place::Place::root(target.open_again()?, node);
        let mut tree = tree::Tree::new(image, root, paths, shared, &queue, progress);
        // One more than may be made: the root is there already, and the budget is to say what is exceeded.
        let inodes = shared.options.max_inodes.saturating_add(2);
        let limits = Limits { inodes, ..Limits::default() };
        walk::walk(image, &limits, &mut tree)?;
        let counted = tree.end();
        drop(closed);
        Ok(counted)
    })
}
