//! A region of memory, from which buffers are allocated in units of 4 KiB, and the bytes that lie elsewhere.

use super::BUFFER_ALIGN_BYTES;
use crate::BackingError;
use pagefold_page::UnitMap;
use pagefold_sys::mem::Reservation;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A region with its allocator. Buffers hold references; the last one unmaps the region.
pub(super) struct Region {
    memory: Reservation,
    limit_bytes: usize,
    pub(super) state: Mutex<State>,
}

pub(super) struct State {
    /// The allocated units.
    pub(super) units: UnitMap,
    /// The units that hold memory, for a region that returns memory to the kernel.
    pub(super) resident: Option<ResidentUnits>,
    /// Bytes in buffers, heap buffers included.
    in_use_bytes: u64,
    /// Bytes that are counted here and lie outside the region: heap buffers, and other memory.
    pub(super) elsewhere_bytes: u64,
}

/// The units that the kernel backs with memory, free units included.
pub(super) struct ResidentUnits {
    map: UnitMap,
    pub(super) count: usize,
}

impl Region {
    /// Reserves a region that is `address_space_factor` times as long as `limit_bytes`. A region that is longer than
    /// the limit returns memory to the kernel, so that it holds no more than the limit.
    pub(super) fn new(limit_bytes: usize, address_space_factor: usize) -> Result<Arc<Self>, BackingError> {
        let limit_units = limit_bytes.div_ceil(BUFFER_ALIGN_BYTES);
        let unit_count = limit_units.saturating_mul(address_space_factor);
        let memory = Reservation::new(unit_count.saturating_mul(BUFFER_ALIGN_BYTES))?;
        let resident = || ResidentUnits { map: UnitMap::new(unit_count), count: 0 };
        let state = State {
            units: UnitMap::new(unit_count),
            resident: (address_space_factor > 1).then(resident),
            in_use_bytes: 0,
            elsewhere_bytes: 0,
        };
        let limit_bytes = limit_units.saturating_mul(BUFFER_ALIGN_BYTES);
        Ok(Arc::new(Region { memory, limit_bytes, state: Mutex::new(state) }))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.memory.base()
    }

    pub(super) fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    pub(super) fn in_use_bytes(&self) -> u64 {
        self.state().in_use_bytes
    }

    /// Allocates units for a buffer, if a run of free units is long enough: the first unit and its address.
    pub(super) fn take_units(&self, unit_count: usize) -> Option<(usize, NonNull<u8>)> {
        let mut state = self.state();
        let first_unit = state.units.take(unit_count)?;
        state.in_use_bytes += (unit_count * BUFFER_ALIGN_BYTES) as u64;
        if let Some(resident) = &mut state.resident {
            resident.count += resident.map.mark_all(first_unit, unit_count);
            self.return_free_memory(&mut state);
        }
        // SAFETY: `take` returns units of the map, and the region has as many units as the map: the address is inside
        // it.
        Some((first_unit, unsafe { self.memory.base().add(first_unit * BUFFER_ALIGN_BYTES) }))
    }

    /// Counts a heap buffer that is about to be allocated.
    pub(super) fn add_heap(&self, len_bytes: u64) {
        let mut state = self.state();
        state.in_use_bytes += len_bytes;
        state.elsewhere_bytes += len_bytes;
        self.return_free_memory(&mut state);
    }

    /// Counts memory outside the region, which its user is about to allocate.
    pub(super) fn add_elsewhere(&self, len_bytes: u64) {
        let mut state = self.state();
        state.elsewhere_bytes += len_bytes;
        self.return_free_memory(&mut state);
    }

    pub(super) fn subtract_elsewhere(&self, len_bytes: u64) {
        self.state().elsewhere_bytes -= len_bytes;
    }

    /// Returns memory of free units to the kernel while the region and the memory elsewhere are more than the limit.
    fn return_free_memory(&self, state: &mut State) {
        let region_bytes = (self.limit_bytes as u64).saturating_sub(state.elsewhere_bytes);
        let units_max = region_bytes as usize / BUFFER_ALIGN_BYTES;
        let State { units, resident: Some(resident), .. } = state else { return };
        while resident.count > units_max {
            let Some((first, count)) = resident.map.last_run_outside(units) else { return };
            let (offset, len) = (first * BUFFER_ALIGN_BYTES, count * BUFFER_ALIGN_BYTES);
            // SAFETY: the units are free, and stay free while the state is locked: no buffer refers to them. No ring
            // refers to them: queues register only the regions of `Buffers`, whose `resident` is `None`, so that they
            // return above.
            if unsafe { self.memory.discard(offset, len) }.is_err() {
                return;
            }
            resident.map.release(first, count);
            resident.count -= count;
        }
    }

    /// Frees the units of a buffer.
    ///
    /// # Safety
    /// The units are those of one buffer, which is not used any more: another buffer may get them at once.
    pub(super) unsafe fn release_units(&self, first_unit: usize, unit_count: usize) {
        let mut state = self.state();
        state.units.release(first_unit, unit_count);
        state.in_use_bytes -= (unit_count * BUFFER_ALIGN_BYTES) as u64;
    }

    /// Subtracts a heap buffer that was freed.
    pub(super) fn subtract_heap(&self, len_bytes: u64) {
        let mut state = self.state();
        state.in_use_bytes -= len_bytes;
        state.elsewhere_bytes -= len_bytes;
    }
}
