//! The visitor that extracts: creates directories, links and special files during the walk, and enqueues regular files.
//!
//! It runs in the calling thread. When the queue is full, it runs the task itself; when the walk is over, it helps to
//! empty the queue.

use super::files::{Completion, OpenFile, PART_BYTES, Task, Worker};
use super::metadata;
use super::options::Progress;
use super::pending_dir::PendingDir;
use super::shared::{ExtractCounts, Shared};
use crate::finding::FileError;
use crate::queue::Queue;
use crate::read::{Cursor, FileKind};
use crate::walk::{self, Link, Visit, Visitor};
use crate::work::WorkLimit;
use crate::{Finding, Image, Nid, Node, runs};
use pagefold_sys::SysError;
use pagefold_sys::beneath::{Folder, Special};
use pagefold_sys::pathhandle::PathHandle;
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Least time between two reports of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(50);

/// The deepest directories of the current path, which stay open. Each takes a descriptor, and an image can nest a
/// thousand.
const OPEN_LEVELS: usize = 32;

/// Files with several names that are tracked before the complete ones are dropped from the table.
const MAX_UNFINISHED: usize = 1024;
/// Files with several names of which the first could not be made. After so many, further names of all files are errors.
const MAX_NOT_MADE: usize = 1 << 16;
/// Limit of directories whose metadata is deferred to the end: each takes memory until then.
const MAX_DEFERRED: usize = 1 << 14;
/// Mode bits that the owner of a directory needs for linking a file in it to a name elsewhere: read and search.
const OPEN_AND_SEARCH: u16 = 0o500;

/// Creates the tree in the target.
pub(super) struct TreeWriter<'a> {
    shared: &'a Shared<'a>,
    queue: &'a Queue<Task>,
    paths: &'a [Vec<u8>],
    progress: &'a dyn Fn(Progress),
    of_files: u64,
    /// The directories from the target to the current one.
    stack: Vec<Arc<PendingDir>>,
    /// Directories whose metadata is applied at the end of the walk, because their final modes deny access to their
    /// owner.
    deferred: Vec<Arc<PendingDir>>,
    /// Files with several names that may be incomplete.
    unfinished: HashMap<Nid, Arc<Completion>>,
    /// Files with several names whose first name could not be made: it may be that of an older file, which must not get
    /// further names.
    not_made: HashSet<Nid>,
    last_report: Instant,
    worker: Worker<'a>,
    work: &'a WorkLimit,
}

impl<'a> TreeWriter<'a> {
    pub(super) fn new(
        image: &Image,
        root: Arc<PendingDir>,
        paths: &'a [Vec<u8>],
        shared: &'a Shared<'a>,
        queue: &'a Queue<Task>,
        work: &'a WorkLimit,
        progress: &'a dyn Fn(Progress),
    ) -> Self {
        TreeWriter {
            shared,
            queue,
            paths,
            progress,
            of_files: image.superblock().inos,
            stack: vec![root],
            deferred: Vec::new(),
            unfinished: HashMap::new(),
            not_made: HashSet::new(),
            last_report: Instant::now(),
            worker: Worker::new(shared, work),
            work,
        }
    }

    /// Releases the remaining directories, and runs tasks until the queue is empty.
    pub(super) fn end(mut self) {
        while let Some(dir) = self.stack.pop().or_else(|| self.deferred.pop()) {
            dir.release(self.shared);
        }
        while let Some(task) = self.queue.try_next() {
            self.worker.run(task);
            self.report_progress();
        }
    }

    fn report_progress(&mut self) {
        if self.last_report.elapsed() >= PROGRESS_INTERVAL {
            self.last_report = Instant::now();
            let ExtractCounts { files, bytes, content_bytes, .. } = self.shared.counters.snapshot();
            (self.progress)(Progress { files, bytes, content_bytes, of_files: self.of_files });
        }
    }

    /// Reports progress, and breaks if the extraction is to stop.
    fn check_stop(&mut self) -> ControlFlow<()> {
        self.report_progress();
        if self.shared.stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn report_error(&self, path: &[u8], error: impl Into<FileError>) {
        self.shared.finding(Finding::of_file_error(path, error.into()));
    }

    /// Enqueues a task, or runs it if the queue is full.
    fn enqueue(&mut self, task: Task) {
        if let Some(task) = self.queue.push(task) {
            self.worker.run(task);
            self.report_progress();
        }
    }

    /// Tracks a file with several names, for [`wait_until_complete`](Self::wait_until_complete).
    fn track_unfinished(&mut self, nid: Nid) -> Arc<Completion> {
        if self.unfinished.len() >= MAX_UNFINISHED {
            // The queue bounds the number of incomplete files that remain.
            self.unfinished.retain(|_, completion| completion.get().is_none());
        }
        let completion = Arc::new(Completion::default());
        self.unfinished.insert(nid, completion.clone());
        completion
    }

    /// Runs tasks until this file is complete. Only then it may get further names: a file that cannot be read is
    /// removed, and another name that was created before would remain, with wrong contents.
    fn wait_until_complete(&mut self, nid: Nid) {
        let Some(completion) = self.unfinished.remove(&nid) else { return };
        while completion.get().is_none() {
            match self.queue.try_next() {
                Some(task) => self.worker.run(task),
                None => _ = completion.wait(),
            }
            self.report_progress();
        }
    }

    /// Releases a directory after its entries. If its final mode denies the owner to read and search it, and the user
    /// is not root, defers that mode to the end of the walk: a later hard link may name a file in it.
    fn release_after_walk(&mut self, dir: Arc<PendingDir>, node: &Node) {
        let is_closed = node.inode().mode & OPEN_AND_SEARCH != OPEN_AND_SEARCH;
        if is_closed && !self.shared.root && self.deferred.len() < MAX_DEFERRED {
            dir.close();
            self.deferred.push(dir);
        } else {
            dir.close_if_many();
            dir.release(self.shared);
        }
    }

    /// Removes what has this name, if the options allow it.
    fn remove_existing(&self, folder: &Folder, name: &[u8]) -> Result<(), SysError> {
        if self.shared.options.overwrite { folder.remove_all(name) } else { Ok(()) }
    }

    /// Makes a directory, or takes the one that is there: an earlier extraction may have made it read-only.
    fn make_folder(&self, parent: &Folder, name: &[u8]) -> Result<Folder, SysError> {
        match parent.make_folder(name) {
            Err(e) if e.errno == libc::EEXIST && self.shared.options.overwrite => {
                match parent.open_for_change(name) {
                    Err(e) if e.errno == libc::ENOTDIR => {
                        parent.remove(name)?;
                        parent.make_folder(name)
                    }
                    opened => opened,
                }
            }
            made => made,
        }
    }

    /// Notes the file if its first name was not made.
    fn note_not_made<T, E>(&mut self, visit: &Visit<'_>, made: Result<T, E>) -> Result<T, E> {
        let has_several = visit.link == Link::First && visit.node.inode().nlink != 1;
        if made.is_err() && has_several && self.not_made.len() < MAX_NOT_MADE {
            self.not_made.insert(visit.node.nid());
        }
        made
    }

    fn make_regular(&mut self, dir: &Arc<PendingDir>, visit: &Visit<'_>) -> Result<(), FileError> {
        let removed = dir.folder().and_then(|folder| {
            self.remove_existing(&folder, visit.name)?;
            Ok(folder)
        });
        let folder = self.note_not_made(visit, removed)?;
        let name = visit.name.into();
        let (node, len) = (visit.node.clone(), visit.node.len_bytes());
        if len <= PART_BYTES && node.inode().nlink == 1 {
            self.enqueue(Task::Whole { dir: dir.clone(), name, node: Box::new(node) });
            return Ok(());
        }
        let mode = metadata::creation_mode(&node);
        let file = self.note_not_made(visit, folder.make_file(visit.name, mode))?;
        self.shared.counters.files.add(1);
        // The length is set first, so that a hole at the end needs no further step.
        let set = file.set_len(len);
        let failed = AtomicBool::new(set.is_err());
        let completion =
            if node.inode().nlink == 1 { Arc::default() } else { self.track_unfinished(node.nid()) };
        let open = Arc::new(OpenFile { file, node, dir: dir.clone(), name, failed, completion });
        let (mut start, mut cursor) = (0, Cursor::default());
        // Skip holes here: one of 2^62 bytes would otherwise take 2^39 tasks.
        while start < len && !open.failed.load(Ordering::Relaxed) && !self.shared.stopped() {
            match runs::at(&open.node, start, &mut cursor, self.work) {
                Ok(Some(run)) if run.is_hole() => start = run.end,
                Ok(_) => {
                    let end = start.saturating_add(PART_BYTES).min(len);
                    self.enqueue(Task::Range { file: open.clone(), start, end });
                    start = end;
                }
                Err(error) => {
                    open.failed.store(true, Ordering::Relaxed);
                    self.report_error(visit.path, error);
                    break;
                }
            }
        }
        open.release(self.shared);
        set.map_err(|e| FileError::outside(format!("setting its length of {len} bytes: {e}")))
    }

    fn make_link(&mut self, dir: &Arc<PendingDir>, visit: &Visit<'_>, first: &[u8]) -> Result<(), FileError> {
        let split = first.iter().rposition(|&b| b == b'/').unwrap_or_default();
        let (parent, old) = (&first[..split], &first[split + 1..]);
        self.wait_until_complete(visit.node.nid());
        if self.shared.stopped() {
            return Ok(());
        }
        if self.not_made.contains(&visit.node.nid()) || self.not_made.len() >= MAX_NOT_MADE {
            let shown = first.escape_ascii();
            return Err(FileError::outside(format!("another name of '{shown}', which could not be made")));
        }
        let folder = dir.folder()?;
        let here = visit.path.len().checked_sub(visit.name.len() + 1).map(|end| &visit.path[..end]);
        let from = match (self.stack.first(), parent) {
            _ if Some(parent) == here => Ok(folder.clone()),
            (Some(root), [b'/', parent @ ..]) => {
                root.folder().and_then(|root| root.open_folder(parent)).map(Arc::new)
            }
            (Some(root), _) => root.folder(),
            (None, _) => return Ok(()),
        };
        // An older file of this name is removed only if there is one for its place.
        let made = match from.and_then(|from| from.check_has(old).map(|()| from)) {
            Ok(from) => {
                self.remove_existing(&folder, visit.name)?;
                folder.make_link(visit.name, &from, old)
            }
            Err(error) => Err(error),
        };
        match made {
            Ok(()) => self.shared.counters.links.add(1),
            // The first name is missing, and was reported; or this one is taken.
            Err(e) if matches!(e.errno, libc::ENOENT | libc::EEXIST) => {
                let shown = first.escape_ascii();
                return Err(FileError::outside(format!("another name of '{shown}': {e}")));
            }
            Err(_) => {
                self.make_file(dir, visit)?;
                self.shared.counters.copied_links.add(1);
            }
        }
        Ok(())
    }

    /// Makes a file under its first name, or under one that cannot be a hard link: some file systems and sandboxes refuse
    /// them, and others limit their number.
    fn make_file(&mut self, dir: &Arc<PendingDir>, visit: &Visit<'_>) -> Result<(), FileError> {
        match visit.node.kind() {
            FileKind::Regular => self.make_regular(dir, visit),
            _ => self.make_other(dir, visit),
        }
    }

    /// Creates a symbolic link or a special file.
    fn make_other(&mut self, dir: &PendingDir, visit: &Visit<'_>) -> Result<(), FileError> {
        let node = visit.node;
        let device = node.inode().device.map_or((0, 0), |d| (d.major, d.minor));
        let special = match node.kind() {
            FileKind::Fifo => Some(Special::Fifo),
            FileKind::Socket => Some(Special::Socket),
            FileKind::CharDevice => Some(Special::CharDevice(device.0, device.1)),
            FileKind::BlockDevice => Some(Special::BlockDevice(device.0, device.1)),
            _ => None,
        };
        let made = self.make_unopened(dir, visit, special);
        let handle = self.note_not_made(visit, made)?;
        self.shared.counters.files.add(1);
        metadata::apply_to_unopened(&handle, node, self.shared)
    }

    /// Makes a special file, or a symbolic link if it is none.
    fn make_unopened(
        &self,
        dir: &PendingDir,
        visit: &Visit<'_>,
        special: Option<Special>,
    ) -> Result<PathHandle, FileError> {
        let folder = dir.folder()?;
        // An older file of this name is removed only if the link in its place can be read.
        let target = if special.is_none() { visit.node.read_link()? } else { Vec::new() };
        self.remove_existing(&folder, visit.name)?;
        Ok(match special {
            Some(special) => folder.make_special(visit.name, special)?,
            None => folder.make_symlink(visit.name, &target)?,
        })
    }

    /// Whether a file is left out under all its names: a device, unless the options allow it.
    fn is_left_out(&self, node: &Node) -> bool {
        let is_device = matches!(node.kind(), FileKind::CharDevice | FileKind::BlockDevice);
        is_device && !self.shared.options.privileged
    }
}

impl Visitor for TreeWriter<'_> {
    fn wants(&mut self, path: &[u8]) -> bool {
        walk::is_among(path, self.paths)
    }

    fn enter(&mut self, visit: &Visit<'_>) -> ControlFlow<(), bool> {
        if visit.depth == 0 {
            return ControlFlow::Continue(true);
        }
        self.check_stop()?;
        let Some(parent) = self.stack.last().cloned() else { return ControlFlow::Continue(false) };
        if !self.shared.limits.take_file() {
            return ControlFlow::Break(());
        }
        let made = parent.folder().and_then(|folder| self.make_folder(&folder, visit.name));
        match made.and_then(|folder| PendingDir::within(&parent, folder, visit.node, visit.name)) {
            Ok(dir) => {
                self.shared.counters.files.add(1);
                if let Some(far) = self.stack.len().checked_sub(OPEN_LEVELS) {
                    self.stack[far].close();
                }
                self.stack.push(dir);
            }
            Err(error) if error.errno == libc::EXDEV => {
                let what = format!(
                    "{error}: extraction enters no mounts below the directory; unmount it, or run 'pagefold image tar \
                     IMAGE | tar -x -C DIRECTORY'"
                );
                self.report_error(visit.path, FileError::outside(what));
            }
            Err(error) => self.report_error(visit.path, error),
        }
        let entered = self.stack.last().is_some_and(|top| !Arc::ptr_eq(top, &parent));
        parent.release(self.shared);
        ControlFlow::Continue(entered)
    }

    fn leave(&mut self, visit: &Visit<'_>, _directories: u64) -> ControlFlow<()> {
        if visit.depth > 0
            && let Some(dir) = self.stack.pop()
        {
            self.release_after_walk(dir, visit.node);
            // Creating the next entries in the parent must not open it each time. If opening it fails here, creating an
            // entry fails too, and reports that.
            let _ = self.stack.last().map(|parent| parent.keep_open());
        }
        ControlFlow::Continue(())
    }

    fn file(&mut self, visit: &Visit<'_>) -> ControlFlow<()> {
        self.check_stop()?;
        let Some(dir) = self.stack.last().cloned() else { return ControlFlow::Continue(()) };
        if !self.shared.limits.take_file() {
            return ControlFlow::Break(());
        }
        let done = match visit.link {
            _ if self.is_left_out(visit.node) => {
                self.shared.counters.skipped_devices.add(1);
                Ok(())
            }
            Link::Again(Some(first)) => self.make_link(&dir, visit, first),
            _ => self.make_file(&dir, visit),
        };
        if let Err(error) = done {
            self.report_error(visit.path, error);
        }
        dir.release(self.shared);
        ControlFlow::Continue(())
    }

    fn finding(&mut self, finding: Finding) {
        self.shared.finding(finding);
    }
}
