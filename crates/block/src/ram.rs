//! [`RamDevice`], a block device of uncompressed memory.
//!
//! Tests of exports use it instead of a store, and benchmarks of exports as an upper bound: a disk that is created
//! uncompressed is served from it.

use crate::{BlockDevice, BlockError};
use pagefold_page::{PAGE_SIZE, Page, PageCount, spans};
use std::sync::{PoisonError, RwLock};

/// A block device in plain memory, with one lock per page.
pub struct RamDevice {
    len_bytes: u64,
    pages: Box<[RwLock<Box<Page>>]>,
}

impl RamDevice {
    /// Makes a device of `len_bytes` zero bytes and allocates all of its memory.
    pub fn new(len_bytes: u64) -> Self {
        let pages = (0..PageCount::covering(len_bytes).0).map(|_| RwLock::new(Box::new([0; PAGE_SIZE])));
        RamDevice { len_bytes, pages: pages.collect() }
    }
}

impl BlockDevice for RamDevice {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BlockError> {
        self.check_range(offset, buf.len() as u64)?;
        for s in spans(offset, buf.len()) {
            let page = self.pages[s.index.0 as usize].read().unwrap_or_else(PoisonError::into_inner);
            buf[s.at..s.at + s.len].copy_from_slice(&page[s.start..s.start + s.len]);
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), BlockError> {
        self.check_range(offset, data.len() as u64)?;
        for s in spans(offset, data.len()) {
            let mut page = self.pages[s.index.0 as usize].write().unwrap_or_else(PoisonError::into_inner);
            page[s.start..s.start + s.len].copy_from_slice(&data[s.at..s.at + s.len]);
        }
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.write_zeroes(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.check_range(offset, len)?;
        for s in spans(offset, len as usize) {
            let mut page = self.pages[s.index.0 as usize].write().unwrap_or_else(PoisonError::into_inner);
            page[s.start..s.start + s.len].fill(0);
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), BlockError> {
        Ok(())
    }
}
