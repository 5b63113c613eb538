//! The tree: directories, links and special files, made on the walk; files are handed to the workers.

use super::files::{self, Finished, Open, PART_BYTES, Task};
use super::place::Place;
use super::{Progress, Shared, dress};
use crate::finding::with_causes;
use crate::queue::Queue;
use crate::read::FileKind;
use crate::walk::{self, Link, Visit, Visitor};
use crate::{Finding, Image, Nid, Node, runs};
use pagefold_sys::SysError;
use pagefold_sys::beneath::{Folder, Special};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time between two reports of progress.
const TELL_EVERY: Duration = Duration::from_millis(50);

/// Directories on the way down that are kept open: each takes a descriptor, and an image can nest a thousand.
const OPEN_LEVELS: usize = 32;

/// Files with several names that are noted before those are forgotten that are finished.
const MAX_NOTED: usize = 1024;
/// Directories that get their modes at the end: each takes some memory until then.
const MAX_LATE: usize = 1 << 14;
/// What the owner of a directory needs to give a file in it another name elsewhere.
const OPEN_AND_SEARCH: u16 = 0o500;

/// What only the walking thread counts.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counted {
    pub(super) links: u64,
    pub(super) skipped_devices: u64,
}

/// Makes the tree.
pub(super) struct Tree<'a> {
    shared: &'a Shared<'a>,
    queue: &'a Queue<Task>,
    paths: &'a [Vec<u8>],
    progress: &'a dyn Fn(Progress),
    of_files: u64,
    /// The directories from the target to the one that is being filled.
    stack: Vec<Arc<Place>>,
    /// Directories that were left and get their modes at the end, because their owner may not use them afterwards.
    late: Vec<Arc<Place>>,
    /// Files with several names that may not be finished.
    unfinished: HashMap<Nid, Arc<Finished>>,
    counted: Counted,
    told: Instant,
    buffer: Vec<u8>,
}

impl<'a> Tree<'a> {
    pub(super) fn new(
        image: &Image,
        root: Arc<Place>,
        paths: &'a [Vec<u8>],
        shared: &'a Shared<'a>,
        queue: &'a Queue<Task>,
        progress: &'a dyn Fn(Progress),
    ) -> Self {
        let of_files = image.superblock().inos;
        let (counted, told, buffer) = (Counted::default(), Instant::now(), files::buffer());
        let (stack, late, unfinished) = (vec![root], Vec::new(), HashMap::new());
        Tree { shared, queue, paths, progress, of_files, stack, late, unfinished, counted, told, buffer }
    }

    /// Helps the workers with what is left, and lets go of the directories.
    pub(super) fn end(mut self) -> Counted {
        while let Some(place) = self.stack.pop().or_else(|| self.late.pop()) {
            place.release(self.shared);
        }
        while let Some(task) = self.queue.try_next() {
            files::run(task, &mut self.buffer, self.shared);
            self.tell();
        }
        self.counted
    }

    fn tell(&mut self) {
        if self.told.elapsed() >= TELL_EVERY {
            self.told = Instant::now();
            let (files, bytes) = (&self.shared.files, &self.shared.bytes);
            let (files, bytes) = (files.load(Ordering::Relaxed), bytes.load(Ordering::Relaxed));
            (self.progress)(Progress { files, bytes, of_files: self.of_files });
        }
    }

    /// Whether one may go on.
    fn go_on(&mut self) -> ControlFlow<()> {
        self.tell();
        if self.shared.stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn failed(&self, path: &[u8], what: impl ToString) {
        self.shared.finding(Finding::error(path, None, what.to_string()));
    }

    /// Hands a task to the workers, or does it.
    fn give(&mut self, task: Task) {
        if let Some(task) = self.queue.push(task) {
            files::run(task, &mut self.buffer, self.shared);
            self.tell();
        }
    }

    /// Notes a file with several names, so that [`finish`](Self::finish) finds it.
    fn note_unfinished(&mut self, nid: Nid) -> Arc<Finished> {
        if self.unfinished.len() >= MAX_NOTED {
            // What is left is bounded by the queue.
            self.unfinished.retain(|_, finished| !finished.is());
        }
        let finished = Arc::new(Finished::default());
        self.unfinished.insert(nid, finished.clone());
        finished
    }

    /// Helps until this file is finished. Only then it gets further names: a file that cannot be read is removed, and a name
    /// that it got before would stay, with contents that are not the image's.
    fn finish(&mut self, nid: Nid) {
        let Some(finished) = self.unfinished.remove(&nid) else { return };
        while !finished.is() {
            match self.queue.try_next() {
                Some(task) => files::run(task, &mut self.buffer, self.shared),
                None => finished.wait(),
            }
            self.tell();
        }
    }

    /// Lets go of a directory that was left. One that its owner may not open and search keeps its first mode until the end, if
    /// modes hold for this user: a file in it may get names elsewhere.
    fn release_left(&mut self, place: Arc<Place>, node: &Node) {
        let is_closed = node.inode().mode & OPEN_AND_SEARCH != OPEN_AND_SEARCH;
        if is_closed && !self.shared.root && self.late.len() < MAX_LATE {
            place.close();
            self.late.push(place);
        } else {
            place.close_if_many();
            place.release(self.shared);
        }
    }

    /// Makes room for what has this name.
    fn clear(&self, folder: &Folder, name: &[u8]) -> Result<(), SysError> {
        if self.shared.options.overwrite { folder.remove(name) } else { Ok(()) }
    }

    fn make_folder(&self, above: &Folder, name: &[u8]) -> Result<Folder, SysError> {
        match above.make_folder(name) {
            Err(e) if e.errno == libc_eexist() && self.shared.options.overwrite => above.open_folder(name),
            made => made,
        }
    }

    fn regular(&mut self, place: &Arc<Place>, visit: &Visit<'_>) -> Result<(), String> {
        let folder = place.folder().map_err(|e| e.to_string())?;
        self.clear(&folder, visit.name).map_err(|e| e.to_string())?;
        let name = visit.name.into();
        let (node, len) = (visit.node.clone(), visit.node.len_bytes());
        if len <= PART_BYTES && node.inode().nlink == 1 {
            self.give(Task::Whole { place: place.clone(), name, node: Box::new(node) });
            return Ok(());
        }
        let mode = dress::creation_mode(&node);
        let file = folder.make_file(visit.name, mode).map_err(|e| e.to_string())?;
        self.shared.files.fetch_add(1, Ordering::Relaxed);
        // From the beginning, so that a hole at the end needs nothing further, however long it is.
        let set = file.set_len(len);
        let failed = AtomicBool::new(set.is_err());
        let finished =
            if node.inode().nlink == 1 { Arc::default() } else { self.note_unfinished(node.nid()) };
        let open = Arc::new(Open { file, node, place: place.clone(), name, failed, finished });
        let mut start = 0;
        // Holes are passed over here: one of 2^62 bytes would be more parts than anybody can wait for.
        while start < len && !open.failed.load(Ordering::Relaxed) && !self.shared.stopped() {
            match runs::at(&open.node, start) {
                Ok(Some(run)) if run.is_hole() => start = run.end,
                Ok(_) => {
                    let end = start.saturating_add(PART_BYTES).min(len);
                    self.give(Task::Part { file: open.clone(), start, end });
                    start = end;
                }
                Err(error) => {
                    open.failed.store(true, Ordering::Relaxed);
                    self.failed(visit.path, with_causes(&error));
                    break;
                }
            }
        }
        open.release(self.shared);
        set.map_err(|e| format!("setting its length of {len} bytes: {e}"))
    }

    fn link(&mut self, place: &Place, visit: &Visit<'_>, first: &[u8]) -> Result<(), String> {
        let split = first.iter().rposition(|&b| b == b'/').unwrap_or_default();
        let (above, old) = (&first[..split], &first[split + 1..]);
        self.finish(visit.node.nid());
        if self.shared.stopped() {
            return Ok(());
        }
        let folder = place.folder().map_err(|e| e.to_string())?;
        self.clear(&folder, visit.name).map_err(|e| e.to_string())?;
        let here = visit.path.len().checked_sub(visit.name.len() + 1).map(|end| &visit.path[..end]);
        let made = match (self.stack.first(), above) {
            _ if Some(above) == here => folder.make_link(visit.name, &folder, old),
            (Some(root), [b'/', above @ ..]) => {
                let from = root.folder().and_then(|root| root.open_folder(above));
                from.and_then(|from| folder.make_link(visit.name, &from, old))
            }
            (Some(root), _) => root.folder().and_then(|root| folder.make_link(visit.name, &root, old)),
            (None, _) => return Ok(()),
        };
        let shown = first.escape_ascii();
        made.map_err(|e| format!("another name of '{shown}': {e}"))?;
        self.counted.links += 1;
        Ok(())
    }

    /// A symbolic link or a special file.
    fn other(&mut self, place: &Place, visit: &Visit<'_>) -> Result<(), String> {
        let node = visit.node;
        let device = node.inode().device.map_or((0, 0), |d| (d.major, d.minor));
        let special = match node.kind() {
            FileKind::Fifo => Some(Special::Fifo),
            FileKind::Socket => Some(Special::Socket),
            FileKind::CharDevice => Some(Special::CharDevice(device.0, device.1)),
            FileKind::BlockDevice => Some(Special::BlockDevice(device.0, device.1)),
            _ => None,
        };
        if matches!(special, Some(Special::CharDevice(..) | Special::BlockDevice(..)))
            && !self.shared.options.privileged
        {
            self.counted.skipped_devices += 1;
            return Ok(());
        }
        let folder = place.folder().map_err(|e| e.to_string())?;
        self.clear(&folder, visit.name).map_err(|e| e.to_string())?;
        let made = match special {
            Some(special) => folder.make_special(visit.name, special),
            None => {
                let target = node.read_link().map_err(|e| with_causes(&e))?;
                folder.make_symlink(visit.name, &target)
            }
        };
        let handle = made.map_err(|e| e.to_string())?;
        self.shared.files.fetch_add(1, Ordering::Relaxed);
        dress::unopened(&handle, node, self.shared)
    }
}

/// The number of "file exists", which is the same on every Linux.
fn libc_eexist() -> i32 {
    rustix::io::Errno::EXIST.raw_os_error()
}

impl Visitor for Tree<'_> {
    fn wants(&mut self, path: &[u8]) -> bool {
        walk::is_among(path, self.paths)
    }

    fn enter(&mut self, visit: &Visit<'_>) -> ControlFlow<(), bool> {
        if visit.depth == 0 {
            return ControlFlow::Continue(true);
        }
        self.go_on().map_continue(|()| ()).map_break(|()| ())?;
        let Some(above) = self.stack.last().cloned() else { return ControlFlow::Continue(false) };
        if !self.shared.budget.take_file() {
            return ControlFlow::Break(());
        }
        let made = above.folder().and_then(|folder| self.make_folder(&folder, visit.name));
        match made.and_then(|folder| Place::within(&above, folder, visit.node, visit.name)) {
            Ok(place) => {
                self.shared.files.fetch_add(1, Ordering::Relaxed);
                if let Some(far) = self.stack.len().checked_sub(OPEN_LEVELS) {
                    self.stack[far].close();
                }
                self.stack.push(place);
            }
            Err(error) => self.failed(visit.path, error),
        }
        let entered = self.stack.last().is_some_and(|top| !Arc::ptr_eq(top, &above));
        above.release(self.shared);
        ControlFlow::Continue(entered)
    }

    fn leave(&mut self, visit: &Visit<'_>, _directories: u64) -> ControlFlow<()> {
        if visit.depth > 0
            && let Some(place) = self.stack.pop()
        {
            self.release_left(place, visit.node);
            // What is made in the one above must not open it each time. What fails here fails there too, and is told.
            let _ = self.stack.last().map(|above| above.hold());
        }
        ControlFlow::Continue(())
    }

    fn file(&mut self, visit: &Visit<'_>) -> ControlFlow<()> {
        self.go_on()?;
        let Some(place) = self.stack.last().cloned() else { return ControlFlow::Continue(()) };
        if !self.shared.budget.take_file() {
            return ControlFlow::Break(());
        }
        let done = match (visit.link, visit.node.kind()) {
            (Link::Again(Some(first)), _) => self.link(&place, visit, first),
            (_, FileKind::Regular) => self.regular(&place, visit),
            _ => self.other(&place, visit),
        };
        if let Err(what) = done {
            self.failed(visit.path, what);
        }
        place.release(self.shared);
        ControlFlow::Continue(())
    }

    fn finding(&mut self, finding: Finding) {
        self.shared.finding(finding);
    }
}
