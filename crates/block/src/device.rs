//! The trait that doors serve and layers wrap.

use crate::BlockError;
use std::sync::Arc;

/// A device of a fixed number of bytes, shared by any number of threads.
///
/// Ranges are in bytes, of any alignment and length; a range that does not lie inside the device is
/// refused with [`BlockError::OutOfRange`] and changes nothing. A failed write leaves every page it
/// did not replace as it was; pages before the failing one may have been replaced, as on any disk.
/// Reads and writes of one page are atomic with respect to each other; larger ones page by page.
pub trait BlockDevice: Send + Sync {
    /// The size in bytes; does not change.
    fn len_bytes(&self) -> u64;

    /// Fills `buf` from byte `offset`.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BlockError>;

    /// Stores `data` at byte `offset`.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), BlockError>;

    /// Says that `len` bytes at `offset` are no longer needed: they may read as anything written
    /// before or as zeroes. Parts of pages may be kept.
    fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError>;

    /// Makes `len` bytes at `offset` read as zeroes, exactly.
    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), BlockError>;

    /// Makes finished writes as durable as this device can; a device of memory has nothing to do.
    fn flush(&self) -> Result<(), BlockError>;

    /// What is known about the bytes from `offset` on: a first run of at most `len` bytes that is
    /// all of one kind. The range lies inside the device and `len` is not 0.
    ///
    /// For clients that skip what need not be copied, so a hint that errs only towards
    /// [`ExtentKind::Data`], which is what a device that does not know says of everything.
    fn extent(&self, offset: u64, len: u64) -> Extent {
        let _ = offset;
        Extent { len_bytes: len, kind: ExtentKind::Data }
    }

    /// Checks that a range lies inside the device.
    fn check_range(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len_bytes() => Ok(()),
            _ => Err(BlockError::OutOfRange { offset, len, device_len: self.len_bytes() }),
        }
    }
}

/// A device chosen at run time, under layers.
impl BlockDevice for Arc<dyn BlockDevice> {
    fn len_bytes(&self) -> u64 {
        (**self).len_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BlockError> {
        (**self).read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), BlockError> {
        (**self).write_at(offset, data)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        (**self).discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        (**self).write_zeroes(offset, len)
    }

    fn flush(&self) -> Result<(), BlockError> {
        (**self).flush()
    }

    fn extent(&self, offset: u64, len: u64) -> Extent {
        (**self).extent(offset, len)
    }
}

/// A run of bytes of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// How long the run is, bytes, at least 1.
    pub len_bytes: u64,
    /// What is there.
    pub kind: ExtentKind,
}

/// What a run of bytes holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentKind {
    /// Anything.
    Data,
    /// Zeroes that were written.
    Zeroes,
    /// Nothing; reads as zeroes.
    Hole,
}
