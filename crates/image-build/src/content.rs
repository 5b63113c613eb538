//! The contents of regular files, as the builder reads them.

use crate::{BuildError, Result};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The contents of a regular file.
///
/// The builder opens contents when it comes to the file, reads them in order, and closes them. It may do so up to four
/// times, in part: to compare them with other files, and to take a sample. It opens the contents of one file at a time.
pub trait Content: Send + Sync + fmt::Debug {
    /// Length, bytes. [`Content::open`] fails if it is no longer right.
    fn len_bytes(&self) -> u64;

    /// The parts of the file that lie on its source uncompressed, in ascending order; between them are holes. `None`: contents do
    /// not lie there so.
    fn device_runs(&self) -> Result<Option<Vec<DeviceRun>>> {
        Ok(None)
    }

    /// The byte of the image at which the contents lie already. No other bytes but zeroes are in their blocks.
    fn in_image(&self) -> Option<u64> {
        None
    }

    /// Opens the contents for reading.
    fn open(&self) -> Result<Box<dyn Reader + '_>>;
}

/// The words that a tree keeps of a file whose contents a [`Contents`] finds.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Stored {
    /// Length, bytes. A file of length 0 has no contents, whatever its words are.
    pub len_bytes: u64,
    /// Words whose meaning the [`Contents`] knows.
    pub words: [u64; 5],
}

/// Finds the contents of the files of a tree. Millions of files need not have an object each.
pub trait Contents: Send + Sync + fmt::Debug {
    /// The contents of a file. `path` is a path of it in the tree.
    fn content(&self, file: &Stored, path: &[u8]) -> Arc<dyn Content>;

    /// The sources that can be devices of an image, in their order.
    fn devices(&self) -> Vec<SourceDevice> {
        Vec::new()
    }

    /// The position among [`devices`](Self::devices) of the one that has a file.
    fn device_of(&self, _file: &Stored) -> usize {
        0
    }
}

/// A source that is a device of the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceDevice {
    /// The name in the table of devices, padded with NULs.
    pub tag: [u8; 64],
    /// Length, bytes.
    pub len_bytes: u64,
    /// A block, bytes: contents begin at multiples of this.
    pub block_bytes: u32,
}

/// A part of a file that lies on its device as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRun {
    /// The bytes of the file.
    pub range: Range<u64>,
    /// The first of them on the device.
    pub at: u64,
}

/// Open contents of a file.
pub trait Reader {
    /// The ranges of the file that are no holes: ascending, not empty, and not adjacent. `None`: not known.
    fn data_ranges(&self) -> Result<Option<Vec<Range<u64>>>> {
        Ok(None)
    }

    /// Fills `buf` with the bytes from byte `at` on, which are before the end that [`Content::len_bytes`] has given. The
    /// builder reads in order, and passes over holes.
    fn read_exact_at(&self, buf: &mut [u8], at: u64) -> Result<()>;

    /// Returns a reader of the bytes from byte `start` on for another thread; `None` if only this thread can read them.
    fn range(&self, _start: u64) -> Option<Box<dyn RangeReader>> {
        None
    }

    /// Ends reading, and fails if the file has changed since it was opened.
    fn finish(&self) -> Result<()> {
        Ok(())
    }
}

/// A range of a file that any thread may read, also after the file's [`Reader`] is closed.
pub trait RangeReader: Send {
    /// Fills `buf` with the bytes from byte `at` of the range on. Fails if the file has changed since it
    /// was opened.
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<()>;
}

/// Contents in memory.
#[derive(Clone)]
pub struct Bytes(pub Arc<[u8]>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({})", self.0.len())
    }
}

impl Content for Bytes {
    fn len_bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn open(&self) -> Result<Box<dyn Reader + '_>> {
        Ok(Box::new(BytesReader(&self.0)))
    }
}

struct BytesReader<'a>(&'a [u8]);

impl Reader for BytesReader<'_> {
    fn read_exact_at(&self, buf: &mut [u8], at: u64) -> Result<()> {
        let bytes = usize::try_from(at).ok().and_then(|at| self.0.get(at..)?.get(..buf.len()));
        // The builder never reads past the length of a file.
        let past_the_end =
            || BuildError::Refused { path: "(memory)".into(), what: "it is shorter than it was".into() };
        buf.copy_from_slice(bytes.ok_or_else(past_the_end)?);
        Ok(())
    }
}
