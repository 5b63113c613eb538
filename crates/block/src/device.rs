//! [`BlockDevice`], the trait that exports serve and layers wrap.

use crate::BlockError;
use crate::operation::Operation;
use std::time::Duration;

/// A device of a number of bytes, shared by any number of threads.
///
/// Ranges are in bytes, of any alignment and length. Every method refuses a range that does not lie inside the
/// device with [`BlockError::OutOfRange`] and changes nothing. A failed write may have replaced the pages before the
/// failing one, as on any disk; all other pages keep their contents. Reads and writes of one page are atomic with
/// respect to each other; a longer request is atomic for each page, not as a whole.
pub trait BlockDevice: Send + Sync {
    /// The size in bytes. It changes only if the device is a [`ReplaceableDevice`](crate::ReplaceableDevice), which has
    /// no users then.
    fn len_bytes(&self) -> u64;

    /// Reads `buf.len()` bytes from byte `offset` on.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BlockError>;

    /// Stores `data` at byte `offset`.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), BlockError>;

    /// Discards `len` bytes at `offset`: afterwards they read as zeroes or as any data written there before. A device
    /// may ignore the parts of the range that do not cover a whole page.
    fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError>;

    /// Makes `len` bytes at `offset` read as zeroes, exactly.
    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), BlockError>;

    /// Makes finished writes as durable as this device can. A device in memory does nothing.
    fn flush(&self) -> Result<(), BlockError>;

    /// Returns the first run of bytes of one kind from `offset` on, at most `len` bytes long. The caller passes a
    /// range inside the device and a `len` other than 0.
    ///
    /// Clients use the answer to skip bytes that they need not copy, so a device that does not know returns
    /// [`ExtentKind::Data`], as this default does.
    fn extent(&self, offset: u64, len: u64) -> Extent {
        let _ = offset;
        Extent { len_bytes: len, kind: ExtentKind::Data }
    }

    /// Returns whether a read of a range would wait for a medium that is slower than memory now.
    ///
    /// A server uses the answer to execute such a read beside others. It is a hint: a device that does not know returns
    /// false, as this default does, and the answer may be outdated at once.
    fn waits_for_medium(&self, offset: u64, len: u64) -> bool {
        let _ = (offset, len);
        false
    }

    /// Returns whether a write of so many bytes, of whole pages, would wait for a medium that is slower than memory now: the
    /// device is at its memory limit, and makes space by moving pages to the medium.
    ///
    /// It is a hint like that of [`waits_for_medium`](Self::waits_for_medium), and false by default.
    fn waits_for_room(&self, len: u64) -> bool {
        let _ = len;
        false
    }

    /// Notes that an export has answered a read or write, so long after it took the request from its queue. A layer that
    /// measures requests counts it; other devices ignore it, as this default does.
    fn note_reply(&self, operation: Operation, took: Duration) {
        let _ = (operation, took);
    }

    /// Checks that a range lies inside the device.
    fn check_range(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len_bytes() => Ok(()),
            _ => Err(BlockError::OutOfRange { offset, len, device_len: self.len_bytes() }),
        }
    }
}

/// A run of bytes of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Length of the run in bytes, at least 1.
    pub len_bytes: u64,
    /// The kind of all of its bytes.
    pub kind: ExtentKind,
}

/// The kind of data in a run of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentKind {
    /// Data, which may be zeroes too.
    Data,
    /// Zeroes that were written.
    Zeroes,
    /// Nothing is stored; reads as zeroes.
    Hole,
}
