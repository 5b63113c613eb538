//! A store in this process.

use super::{Connection, Failure, Target};
use pagefold_store::{SourceError, Store, StoreError};
use std::sync::Arc;

/// The store, and whether media below it fail reads on purpose.
pub struct StoreTarget {
    /// The store.
    pub store: Arc<Store>,
    /// Whether reads may fail.
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
    fn failure(&self, error: &StoreError) -> Failure {
        match error {
            StoreError::NoMemory { source: SourceError::Limit { .. }, .. } => {
                Failure::NoRoom(error.to_string())
            }
            StoreError::ReadBack { .. } if self.0.reads_may_fail => Failure::Injected(error.to_string()),
            // An empty reserve on a machine with memory is one of these.
            _ => Failure::Other(error.to_string()),
        }
    }
}

impl Connection for StoreConnection<'_> {
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), Failure> {
        self.0.store.read(offset, buf).map_err(|e| self.failure(&e))
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Failure> {
        self.0.store.write(offset, data).map_err(|e| self.failure(&e))
    }

    fn discard(&mut self, offset: u64, len_bytes: u64) -> Result<(), Failure> {
        self.0.store.discard(offset, len_bytes).map_err(|e| self.failure(&e))
    }

    fn write_zeroes(&mut self, offset: u64, len_bytes: u64) -> Result<(), Failure> {
        self.0.store.write_zeroes(offset, len_bytes).map_err(|e| self.failure(&e))
    }
}
