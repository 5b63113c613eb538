//! The mapping of compressed files: their index.
//!
//! An index follows the compressed inode, in one of three forms. `full` and `compact` have an entry per logical
//! cluster (a fixed number of bytes of the file) and differ in the encoding of an entry; `lclusters` derives extents
//! from entries. `extents` has a record per extent. `mapping` checks the stored position and length of an extent; this
//! file reads the header and selects the form; all forms need `header`. `index_reader` reads a part of the index at a time,
//! onto the stack.
//!
//! Nothing is decompressed here, and neither the packed file nor devices are read. Block addresses are in the unified
//! space of all devices, which is [`Space::Device`] 0.
//!
//! [`Space::Device`]: crate::Space::Device

mod compact;
mod entry;
mod extents;
mod full;
mod header;
mod index_reader;
mod lclusters;
mod mapping;

use super::{Bytes, Extent};
use crate::format::zmap::{HEADER_BYTES, MapHeader, advise};
use crate::{Address, ImageError, Result};
use compact::Packs;
pub use extents::Cursor;
use extents::Records;
use header::IndexHeader;
pub use header::ZContext;
use lclusters::{Entries, Lclusters};

/// The data layout of the inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexForm {
    /// Layout 1: an entry of 8 bytes per logical cluster, or extent records.
    Full,
    /// Layout 3: entries of 2 and 4 bytes.
    Compact,
}

/// The fields of an index header, for display.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexSummary {
    /// Flag bits, see [`crate::format::zmap::advise`].
    pub advise: u16,
    /// Numbers of the first and the second algorithm; unused with extent records.
    pub algorithms: [u8; 2],
    /// log2 of a logical cluster; unused with records of 16 and 32 bytes.
    pub lcluster_bits: u8,
    /// Size of an extent record, bytes, if the index has records.
    pub record_bytes: Option<u8>,
    /// Whether the whole file is a fragment.
    pub whole_fragment: bool,
}

/// The fault of an index whose entries exclude each other.
const CONTRADICTION: &str = "an index that contradicts itself";

/// The parsed header of an index, and the last extent if it is inline or a fragment.
#[derive(Debug, Clone, Copy)]
pub struct ZMap {
    header: IndexHeader,
    index: Index,
    tail: Option<Extent>,
}

#[derive(Debug, Clone, Copy)]
enum Index {
    /// No index: the file is a fragment.
    None,
    Entries(Entries),
    Records(Records),
}

impl ZMap {
    /// Reads the header of the index of a file of `size` bytes, which begins at or after `tail`, the end of the inode
    /// and its attributes. Looks up the last extent too if it is a fragment or inline.
    pub fn open(
        bytes: &dyn Bytes,
        context: &ZContext,
        form: IndexForm,
        tail: Address,
        size: u64,
    ) -> Result<ZMap> {
        let at = tail.offset.checked_next_multiple_of(HEADER_BYTES).map(|offset| Address { offset, ..tail });
        let at = at.ok_or_else(|| ImageError::corrupt(tail, "an index beyond all addresses"))?;
        let mut raw = [0; HEADER_BYTES as usize];
        bytes.read_at(at, &mut raw)?;
        let header = MapHeader::parse(raw);
        let lcluster_bits = context.block_bits.saturating_add(header.lcluster_shift());
        let header = IndexHeader { context: *context, header, at, size, lcluster_bits };
        if size > i64::MAX as u64 || !(9..=16).contains(&context.block_bits) {
            return Err(header.corrupt(at, "an impossible size of the file or of a block"));
        }
        let mut map = ZMap { header, index: Index::None, tail: None };
        if let Some(offset) = header.header.whole_fragment() {
            map.tail = Some(header.fragment(at, 0, size, offset)?);
            return Ok(map);
        }
        map.index = map.choose_index(bytes, form)?;
        map.find_tail(bytes)?;
        Ok(map)
    }

    /// Finds the whole extent that contains byte `offset`, which is less than the file's size.
    ///
    /// Costs one or two reads of at most 512 bytes if extents are short. Records of 4 bytes must be summed up from the
    /// first one on, which [`Self::extent_near`] avoids.
    pub fn extent_at(&self, bytes: &dyn Bytes, offset: u64) -> Result<Extent> {
        self.extent_near(bytes, offset, &mut Cursor::default())
    }

    /// As [`Self::extent_at`], but cheap in a file of any size if `offset` is not before that of the last call with
    /// the same cursor.
    pub fn extent_near(&self, bytes: &dyn Bytes, offset: u64, cursor: &mut Cursor) -> Result<Extent> {
        if offset >= self.header.size {
            return Err(self
                .header
                .corrupt(self.header.at, "a byte after the end of the file was requested"));
        }
        if let Some(tail) = self.tail.filter(|tail| offset >= tail.start) {
            return Ok(tail);
        }
        let extent = match self.index {
            Index::Records(records) => records.extent_at(&self.header, bytes, offset, cursor)?,
            Index::Entries(entries) => Lclusters::new(&self.header, entries, bytes)?.extent_at(offset)?,
            // The whole file is the tail.
            Index::None => return Err(self.header.corrupt(self.header.at, CONTRADICTION)),
        };
        if extent.len_bytes == 0 || extent.start > offset || extent.end() <= offset {
            return Err(self.header.corrupt(self.header.at, CONTRADICTION));
        }
        Ok(extent)
    }

    /// Returns the header's fields.
    pub fn header(&self) -> IndexSummary {
        let header = self.header.header;
        IndexSummary {
            advise: header.advise(),
            algorithms: [header.algorithm_1(), header.algorithm_2()],
            lcluster_bits: self.header.lcluster_bits,
            record_bytes: self.has_records().then(|| 1 << header.record_bits()),
            whole_fragment: header.whole_fragment().is_some(),
        }
    }

    /// Offset of the end of the index, without an inline extent after it.
    pub(crate) fn end(&self) -> Result<u64> {
        match self.index {
            Index::None => Ok(self.header.at.offset + HEADER_BYTES),
            Index::Records(records) => Ok(records.end()),
            Index::Entries(entries) => entries.end(&self.header),
        }
    }

    /// The last extent, if its stored bytes are after the index.
    pub(crate) fn inline_tail(&self) -> Option<Extent> {
        self.tail.filter(|_| !self.has_records() && self.header.header.advises(advise::INLINE))
    }

    /// Whether the index has extent records, whose stored bytes may begin and end inside a block.
    pub(crate) fn has_records(&self) -> bool {
        matches!(self.index, Index::Records(_))
    }

    fn choose_index(&self, bytes: &dyn Bytes, form: IndexForm) -> Result<Index> {
        let (map, header) = (&self.header, self.header.header);
        if form == IndexForm::Full && map.context.extent_records && header.advises(advise::EXTENTS) {
            return Records::open(map, bytes).map(Index::Records);
        }
        if header.advises(advise::INLINE | advise::FRAGMENT) {
            return Err(map.corrupt(map.at, "a last extent that is both inline and in the packed file"));
        }
        Ok(Index::Entries(match form {
            IndexForm::Full => Entries::Full,
            IndexForm::Compact => Entries::Compact(Packs::open(map)?),
        }))
    }

    /// Looks up a last extent that is inline or a fragment, once: every reader of a small file needs it, and a
    /// fragment may be longer than the limit of a search forward.
    fn find_tail(&mut self, bytes: &dyn Bytes) -> Result<()> {
        let elsewhere = self.header.header.advise() & (advise::INLINE | advise::FRAGMENT) != 0;
        if let Index::Entries(entries) = self.index
            && elsewhere
            && self.header.size > 0
        {
            self.tail = Some(Lclusters::new(&self.header, entries, bytes)?.tail()?);
        }
        Ok(())
    }
}
