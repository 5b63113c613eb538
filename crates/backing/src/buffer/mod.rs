//! Memory for requests: aligned buffers, and the budget they come from.
//!
//! Direct I/O wants aligned memory, io_uring wants memory that was registered before,
//! and a service wants a bound on both. So there is one region, reserved once and cut
//! into pieces ([`Buffers`]), and one owned type for a piece of it or of the heap
//! ([`Buffer`]). Who must make progress asks with [`Demand::Required`]; who only reads
//! ahead asks with [`Demand::BestEffort`] and gives up when there is no room.
//!
//! There are two ways to ask, and a type for each. [`Buffers::get`] never waits: what is required and does not fit
//! comes from the heap, for those who free memory by making progress. [`Budget::grant`] keeps to
//! the limit: it gives all that one piece of work needs at once or makes it wait its turn, so that two
//! workers never hold halves of what both need. Neither clears what it hands out.
//!
//! Only the region of [`Buffers`] is registered with rings, and it keeps its memory for life. A [`Budget`] gives memory
//! back to the kernel; a ring that had registered it would go on with the pages that it had then, which the
//! region no longer shows. So the two are different types, and a queue takes no [`Budget`].

mod grant;
mod owned;
mod units;

use crate::BackingError;
use grant::Turns;
pub use grant::{Aside, Budget, Charge, Grant, Reclaim, Refused};
pub use owned::Buffer;
use owned::Home;
use pagefold_sys::mem::Reservation;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use units::UnitMap;

/// What every buffer is aligned to, and the unit in which the region is handed out, bytes.
pub const BUFFER_ALIGN_BYTES: usize = 4096;

/// How much a buffer is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// Somebody waits for it: taken from the heap ([`Buffers::get`]) or waited for ([`Budget::grant`]).
    Required,
    /// It would be nice: nothing when there is no room.
    BestEffort,
}

/// What a budget has handed out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BufferStats {
    /// Bytes in buffers, grants and charges now, those from the heap included; so with [`Buffers::get`] it can
    /// exceed the limit.
    pub in_use_bytes: u64,
    /// The highest that `in_use_bytes` has been.
    pub peak_bytes: u64,
    /// Bytes of the budget.
    pub limit_bytes: u64,
    /// Required buffers that had to come from the heap, since the beginning.
    pub overflows: u64,
    /// Best-effort requests that got nothing, since the beginning.
    pub refused: u64,
    /// Required grants that had to wait, since the beginning.
    pub waits: u64,
}

/// Request buffers: one region of memory, cut into buffers, which queues register. Clones share it.
#[derive(Clone)]
pub struct Buffers(Arc<Shared>);

struct Shared {
    region: Reservation,
    books: Mutex<Books>,
    room: Condvar,
}

struct Books {
    units: UnitMap,
    /// What of the region holds memory, for a [`Budget`]. `None` for [`Buffers`], whose region never gives memory back.
    touched: Option<Touched>,
    /// Bytes that best-effort requests may not take.
    reserve_bytes: u64,
    /// Bytes that were set aside: in use for as long as the budget is, so that no grant can ever have them.
    aside_bytes: u64,
    turns: Turns,
    stats: BufferStats,
}

/// Units whose memory the kernel has given, free ones included.
struct Touched {
    map: UnitMap,
    count: usize,
}

impl Shared {
    /// A region for `limit_bytes`, `spread` times as long. One that is longer than the limit gives memory back, so that it
    /// holds no more than that.
    fn new(limit_bytes: usize, reserve_bytes: usize, spread: usize) -> Result<Self, BackingError> {
        let limit_units = limit_bytes.div_ceil(BUFFER_ALIGN_BYTES);
        let limit_bytes = limit_units.saturating_mul(BUFFER_ALIGN_BYTES);
        let unit_count = limit_units.saturating_mul(spread);
        let region = Reservation::new(unit_count.saturating_mul(BUFFER_ALIGN_BYTES))?;
        let books = Books {
            units: UnitMap::new(unit_count),
            touched: (spread > 1).then(|| Touched { map: UnitMap::new(unit_count), count: 0 }),
            reserve_bytes: reserve_bytes as u64,
            aside_bytes: 0,
            turns: Turns::default(),
            stats: BufferStats { limit_bytes: limit_bytes as u64, ..BufferStats::default() },
        };
        Ok(Shared { region, books: Mutex::new(books), room: Condvar::new() })
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes units of the region for a buffer that is counted already.
    fn take(self: &Arc<Self>, books: &mut Books, len_bytes: usize) -> Option<Buffer> {
        let unit_count = unit_count(len_bytes);
        let first_unit = books.units.take(unit_count)?;
        self.touch(books, first_unit, unit_count);
        // SAFETY: `take` returns units of the map, which has as many as the region.
        let bytes = unsafe { self.region.base().add(first_unit * BUFFER_ALIGN_BYTES) };
        Some(Buffer { bytes, len_bytes, home: Home::Region { shared: self.clone(), first_unit, unit_count } })
    }

    /// Accounts for the memory of units that are about to be used, and gives memory of free ones back to the kernel while the
    /// region holds more than the limit.
    fn touch(&self, books: &mut Books, first_unit: usize, unit_count: usize) {
        let limit_units = books.stats.limit_bytes as usize / BUFFER_ALIGN_BYTES;
        let Books { units, touched: Some(touched), .. } = books else { return };
        touched.count += touched.map.mark_all(first_unit, unit_count);
        while touched.count > limit_units {
            let Some((first, count)) = touched.map.last_run_outside(units) else { return };
            let (offset, len) = (first * BUFFER_ALIGN_BYTES, count * BUFFER_ALIGN_BYTES);
            // SAFETY: the units are free, and stay so while the books are locked: no buffer refers to them. Nor does a
            // ring: queues register the regions of `Buffers` only, which have no `touched` and do not come here.
            if unsafe { self.region.discard(offset, len) }.is_err() {
                return;
            }
            touched.map.give_back(first, count);
            touched.count -= count;
        }
    }

    /// Takes units back, and what was counted for them.
    ///
    /// # Safety
    /// They are those of one buffer, which is not used any more: they may become another's at once.
    unsafe fn give_back(&self, first_unit: usize, unit_count: usize) {
        let mut books = self.books();
        books.units.give_back(first_unit, unit_count);
        self.release_in(books, (unit_count * BUFFER_ALIGN_BYTES) as u64);
    }

    fn release(&self, len_bytes: u64) {
        self.release_in(self.books(), len_bytes);
    }

    fn release_in(&self, mut books: MutexGuard<'_, Books>, len_bytes: u64) {
        books.stats.in_use_bytes -= len_bytes;
        // Even if this is not enough room: what was in use may be idle now, and there to be reclaimed.
        let anyone_waits = books.turns.note();
        drop(books);
        if anyone_waits {
            self.room.notify_all();
        }
    }
}

impl Books {
    fn count(&mut self, len_bytes: u64) {
        self.stats.in_use_bytes += len_bytes;
        self.stats.peak_bytes = self.stats.peak_bytes.max(self.stats.in_use_bytes);
    }
}

/// Units that a buffer of this length takes.
fn unit_count(len_bytes: usize) -> usize {
    len_bytes.div_ceil(BUFFER_ALIGN_BYTES).max(1)
}

/// Bytes that a buffer of this length takes: whole units.
fn footprint(len_bytes: usize) -> u64 {
    (unit_count(len_bytes) as u64).saturating_mul(BUFFER_ALIGN_BYTES as u64)
}

impl Buffers {
    /// Reserves a region of `limit_bytes`, rounded up to whole units. It takes memory as it is touched.
    pub fn new(limit_bytes: usize) -> Result<Self, BackingError> {
        Ok(Buffers(Arc::new(Shared::new(limit_bytes, 0, 1)?)))
    }

    /// A buffer of `len_bytes`; `None` only for [`Demand::BestEffort`].
    ///
    /// **Its contents are whatever was there before**, as a rule another page's data. Whoever writes only
    /// part of it must clear the rest before the buffer goes to a medium: stale bytes on disk are a leak.
    pub fn get(&self, len_bytes: usize, demand: Demand) -> Option<Buffer> {
        if demand == Demand::Required {
            return Some(self.required(len_bytes));
        }
        let taken = self.take(len_bytes);
        if taken.is_none() {
            self.0.books().stats.refused += 1;
        }
        taken
    }

    /// As [`Buffers::get`] with [`Demand::Required`]: there is always one.
    pub fn required(&self, len_bytes: usize) -> Buffer {
        self.take(len_bytes).unwrap_or_else(|| {
            let mut books = self.0.books();
            books.stats.overflows += 1;
            books.count(footprint(len_bytes));
            drop(books);
            Buffer::on_heap(len_bytes, Some(self.0.clone()))
        })
    }

    /// A buffer of the region, if that has room.
    fn take(&self, len_bytes: usize) -> Option<Buffer> {
        let mut books = self.0.books();
        let buffer = self.0.take(&mut books, len_bytes)?;
        books.count(footprint(len_bytes));
        Some(buffer)
    }

    /// What is handed out now, and what was not.
    pub fn stats(&self) -> BufferStats {
        self.0.books().stats
    }

    /// The region, to be registered with the kernel: first byte and length in bytes. Its memory stays where it is until the
    /// last clone and the last buffer are gone.
    pub(crate) fn region(&self) -> (NonNull<u8>, usize) {
        (self.0.region.base(), self.0.books().stats.limit_bytes as usize)
    }
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Buffers").field(&self.stats()).finish()
    }
}

#[cfg(test)]
mod tests;
