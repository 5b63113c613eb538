//! A store in this process.

use super::{Connection, RequestError};
use pagefold_store::{SourceError, Store, StoreError};

/// A connection to a store.
pub struct StoreConnection<'a> {
    /// The store.
    pub store: &'a Store,
    /// Whether the medium below fails reads on purpose.
    pub reads_may_fail: bool,
}

impl StoreConnection<'_> {
    fn answer(&self, result: Result<(), StoreError>) -> Result<(), RequestError> {
        result.map_err(|error| match error {
            StoreError::NoMemory { source: SourceError::Limit { .. }, .. } => {
                RequestError::NoRoom(error.to_string())
            }
            StoreError::ReadBack { .. } if self.reads_may_fail => RequestError::Injected(error.to_string()),
            // For example an empty reserve on a machine with memory.
            _ => RequestError::Other(error.to_string()),
        })
    }
}

impl Connection for StoreConnection<'_> {
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), RequestError> {
        self.answer(self.store.read(offset, buf))
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), RequestError> {
        self.answer(self.store.write(offset, data))
    }

    fn discard(&mut self, offset: u64, len_bytes: u64) -> Result<(), RequestError> {
        self.answer(self.store.discard(offset, len_bytes))
    }

    fn write_zeroes(&mut self, offset: u64, len_bytes: u64) -> Result<(), RequestError> {
        self.answer(self.store.write_zeroes(offset, len_bytes))
    }
}
