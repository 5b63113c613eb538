//! Decoding the contents of files, by several threads.
//!
//! Files are cut into ranges, holes left out. A range is read in pieces of whole clusters; where that fails, extent by extent, so that what
//! can be read is, and neighbours that cannot are one finding. Where the index itself fails the rest of the range is
//! given up, and of a file whose ranges' beginnings cannot be found, the rest of the file: a file may say that it has
//! 2^62 bytes.

use super::said;
use crate::account::Account;
use crate::queue::{CloseOnDrop, Queue};
use crate::read::Place;
use crate::{Finding, Findings, Image, Node, pieces, runs};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes read at a time.
const BUFFER_BYTES: usize = 1 << 20;
/// Bytes of one task.
const RANGE_BYTES: u64 = 16 << 20;
/// Tasks that wait, for each worker.
const QUEUED: usize = 64;
/// Findings of one range; the rest of it is given up then.
const MAX_TROUBLE: u32 = 16;

/// A range of a file.
pub(super) struct Task {
    node: Node,
    path: Arc<Path>,
    range: Range<u64>,
}

/// The path of a file that is in the queue. An image can make paths long, so those in the queue are counted.
struct Path {
    bytes: Box<[u8]>,
    account: Option<Account>,
}

impl Drop for Path {
    fn drop(&mut self) {
        if let Some(account) = &self.account {
            account.give_back(self.bytes.len() as u64);
        }
    }
}

/// What is to be decoded, and what came of it.
pub(super) struct Contents {
    queue: Queue<Task>,
    account: Account,
    findings: Mutex<Findings>,
    bytes: AtomicU64,
}

impl Contents {
    pub(super) fn new(image: &Image, jobs: usize) -> Self {
        Contents {
            account: Account::new(image.budget()),
            queue: Queue::new(jobs.max(1) * QUEUED),
            findings: Mutex::default(),
            bytes: AtomicU64::new(0),
        }
    }

    /// While the guard lives, workers wait for more.
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

    /// Queues a file's contents. A range for which there is no room is decoded at once; the last one, if so, is given back.
    pub(super) fn give(&self, node: &Node, path: &[u8]) -> Option<Task> {
        let (mut at, len) = (0, node.len_bytes());
        let account = self.account.take(path.len() as u64).then(|| self.account.clone());
        let is_counted = account.is_some();
        let shared_path = Arc::new(Path { bytes: path.into(), account });
        let mut left = None;
        while at < len {
            if let Some(task) = left.take() {
                self.run_here(task);
            }
            let run = match runs::at(node, at) {
                Ok(Some(run)) => run,
                Ok(None) => break,
                Err(error) => {
                    self.tell(path, at..len, &error);
                    break;
                }
            };
            let beyond = run.beyond(node);
            if let Some(beyond) = &beyond {
                let shown = format!("bytes {}: {}", text(&(at..run.end)), beyond.what);
                self.finding(Finding::error(path, Some(beyond.at), shown).starting_at(at));
            }
            if run.is_hole() || beyond.is_some() {
                at = run.end;
                continue;
            }
            let range = at..at.saturating_add(RANGE_BYTES).min(len);
            at = range.end;
            let task = Task { node: node.clone(), path: shared_path.clone(), range };
            // Without room for its path in the queue, it is done at once.
            left = if is_counted { self.queue.push(task) } else { Some(task) };
        }
        left
    }

    /// What a worker does.
    pub(super) fn work(&self) {
        let mut buffer = vec![0; BUFFER_BYTES];
        while let Some(task) = self.queue.next() {
            self.run(&task, &mut buffer);
        }
    }

    /// Decodes what is left beside the workers.
    pub(super) fn help_to_end(&self, mut tell: impl FnMut()) {
        let mut buffer = vec![0; BUFFER_BYTES];
        while let Some(task) = self.queue.try_next() {
            self.run(&task, &mut buffer);
            tell();
        }
    }

    /// Decodes a range in the calling thread.
    pub(super) fn run_here(&self, task: Task) {
        let len = (task.range.end - task.range.start).min(BUFFER_BYTES as u64) as usize;
        self.run(&task, &mut vec![0; len]);
    }

    fn run(&self, task: &Task, buffer: &mut [u8]) {
        let (mut at, end) = (task.range.start, task.range.end);
        let mut trouble = Trouble { contents: self, task, last: None, told: 0 };
        while at < end && trouble.told < MAX_TROUBLE {
            let piece = match pieces::next(&task.node, at, end, buffer.len() as u64) {
                Ok(piece) => piece,
                Err(error) => {
                    trouble.add(at..end, &error);
                    break;
                }
            };
            if !piece.hole {
                let wanted = &mut buffer[..(piece.end - at) as usize];
                match task.node.read_at(at, wanted) {
                    Ok(n) => {
                        self.bytes.fetch_add(n as u64, Ordering::Relaxed);
                    }
                    Err(_) => self.one_by_one(at..piece.end, buffer, &mut trouble),
                }
            }
            at = piece.end;
        }
        trouble.end();
    }

    /// The extents of a range by themselves.
    fn one_by_one(&self, range: Range<u64>, buffer: &mut [u8], trouble: &mut Trouble<'_>) {
        let mut at = range.start;
        while at < range.end && trouble.told < MAX_TROUBLE {
            let node = &trouble.task.node;
            let end = match node.extent_at(at) {
                Ok(Some(extent)) => extent.end().min(range.end),
                Ok(None) => return,
                Err(error) => return trouble.add(at..range.end, &error),
            };
            let wanted = &mut buffer[..(end - at) as usize];
            match node.read_at(at, wanted) {
                Ok(n) => {
                    self.bytes.fetch_add(n as u64, Ordering::Relaxed);
                }
                Err(error) => trouble.add(at..end, &error),
            }
            at = end;
        }
    }

    fn tell(&self, path: &[u8], range: Range<u64>, error: &crate::ImageError) {
        let what = format!("bytes {}: {}", text(&range), said(error));
        self.finding(Finding::error(path, error.address(), what).starting_at(range.start));
    }
}

fn text(range: &Range<u64>) -> String {
    format!("{} to {}", range.start, range.end)
}

/// Ranges that cannot be read; neighbours become one.
struct Trouble<'a> {
    contents: &'a Contents,
    task: &'a Task,
    last: Option<(Range<u64>, crate::ImageError)>,
    told: u32,
}

impl Trouble<'_> {
    fn add(&mut self, range: Range<u64>, error: &crate::ImageError) {
        match &mut self.last {
            Some((last, _)) if last.end == range.start => last.end = range.end,
            _ => {
                self.end();
                self.last = Some((range, error.clone()));
            }
        }
    }

    fn end(&mut self) {
        if let Some((range, error)) = self.last.take() {
            self.told += 1;
            self.contents.tell(&self.task.path.bytes, range, &error);
        }
    }
}
