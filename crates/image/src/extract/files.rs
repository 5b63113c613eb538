//! Writes the contents of regular files: the tasks of the workers, and their bounded queue.
//!
//! When the queue is full, the walking thread runs a task itself. A small file is one task of at most five system calls
//! for a file without attributes: create, write, `fchmod` if the umask took bits away, set the times, close. A large
//! file, or one with several names, is created by the walking thread and written in ranges of [`PART_BYTES`]. Each
//! range holds a reference to the [`OpenFile`], and the thread that releases the last one applies the metadata.
//!
//! A file whose contents cannot be read or written is removed, so that every file that exists is complete.

use super::pending_dir::PendingDir;
use super::shared::Shared;
use super::{metadata, zeroes};
use crate::finding::FileError;
use crate::queue::Queue;
use crate::read::Cursor;
use crate::work::WorkLimit;
use crate::{Finding, Node, pieces};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// The most bytes read and written at a time.
const BUFFER_BYTES: usize = 1 << 20;
/// Files longer than this are written in parts of this many bytes, by all workers.
pub(super) const PART_BYTES: u64 = 8 << 20;
/// Capacity of the queue, tasks for each worker.
const QUEUED_PER_WORKER: usize = 128;

/// A task of a worker.
pub(super) enum Task {
    /// Create and write a small file.
    Whole { dir: Arc<PendingDir>, name: Box<[u8]>, node: Box<Node> },
    /// Write a range of a file that was created before.
    Range { file: Arc<OpenFile>, start: u64, end: u64 },
}

/// A file that was created and is being written in ranges.
pub(super) struct OpenFile {
    pub(super) file: File,
    pub(super) node: Node,
    pub(super) dir: Arc<PendingDir>,
    pub(super) name: Box<[u8]>,
    pub(super) failed: AtomicBool,
    pub(super) completion: Arc<Completion>,
}

/// Is set when a file is complete: written with its metadata applied, or removed because it could not be written. All
/// tasks of the file must have been taken from the queue before a thread waits for it.
pub(super) type Completion = OnceLock<()>;

impl OpenFile {
    /// Releases a reference. The last one applies the metadata, or removes a file that failed, and signals completion.
    pub(super) fn release(self: Arc<Self>, shared: &Shared<'_>) {
        let Some(open) = Arc::into_inner(self) else { return };
        if open.failed.into_inner() {
            // The file has no other name yet: hard links to it are created after completion.
            let _ = open.dir.folder().and_then(|folder| folder.remove(&open.name));
            shared.counters.files.subtract(1);
        } else if let Err(what) = metadata::apply_to_file(&open.file, &open.node, shared) {
            shared.finding(Finding::of_file_error(&open.dir.path_of(&open.name), what));
        }
        open.completion.get_or_init(|| ());
        open.dir.release(shared);
    }
}

/// A queue for `threads` workers.
pub(super) fn queue(threads: usize) -> Queue<Task> {
    Queue::new(threads.max(1) * QUEUED_PER_WORKER)
}

/// Runs tasks until the queue is closed and empty. A worker thread runs this.
pub(super) fn run_worker(queue: &Queue<Task>, shared: &Shared<'_>) {
    let work = shared.work.limit();
    let mut worker = Worker::new(shared, &work);
    while let Some(task) = queue.next() {
        worker.run(task);
    }
}

/// Writes the contents of files, in one thread.
pub(super) struct Worker<'a> {
    shared: &'a Shared<'a>,
    work: &'a WorkLimit,
    buffer: Vec<u8>,
}

impl<'a> Worker<'a> {
    /// A worker within a limit of work.
    pub(super) fn new(shared: &'a Shared<'a>, work: &'a WorkLimit) -> Self {
        Worker { shared, work, buffer: vec![0; BUFFER_BYTES] }
    }

    /// Runs a task. After a stop, only releases the task's references.
    pub(super) fn run(&mut self, task: Task) {
        let shared = self.shared;
        match task {
            Task::Whole { dir, name, node } => {
                if !shared.stopped()
                    && let Err(what) = self.write_whole(&dir, &name, &node)
                {
                    shared.finding(Finding::of_file_error(&dir.path_of(&name), what));
                }
                dir.release(shared);
            }
            Task::Range { file, start, end } => {
                if let Err(what) = self.write_range(&file.file, &file.node, start..end)
                    && !file.failed.swap(true, Ordering::Relaxed)
                    && !shared.stopped()
                {
                    shared.finding(Finding::of_file_error(&file.dir.path_of(&file.name), what));
                }
                file.release(shared);
            }
        }
    }

    fn write_whole(&mut self, dir: &PendingDir, name: &[u8], node: &Node) -> Result<(), FileError> {
        let shared = self.shared;
        let folder = dir.folder()?;
        let made = folder.make_file(name, metadata::creation_mode(node))?;
        shared.counters.files.add(1);
        if let Err(what) = self.write_range(&made, node, 0..node.len_bytes()) {
            shared.counters.files.subtract(1);
            // An incomplete file must not remain.
            let _ = folder.remove(name);
            return if shared.stopped() { Ok(()) } else { Err(what) };
        }
        metadata::apply_to_file(&made, node, shared)
    }

    /// Writes a range of a file's contents, but skips holes and long runs of zeroes. If the end of the file is skipped,
    /// sets the file's length.
    fn write_range(&mut self, file: &File, node: &Node, range: Range<u64>) -> Result<(), FileError> {
        let (shared, buffer) = (self.shared, &mut self.buffer);
        let (mut at, mut written_to, mut cursor) = (range.start, 0, Cursor::default());
        while at < range.end {
            if shared.stopped() {
                return Err(FileError::outside("interrupted"));
            }
            let piece = pieces::next(node, (at, range.end), buffer.len() as u64, &mut cursor, self.work)?;
            if !piece.hole {
                let bytes = &mut buffer[..(piece.end - at) as usize];
                let n = node.read_within(at, bytes, self.work)?;
                let bytes = &bytes[..n];
                for data in zeroes::data(at, bytes) {
                    written_to = at + data.end as u64;
                    write_data(file, &bytes[data.clone()], at + data.start as u64, shared)?;
                }
            }
            shared.counters.content_bytes.add(piece.end - at);
            at = piece.end;
        }
        let len = node.len_bytes();
        if range.end == len && written_to < len {
            file.set_len(len).map_err(|e| FileError::outside(format!("setting its length: {e}")))?;
        }
        Ok(())
    }
}

fn write_data(file: &File, data: &[u8], at: u64, shared: &Shared<'_>) -> Result<(), FileError> {
    let n = data.len() as u64;
    if !shared.limits.take_bytes(n) {
        return Err(FileError::outside("the limit of bytes is exceeded"));
    }
    file.write_all_at(data, at).map_err(|e| FileError::outside(format!("writing {n} bytes: {e}")))?;
    shared.counters.bytes.add(n);
    Ok(())
}
