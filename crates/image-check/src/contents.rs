//! Decodes the contents of files, in several threads.
//!
//! The walking thread cuts each file into ranges of [`RANGE_BYTES`], without holes, and puts them into a bounded queue.
//! A worker reads a range in pieces of whole clusters. If a piece fails, the worker reads it extent by extent, and
//! adjacent extents that fail become one finding.
//!
//! A fault in the index of a file ends the work on the range, or on the whole file if the next range cannot be found.
//! Skipping ahead instead could take for ever: a file may claim 2^62 bytes. The limit of work ends the work on all files.

use pagefold_image::account::Account;
use pagefold_image::queue::{CloseOnDrop, Queue};
use pagefold_image::read::Cursor;
use pagefold_image::work::{SharedWork, WorkLimit};
use pagefold_image::{Finding, Findings, Image, ImageError, Node, pieces, runs};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes read at a time.
const BUFFER_BYTES: usize = 1 << 20;
/// Most bytes of one task.
const RANGE_BYTES: u64 = 16 << 20;
/// Capacity of the queue, tasks for each worker.
const QUEUED_PER_WORKER: usize = 64;
/// Findings of one range after which the rest of the range is skipped.
const MAX_RANGE_ERRORS: u32 = 16;

/// A range of a file to decode.
pub(super) struct Task {
    node: Node,
    path: Arc<Path>,
    range: Range<u64>,
}

/// The path of a file with ranges in the queue, shared by these. Paths in the queue are charged to the budget, because
/// an image can make them long.
struct Path {
    bytes: Box<[u8]>,
    account: Option<Account>,
}

impl Drop for Path {
    fn drop(&mut self) {
        if let Some(account) = &self.account {
            account.uncharge(self.bytes.len() as u64);
        }
    }
}

/// The ranges to decode, and the results.
pub(super) struct Contents {
    queue: Queue<Task>,
    account: Account,
    findings: Mutex<Findings>,
    bytes: AtomicU64,
    work: SharedWork,
    /// Whether the limit of work was reached.
    has_ended_early: AtomicBool,
}

impl Contents {
    pub(super) fn new(image: &Image, threads: usize) -> Self {
        Contents {
            account: Account::new(image.budget()),
            queue: Queue::new(threads.max(1) * QUEUED_PER_WORKER),
            findings: Mutex::default(),
            bytes: AtomicU64::new(0),
            work: SharedWork::of_image(image.stored_bytes()),
            has_ended_early: AtomicBool::new(false),
        }
    }

    /// The limit of work of the whole check, for one thread.
    pub(super) fn work(&self) -> WorkLimit {
        self.work.limit()
    }

    /// Whether the limit of work was reached.
    pub(super) fn has_ended_early(&self) -> bool {
        self.has_ended_early.load(Ordering::Relaxed)
    }

    /// Returns a guard: workers wait for tasks until it is dropped.
    pub(super) fn open(&self) -> CloseOnDrop<'_, Task> {
        self.queue.close_on_drop()
    }

    pub(super) fn finding(&self, finding: Finding) {
        self.findings.lock().unwrap_or_else(PoisonError::into_inner).push(finding);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn into_parts(self) -> (Findings, u64) {
        (self.findings.into_inner().unwrap_or_else(PoisonError::into_inner), self.bytes.into_inner())
    }

    /// Enqueues the ranges of a file. If the queue is full, decodes a range in the calling thread instead; the last
    /// such range is returned for the caller to decode.
    pub(super) fn enqueue(&self, node: &Node, path: &[u8], work: &WorkLimit) -> Option<Task> {
        let (mut at, len) = (0, node.len_bytes());
        let account = self.account.try_charge(path.len() as u64).then(|| self.account.clone());
        let is_counted = account.is_some();
        let shared_path = Arc::new(Path { bytes: path.into(), account });
        let (mut left, mut cursor) = (None, Cursor::default());
        while at < len {
            if let Some(task) = left.take() {
                self.decode_here(task, work);
            }
            let run = match runs::at(node, at, &mut cursor, work) {
                Ok(Some(run)) => run,
                Ok(None) => break,
                Err(error) => {
                    self.report_error(path, at..len, &error);
                    break;
                }
            };
            let beyond = run.beyond(node);
            if let Some(beyond) = &beyond {
                let shown = format!("bytes {}: {}", range_text(&(at..run.end)), beyond.what);
                self.finding(Finding::error(path, Some(beyond.at), shown).starting_at(at));
            }
            if run.is_hole() || beyond.is_some() {
                at = run.end;
                continue;
            }
            let range = at..at.saturating_add(RANGE_BYTES).min(len);
            at = range.end;
            let task = Task { node: node.clone(), path: shared_path.clone(), range };
            // If the path could not be charged, the range must not wait in the queue.
            left = if is_counted { self.queue.push(task) } else { Some(task) };
        }
        left
    }

    /// Decodes tasks until the queue is closed and empty. A worker thread runs this.
    pub(super) fn run_worker(&self) {
        let (mut buffer, work) = (vec![0; BUFFER_BYTES], self.work());
        while let Some(task) = self.queue.next() {
            self.decode(&task, &mut buffer, &work);
        }
    }

    /// Decodes tasks in the calling thread until the queue is empty. Calls `report_progress` after each.
    pub(super) fn drain(&self, work: &WorkLimit, mut report_progress: impl FnMut()) {
        let mut buffer = vec![0; BUFFER_BYTES];
        while let Some(task) = self.queue.try_next() {
            self.decode(&task, &mut buffer, work);
            report_progress();
        }
    }

    /// Decodes a range in the calling thread.
    pub(super) fn decode_here(&self, task: Task, work: &WorkLimit) {
        let len = (task.range.end - task.range.start).min(BUFFER_BYTES as u64) as usize;
        self.decode(&task, &mut vec![0; len], work);
    }

    fn decode(&self, task: &Task, buffer: &mut [u8], work: &WorkLimit) {
        let (mut at, end, mut cursor) = (task.range.start, task.range.end, Cursor::default());
        let mut errors = ErrorRun { contents: self, task, last: None, reported: 0 };
        while at < end && errors.reported < MAX_RANGE_ERRORS {
            let piece = match pieces::next(&task.node, (at, end), buffer.len() as u64, &mut cursor, work) {
                Ok(piece) => piece,
                Err(error) => {
                    errors.add(at..end, &error);
                    break;
                }
            };
            if !piece.hole {
                let wanted = &mut buffer[..(piece.end - at) as usize];
                let decoded = work.decoded(piece.end - at);
                match decoded.and_then(|()| task.node.read_within(at, wanted, work)) {
                    Ok(n) => {
                        self.bytes.fetch_add(n as u64, Ordering::Relaxed);
                    }
                    Err(error @ ImageError::TooMuchWork { .. }) => {
                        errors.add(at..end, &error);
                        break;
                    }
                    Err(_) => self.read_by_extent(at..piece.end, buffer, &mut errors, work),
                }
            }
            at = piece.end;
        }
        errors.flush();
    }

    /// Reads a range extent by extent, so that one fault does not hide the rest.
    fn read_by_extent(
        &self,
        range: Range<u64>,
        buffer: &mut [u8],
        errors: &mut ErrorRun<'_>,
        work: &WorkLimit,
    ) {
        let mut at = range.start;
        while at < range.end && errors.reported < MAX_RANGE_ERRORS {
            let node = &errors.task.node;
            let end = match node.extent_within(at, work) {
                Ok(Some(extent)) => extent.end().min(range.end),
                Ok(None) => return,
                Err(error) => return errors.add(at..range.end, &error),
            };
            let wanted = &mut buffer[..(end - at) as usize];
            match node.read_within(at, wanted, work) {
                Ok(n) => {
                    self.bytes.fetch_add(n as u64, Ordering::Relaxed);
                }
                Err(error) => errors.add(at..end, &error),
            }
            at = end;
        }
    }

    /// Reports an error; the limit of work once for all files.
    fn report_error(&self, path: &[u8], range: Range<u64>, error: &ImageError) {
        let is_limit = matches!(error, ImageError::TooMuchWork { .. });
        if is_limit && self.has_ended_early.swap(true, Ordering::Relaxed) {
            return;
        }
        let describe = |what: &str| format!("bytes {}: {what}", range_text(&range));
        self.finding(Finding::of(path, error).described(describe).starting_at(range.start));
    }
}

fn range_text(range: &Range<u64>) -> String {
    format!("{} to {}", range.start, range.end)
}

/// The errors of one task. Joins adjacent ranges that cannot be read into one finding, with the first one's error.
struct ErrorRun<'a> {
    contents: &'a Contents,
    task: &'a Task,
    last: Option<(Range<u64>, ImageError)>,
    reported: u32,
}

impl ErrorRun<'_> {
    fn add(&mut self, range: Range<u64>, error: &ImageError) {
        match &mut self.last {
            Some((last, _)) if last.end == range.start => last.end = range.end,
            _ => {
                self.flush();
                self.last = Some((range, error.clone()));
            }
        }
    }

    fn flush(&mut self) {
        if let Some((range, error)) = self.last.take() {
            self.reported += 1;
            self.contents.report_error(&self.task.path.bytes, range, &error);
        }
    }
}
