//! The engine behind a disk: a store made from a disk's configuration.

use super::codecs;
use super::config::{DoorChoice, ServeConfig};
use crate::failure::{Exit, Failure, Outcome};
use pagefold_store::{MemLimit, Store, StoreConfig, StoreError};
use std::sync::Arc;

/// Memory kept ready for a disk that may be swapped to, bytes.
const RESERVE_BYTES: u64 = 16 << 20;

/// Makes the store, empty.
pub fn store(config: &ServeConfig) -> Outcome<Arc<Store>> {
    let store = StoreConfig {
        codec: codecs::spec(&config.codec),
        mem_limit: config.mem_limit_bytes.map_or(MemLimit::Half, limit),
        // Only a loop device can be swapped to.
        reserve_bytes: (config.door == DoorChoice::Loop).then_some(RESERVE_BYTES),
        ..StoreConfig::new(config.size_bytes)
    };
    Store::new(store).map(Arc::new).map_err(|e| {
        let exit = match e {
            StoreError::BadLength(_) | StoreError::Codec(_) => Exit::Usage,
            StoreError::SetUp(_) => Exit::Unavailable,
            _ => Exit::Failed,
        };
        Failure::new(exit, format!("setting up the store: {e}"))
    })
}

/// A limit as people write it: 0 is none.
pub fn limit(bytes: u64) -> MemLimit {
    match bytes {
        0 => MemLimit::Off,
        bytes => MemLimit::Bytes(bytes),
    }
}
