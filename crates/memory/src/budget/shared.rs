//! The state of a budget that several threads share.

use super::split::{Sharer, Split};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A region, as far as its budget knows it.
pub(super) type Region = Arc<dyn Sharer + Send + Sync>;

/// The state that the clones of a budget, its regions and its watcher share.
pub(crate) struct Shared {
    pub(super) split: Mutex<Split<Region>>,
}

impl Shared {
    /// Takes the lock. Evictors only try: a fault that interrupts the holder may wait for an evictor.
    pub(super) fn lock(&self) -> MutexGuard<'_, Split<Region>> {
        self.split.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
