//! The extents of a file whose places in the image are known.
//!
//! A file of some GiB has millions of them, so they lie in a table that may spill: a table of the file that is being
//! written, or one of all originals.

use super::stored::Stored;
use crate::Result;
use crate::table::{Spill, Table};
use std::ops::Range;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// An extent whose place in the image is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// First byte in the file.
    pub start: u64,
    /// First block of its cluster. Without a cluster, the block after those of the extents before.
    pub block: u64,
    /// Its storage.
    pub stored: Stored,
    /// Whether it is only the beginning of what its cluster decodes to, or its cluster takes more bytes than it has.
    pub is_prefix: bool,
}

/// The extents of a file by their numbers, in its order.
#[derive(Debug, Clone)]
pub struct Extents<'t> {
    table: &'t Table<StoredExtent>,
    numbers: Range<usize>,
}

impl<'t> Extents<'t> {
    /// The extents of these numbers in a table.
    pub fn new(table: &'t Table<StoredExtent>, numbers: Range<usize>) -> Self {
        Extents { table, numbers }
    }

    /// Their number.
    pub fn count(&self) -> usize {
        self.numbers.len()
    }

    /// The extent of a number below that.
    pub fn get(&self, number: usize) -> Placed {
        self.table.get(self.numbers.start + number).placed()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = Placed> {
        (0..self.count()).map(|number| self.get(number))
    }

    /// The last extent.
    pub fn last(&self) -> Option<Placed> {
        self.count().checked_sub(1).map(|number| self.get(number))
    }

    /// The number of the first extent that begins at a byte or after it.
    pub fn first_from(&self, start: u64) -> usize {
        let first = self.table.partition_point(self.numbers.clone(), |extent| extent.start < start);
        first - self.numbers.start
    }
}

/// The extents of one file.
#[derive(Debug, Default)]
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

    /// Appends an extent, which begins after the others.
    pub fn push(&mut self, extent: &Placed) -> Result<()> {
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

    /// Whether any extent is a prefix.
    pub fn has_prefix(&self) -> bool {
        self.has_prefix
    }

    /// The extents so far.
    pub fn all(&self) -> Extents<'_> {
        Extents::new(&self.extents, 0..self.extents.len())
    }

    /// Whether any extent is such that only an index can express it.
    pub fn needs_index(&self) -> bool {
        self.has_compressed || self.has_fragment
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
