//! Extracts an image into a directory, with several threads: contents, links, special files, owners, attributes, modes,
//! times.
//!
//! The calling thread walks the tree and creates directories, links and special files (`tree`). It puts regular files
//! into a bounded queue, large ones in ranges. [`ExtractOptions::threads`] threads, the calling one among them, write
//! them (`files`, `zeroes`) and apply their metadata (`metadata`). A directory gets its metadata when the last
//! reference to it is released (or at the end of the walk, see `tree`), because changes inside it would need
//! permissions that its mode may deny, and would change its times (`pending_dir`).
//!
//! Every file is created by a single name in a directory that is open, so that no symbolic link, in the image or made
//! by another user, can redirect a path to a place outside the target.
//!
//! Locks: the queue's, one for each directory's descriptor, one for each unfinished file with several names, and the
//! findings'; no thread holds two of them. A thread never waits for another one while tasks are queued, except on the
//! queue itself.
//!
//! A file that fails becomes a [`Finding`](crate::Finding), and the extraction goes on. Devices, set-id bits and system
//! attributes are skipped and counted, unless [`ExtractOptions::privileged`] is set. The bytes written and the files
//! created are limited (`limits`), because an image can claim to hold more than the disk. On a limit or a cancellation,
//! the walk ends, workers drop the tasks that are queued, and incomplete files are removed.

mod files;
mod limits;
mod metadata;
mod options;
mod pending_dir;
mod shared;
mod tree;
mod zeroes;

use crate::walk::{self, Limits};
use crate::work::SharedWork;
use crate::{Findings, Image, ImageError};
use limits::ExtractLimits;
pub use options::{ExtractOptions, Progress};
use pagefold_sys::SysError;
use pagefold_sys::beneath::{self, Folder};
pub use shared::ExtractCounts;
use shared::{Counters, Shared};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Result of an extraction.
#[derive(Debug, Clone, Default)]
pub struct ExtractReport {
    /// Files created and skipped.
    pub counts: ExtractCounts,
    /// Whether the extraction was cancelled; the files that exist are complete, but others are missing.
    pub interrupted: bool,
    /// Faults of the image, and files that could not be written.
    pub findings: Findings,
}

/// Why an extraction failed.
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
    /// The image holds more than a limit allows. The files extracted so far remain.
    #[error("{what}")]
    Limit {
        /// The limit, and the option that raises it.
        what: String,
    },
}

/// Extracts `paths` (the whole image if there are none) into `target`, an empty directory. Symbolic links in the paths
/// are followed; a file is extracted at its real path.
///
/// The calling thread calls `progress` about every 50 ms. Setting `cancelled` makes all threads stop after their
/// current write.
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
        limits: ExtractLimits::new(options, target.free_space()?),
        cancelled,
        umask: beneath::umask(),
        root: rustix::process::geteuid().is_root(),
        made_as: (!target.is_set_group_id()?)
            .then(|| (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())),
        work: SharedWork::of_image(image.stored_bytes()),
        findings: Mutex::default(),
        counters: Counters::default(),
    };
    run(image, target, &paths, &shared, progress)?;
    if let Some(what) = shared.limits.exceeded() {
        return Err(ExtractError::Limit { what });
    }
    let mut findings = shared.findings.into_inner().unwrap_or_else(PoisonError::into_inner);
    findings.sort();
    let counts = shared.counters.snapshot();
    if counts.copied_links > 0 {
        findings.push(crate::Finding::warning(b"", None, copied(counts.copied_links)));
    }
    if counts.unsupported_xattrs > 0 {
        findings.push(crate::Finding::warning(b"", None, unsupported(counts.unsupported_xattrs)));
    }
    Ok(ExtractReport { counts, interrupted: cancelled.load(Ordering::Relaxed), findings })
}

/// The warning for `n` names that are copies.
fn copied(n: u64) -> String {
    let names = if n == 1 { "1 name is a copy".into() } else { format!("{n} names are copies") };
    format!("{names} and no hard link: the file system of the directory, or a sandbox, refuses hard links")
}

/// The warning for `n` attributes that the target's file system does not support.
fn unsupported(n: u64) -> String {
    let attributes = if n == 1 { "1 attribute was".into() } else { format!("{n} attributes were") };
    format!("{attributes} left out: the file system of the directory does not support them")
}

/// Starts the workers, walks the tree, and waits until all tasks are done.
fn run(
    image: &Image,
    target: &Folder,
    paths: &[Vec<u8>],
    shared: &Shared<'_>,
    progress: &dyn Fn(Progress),
) -> Result<(), ExtractError> {
    let queue = files::queue(shared.options.threads);
    std::thread::scope(|scope| {
        let closed = queue.close_on_drop();
        // The calling thread is one of the `threads`.
        for _ in 1..shared.options.threads {
            let work = || files::run_worker(&queue, shared);
            let started = std::thread::Builder::new().spawn_scoped(scope, work);
            started.map_err(|e| ImageError::Threads { errno: e.raw_os_error() })?;
        }
        let whole = paths.is_empty() || paths.iter().any(|path| path == b"/");
        let node = if whole { Some(image.root()?) } else { None };
        if shared.options.overwrite && whole {
            target.allow_changes()?;
        }
        let root = pending_dir::PendingDir::root(target.open_again()?, node)?;
        let work = shared.work.limit();
        let mut tree = tree::TreeWriter::new(image, root, paths, shared, &queue, &work, progress);
        // The root exists already, and one inode more lets `ExtractLimits` report the limit instead of the walk.
        let inodes = shared.options.max_inodes.saturating_add(2);
        let limits = Limits { inodes, ..Limits::default() };
        walk::walk_within(&image.root()?, b"/", &limits, &work, &mut tree)?;
        tree.end();
        drop(closed);
        Ok(())
    })
}
