//! Sources: bytes that are only read.
//!
//! [`ByteSource`] is what images need of a medium. Every [`Backing`](crate::Backing) is one; a source that cannot be
//! written, such as an object on a server, implements this trait alone.

use crate::BackingError;
use std::sync::Arc;

/// A fixed number of bytes that any number of threads read at once.
///
/// The bytes of a source that nobody writes never change: a source whose bytes may be replaced by somebody else
/// notices that, and fails, rather than return bytes of two versions.
pub trait ByteSource: Send + Sync {
    /// The size in bytes.
    fn len_bytes(&self) -> u64;

    /// Fills `buf` from byte `offset`. A range that does not lie inside the source fails with
    /// [`BackingError::OutOfRange`].
    ///
    /// Each call is a read in flight: threads that call at once do not wait for each other, as far as the medium can.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BackingError>;

    /// Drops copies of this range that the source took from a cache, so that the next read asks the medium itself. Returns
    /// whether there was one. A reader calls it that can prove the bytes wrong.
    fn discard_cached(&self, _offset: u64, _len_bytes: u64) -> bool {
        false
    }

    /// Fetches a range that will be read soon into the cache that reads use, if there is one. May wait for the medium as a
    /// read does. Best effort: reads return the bytes of the range, or an error, whatever the result is.
    fn prefetch(&self, _offset: u64, _len_bytes: u64) -> Prefetched {
        Prefetched::Done
    }

    /// Describes the source in a few words for people: "file, direct I/O, io_uring".
    fn describe(&self) -> String;

    /// Checks that a range lies inside the source.
    fn check_range(&self, offset: u64, len_bytes: u64) -> Result<(), BackingError> {
        match offset.checked_add(len_bytes) {
            Some(end) if end <= self.len_bytes() => Ok(()),
            _ => Err(BackingError::OutOfRange { offset, len_bytes, medium_len_bytes: self.len_bytes() }),
        }
    }
}

/// The result of a prefetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefetched {
    /// The range is in the cache or on its way to it, or the source has no cache.
    Done,
    /// The cache is full of ranges that were prefetched and not read yet.
    NoRoom,
    /// The range cannot be fetched now.
    Failed,
}

/// Implements [`ByteSource`] for a smart pointer to a source, so that sources and layers can be combined at run time.
macro_rules! through_pointer {
    ($($pointer:ident),*) => { $(
        impl<S: ByteSource + ?Sized> ByteSource for $pointer<S> {
            fn len_bytes(&self) -> u64 {
                (**self).len_bytes()
            }

            fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BackingError> {
                (**self).read_at(offset, buf)
            }

            fn discard_cached(&self, offset: u64, len_bytes: u64) -> bool {
                (**self).discard_cached(offset, len_bytes)
            }

            fn prefetch(&self, offset: u64, len_bytes: u64) -> Prefetched {
                (**self).prefetch(offset, len_bytes)
            }

            fn describe(&self) -> String {
                (**self).describe()
            }
        }
    )* };
}

through_pointer!(Arc, Box);
