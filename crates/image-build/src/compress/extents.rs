//! The extents of a file whose places in the image are known.
//!
//! A file of some GiB has millions of them, so they lie in a table that may spill, and who reads them goes through them by
//! number. [`Extents`] is what the files that are being written and the originals of others have in common.

use super::stored::Stored;
use crate::BuildError;
use crate::table::{Spill, Table};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// An extent whose place in the image is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// First byte in the file.
    pub start: u64,
    /// First block of its cluster. Without a cluster, the block behind those of the extents before.
    pub block: u64,
    /// Its storage.
    pub stored: Stored,
    /// Whether it is only the beginning of what its cluster decodes to, or its cluster takes more bytes than it has.
    pub is_prefix: bool,
}

/// Extents by their numbers, in the order of the file.
pub trait Extents {
    /// Their number.
    fn count(&self) -> usize;
    /// The extent of a number below that.
    fn extent(&self, number: usize) -> Placed;

    /// Whether any extent is a prefix.
    fn has_prefix(&self) -> bool {
        (0..self.count()).any(|number| self.extent(number).is_prefix)
    }

    /// The last extent.
    fn last(&self) -> Option<Placed> {
        self.count().checked_sub(1).map(|number| self.extent(number))
    }

    /// The number of the first extent that begins at a byte or behind it.
    fn first_from(&self, start: u64) -> usize {
        let (mut first, mut end) = (0, self.count());
        while first < end {
            let middle = first + (end - first) / 2;
            match self.extent(middle).start < start {
                true => first = middle + 1,
                false => end = middle,
            }
        }
        first
    }
}

impl Extents for [Placed] {
    fn count(&self) -> usize {
        self.len()
    }

    fn extent(&self, number: usize) -> Placed {
        self[number]
    }
}

/// The extents of one file.
#[derive(Debug, Clone, Default)]
pub struct ExtentTable {
    extents: Table<StoredExtent>,
    has_compressed: bool,
    has_fragment: bool,
    has_prefix: bool,
}

impl ExtentTable {
    /// No extents so far.
    pub fn new(spill: &Spill) -> Self {
        ExtentTable { extents: Table::new(spill), ..ExtentTable::default() }
    }

    /// Appends an extent, which begins behind the others.
    pub fn push(&mut self, extent: &Placed) -> Result<(), BuildError> {
        self.extents.push(StoredExtent::of(extent))?;
        self.has_compressed |= extent.stored.is_compressed();
        self.has_fragment |= extent.stored == Stored::Fragment;
        self.has_prefix |= extent.is_prefix;
        Ok(())
    }

    /// Whether any extent has to be decompressed.
    pub fn has_compressed(&self) -> bool {
        self.has_compressed
    }

    /// Whether any extent is such that only an index can express it.
    pub fn needs_index(&self) -> bool {
        self.has_compressed || self.has_fragment
    }
}

impl Extents for ExtentTable {
    fn count(&self) -> usize {
        self.extents.len()
    }

    fn extent(&self, number: usize) -> Placed {
        self.extents.get(number).placed()
    }

    fn has_prefix(&self) -> bool {
        self.has_prefix
    }
}

/// An extent as tables have it.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct StoredExtent {
    start: u64,
    block: u64,
    /// Its storage, the blocks of its cluster, and whether it is a prefix.
    kind: [u16; 4],
}

impl StoredExtent {
    /// The record of an extent.
    pub fn of(extent: &Placed) -> Self {
        let (kind, blocks) = match extent.stored {
            Stored::Plain => (0, 0),
            Stored::Compressed { blocks } => (1, blocks),
            Stored::Inline { compressed: false } => (2, 0),
            Stored::Inline { compressed: true } => (3, 0),
            Stored::Fragment => (4, 0),
        };
        let kind = [kind, blocks, extent.is_prefix.into(), 0];
        StoredExtent { start: extent.start, block: extent.block, kind }
    }

    /// The extent of a record.
    pub fn placed(self) -> Placed {
        let [kind, blocks, is_prefix, _] = self.kind;
        let stored = match kind {
            0 => Stored::Plain,
            1 => Stored::Compressed { blocks },
            2 => Stored::Inline { compressed: false },
            3 => Stored::Inline { compressed: true },
            _ => Stored::Fragment,
        };
        Placed { start: self.start, block: self.block, stored, is_prefix: is_prefix != 0 }
    }
}
