//! Readahead: which neighbours to bring in with a page that faulted.
//!
//! Faults are sorted into a few *streams*, runs of faults at a constant stride. The pages of a stream are brought in
//! by windows. The page after a window is left out, so that it faults if the stream goes on: this fault shows that the
//! window was used, and makes the next window larger. A fault inside a window, or a stream that does not go on, makes
//! the window smaller. A page that belongs to no stream is brought in alone and starts a stream.
//!
//! A program that goes over parts of the rows of a matrix touches pages at no constant distance: `rows` follows it by the
//! exact addresses of faults. A program that takes elements of several arrays by one list of indices repeats the faults of one
//! array in the next: `gathers` follows it.
//!
//! When a stream has passed a window, the window's pages came from the store to be read once, in order. They are the
//! first to be evicted when memory is short (*drop-behind*, [`Readahead::next_drop_behind`]). Otherwise a program that
//! reads through more than fits would evict everything for pages of no more use, and find nothing resident when it
//! starts again.
//!
//! The kernel does not report which pages a program reads, so nothing finer is known. Faulting threads, perhaps inside
//! a signal handler, change the state: a few atomic words, without locks. When two threads change one word at once,
//! one change is lost, which only makes a guess worse.

mod drop_behind;
mod gathers;
mod rows;

use crossbeam_utils::CachePadded;
use drop_behind::DropBehind;
pub(crate) use gathers::GatherWindow;
use gathers::Gathers;
use pagefold_page::{PAGE_SIZE, PageIndex};
pub(crate) use rows::RowWindow;
use rows::Rows;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Number of streams remembered.
const STREAMS: usize = 16;
/// Pages of a window, by the stream's level.
const WINDOWS: [u64; 4] = [1, 4, 16, WINDOW_MAX as u64];
/// The most pages of a window.
pub(crate) const WINDOW_MAX: usize = 32;
/// The longest stride of a stream, pages.
const STRIDE_MAX: i64 = 64;
/// Streams examined for one to replace.
const VICTIMS: usize = 4;

/// The streams of a region.
pub(crate) struct Readahead {
    streams: CachePadded<[AtomicU64; STREAMS]>,
    next_victim: AtomicUsize,
    rows: Rows,
    gathers: Gathers,
    drop_behind: DropBehind,
    brought: CachePadded<AtomicU64>,
    used: AtomicU64,
}

/// The pages to bring in, the faulting one included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Window {
    /// Pages at a constant stride, from the faulting one on.
    Strided {
        /// Pages; at least 1.
        pages: u64,
        /// Pages from one to the next; not 0.
        stride: i64,
    },
    /// Pages of rows.
    Rows(RowWindow),
    /// Pages of elements that are taken by a list of indices.
    Gather(GatherWindow),
}

impl Window {
    pub(crate) const SINGLE: Window = Window::Strided { pages: 1, stride: 1 };
}

/// A stream: the page whose fault continues it, the stride, and the level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stream {
    next: u64,
    stride: i64,
    level: usize,
    /// Neighbours brought in by its last window.
    brought: u64,
}

impl Stream {
    /// The bits: next 0-47, stride 48-55 (signed), level 56-57, brought 58-62, in use 63.
    fn decode(bits: u64) -> Option<Self> {
        let stride = i64::from((bits >> 48) as u8 as i8);
        let in_use = bits >> 63 == 1 && stride != 0;
        in_use.then_some(Stream {
            next: bits & ((1 << 48) - 1),
            stride,
            level: (bits >> 56 & 3) as usize,
            brought: bits >> 58 & 31,
        })
    }

    fn encode(self) -> u64 {
        1 << 63
            | self.brought.min(31) << 58
            | (self.level as u64) << 56
            | u64::from(self.stride as i8 as u8) << 48
            | self.next
    }

    /// Returns the page at which the last window began.
    fn window_start(self) -> i64 {
        self.next as i64 - self.stride * WINDOWS[self.level] as i64
    }

    /// Returns whether a page lies in the last window.
    fn covers(self, page: u64) -> bool {
        let steps = (page as i64 - self.window_start()) * self.stride.signum();
        self.level > 0 && steps >= 0 && steps < (WINDOWS[self.level] as i64) * self.stride.abs()
    }

    /// Returns the stream after a fault at `next`.
    fn continued(self, page: u64) -> Option<Self> {
        let level = (self.level + 1).min(WINDOWS.len() - 1);
        let next = page as i64 + self.stride * WINDOWS[level] as i64;
        Some(Stream {
            next: u64::try_from(next).ok()?,
            stride: self.stride,
            level,
            brought: WINDOWS[level] - 1,
        })
    }
}

impl Readahead {
    /// Makes the readahead of a region with a limit of so many pages.
    pub(crate) fn new(limit_pages: u64) -> Self {
        Readahead {
            streams: CachePadded::new([const { AtomicU64::new(0) }; STREAMS]),
            next_victim: AtomicUsize::new(0),
            rows: Rows::new(),
            gathers: Gathers::new(limit_pages),
            drop_behind: DropBehind::new(),
            brought: CachePadded::new(AtomicU64::new(0)),
            used: AtomicU64::new(0),
        }
    }

    /// Returns the size of the history of faults, in pages.
    pub(crate) fn history_pages(&self) -> u64 {
        self.gathers.history_bytes().div_ceil(PAGE_SIZE as u64)
    }

    /// Records a fault at an offset, in bytes, whose page is not resident, and returns the pages to bring in. If the
    /// kernel does not say which byte was accessed, the offset is that of the page.
    ///
    /// `is_stored` says whether the page has contents. Pages that are touched for the first time belong to no rows: arrays
    /// that a program makes one after another lie at equal distances too.
    pub(crate) fn record_fault(&self, offset: u64, is_stored: bool) -> Window {
        let page = offset / PAGE_SIZE as u64;
        let mut near = None;
        let mut begun = None;
        for slot in self.streams.iter() {
            let bits = slot.load(Relaxed);
            let Some(stream) = Stream::decode(bits) else { continue };
            if page == stream.next && stream.level > 0 {
                return self.advance(slot, bits, stream, page);
            }
            if page == stream.next {
                begun = begun.or(Some((slot, bits, stream)));
            }
            if stream.covers(page) {
                let smaller = Stream { level: stream.level - 1, brought: 0, ..stream };
                let _ = slot.compare_exchange(bits, smaller.encode(), Relaxed, Relaxed);
                return self.follow_rows(offset, is_stored).unwrap_or(Window::SINGLE);
            }
            let distance = page as i64 - stream.window_start();
            if stream.level == 0 && distance != 0 && distance.abs() <= STRIDE_MAX {
                near = near.or(Some((slot, bits, distance)));
            }
        }
        // The second page of a row follows its first page as those of a sequential stream do.
        if let Some(window) = self.follow_rows(offset, is_stored) {
            return window;
        }
        match (begun, near) {
            (Some((slot, bits, stream)), _) if stream.stride.abs() == 1 => {
                return self.advance(slot, bits, stream, page);
            }
            _ => {}
        }
        if is_stored && let Some(window) = self.rows.detect(offset) {
            return Window::Rows(window);
        }
        if is_stored && let Some((window, used)) = self.gathers.record(offset) {
            self.used.fetch_add(used, Relaxed);
            return Window::Gather(window);
        }
        match (begun, near) {
            (Some((slot, bits, stream)), _) => return self.advance(slot, bits, stream, page),
            (None, Some((slot, bits, stride))) => Self::set_stride(slot, bits, page, stride),
            (None, None) => self.start_stream(page),
        }
        Window::SINGLE
    }

    /// Returns the rows to bring in if the fault belongs to a sweep over rows.
    fn follow_rows(&self, offset: u64, is_stored: bool) -> Option<Window> {
        if !is_stored {
            return None;
        }
        let (window, used) = self.rows.follow(offset)?;
        self.used.fetch_add(used, Relaxed);
        Some(Window::Rows(window))
    }

    /// Notes how many neighbours a window of rows brought in.
    pub(crate) fn note_rows_brought(&self, window: RowWindow, brought: u64) {
        self.rows.note_brought(window, brought);
    }

    /// Notes how many neighbours a window of a gather brought in.
    pub(crate) fn note_gather_brought(&self, brought: u64) {
        self.gathers.note_brought(brought);
    }

    /// Records a fault on a page of a part that is read sequentially, as the program has said, and returns the pages to
    /// bring in: the largest window from the first fault on.
    pub(crate) fn record_sequential(&self, page: PageIndex) -> Window {
        let page = page.0;
        let mut restarted = None;
        for slot in self.streams.iter() {
            let bits = slot.load(Relaxed);
            let Some(stream) = Stream::decode(bits).filter(|stream| stream.stride == 1) else { continue };
            if page == stream.next && stream.level > 0 {
                return self.advance(slot, bits, stream, page);
            }
            // Pages of the last window are missing: they were evicted, or there was no memory for them.
            if stream.covers(page) || page == stream.next {
                restarted = Some(slot);
            }
        }
        let victim = || &self.streams[self.next_victim.fetch_add(1, Relaxed) % STREAMS];
        let (level, pages) = (WINDOWS.len() - 1, WINDOW_MAX as u64);
        let stream = Stream { next: page + pages, stride: 1, level, brought: pages - 1 };
        restarted.unwrap_or_else(victim).store(stream.encode(), Relaxed);
        Window::Strided { pages, stride: 1 }
    }

    fn advance(&self, slot: &AtomicU64, bits: u64, stream: Stream, page: u64) -> Window {
        let Some(next) = stream.continued(page) else { return Window::SINGLE };
        if slot.compare_exchange(bits, next.encode(), Relaxed, Relaxed).is_err() {
            return Window::SINGLE;
        }
        self.used.fetch_add(stream.brought, Relaxed);
        if stream.level > 0 && stream.stride.abs() == 1 {
            let last = stream.next as i64 - stream.stride;
            let first = u64::try_from(stream.window_start().min(last)).unwrap_or(0);
            self.drop_behind.push(first..first + WINDOWS[stream.level]);
        }
        Window::Strided { pages: WINDOWS[next.level], stride: next.stride }
    }

    /// Shortens a window that brought in fewer neighbours than planned, the last of them at `last`: its stream
    /// continues from there.
    pub(crate) fn shorten(&self, page: PageIndex, window: Window, last: PageIndex, brought: u64) {
        let Window::Strided { pages, stride } = window else { return };
        let expected = page.0 as i64 + stride * pages as i64;
        let next = last.0 as i64 + stride;
        let (Ok(expected), Ok(next)) = (u64::try_from(expected), u64::try_from(next)) else { return };
        for slot in self.streams.iter() {
            let bits = slot.load(Relaxed);
            if let Some(stream) = Stream::decode(bits)
                && stream.next == expected
                && stream.stride == stride
            {
                let shortened = Stream { next, brought, ..stream };
                let _ = slot.compare_exchange(bits, shortened.encode(), Relaxed, Relaxed);
                return;
            }
        }
    }

    /// Sets the stride of a stream that had one fault, after a second fault nearby.
    fn set_stride(slot: &AtomicU64, bits: u64, page: u64, stride: i64) {
        if let Ok(next) = u64::try_from(page as i64 + stride) {
            let _ = slot.compare_exchange(
                bits,
                Stream { next, stride, level: 0, brought: 0 }.encode(),
                Relaxed,
                Relaxed,
            );
        }
    }

    /// Starts a stream in place of one that has not gone on for some time.
    fn start_stream(&self, page: u64) {
        for _ in 0..VICTIMS {
            let slot = &self.streams[self.next_victim.fetch_add(1, Relaxed) % STREAMS];
            let bits = slot.load(Relaxed);
            match Stream::decode(bits) {
                // This stream has gone on before and may again: lower its level first.
                Some(stream) if stream.level > 0 => {
                    let next = Stream { level: stream.level - 1, brought: 0, ..stream };
                    let _ = slot.compare_exchange(bits, next.encode(), Relaxed, Relaxed);
                }
                _ => {
                    let first = Stream { next: page + 1, stride: 1, level: 0, brought: 0 };
                    let _ = slot.compare_exchange(bits, first.encode(), Relaxed, Relaxed);
                    return;
                }
            }
        }
    }

    /// Returns the pages of the oldest window that its stream has passed. Each window is returned once.
    pub(crate) fn next_drop_behind(&self) -> Option<Range<u64>> {
        self.drop_behind.pop()
    }

    /// Returns how many windows have been passed so far.
    pub(crate) fn windows_passed(&self) -> u64 {
        self.drop_behind.pushed()
    }

    /// Counts neighbours that were brought in.
    pub(crate) fn count_brought(&self, pages: u64) {
        self.brought.fetch_add(pages, Relaxed);
    }

    /// Returns the number of neighbours brought in, and of those that are known to have been used.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let brought = self.brought.load(Relaxed);
        (brought, self.used.load(Relaxed).min(brought))
    }
}

#[cfg(test)]
mod tests;
