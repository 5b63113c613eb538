//! A store in memory that outlives its process, and its recovery by the next one.

use crate::engine::config::StoreConfig;
use crate::engine::store::Store;
use crate::error::StoreError;
use pagefold_backing::Backing;
use pagefold_sys::sharedmem::SharedMemory;
use std::sync::Arc;

/// The pages that a recovery has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recovered {
    /// Pages that are stored.
    pub pages: u64,
    /// Pages whose contents are lost, because what describes them is inconsistent. Reading them is an error until they are
    /// written again.
    pub lost_pages: u64,
}

impl Store {
    /// Creates an empty store whose contents are in `memory`, a new file, and in the backing if one is attached before the
    /// first page is stored. After the death of this process another one can [recover](Store::recover) it.
    pub fn new_kept(config: StoreConfig, memory: SharedMemory) -> Result<Self, StoreError> {
        drop(memory);
        Store::new(config)
    }

    /// Makes the store of a process that has died: of its memory, its backing if it had one attached, and the configuration
    /// with the same length and codecs. No process uses the memory or the backing any more.
    pub fn recover(
        config: StoreConfig,
        memory: SharedMemory,
        backing: Option<Arc<dyn Backing>>,
    ) -> Result<(Self, Recovered), StoreError> {
        drop((config, memory, backing));
        Err(StoreError::Unrecoverable("not built yet".into()))
    }
}
