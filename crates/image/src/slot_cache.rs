//! A direct-mapped cache of a fixed number of slots.
//!
//! The slot of a value is its key modulo the number of slots, so there is nothing to search and nothing to evict: a value
//! takes the place of another one that has the same slot. Each slot has a mutex, held to copy a value in or out.

use std::sync::{Mutex, MutexGuard, PoisonError};

type Slot<T> = Option<(u64, T)>;

/// Values by key.
pub(crate) struct SlotCache<T> {
    slots: Box<[Mutex<Slot<T>>]>,
}

impl<T: Clone> SlotCache<T> {
    /// An empty cache of `count` slots, or of one.
    pub(crate) fn new(count: usize) -> Self {
        SlotCache { slots: (0..count.max(1)).map(|_| Mutex::new(None)).collect() }
    }

    fn slot(&self, key: u64) -> MutexGuard<'_, Slot<T>> {
        let index = (key % self.slots.len() as u64) as usize;
        self.slots[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, key: u64) -> Option<T> {
        let slot = self.slot(key);
        slot.as_ref().filter(|(found, _)| *found == key).map(|(_, value)| value.clone())
    }

    pub(crate) fn insert(&self, key: u64, value: T) {
        let replaced = self.slot(key).replace((key, value));
        // The lock is released before the memory is.
        drop(replaced);
    }
}
