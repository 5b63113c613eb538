//! Rows: runs of accesses at a constant distance in bytes, which need not be a whole number of pages.
//!
//! A program that goes over a part of each row of a matrix touches one or two pages in each row, and the pages of the
//! next row lie at one of two distances. A stream of pages at a constant stride cannot follow that. The address of a
//! fault to the byte can: four faults at equal distances begin a *sweep* over rows of that length (of random accesses in some
//! MiB, three are at equal distances now and then). Each row of a sweep has
//! the pages from the row's address on, as many as its *width* covers. The width begins at one byte, and grows when a page
//! faults that follows a page of the sweep.
//!
//! Where the first page of each row is resident already, faults name the beginnings of the second pages, whose distances
//! vary by a page. If a sweep has the same length of rows, three such faults begin another one, whose place in the row is
//! known to a page only: its address goes down as faults show that rows begin earlier.
//!
//! Its gain, in the tests of this module: a part of each of 4000 rows, 5438 pages together, takes 138 to 149 faults.
//!
//! As with streams, several threads change a few atomic words without locks, and a lost change only makes a guess worse.

use crossbeam_utils::CachePadded;
use pagefold_page::{PAGE_SIZE, PageIndex};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Number of sweeps remembered.
const SWEEPS: usize = 8;
/// Number of faults remembered that belong to no sweep.
const FAULTS: usize = 16;
/// A sweep that no fault has continued is forgotten after so many faults that belong to no sweep. Otherwise random accesses
/// would continue sweeps that ended long ago.
const LIFE: u64 = 256;
/// Rows of a window, by the sweep's level. Some of their pages are resident in general; if there is no room for all others,
/// the next fault brings in the rest.
const ROWS: [u64; 4] = [4, 8, 16, 32];
/// Rows that may be resident already between a window and the fault that continues its sweep.
const SKIPPED_MAX: i64 = 16;
/// The least and the greatest distance of rows, bytes. Shorter rows are nearly sequential.
const LENGTH_MIN: u64 = 2 * PAGE_SIZE as u64;
const LENGTH_MAX: u64 = 1 << 30;
/// The greatest width of the part of a row that is accessed, bytes.
const WIDTH_MAX: u64 = 2 * PAGE_SIZE as u64;
const PAGE: i64 = PAGE_SIZE as i64;

/// The rows to bring in, from the row of the faulting page on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowWindow {
    /// The offset of the first row, bytes. The faulting page is one of this row.
    first: u64,
    /// Bytes from one row to the next, at least [`LENGTH_MIN`] up or down.
    length: i64,
    /// Rows.
    rows: u64,
    /// Bytes of each row, at least 1.
    width: u64,
}

impl RowWindow {
    /// Returns the pages of the window, row by row.
    ///
    /// Both orders are those of the addresses of the rows, up or down.
    pub(crate) fn pages(self) -> impl Iterator<Item = PageIndex> {
        let row = move |i: u64| self.first.checked_add_signed(self.length * i as i64);
        (0..self.rows).map_while(row).flat_map(move |first| {
            let (first, last) = (page_of(first), page_of(first.saturating_add(self.width - 1)));
            (first..=last).map(move |page| PageIndex(if self.goes_up() { page } else { first + last - page }))
        })
    }

    /// Returns whether the addresses of rows go up.
    pub(crate) fn goes_up(self) -> bool {
        self.length > 0
    }

    /// Returns the offset of the row behind the window.
    fn end(self) -> Option<u64> {
        self.first.checked_add_signed(self.length * self.rows as i64)
    }
}

/// A sweep over rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sweep {
    /// The offset of the first row behind the last window, bytes.
    next: u64,
    length: i64,
    width: u64,
    level: usize,
}

/// A sweep in two words: `at` has next 0-55, level 56-57, in use 63; `shape` has length 0-31 (signed), width less 1
/// 32-47.
struct Slot {
    at: AtomicU64,
    shape: AtomicU64,
    /// Neighbours that the last window brought in.
    brought: AtomicU64,
    /// The time of the last fault, in faults that belong to no sweep.
    used: AtomicU64,
}

/// How a fault fits a sweep.
enum Fit {
    /// The row is behind the last window.
    Next,
    /// The row is that many rows before the end of the last window.
    Inside(i64),
    None,
}

impl Slot {
    fn load(&self, now: u64) -> Option<Sweep> {
        let (at, shape) = (self.at.load(Relaxed), self.shape.load(Relaxed));
        let length = i64::from(shape as u32 as i32);
        let is_alive = now.saturating_sub(self.used.load(Relaxed)) < LIFE;
        let in_use = at >> 63 == 1 && length.unsigned_abs() >= LENGTH_MIN && is_alive;
        in_use.then_some(Sweep {
            next: at & ((1 << 56) - 1),
            length,
            width: (shape >> 32 & 0xffff) + 1,
            level: (at >> 56 & 3) as usize,
        })
    }

    fn store(&self, sweep: Sweep, now: u64) {
        let shape = u64::from(sweep.length as i32 as u32) | (sweep.width - 1) << 32;
        self.shape.store(shape, Relaxed);
        self.at.store(1 << 63 | (sweep.level as u64) << 56 | sweep.next, Relaxed);
        self.used.store(now, Relaxed);
    }
}

impl Sweep {
    /// Returns how a fault fits, and the offset of its row as the sweep has it.
    fn fit(self, offset: u64) -> (Fit, i64) {
        let length = self.length.abs();
        // Pages that the row may begin in or end in, on both sides of the row's address.
        let (before, after) = (PAGE, self.width as i64 + PAGE);
        let distance = offset as i64 - self.next as i64;
        // The row whose address is next to the fault's.
        let row = (distance * self.length.signum() + length / 2).div_euclid(length);
        let first = self.next as i64 + row * self.length;
        let off = offset as i64 - first;
        let fit = match row {
            _ if off < -before || off > after => Fit::None,
            0..=SKIPPED_MAX => Fit::Next,
            _ if row < 0 && -row <= ROWS[self.level] as i64 => Fit::Inside(-row),
            _ => Fit::None,
        };
        (fit, first)
    }

    /// Returns the sweep and its row with what the fault shows of the place and the width of a row.
    fn adjusted(self, offset: u64, first: i64) -> (Self, i64) {
        let (page, page_first) = (offset as i64 / PAGE, first.max(0) / PAGE);
        match page - page_first {
            below if below < 0 => {
                let by = first - offset as i64;
                let next = (self.next as i64 - by).max(0) as u64;
                (Sweep { next, ..self }, offset as i64)
            }
            0 => (self, first),
            _ => {
                let width = (offset as i64 - first + 1).max(1) as u64;
                (Sweep { width: width.max(self.width).min(WIDTH_MAX), ..self }, first)
            }
        }
    }

    fn window(self, first: i64, rows: u64) -> Option<RowWindow> {
        let first = u64::try_from(first).ok()?;
        Some(RowWindow { first, length: self.length, rows: rows.max(1), width: self.width })
    }

    /// Returns the sweep after a window from a row on, and the window.
    fn advanced(self, first: i64) -> Option<(Self, RowWindow)> {
        let rows = ROWS[self.level];
        let next = u64::try_from(first + self.length * rows as i64).ok().filter(|next| next >> 56 == 0)?;
        Some((Sweep { next, ..self }, self.window(first, rows)?))
    }
}

/// The sweeps of a region.
pub(super) struct Rows {
    sweeps: CachePadded<[Slot; SWEEPS]>,
    /// The offsets of the last faults that belong to no sweep, plus 1; 0 for none.
    faults: CachePadded<[AtomicU64; FAULTS]>,
    recorded: AtomicUsize,
}

impl Rows {
    pub(super) fn new() -> Self {
        let slot = || Slot {
            at: AtomicU64::new(0),
            shape: AtomicU64::new(0),
            brought: AtomicU64::new(0),
            used: AtomicU64::new(0),
        };
        Rows {
            sweeps: CachePadded::new(std::array::from_fn(|_| slot())),
            faults: CachePadded::new([const { AtomicU64::new(0) }; FAULTS]),
            recorded: AtomicUsize::new(0),
        }
    }

    /// Returns the rows to bring in for a fault of a known sweep, and how many neighbours of its last window were used; or
    /// `None` if the fault belongs to none.
    pub(super) fn follow(&self, offset: u64) -> Option<(RowWindow, u64)> {
        let now = self.recorded.load(Relaxed) as u64;
        for slot in self.sweeps.iter() {
            let Some(sweep) = slot.load(now) else { continue };
            let (fit, first) = sweep.fit(offset);
            match fit {
                Fit::None => {}
                Fit::Next => {
                    let (sweep, first) = sweep.adjusted(offset, first);
                    let grown = Sweep { level: (sweep.level + 1).min(ROWS.len() - 1), ..sweep };
                    let (next, window) = grown.advanced(first)?;
                    slot.store(next, now);
                    return Some((window, slot.brought.swap(0, Relaxed)));
                }
                Fit::Inside(rows) => {
                    let (sweep, first) = sweep.adjusted(offset, first);
                    slot.store(sweep, now);
                    return Some((sweep.window(first, rows as u64)?, 0));
                }
            }
        }
        None
    }

    /// Notes how many neighbours a window brought in.
    pub(super) fn note_brought(&self, window: RowWindow, brought: u64) {
        let now = self.recorded.load(Relaxed) as u64;
        let is_of = |slot: &&Slot| slot.load(now).is_some_and(|sweep| Some(sweep.next) == window.end());
        if let Some(slot) = self.sweeps.iter().find(is_of) {
            slot.brought.fetch_add(brought, Relaxed);
        }
    }

    /// Records a fault that belongs to no stream and no sweep. If it begins a sweep together with earlier faults, returns
    /// the rows to bring in.
    pub(super) fn detect(&self, offset: u64) -> Option<RowWindow> {
        let at = self.recorded.fetch_add(1, Relaxed);
        let recent: [u64; FAULTS] = std::array::from_fn(|i| self.faults[i].load(Relaxed));
        self.faults[at % FAULTS].store(offset + 1, Relaxed);
        let recent = || recent.iter().filter_map(|fault| fault.checked_sub(1));
        let has = |place: i64| recent().any(|fault| fault as i64 == place);
        let length = recent().find_map(|b| {
            let length = offset as i64 - b as i64;
            let is_repeated = || has(b as i64 - length) && has(b as i64 - 2 * length);
            (is_row_length(length) && is_repeated()).then_some(length)
        });
        let known = |from: u64, to: u64| self.known_length(at as u64, to as i64 - from as i64);
        let length = length.or_else(|| {
            let before = |b: u64, length| recent().any(|c| known(c, b) == Some(length));
            recent().find_map(|b| known(b, offset).filter(|length| before(b, *length)))
        })?;
        let sweep = Sweep { next: offset, length, width: 1, level: 0 };
        let (sweep, window) = sweep.advanced(offset as i64)?;
        let oldest = self.sweeps.iter().min_by_key(|slot| match slot.at.load(Relaxed) {
            0 => 0,
            _ => slot.used.load(Relaxed) + 1,
        });
        let oldest = oldest?;
        oldest.brought.store(0, Relaxed);
        oldest.store(sweep, at as u64 + 1);
        Some(window)
    }

    /// Returns the length of the rows of a sweep of which two faults at this distance may be, at most a few rows apart.
    fn known_length(&self, now: u64, distance: i64) -> Option<i64> {
        self.sweeps.iter().filter_map(|slot| slot.load(now)).map(|sweep| sweep.length).find_map(|length| {
            let rows = (distance + length.abs() / 2 * distance.signum()) / length.abs();
            let is_near = rows != 0 && rows.abs() <= SKIPPED_MAX / 4;
            let fits = is_near && (distance - rows * length.abs()).abs() < PAGE;
            fits.then_some(length.abs() * rows.signum())
        })
    }
}

/// Returns whether rows may be so far apart. Whole pages are left to streams: sequential reads fault at the beginnings of
/// pages, and a few such reads in a small part of memory have equal distances by chance.
fn is_row_length(length: i64) -> bool {
    (LENGTH_MIN..=LENGTH_MAX).contains(&length.unsigned_abs()) && length % PAGE != 0
}

fn page_of(offset: u64) -> u64 {
    offset / PAGE_SIZE as u64
}

#[cfg(test)]
mod tests;
