//! Fetches what a list names before readers want it.
//!
//! The calling thread looks up the entries in order, which reads metadata, and finds their stored bytes. It cuts them into
//! windows, small at first and larger later, so that the first bytes are on their way at once; inside a window, neighbouring
//! ranges become one piece. Threads fetch the pieces in order.
//!
//! All is best effort: an entry that is not in the image, or a piece that cannot be fetched, is counted, and a reader that
//! wants it fetches it itself. The sum of all ranges is at most the length of the image, whatever the list says.

use super::list::{StartEntry, StartList};
use super::plan::{Stored, coalesced, stored_ranges};
use crate::read::FileKind;
use crate::work::WorkLimit;
use crate::{Image, Node, Result};
use pagefold_backing::Prefetched;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Threads that fetch.
const THREADS: usize = 6;
/// Bytes of the first window and of later ones, stored.
const FIRST_WINDOW_BYTES: u64 = 256 << 10;
const WINDOW_BYTES: u64 = 4 << 20;
/// Most ranges of a window.
const WINDOW_RANGES: usize = 4096;
/// Ranges that are not further apart are fetched as one.
const GAP_BYTES: u64 = 64 << 10;
/// Longest piece that is fetched at once, bytes.
const PIECE_BYTES: u64 = 1 << 20;
/// Most bytes of a directory that are read.
const DIRECTORY_BYTES_MAX: u64 = 1 << 20;
/// Pause of a thread that found no room, and the time without room after which it gives up.
const PAUSE: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(10);

/// Counters of a prefetch, which other threads read while it runs.
#[derive(Debug, Default)]
pub struct PrefetchCounters {
    entries: AtomicU64,
    skipped: AtomicU64,
    planned_bytes: AtomicU64,
    done_bytes: AtomicU64,
    left_out_bytes: AtomicU64,
    has_ended: AtomicBool,
}

/// A snapshot of [`PrefetchCounters`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PrefetchStats {
    /// Entries of the list that were looked at.
    pub entries: u64,
    /// Of these, entries that do not fit the image: no such path, an offset after the end, or an error.
    pub skipped: u64,
    /// Stored bytes of the entries, bytes between neighbouring ranges included.
    pub planned_bytes: u64,
    /// Of these, bytes that were passed to the source, and fetched if they were not there.
    pub done_bytes: u64,
    /// Of these, bytes that were not fetched: for lack of room in the cache, or because of an error.
    pub left_out_bytes: u64,
    /// Whether the prefetch has ended.
    pub has_ended: bool,
}

impl PrefetchCounters {
    /// A snapshot.
    pub fn stats(&self) -> PrefetchStats {
        PrefetchStats {
            entries: self.entries.load(Ordering::Relaxed),
            skipped: self.skipped.load(Ordering::Relaxed),
            planned_bytes: self.planned_bytes.load(Ordering::Relaxed),
            done_bytes: self.done_bytes.load(Ordering::Relaxed),
            left_out_bytes: self.left_out_bytes.load(Ordering::Relaxed),
            has_ended: self.has_ended.load(Ordering::Relaxed),
        }
    }
}

/// Fetches what `list` names, in its order, until `stop` is set. Returns when all was fetched or left out.
pub fn prefetch(image: &Image, list: &StartList, counters: &PrefetchCounters, stop: &AtomicBool) {
    let _end = SetOnDrop(&counters.has_ended);
    // Without room for many pieces: what is planned later may be wanted sooner by then.
    let (pieces, queue) = sync_channel::<Stored>(THREADS);
    let queue = Mutex::new(queue);
    std::thread::scope(|scope| {
        for n in 0..THREADS {
            let thread = std::thread::Builder::new().name(format!("prefetch {n}"));
            let fetch = || fetch_pieces(image, &queue, counters, stop);
            if thread.spawn_scoped(scope, fetch).is_err() && n == 0 {
                return;
            }
        }
        let most_bytes = image.media_bytes();
        Planner {
            image,
            counters,
            stop,
            pieces,
            parents: Vec::new(),
            window: Vec::new(),
            windows: 0,
            most_bytes,
            work: WorkLimit::of_image(image.stored_bytes()),
        }
        .plan(list);
    });
}

/// Sets a flag when it is dropped, by a panic too.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Finds the stored bytes of entries, and sends them in pieces.
struct Planner<'a> {
    image: &'a Image,
    counters: &'a PrefetchCounters,
    stop: &'a AtomicBool,
    pieces: SyncSender<Stored>,
    /// The directories of the entry before, which the next one probably has too.
    parents: Vec<(Vec<u8>, Node)>,
    window: Vec<Stored>,
    windows: u32,
    /// Bytes that may still be planned.
    most_bytes: u64,
    /// The limit of work for the lookups of all entries. Entries beyond it are skipped.
    work: WorkLimit,
}

impl Planner<'_> {
    fn plan(mut self, list: &StartList) {
        for entry in &list.entries {
            if self.stop.load(Ordering::Relaxed) || self.most_bytes == 0 {
                break;
            }
            self.counters.entries.fetch_add(1, Ordering::Relaxed);
            if !self.add(entry).unwrap_or(false) {
                self.counters.skipped.fetch_add(1, Ordering::Relaxed);
            }
            let planned = planned_bytes(&self.window);
            let most = (FIRST_WINDOW_BYTES << self.windows.min(10)).min(WINDOW_BYTES);
            if (planned >= most || self.window.len() >= WINDOW_RANGES) && self.send_window().is_break() {
                return;
            }
        }
        let _ = self.send_window();
    }

    /// Reads the metadata of an entry, and adds its stored bytes to the window. `false`: the image has no such bytes.
    fn add(&mut self, entry: &StartEntry) -> Result<bool> {
        let Some(node) = self.find(&entry.path)? else { return Ok(false) };
        let range = match &entry.range {
            Some(range) => range.start..range.end.min(node.len_bytes()),
            None => 0..node.len_bytes(),
        };
        match node.kind() {
            FileKind::Directory => read_directory(&node, range.end, &self.work)?,
            FileKind::Symlink => drop(node.read_link()?),
            FileKind::Regular => {
                stored_ranges(node.reader(&self.work), range.clone(), &mut self.window)?;
            }
            _ => {}
        }
        let wanted = entry.range.as_ref().map_or(0, |range| range.end - range.start);
        Ok(wanted == 0 || range.start < range.end)
    }

    /// Finds the inode at a path; `None` if a name is missing. Symbolic links are not followed.
    fn find(&mut self, path: &[u8]) -> Result<Option<Node>> {
        let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
        let known = self.parents.iter().zip(&names).take_while(|((known, _), name)| known == *name).count();
        self.parents.truncate(known);
        for (n, name) in names.iter().enumerate().skip(known) {
            let found = match self.parents.last() {
                Some((_, parent)) if parent.kind() != FileKind::Directory => return Ok(None),
                Some((_, parent)) => parent.lookup_nid(name, &self.work)?,
                None => self.image.root()?.lookup_nid(name, &self.work)?,
            };
            let Some(nid) = found else { return Ok(None) };
            let node = self.image.node(nid)?;
            if n + 1 == names.len() && node.kind() != FileKind::Directory {
                return Ok(Some(node));
            }
            self.parents.push((name.to_vec(), node));
        }
        match self.parents.last() {
            Some((_, node)) => Ok(Some(node.clone())),
            None => self.image.root().map(Some),
        }
    }

    /// Sends the window in pieces. Breaks if nobody fetches any more.
    fn send_window(&mut self) -> ControlFlow<()> {
        self.windows += 1;
        for Stored { medium, range } in coalesced(&std::mem::take(&mut self.window), GAP_BYTES) {
            let end = range.end.min(range.start.saturating_add(self.most_bytes));
            let mut start = range.start;
            while start < end {
                let next = (start / PIECE_BYTES + 1).saturating_mul(PIECE_BYTES).min(end);
                self.counters.planned_bytes.fetch_add(next - start, Ordering::Relaxed);
                self.most_bytes -= next - start;
                if self.pieces.send(Stored { medium, range: start..next }).is_err() {
                    return ControlFlow::Break(());
                }
                start = next;
            }
        }
        ControlFlow::Continue(())
    }
}

/// The sum of the ranges. An image may claim any ranges, as often as it likes.
fn planned_bytes(window: &[Stored]) -> u64 {
    let lens = window.iter().map(|Stored { range, .. }| range.end.saturating_sub(range.start));
    lens.fold(0, u64::saturating_add)
}

/// Reads a directory up to byte `end`.
fn read_directory(node: &Node, end: u64, work: &WorkLimit) -> Result<()> {
    let block_bytes = u64::from(node.image().superblock().block_bytes());
    let end = end.min(DIRECTORY_BYTES_MAX);
    let mut block = Vec::new();
    for start in (0..end).step_by(block_bytes as usize) {
        block.resize(block_bytes.min(node.len_bytes() - start) as usize, 0);
        node.read_block(start / block_bytes, &mut block, work)?;
    }
    Ok(())
}

/// Fetches pieces until no more come.
fn fetch_pieces(
    image: &Image,
    queue: &Mutex<Receiver<Stored>>,
    counters: &PrefetchCounters,
    stop: &AtomicBool,
) {
    let mut is_patient = true;
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Stored { medium, range }) = next else { return };
        let len_bytes = range.end - range.start;
        let begun = Instant::now();
        let fetched = loop {
            // A panic costs this piece, as an error would. The panic hook has reported it.
            let prefetch = AssertUnwindSafe(|| image.0.core.source.prefetch(medium, range.clone()));
            match catch_unwind(prefetch).unwrap_or(Prefetched::Failed) {
                Prefetched::NoRoom if is_patient && !stop.load(Ordering::Relaxed) => {
                    is_patient = begun.elapsed() < PATIENCE;
                    std::thread::sleep(PAUSE);
                }
                result => break result,
            }
        };
        let counter = match fetched {
            Prefetched::Done => &counters.done_bytes,
            Prefetched::NoRoom | Prefetched::Failed => &counters.left_out_bytes,
        };
        counter.fetch_add(len_bytes, Ordering::Relaxed);
        if stop.load(Ordering::Relaxed) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_any_length_are_added_up() {
        let stored = |range| Stored { medium: 0, range };
        assert_eq!(planned_bytes(&[stored(5..7), stored(0..10)]), 12);
        assert_eq!(planned_bytes(&[stored(0..u64::MAX), stored(1..u64::MAX)]), u64::MAX);
    }
}
