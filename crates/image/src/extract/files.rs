//! Files: what workers do, and the queue that they take it from.
//!
//! The queue is bounded; when it is full the walking thread does a task itself, so it counts as one of the threads. A small file is
//! one task, and five system calls at most: make, write, mode if the mask took something away, time, close. A large one is
//! made by the walking thread and written in parts; whoever lets go of it last finishes it. A file whose contents cannot be had
//! is removed: what is there is right.

use super::place::Place;
use super::{Shared, dress, zeroes};
use crate::finding::with_causes;
use crate::queue::Queue;
use crate::{Finding, Node, pieces};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Bytes read and written at a time.
const BUFFER_BYTES: usize = 1 << 20;
/// Files longer than this are written in parts of this many bytes, by all workers.
pub(super) const PART_BYTES: u64 = 8 << 20;
/// Tasks in the queue, for each worker.
const QUEUED: usize = 128;

/// Something to do.
pub(super) enum Task {
    /// All of a file.
    Whole { place: Arc<Place>, name: Box<[u8]>, node: Box<Node> },
    /// A range of one that was made.
    Part { file: Arc<Open>, start: u64, end: u64 },
}

/// A file that was made and is being filled.
pub(super) struct Open {
    pub(super) file: File,
    pub(super) node: Node,
    pub(super) place: Arc<Place>,
    pub(super) name: Box<[u8]>,
    pub(super) failed: AtomicBool,
    pub(super) finished: Arc<Finished>,
}

/// Whether a file is finished: filled and with all that its inode says, or removed because it could not be filled.
#[derive(Default)]
pub(super) struct Finished {
    is: Mutex<bool>,
    changed: Condvar,
}

impl Finished {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self) {
        *self.lock() = true;
        self.changed.notify_all();
    }

    pub(super) fn is(&self) -> bool {
        *self.lock()
    }

    /// Waits until it is. All tasks of the file must be with workers, or done.
    pub(super) fn wait(&self) {
        let mut is = self.lock();
        while !*is {
            is = self.changed.wait(is).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Open {
    /// Lets go of it; whoever is last finishes it.
    pub(super) fn release(self: Arc<Self>, shared: &Shared<'_>) {
        let Some(open) = Arc::into_inner(self) else { return };
        if open.failed.into_inner() {
            // It has no other name yet: names wait until it is finished.
            let _ = open.place.folder().and_then(|folder| folder.remove(&open.name));
        } else if let Err(what) = dress::file(&open.file, &open.node, shared) {
            shared.finding(Finding::error(&open.place.path_of(&open.name), None, what));
        }
        open.finished.set();
        open.place.release(shared);
    }
}

/// The queue for so many workers.
pub(super) fn queue(jobs: usize) -> Queue<Task> {
    Queue::new(jobs.max(1) * QUEUED)
}

/// What a worker does.
pub(super) fn work(queue: &Queue<Task>, shared: &Shared<'_>) {
    let mut buffer = buffer();
    while let Some(task) = queue.next() {
        run(task, &mut buffer, shared);
    }
}

/// Working memory of one worker.
pub(super) fn buffer() -> Vec<u8> {
    vec![0; BUFFER_BYTES]
}

/// Does a task. If everything is to end, it lets go of what it holds.
pub(super) fn run(task: Task, buffer: &mut [u8], shared: &Shared<'_>) {
    match task {
        Task::Whole { place, name, node } => {
            if !shared.stopped()
                && let Err(what) = whole(&place, &name, &node, buffer, shared)
            {
                shared.finding(Finding::error(&place.path_of(&name), None, what));
            }
            place.release(shared);
        }
        Task::Part { file, start, end } => {
            if let Err(what) = write(&file.file, &file.node, start..end, buffer, shared)
                && !file.failed.swap(true, Ordering::Relaxed)
                && !shared.stopped()
            {
                shared.finding(Finding::error(&file.place.path_of(&file.name), None, what));
            }
            file.release(shared);
        }
    }
}

fn whole(
    place: &Place,
    name: &[u8],
    node: &Node,
    buffer: &mut [u8],
    shared: &Shared<'_>,
) -> Result<(), String> {
    let folder = place.folder().map_err(|e| e.to_string())?;
    let made = folder.make_file(name, dress::creation_mode(node)).map_err(|e| e.to_string())?;
    shared.files.fetch_add(1, Ordering::Relaxed);
    let filled = write(&made, node, 0..node.len_bytes(), buffer, shared);
    if let Err(what) = filled {
        shared.files.fetch_sub(1, Ordering::Relaxed);
        // What it would leave is no file of the image.
        let _ = folder.remove(name);
        return if shared.stopped() { Ok(()) } else { Err(what) };
    }
    dress::file(&made, node, shared)
}

/// Writes a range of a file's contents; holes and long runs of zeroes are left out. If that leaves out the end of the file, it
/// gets its length.
fn write(
    file: &File,
    node: &Node,
    range: std::ops::Range<u64>,
    buffer: &mut [u8],
    shared: &Shared<'_>,
) -> Result<(), String> {
    let (mut at, mut written_to) = (range.start, 0);
    while at < range.end {
        if shared.stopped() {
            return Err("interrupted".to_string());
        }
        let piece = pieces::next(node, at, range.end, buffer.len() as u64).map_err(|e| with_causes(&e))?;
        if !piece.hole {
            let bytes = &mut buffer[..(piece.end - at) as usize];
            let n = node.read_at(at, bytes).map_err(|e| with_causes(&e))?;
            let bytes = &bytes[..n];
            for data in zeroes::data(at, bytes) {
                written_to = at + data.end as u64;
                write_data(file, &bytes[data.clone()], at + data.start as u64, shared)?;
            }
        }
        at = piece.end;
    }
    let len = node.len_bytes();
    if range.end == len && written_to < len {
        file.set_len(len).map_err(|e| format!("setting its length: {e}"))?;
    }
    Ok(())
}

fn write_data(file: &File, data: &[u8], at: u64, shared: &Shared<'_>) -> Result<(), String> {
    let n = data.len() as u64;
    if !shared.budget.take_bytes(n) {
        return Err("more than the limit".to_string());
    }
    file.write_all_at(data, at).map_err(|e| format!("writing {n} bytes: {e}"))?;
    shared.bytes.fetch_add(n, Ordering::Relaxed);
    Ok(())
}
