//! Memory for requests: aligned buffers, and the regions and budgets from which they are allocated.
//!
//! Direct I/O needs aligned memory, io_uring works best with registered memory, and a server needs a limit on both. So
//! buffers are allocated from one region that is reserved once, in units of 4 KiB, first-fit
//! (`pagefold_page::UnitMap`). A [`Buffer`] owns a run of units or a heap allocation (`owned.rs`); dropping it frees
//! the memory. A caller that must make progress passes [`Demand::Required`]; read-ahead passes [`Demand::BestEffort`]
//! and does without a buffer if there is no room.
//!
//! There are two allocators:
//! - [`Buffers`] never waits. A required buffer that does not fit comes from the heap: it is for writeback, which frees
//!   memory by making progress.
//! - [`Budget`] (`grant.rs`) never exceeds its limit. It grants one piece of work all the memory that it needs at
//!   once, or makes it wait; so two threads never each hold half of the memory that both need.
//!
//! Neither clears a buffer.
//!
//! Only the region of [`Buffers`] is registered with rings; its memory stays until the region is gone. A [`Budget`]
//! returns memory to the kernel; a ring that had registered its region would go on using the old pages, which the
//! region no longer maps. So the two are different types, and a queue takes no [`Budget`].
//!
//! Each of them has one mutex ([`AllocatorState`]), a leaf lock that is held for a few instructions and for the
//! `madvise` that returns memory; and one condition variable, on which required grants wait. Any thread may allocate
//! and free.

mod grant;
mod owned;

use crate::BackingError;
use grant::WaitQueue;
pub use grant::{Budget, BudgetReservation, Charge, Grant, GrantError, Reclaim};
pub use owned::Buffer;
use owned::Origin;
use pagefold_page::UnitMap;
use pagefold_sys::mem::Reservation;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The alignment of every buffer, and the allocation unit of a region, bytes.
pub const BUFFER_ALIGN_BYTES: usize = 4096;

/// Whether the caller can do without the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// The caller needs it: [`Buffers::get`] falls back to the heap, [`Budget::grant`] waits.
    Required,
    /// The caller can do without it: the request is refused if there is no room.
    BestEffort,
}

/// Counters of a [`Buffers`] or a [`Budget`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BufferStats {
    /// Bytes in buffers, grants and charges now, heap buffers included. With [`Buffers::get`] it can exceed the limit.
    pub in_use_bytes: u64,
    /// The highest value that `in_use_bytes` has had.
    pub peak_bytes: u64,
    /// The limit, bytes.
    pub limit_bytes: u64,
    /// Required buffers that came from the heap, since creation.
    pub overflows: u64,
    /// Best-effort requests that were refused, since creation.
    pub refused: u64,
    /// Required grants that had to wait, since creation.
    pub waits: u64,
}

/// Request buffers: one region of memory, from which buffers are allocated and which queues register. Clones share it.
#[derive(Clone)]
pub struct Buffers(Arc<Shared>);

/// A region with its allocator. Buffers and grants hold references; the last one unmaps the region.
struct Shared {
    region: Reservation,
    state: Mutex<AllocatorState>,
    /// Required grants wait here until memory is released.
    room: Condvar,
}

/// The state of a [`Buffers`] or a [`Budget`].
struct AllocatorState {
    /// The allocated units.
    units: UnitMap,
    /// The units of the region that hold memory, for a [`Budget`]. `None` for [`Buffers`], whose region never returns
    /// memory to the kernel.
    resident: Option<ResidentUnits>,
    /// Bytes that best-effort requests may not take.
    required_only_bytes: u64,
    /// Bytes of [`BudgetReservation`]s: in use permanently, so that no grant can ever have them.
    reserved_bytes: u64,
    /// Bytes of charges and of heap buffers: memory that is counted here and lies outside the region.
    elsewhere_bytes: u64,
    wait_queue: WaitQueue,
    stats: BufferStats,
}

/// The units that the kernel backs with memory, free units included.
struct ResidentUnits {
    map: UnitMap,
    count: usize,
}

impl Shared {
    /// Reserves a region that is `address_space_factor` times as long as `limit_bytes`. A region that is longer than
    /// the limit returns memory to the kernel, so that it holds no more than the limit.
    fn new(
        limit_bytes: usize,
        required_only_bytes: usize,
        address_space_factor: usize,
    ) -> Result<Self, BackingError> {
        let limit_units = limit_bytes.div_ceil(BUFFER_ALIGN_BYTES);
        let limit_bytes = limit_units.saturating_mul(BUFFER_ALIGN_BYTES);
        let unit_count = limit_units.saturating_mul(address_space_factor);
        let region = Reservation::new(unit_count.saturating_mul(BUFFER_ALIGN_BYTES))?;
        let state = AllocatorState {
            units: UnitMap::new(unit_count),
            resident: (address_space_factor > 1)
                .then(|| ResidentUnits { map: UnitMap::new(unit_count), count: 0 }),
            required_only_bytes: required_only_bytes as u64,
            reserved_bytes: 0,
            elsewhere_bytes: 0,
            wait_queue: WaitQueue::default(),
            stats: BufferStats { limit_bytes: limit_bytes as u64, ..BufferStats::default() },
        };
        Ok(Shared { region, state: Mutex::new(state), room: Condvar::new() })
    }

    fn state(&self) -> MutexGuard<'_, AllocatorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates units of the region for a buffer whose bytes are counted already.
    fn take(self: &Arc<Self>, state: &mut AllocatorState, len_bytes: usize) -> Option<Buffer> {
        let unit_count = unit_count(len_bytes);
        let first_unit = state.units.take(unit_count)?;
        self.mark_resident(state, first_unit, unit_count);
        // SAFETY: `take` returns units of the map, and the region has as many units as the map: the address is inside
        // it.
        let bytes = unsafe { self.region.base().add(first_unit * BUFFER_ALIGN_BYTES) };
        Some(Buffer {
            bytes,
            len_bytes,
            origin: Origin::Region { shared: self.clone(), first_unit, unit_count },
        })
    }

    /// Marks units that are about to be used as resident.
    fn mark_resident(&self, state: &mut AllocatorState, first_unit: usize, unit_count: usize) {
        let Some(resident) = &mut state.resident else { return };
        resident.count += resident.map.mark_all(first_unit, unit_count);
        self.return_free_memory(state);
    }

    /// Counts memory outside the region, which its user is about to allocate.
    fn add_elsewhere(&self, state: &mut AllocatorState, len_bytes: u64) {
        state.elsewhere_bytes += len_bytes;
        self.return_free_memory(state);
    }

    /// Returns memory of free units to the kernel while the region and the memory elsewhere are more than the limit.
    fn return_free_memory(&self, state: &mut AllocatorState) {
        let elsewhere_bytes = state.elsewhere_bytes + state.reserved_bytes;
        let region_bytes = state.stats.limit_bytes.saturating_sub(elsewhere_bytes);
        let units_max = region_bytes as usize / BUFFER_ALIGN_BYTES;
        let AllocatorState { units, resident: Some(resident), .. } = state else { return };
        while resident.count > units_max {
            let Some((first, count)) = resident.map.last_run_outside(units) else { return };
            let (offset, len) = (first * BUFFER_ALIGN_BYTES, count * BUFFER_ALIGN_BYTES);
            // SAFETY: the units are free, and stay free while the state is locked: no buffer refers to them. No ring
            // refers to them: queues register only the regions of `Buffers`, whose `resident` is `None`, so that they
            // return above.
            if unsafe { self.region.discard(offset, len) }.is_err() {
                return;
            }
            resident.map.release(first, count);
            resident.count -= count;
        }
    }

    /// Frees the units of a buffer, and the bytes that were counted for them.
    ///
    /// # Safety
    /// The units are those of one buffer, which is not used any more: another buffer may get them at once.
    unsafe fn release_units(&self, first_unit: usize, unit_count: usize) {
        let mut state = self.state();
        state.units.release(first_unit, unit_count);
        self.release_in(state, (unit_count * BUFFER_ALIGN_BYTES) as u64);
    }

    fn release(&self, len_bytes: u64) {
        self.release_in(self.state(), len_bytes);
    }

    /// Releases memory that [`Shared::add_elsewhere`] has counted.
    fn release_elsewhere(&self, len_bytes: u64) {
        let mut state = self.state();
        state.elsewhere_bytes -= len_bytes;
        self.release_in(state, len_bytes);
    }

    fn release_in(&self, mut state: MutexGuard<'_, AllocatorState>, len_bytes: u64) {
        state.stats.in_use_bytes -= len_bytes;
        // Notify even if this is not enough room for the first waiter: buffers may have become idle, so that `Reclaim`
        // can free them.
        let has_waiters = state.wait_queue.record_wake();
        drop(state);
        if has_waiters {
            self.room.notify_all();
        }
    }
}

impl AllocatorState {
    fn count(&mut self, len_bytes: u64) {
        self.stats.in_use_bytes += len_bytes;
        self.stats.peak_bytes = self.stats.peak_bytes.max(self.stats.in_use_bytes);
    }
}

/// The number of units of a buffer of this length.
fn unit_count(len_bytes: usize) -> usize {
    len_bytes.div_ceil(BUFFER_ALIGN_BYTES).max(1)
}

/// The bytes that a buffer of this length takes from a region or budget: whole units.
fn footprint(len_bytes: usize) -> u64 {
    (unit_count(len_bytes) as u64).saturating_mul(BUFFER_ALIGN_BYTES as u64)
}

impl Buffers {
    /// Reserves a region of `limit_bytes`, rounded up to whole units. It takes memory only as it is used.
    pub fn new(limit_bytes: usize) -> Result<Self, BackingError> {
        Ok(Buffers(Arc::new(Shared::new(limit_bytes, 0, 1)?)))
    }

    /// Allocates a buffer of `len_bytes`; `None` only for [`Demand::BestEffort`].
    ///
    /// **The buffer keeps its old contents**, usually another page's data. A caller that fills only a part must clear
    /// the rest before it writes the buffer to a medium: stale bytes on disk are a leak.
    pub fn get(&self, len_bytes: usize, demand: Demand) -> Option<Buffer> {
        if demand == Demand::Required {
            return Some(self.required(len_bytes));
        }
        let taken = self.take(len_bytes);
        if taken.is_none() {
            self.0.state().stats.refused += 1;
        }
        taken
    }

    /// Allocates a buffer as [`Buffers::get`] with [`Demand::Required`] does, which never fails.
    pub fn required(&self, len_bytes: usize) -> Buffer {
        self.take(len_bytes).unwrap_or_else(|| {
            let mut state = self.0.state();
            state.stats.overflows += 1;
            state.count(footprint(len_bytes));
            self.0.add_elsewhere(&mut state, footprint(len_bytes));
            drop(state);
            Buffer::on_heap(len_bytes, Some(self.0.clone()))
        })
    }

    /// Allocates a buffer from the region, if that has room.
    fn take(&self, len_bytes: usize) -> Option<Buffer> {
        let mut state = self.0.state();
        let buffer = self.0.take(&mut state, len_bytes)?;
        state.count(footprint(len_bytes));
        Some(buffer)
    }

    /// Bytes in use now, and counts of refusals and heap buffers.
    pub fn stats(&self) -> BufferStats {
        self.0.state().stats
    }

    /// The region that a queue registers with the kernel: first byte and length in bytes. Its memory stays in place
    /// until the last clone and the last buffer are gone.
    pub(crate) fn region(&self) -> (NonNull<u8>, usize) {
        (self.0.region.base(), self.0.state().stats.limit_bytes as usize)
    }
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Buffers").field(&self.stats()).finish()
    }
}

#[cfg(test)]
mod tests;
