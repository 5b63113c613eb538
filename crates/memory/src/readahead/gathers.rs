//! Gathers: accesses to elements of several arrays by one list of indices.
//!
//! A program that takes rows in any order out of a table takes the same rows of one column after the other. Within a column
//! the accesses are random, but the next column repeats them: each access lies at the same multiple of the element's size.
//! So a *history* keeps the exact offsets of the last faults that belong to no stream and to no sweep. If a few faults have
//! the distances of earlier ones, scaled by a power of two, the faults are *aligned* with the history, and what follows in
//! it names the pages of the next accesses. Each fault that is found in the history brings in the pages of the next 4 to 31
//! entries.
//!
//! The first entry behind a window faults in general, and shows that the window was used. If many entries behind it do not
//! fault though the window brought in many pages, the program takes only a part of the list: the windows become smaller, and
//! then the sequence is given up. An access whose page was resident when the history was recorded has no entry: it faults by
//! itself.
//!
//! An earlier place with the same distance between two faults is found by a hash of the distance without its factors of
//! two, so a fault is compared with a few entries only. A list with more indices than the history has entries is not
//! followed, nor are columns whose elements have sizes at another ratio, nor faults of several threads that gather at once.
//!
//! Its gain, in the tests of this module: 6000 indices of three columns, a fourth of whose pages is resident, take 4759 to
//! 5585 faults in the first column, and 200 to 837 in each further one.
//!
//! One fault at a time uses the state, by an atomic flag, so that signal handlers can use it: a fault that finds the flag
//! set is not recorded. Nothing is allocated after the start.

use super::WINDOW_MAX;
use pagefold_page::{PAGE_SIZE, PageIndex};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// Entries of the history for each page of the limit, and their bounds.
const PAGES_PER_ENTRY: u64 = 2;
const ENTRIES_MIN: u64 = 1 << 9;
const ENTRIES_MAX: u64 = 1 << 18;
/// Entries of a window, by the level. The faulting page comes in with their pages.
const WINDOWS: [u64; 4] = [4, 8, 16, WINDOW_MAX as u64 - 1];
/// A window was used if the entries skipped behind it are at most so many times the number of its entries for each page that
/// it brought in.
const SKIPPED_FACTOR: u64 = 2;
/// Faults that must be aligned before the first window.
const ALIGNED_MIN: u32 = 4;
/// Entries between two aligned faults whose pages may be resident, before the first window and later.
const SKIPPED_FIRST: u64 = 8;
const SKIPPED_MAX: u64 = 32;
/// Faults in a row that are not in the history, after which they are not aligned with it any more, before the first window and
/// later.
const MISSES_FIRST: u32 = 4;
const MISSES_MAX: u32 = 64;
/// The least age of entries, in entries: shorter lists gain nothing.
const AGE_MIN: u64 = 64;
/// Entries that are too near to being overwritten.
const AGE_MARGIN: u64 = 256;
/// The greatest ratio of the sizes of elements, as a power of two.
const SHIFT_MAX: i32 = 4;

/// The pages to bring in with the faulting one, in the order of the accesses to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GatherWindow {
    pages: [u32; WINDOW_MAX],
    len: u8,
}

impl GatherWindow {
    /// Returns the pages, some of which may be resident or outside of the region.
    pub(crate) fn pages(&self) -> impl Iterator<Item = PageIndex> {
        self.pages.iter().take(self.len.into()).map(|page| PageIndex(u64::from(*page)))
    }

    /// Makes a window of the pages of some offsets. `None` if there is none.
    fn of(offsets: impl Iterator<Item = u64>) -> Option<Self> {
        let mut window = GatherWindow { pages: [0; WINDOW_MAX], len: 0 };
        let pages = offsets.filter_map(|offset| u32::try_from(offset / PAGE_SIZE as u64).ok());
        for (to, page) in window.pages.iter_mut().zip(pages) {
            *to = page;
            window.len += 1;
        }
        (window.len > 0).then_some(window)
    }
}

/// A value that one thread at a time may use. Nobody waits for it.
struct TryOnly<T> {
    is_used: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: only `with` refers to the value, in the thread that has set the flag; the flag's order makes what the thread
// before has written visible to it. So a shared `TryOnly` passes the value from thread to thread, which `Send` allows.
unsafe impl<T: Send> Sync for TryOnly<T> {}

impl<T> TryOnly<T> {
    fn new(value: T) -> Self {
        TryOnly { is_used: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Calls `run` with the value. Returns `None` if a thread uses it at this moment, perhaps the one that this call
    /// interrupted. After a panic in `run` nobody uses the value any more.
    fn with<R>(&self, run: impl FnOnce(&mut T) -> R) -> Option<R> {
        if self.is_used.swap(true, Acquire) {
            return None;
        }
        // SAFETY: this call has set the flag, and clears it after the last use of the reference.
        let result = run(unsafe { &mut *self.value.get() });
        self.is_used.store(false, Release);
        Some(result)
    }
}

/// The gathers of a region.
pub(super) struct Gathers {
    state: TryOnly<State>,
    /// Neighbours that the last window brought in.
    brought: AtomicU64,
    /// The size of the history with its hash table.
    history_bytes: u64,
}

impl Gathers {
    /// Makes a history for a region with a limit of so many pages.
    pub(super) fn new(limit_pages: u64) -> Self {
        let state = State::new(limit_pages);
        let history_bytes = (size_of_val(&*state.history) + size_of_val(&*state.by_distance)) as u64;
        Gathers { state: TryOnly::new(state), brought: AtomicU64::new(0), history_bytes }
    }

    /// Records a fault at an offset, in bytes, that belongs to no stream and no sweep. Returns the pages to bring in if a
    /// gather continues, and how many neighbours of the window before were used.
    pub(super) fn record(&self, offset: u64) -> Option<(GatherWindow, u64)> {
        let brought = self.brought.load(Relaxed);
        let continued = self.state.with(|state| {
            let followed = state.follow(offset, brought);
            let begun = || state.align(offset).map(|window| (window, false));
            let continued = followed.or_else(begun);
            state.push(offset);
            continued
        });
        let (window, is_used) = continued??;
        self.brought.store(0, Relaxed);
        Some((window, if is_used { brought } else { 0 }))
    }

    /// Returns the size of the history in bytes.
    pub(super) fn history_bytes(&self) -> u64 {
        self.history_bytes
    }

    /// Notes how many neighbours a window brought in.
    pub(super) fn note_brought(&self, brought: u64) {
        self.brought.store(brought, Relaxed);
    }
}

/// A fault, and the earlier one with which it is aligned.
#[derive(Debug, Clone, Copy)]
struct Alignment {
    /// The position of the earlier fault in the history.
    at: u64,
    /// The offset of the fault, bytes.
    offset: u64,
    /// The binary logarithm of the ratio of this array's distances to those of the history.
    shift: i32,
}

/// A sequence of faults that may be a gather, or is one.
#[derive(Debug, Clone, Copy)]
struct Sequence {
    last: Alignment,
    /// Faults that are aligned, up to [`ALIGNED_MIN`].
    aligned: u32,
    /// Faults since the last one that is aligned.
    misses: u32,
    level: usize,
    /// The position behind the last window.
    end: u64,
}

impl Sequence {
    /// Returns whether the window was used, if the first fault behind it is aligned with the entry at `at` and it brought
    /// in so many neighbours. Few neighbours mean that many pages are resident, so that many entries may not fault.
    fn uses_window(&self, at: u64, brought: u64) -> bool {
        (at - self.end) * brought <= SKIPPED_FACTOR * WINDOWS[self.level]
    }
}

struct State {
    /// The offsets of faults, bytes, at their positions modulo the length, which is a power of two.
    history: Box<[u64]>,
    /// Faults recorded so far: the position of the next one.
    recorded: u64,
    /// The last position at which an entry has a distance from the one before, by the hash of the distance; the low bits.
    by_distance: Box<[u32]>,
    /// The sequence whose pages are brought in.
    followed: Option<Sequence>,
    /// A sequence of which too few faults are aligned yet.
    candidate: Option<Sequence>,
}

impl State {
    fn new(limit_pages: u64) -> Self {
        let entries = (limit_pages / PAGES_PER_ENTRY).clamp(ENTRIES_MIN, ENTRIES_MAX).next_power_of_two();
        State {
            // Filled with ones: zeroes might be memory that is not allocated yet.
            history: vec![u64::MAX; entries as usize].into(),
            recorded: 0,
            by_distance: vec![u32::MAX; entries as usize].into(),
            followed: None,
            candidate: None,
        }
    }

    /// Returns the entry at a position that is not overwritten yet.
    fn entry(&self, at: u64) -> u64 {
        self.history[(at & (self.history.len() as u64 - 1)) as usize]
    }

    /// Returns whether a position has an entry that is not overwritten soon.
    fn has(&self, at: u64) -> bool {
        let age = self.recorded.wrapping_sub(at);
        at < self.recorded && age + AGE_MARGIN <= self.history.len() as u64
    }

    /// Adds a fault to the history.
    fn push(&mut self, offset: u64) {
        if self.recorded > 0 {
            let slot = self.slot_of(distance(self.entry(self.recorded - 1), offset));
            self.by_distance[slot] = self.recorded as u32;
        }
        let at = (self.recorded & (self.history.len() as u64 - 1)) as usize;
        self.history[at] = offset;
        self.recorded += 1;
    }

    /// Returns the index in `by_distance` of a distance without its factors of two.
    fn slot_of(&self, distance: i64) -> usize {
        let odd = (distance >> distance.trailing_zeros().min(63)) as u64;
        let bits = self.by_distance.len().trailing_zeros();
        (odd.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits)) as usize
    }

    /// Returns the position of the entry that is aligned with a fault, among the next few of a sequence.
    fn find(&self, last: Alignment, offset: u64, entries: u64) -> Option<u64> {
        let from = scaled(distance(last.offset, offset), -last.shift)?;
        let wanted = self.entry(last.at).checked_add_signed(from)?;
        (last.at + 1..=last.at + entries).take_while(|at| self.has(*at)).find(|at| self.entry(*at) == wanted)
    }

    /// Returns the offset in the present array that is aligned with an entry.
    fn aligned_offset(&self, last: Alignment, at: u64) -> Option<u64> {
        last.offset.checked_add_signed(scaled(distance(self.entry(last.at), self.entry(at)), last.shift)?)
    }

    /// Returns the window of a sequence from its last fault on, and sets its end.
    fn window(&self, sequence: &mut Sequence) -> Option<GatherWindow> {
        let (last, first) = (sequence.last, sequence.last.at + 1);
        sequence.end = first + WINDOWS[sequence.level];
        let entries = (first..sequence.end).take_while(|at| self.has(*at));
        GatherWindow::of(entries.filter_map(|at| self.aligned_offset(last, at)))
    }

    /// Continues the sequence that is followed, if the fault belongs to it. The last window brought in so many neighbours.
    /// Returns the next window, and whether the last one was used.
    fn follow(&mut self, offset: u64, brought: u64) -> Option<(GatherWindow, bool)> {
        let mut sequence = self.followed.take().filter(|sequence| self.has(sequence.last.at))?;
        let last = sequence.last;
        let reach = sequence.end.saturating_sub(last.at) + SKIPPED_MAX;
        let Some(at) = self.find(last, offset, reach) else {
            sequence.misses += 1;
            self.followed = (sequence.misses <= MISSES_MAX).then_some(sequence);
            return None;
        };
        let is_behind = at >= sequence.end;
        let is_used = is_behind && sequence.uses_window(at, brought);
        sequence.level = match (is_used, is_behind) {
            (true, _) => (sequence.level + 1).min(WINDOWS.len() - 1),
            (false, true) => sequence.level.checked_sub(1)?,
            (false, false) => sequence.level.saturating_sub(1),
        };
        sequence.last = Alignment { at, offset, ..last };
        sequence.misses = 0;
        let window = self.window(&mut sequence);
        // The accesses between would have faulted without the window: the next column is aligned with them.
        for between in last.at + 1..at {
            if let Some(offset) = self.aligned_offset(last, between) {
                self.push(offset);
            }
        }
        self.followed = Some(sequence);
        Some((window?, is_used))
    }

    /// Looks whether the fault is aligned with earlier ones. Returns a window as soon as enough faults are.
    fn align(&mut self, offset: u64) -> Option<GatherWindow> {
        let Some(mut sequence) = self.candidate.take().filter(|sequence| self.has(sequence.last.at)) else {
            self.candidate = self.begin(offset);
            return None;
        };
        match self.find(sequence.last, offset, SKIPPED_FIRST) {
            Some(at) => {
                sequence.last = Alignment { at, offset, ..sequence.last };
                (sequence.aligned, sequence.misses) = (sequence.aligned + 1, 0);
            }
            None => sequence.misses += 1,
        }
        if sequence.aligned < ALIGNED_MIN {
            let is_alive = sequence.misses <= MISSES_FIRST;
            self.candidate = if is_alive { Some(sequence) } else { self.begin(offset) };
            return None;
        }
        let window = self.window(&mut sequence);
        self.followed = Some(sequence);
        window
    }

    /// Returns a sequence of this fault and the one before it, if two earlier faults had the same distance.
    fn begin(&self, offset: u64) -> Option<Sequence> {
        let now = distance(self.entry(self.recorded.checked_sub(1)?), offset);
        let at = self.by_distance[self.slot_of(now)];
        let age = u64::from((self.recorded as u32).wrapping_sub(at));
        let at = self.recorded.checked_sub(age).filter(|at| *at > 0 && age >= AGE_MIN && self.has(*at))?;
        let before = distance(self.entry(at - 1), self.entry(at));
        let shift = now.trailing_zeros() as i32 - before.trailing_zeros() as i32;
        let is_aligned = now != 0 && shift.abs() <= SHIFT_MAX && scaled(before, shift) == Some(now);
        let last = Alignment { at, offset, shift };
        is_aligned.then_some(Sequence { last, aligned: 2, misses: 0, level: 0, end: at })
    }
}

/// Returns the distance from one offset to another. Offsets are less than 2^63.
fn distance(from: u64, to: u64) -> i64 {
    to.wrapping_sub(from) as i64
}

/// Returns a distance times a power of two, if that is a whole number.
fn scaled(distance: i64, shift: i32) -> Option<i64> {
    let factor = 1_i64 << shift.unsigned_abs();
    match shift {
        0.. => distance.checked_mul(factor),
        _ => (distance % factor == 0).then_some(distance / factor),
    }
}

#[cfg(test)]
mod tests;
