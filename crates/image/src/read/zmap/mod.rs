//! Where each byte of a compressed file lies.
//!
//! A compressed inode is followed by an index, in one of three forms. `full` and `compact` have an entry
//! per logical cluster (a fixed number of bytes of the file) and differ in how an entry is stored;
//! `lclusters` makes extents of entries. `extents` has a record per extent. `place` judges where
//! the stored bytes of an extent are; this file reads the header and chooses.
//!
//! Nothing is decompressed here, and packed files and devices are not looked into. Block addresses count in
//! the space that all devices share, which is given as [`Space::Device`] 0.
//!
//! [`Space::Device`]: crate::Space::Device

mod compact;
mod extents;
mod full;
mod lclusters;
mod place;
mod window;

use super::{Bytes, Extent};
use crate::format::zmap::{FULL_ENTRIES_OFFSET, FULL_ENTRY_BYTES, HEADER_BYTES, MapHeader, advise};
use crate::{Address, ImageError, Nid};
use compact::Packs;
pub use extents::Cursor;
use extents::Records;
use lclusters::Lclusters;

/// What of the image and the inode the index needs to know.
#[derive(Debug, Clone, Copy)]
pub struct ZContext {
    /// Block size as a power of two.
    pub block_bits: u8,
    /// Incompatible feature bit 0: streams end where their clusters end.
    pub zero_padding: bool,
    /// Incompatible feature bit 7: extent records exist.
    pub extent_records: bool,
    /// There is a packed file, and this inode is another: fragments may be used.
    pub fragments: bool,
    /// Which algorithms the image uses: bit `n` for the one of number `n`. Images without a
    /// configuration have LZ4 only.
    pub algorithms: u16,
    /// The longest LZ4 cluster, bytes, by the LZ4 configuration; 1 MiB where there is none.
    pub max_cluster_bytes: u32,
    /// The inode, for messages.
    pub nid_for_errors: Nid,
}

/// Which data layout the inode has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexForm {
    /// Layout 1: an entry of 8 bytes per logical cluster, or extent records.
    Full,
    /// Layout 3: entries of 2 and 4 bytes.
    Compact,
}

/// What of the header is worth showing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexSummary {
    /// The header's bits, see [`crate::format::zmap::advise`].
    pub advise: u16,
    /// Numbers of the first and the second algorithm; of no meaning for extent records.
    pub algorithms: [u8; 2],
    /// Logical cluster as a power of two; for records of 16 and 32 bytes of no meaning.
    pub lcluster_bits: u8,
    /// Size of an extent record, bytes, if those are used.
    pub record_bytes: Option<u8>,
    /// The whole file is a fragment.
    pub whole_fragment: bool,
}

/// The parsed header of an index, and its last extent where that lies elsewhere than the others.
#[derive(Debug, Clone, Copy)]
pub struct ZMap {
    context: ZContext,
    header: MapHeader,
    at: Address,
    size: u64,
    lcluster_bits: u8,
    index: Index,
    tail: Option<Extent>,
}

#[derive(Debug, Clone, Copy)]
enum Index {
    /// None; the file is a fragment.
    None,
    Full,
    Compact(Packs),
    Records(Records),
}

impl ZMap {
    /// Reads the header of the index that follows `tail`, the first byte behind the inode and its attributes,
    /// of a file of `size` bytes. Finds the last extent too if that is a fragment or inline.
    pub fn open(
        bytes: &dyn Bytes,
        context: &ZContext,
        form: IndexForm,
        tail: Address,
        size: u64,
    ) -> Result<ZMap, ImageError> {
        let at = tail.offset.checked_next_multiple_of(HEADER_BYTES).map(|offset| Address { offset, ..tail });
        let at = at.ok_or_else(|| ImageError::corrupt(tail, "an index beyond all addresses"))?;
        let mut raw = [0; HEADER_BYTES as usize];
        bytes.read_at(at, &mut raw)?;
        let header = MapHeader::parse(raw);
        let lcluster_bits = context.block_bits.saturating_add(header.lcluster_shift());
        let mut map =
            ZMap { context: *context, header, at, size, lcluster_bits, index: Index::None, tail: None };
        if size > i64::MAX as u64 || !(9..=16).contains(&context.block_bits) {
            return Err(map.corrupt(at, "a file or a block of impossible size"));
        }
        if let Some(offset) = header.whole_fragment() {
            map.tail = Some(map.fragment(at, 0, size, offset)?);
            return Ok(map);
        }
        map.index = map.choose_index(bytes, form)?;
        map.find_tail(bytes)?;
        Ok(map)
    }

    /// The extent that holds byte `offset` of the file: where it truly begins, how long it is, and its place.
    /// `offset` is less than the file's size.
    ///
    /// Costs one or two reads of at most 512 bytes where extents are short; records of 4 bytes must be summed
    /// from the first one on, which [`Self::extent_near`] avoids.
    pub fn extent_at(&self, bytes: &dyn Bytes, offset: u64) -> Result<Extent, ImageError> {
        self.extent_near(bytes, offset, &mut Cursor::default())
    }

    /// As [`Self::extent_at`], cheap at any size of the file if `offset` is at or behind that of the last call
    /// with the same cursor.
    pub fn extent_near(
        &self,
        bytes: &dyn Bytes,
        offset: u64,
        cursor: &mut Cursor,
    ) -> Result<Extent, ImageError> {
        if offset >= self.size {
            return Err(self.corrupt(self.at, "a byte behind the end of the file was asked for"));
        }
        if let Some(tail) = self.tail.filter(|tail| offset >= tail.start) {
            return Ok(tail);
        }
        let extent = match self.index {
            Index::Records(records) => records.extent_at(self, bytes, offset, cursor)?,
            _ => Lclusters::new(self, bytes)?.extent_at(offset)?,
        };
        if extent.len_bytes == 0 || extent.start > offset || extent.end() <= offset {
            return Err(self.corrupt(self.at, "an index that contradicts itself"));
        }
        Ok(extent)
    }

    /// What the header says.
    pub fn header(&self) -> IndexSummary {
        let record_bytes = match self.index {
            Index::Records(_) => Some(1 << self.header.record_bits()),
            _ => None,
        };
        IndexSummary {
            advise: self.header.advise(),
            algorithms: [self.header.algorithm_1(), self.header.algorithm_2()],
            lcluster_bits: self.lcluster_bits,
            record_bytes,
            whole_fragment: self.header.whole_fragment().is_some(),
        }
    }

    fn choose_index(&self, bytes: &dyn Bytes, form: IndexForm) -> Result<Index, ImageError> {
        let header = self.header;
        if form == IndexForm::Full && self.context.extent_records && header.advises(advise::EXTENTS) {
            return Records::open(self, bytes).map(Index::Records);
        }
        if header.advises(advise::INLINE | advise::FRAGMENT) {
            return Err(self.corrupt(self.at, "a last extent both inline and in the packed file"));
        }
        let index = match form {
            IndexForm::Full => Index::Full,
            IndexForm::Compact => Index::Compact(Packs::open(self)?),
        };
        Ok(index)
    }

    /// An inline or packed last extent is found once, here: it is asked for by every reader of a small file,
    /// and a packed one may be longer than what a search forward is allowed.
    fn find_tail(&mut self, bytes: &dyn Bytes) -> Result<(), ImageError> {
        let elsewhere = self.header.advise() & (advise::INLINE | advise::FRAGMENT) != 0;
        if elsewhere && self.size > 0 && !matches!(self.index, Index::Records(_)) {
            self.tail = Some(Lclusters::new(self, bytes)?.tail()?);
        }
        Ok(())
    }

    /// How many logical clusters the file has.
    fn lclusters(&self) -> u64 {
        self.size.div_ceil(1 << self.lcluster_bits)
    }

    /// The first byte behind the entries of the full or the compact form.
    fn entries_end(&self) -> Result<u64, ImageError> {
        let end = match self.index {
            Index::Compact(packs) => packs.end(),
            // At most 2^54 entries: the file has less than 2^63 bytes, a block 512 or more.
            _ => self.at.offset.checked_add(FULL_ENTRIES_OFFSET + FULL_ENTRY_BYTES * self.lclusters()),
        };
        end.ok_or_else(|| self.corrupt(self.at, "an index beyond all addresses"))
    }

    fn address(&self, offset: u64) -> Address {
        Address { offset, ..self.at }
    }

    fn corrupt(&self, at: Address, what: &str) -> ImageError {
        ImageError::corrupt(at, format!("inode {}: {what}", self.context.nid_for_errors))
    }
}
