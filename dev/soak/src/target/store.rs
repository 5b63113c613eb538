//! A store in this process.

use super::{Connection, RequestError, Target};
use pagefold_store::{SourceError, Store, StoreError};
use std::sync::Arc;

/// A store as a target.
pub struct StoreTarget {
    /// The store.
    pub store: Arc<Store>,
    /// Whether the medium below fails reads on purpose.
    pub reads_may_fail: bool,
}

impl Target for StoreTarget {
    fn len_bytes(&self) -> u64 {
        self.store.len_bytes()
    }

    fn align(&self) -> u64 {
        1
    }

    fn connect(&self) -> Result<Box<dyn Connection + '_>, String> {
        Ok(Box::new(StoreConnection(self)))
    }
}

struct StoreConnection<'a>(&'a StoreTarget);

impl StoreConnection<'_> {
    fn request_error(&self, error: &StoreError) -> RequestError {
        match error {
            StoreError::NoMemory { source: SourceError::Limit { .. }, .. } => {
                RequestError::NoRoom(error.to_string())
            }
            StoreError::ReadBack { .. } if self.0.reads_may_fail => RequestError::Injected(error.to_string()),
            // For example an empty reserve on a machine with memory.
            _ => RequestError::Other(error.to_string()),
        }
    }
}

impl Connection for StoreConnection<'_> {
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), RequestError> {
        self.0.store.read(offset, buf).map_err(|e| self.request_error(&e))
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), RequestError> {
        self.0.store.write(offset, data).map_err(|e| self.request_error(&e))
    }

    fn discard(&mut self, offset: u64, len_bytes: u64) -> Result<(), RequestError> {
        self.0.store.discard(offset, len_bytes).map_err(|e| self.request_error(&e))
    }

    fn write_zeroes(&mut self, offset: u64, len_bytes: u64) -> Result<(), RequestError> {
        self.0.store.write_zeroes(offset, len_bytes).map_err(|e| self.request_error(&e))
    }
}
