//! The contents of regular files, as the builder reads them: from the beginning to the end.

use super::BuildError;
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

    /// Opens the contents for reading.
    fn open(&self) -> Result<Box<dyn Reader + '_>, BuildError>;
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
}

/// Open contents of a file.
pub trait Reader {
    /// The ranges of the file that are no holes: ascending, not empty, and not adjacent. `None`: not known.
    fn data_ranges(&self) -> Result<Option<Vec<Range<u64>>>, BuildError> {
        Ok(None)
    }

    /// Fills `buf` with the next bytes. The file ends at the length that [`Content::len_bytes`] has given.
    fn read_exact(&mut self, buf: &mut [u8]) -> Result<(), BuildError>;

    /// Passes over the next bytes, which are a hole, or of which the builder has a copy.
    fn skip(&mut self, len_bytes: u64) -> Result<(), BuildError>;

    /// Passes over the next bytes, and returns a reader of them for another thread. `None`: nothing is passed over, since
    /// these contents can only be read in order.
    fn range(&mut self, _len_bytes: u64) -> Result<Option<Box<dyn RangeReader>>, BuildError> {
        Ok(None)
    }

    /// Ends reading, and fails if the file has changed since it was opened.
    fn finish(&mut self) -> Result<(), BuildError> {
        Ok(())
    }
}

/// A range of a file that any thread may read, also after the file's [`Reader`] is closed.
pub trait RangeReader: Send {
    /// Fills `buf` with the bytes from byte `at` of the range on, which has as many. Fails if the file has changed since it
    /// was opened.
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), BuildError>;
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

    fn open(&self) -> Result<Box<dyn Reader + '_>, BuildError> {
        Ok(Box::new(BytesReader(&self.0)))
    }
}

struct BytesReader<'a>(&'a [u8]);

impl Reader for BytesReader<'_> {
    fn read_exact(&mut self, buf: &mut [u8]) -> Result<(), BuildError> {
        let (now, later) = self.0.split_at_checked(buf.len()).ok_or_else(past_the_end)?;
        buf.copy_from_slice(now);
        self.0 = later;
        Ok(())
    }

    fn skip(&mut self, len_bytes: u64) -> Result<(), BuildError> {
        let len = usize::try_from(len_bytes).map_err(|_| past_the_end())?;
        self.0 = self.0.get(len..).ok_or_else(past_the_end)?;
        Ok(())
    }
}

/// The builder never reads past the length of a file.
fn past_the_end() -> BuildError {
    BuildError::Refused { path: "(memory)".into(), what: "it is shorter than it was".into() }
}
