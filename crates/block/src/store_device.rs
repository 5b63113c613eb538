//! [`StoreDevice`], the block device of a store.

use crate::{BlockDevice, BlockError, Extent, ExtentKind};
use pagefold_store::{SourceError, Store, StoreError};
use std::sync::Arc;

/// A block device that holds a reference to a store. Other holders of the store read its statistics and attributes.
#[derive(Clone)]
pub struct StoreDevice(Arc<Store>);

impl StoreDevice {
    /// Makes a device on this store.
    pub fn new(store: Arc<Store>) -> Self {
        StoreDevice(store)
    }
}

impl From<StoreError> for BlockError {
    fn from(e: StoreError) -> Self {
        match e {
            StoreError::OutOfRange { offset, len_bytes, store_len_bytes } => {
                BlockError::OutOfRange { offset, len: len_bytes, device_len: store_len_bytes }
            }
            StoreError::NoMemory { index, source: SourceError::Limit { .. } } => {
                BlockError::NoSpace { index }
            }
            StoreError::NoMemory { index, .. } => BlockError::NoMemory { index },
            StoreError::Compress { index, .. } => BlockError::Compress { index },
            StoreError::Corrupt { index, .. }
            | StoreError::CorruptRecord { index, .. }
            | StoreError::Lost { index } => BlockError::Corrupt { index },
            StoreError::ReadBack { index, .. } | StoreError::Fetch { index, .. } => {
                BlockError::Unreadable { index }
            }
            // Reads and writes never return errors of set-up. If one did, report an invalid request.
            StoreError::BadLength(_)
            | StoreError::Codec(_)
            | StoreError::Unrecoverable(_)
            | StoreError::SetUp(_)
            | StoreError::Attach(_) => BlockError::OutOfRange { offset: 0, len: 0, device_len: 0 },
        }
    }
}

impl BlockDevice for StoreDevice {
    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BlockError> {
        Ok(self.0.read(offset, buf)?)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), BlockError> {
        Ok(self.0.write(offset, data)?)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        Ok(self.0.discard(offset, len)?)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        Ok(self.0.write_zeroes(offset, len)?)
    }

    fn flush(&self) -> Result<(), BlockError> {
        Ok(())
    }

    fn extent(&self, offset: u64, len: u64) -> Extent {
        let (len_bytes, empty) = self.0.extent(offset, len).unwrap_or((len, false));
        Extent { len_bytes, kind: if empty { ExtentKind::Hole } else { ExtentKind::Data } }
    }

    fn waits_for_medium(&self, offset: u64, len: u64) -> bool {
        self.0.waits_for_medium(offset, len)
    }

    fn waits_for_room(&self, len: u64) -> bool {
        self.0.waits_for_room(len)
    }
}
