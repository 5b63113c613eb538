//! Runs of the log that were read at once, and the recent reads, by which sequential reads are detected.

use crate::layout::SegmentIndex;
use pagefold_backing::Buffer;
use pagefold_page::PageIndex;

/// Runs in the shared cache.
const RUNS: usize = 4;
/// Recent reads remembered to detect sequential reads.
const RECENT: usize = 8;
/// The longest gap between consecutive records of sequential pages, bytes: padding and a header.
const GAP_MAX: u64 = 4096 + 64;

/// A stretch of the log that was read at once. Its segment is pinned until the run is dropped with
/// `Writeback::unpin_run`.
pub(crate) struct Run {
    pub(super) offset: u64,
    pub(super) buf: Buffer,
    pub(super) len: usize,
    pub(super) segment: SegmentIndex,
}

impl Run {
    /// The `len` bytes from `offset` on, if the run contains them.
    pub(super) fn find(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let at = usize::try_from(offset.checked_sub(self.offset)?).ok()?;
        self.buf[..self.len].get(at..at + len)
    }
}

/// The cache of runs, and the recent reads, of all requests.
#[derive(Default)]
pub(crate) struct ReadAhead {
    runs: [Option<Run>; RUNS],
    next_run: usize,
    /// The page index and the end of the record.
    recent: [(u64, u64); RECENT],
    next_recent: usize,
}

impl ReadAhead {
    /// The `len` bytes from `offset` on, if a run contains them.
    pub(super) fn find(&self, offset: u64, len: usize) -> Option<&[u8]> {
        self.runs.iter().flatten().find_map(|run| run.find(offset, len))
    }

    /// Records a read; returns whether it continues an earlier one.
    pub(super) fn note(&mut self, index: PageIndex, start: u64, end: u64) -> bool {
        let continues =
            |(page, at): &(u64, u64)| *page + 1 == index.0 && (*at..=*at + GAP_MAX).contains(&start);
        let found = self.recent.iter().position(continues);
        let at = found.unwrap_or_else(|| {
            self.next_recent = (self.next_recent + 1) % RECENT;
            self.next_recent
        });
        self.recent[at] = (index.0, end);
        found.is_some()
    }

    /// Puts a run into the cache and returns the one that it replaces.
    pub(super) fn keep(&mut self, run: Run) -> Option<Run> {
        self.next_run = (self.next_run + 1) % RUNS;
        self.runs[self.next_run].replace(run)
    }

    /// Empties the cache.
    pub(super) fn take_runs(&mut self) -> [Option<Run>; RUNS] {
        std::mem::take(&mut self.runs)
    }
}
