//! Directories: blocks of entries, sorted by name within and across blocks.
//!
//! The caller supplies the blocks of a directory through a closure, because its contents may be compressed. The order
//! of the entries is not checked: in an unsorted directory a search terminates, but may miss entries. A corrupt entry
//! does not hide others; a corrupt block makes a search fail.

use super::{FileKind, Inode, Superblock};
use crate::format::dirent::{NAME_LEN_MAX, RawDirent};
use crate::{Address, ImageError, Nid, Result};
use std::cmp::Ordering;
use std::ops::Range;

/// Consecutive blocks without a valid entry that a search skips; more are an error, which bounds the search.
const MAX_INVALID_BLOCKS: u64 = 16;

/// An entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The inode's number.
    pub nid: Nid,
    /// The type of file according to the entry, if it has one. The inode's own type is authoritative.
    pub kind: Option<FileKind>,
    /// The stored number of `kind`.
    pub file_type: u8,
    /// The name: 1 to 255 bytes, without `/` and NUL. `.` and `..` are ordinary entries.
    pub name: &'a [u8],
}

/// The result of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// The inode's number.
    pub nid: Nid,
    /// The type of file according to the entry.
    pub kind: Option<FileKind>,
}

impl From<Entry<'_>> for Found {
    fn from(entry: Entry<'_>) -> Self {
        Found { nid: entry.nid, kind: entry.kind }
    }
}

/// A block of a directory.
#[derive(Debug, Clone, Copy)]
pub struct DirBlock<'a> {
    bytes: &'a [u8],
    at: Address,
    count: usize,
}

impl<'a> DirBlock<'a> {
    /// Parses the header of a block; the last block of a directory may be shorter. `at` is the address for errors:
    /// that of the block or of the directory's inode.
    pub fn parse(bytes: &'a [u8], at: Address) -> Result<Self> {
        let corrupt = |what: String| Err(ImageError::corrupt(at, format!("a directory block {what}")));
        let Some(first) = bytes.first_chunk().map(RawDirent::parse) else {
            return corrupt(format!("of {} bytes, too few for an entry", bytes.len()));
        };
        let names = usize::from(first.nameoff.get());
        if names == 0 || !names.is_multiple_of(RawDirent::LEN) || names >= bytes.len() {
            return corrupt(format!("of {} bytes whose names begin at byte {names}", bytes.len()));
        }
        Ok(DirBlock { bytes, at, count: names / RawDirent::LEN })
    }

    /// Number of entries; never 0.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns entry `index`, counted from 0. An index after the last entry is an error.
    pub fn entry(&self, index: usize) -> Result<Entry<'a>> {
        let corrupt = |what: &str| {
            ImageError::corrupt(self.at, format!("entry {index} of a directory block has {what}"))
        };
        let raw = self.raw(index).ok_or_else(|| corrupt("no place"))?;
        let start = usize::from(raw.nameoff.get());
        let name = match self.raw(index + 1) {
            Some(next) => self.bytes.get(start..usize::from(next.nameoff.get())),
            None => self.bytes.get(start..).and_then(|rest| rest.split(|byte| *byte == 0).next()),
        };
        let name = name.filter(|_| start >= self.count * RawDirent::LEN);
        let name = name.ok_or_else(|| corrupt("its name in the wrong place"))?;
        if name.is_empty() || name.len() > NAME_LEN_MAX {
            return Err(corrupt(&format!("a name of {} bytes", name.len())));
        }
        if name.iter().any(|byte| matches!(byte, 0 | b'/')) {
            return Err(ImageError::UnusableName { at: self.at, index });
        }
        let kind = FileKind::from_dirent(raw.file_type);
        Ok(Entry { nid: Nid(raw.nid.get()), kind, file_type: raw.file_type, name })
    }

    /// Iterates over the entries. A corrupt entry is an error, and the iteration goes on.
    pub fn entries(self) -> impl ExactSizeIterator<Item = Result<Entry<'a>>> {
        (0..self.count).map(move |index| self.entry(index))
    }

    /// Finds the entry of that name by binary search. If the search meets a corrupt entry, it becomes linear.
    pub fn find(&self, name: &[u8]) -> Option<Entry<'a>> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            let Ok(entry) = self.entry(middle) else {
                return self.entries().flatten().find(|entry| entry.name == name);
            };
            match entry.name.cmp(name) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Some(entry),
                Ordering::Greater => high = middle,
            }
        }
        None
    }

    /// Returns the first valid entry, or the error of the first one if all are corrupt.
    fn first(&self) -> Result<Entry<'a>> {
        let first = self.entry(0);
        if first.is_ok() { first } else { self.entries().flatten().next().map_or(first, Ok) }
    }

    fn raw(&self, index: usize) -> Option<RawDirent> {
        if index >= self.count {
            return None;
        }
        let start = index.checked_mul(RawDirent::LEN)?;
        Some(RawDirent::parse(self.bytes.get(start..)?.first_chunk()?))
    }
}

/// Reads a block of a directory: gets its number from 0 and a buffer of its length.
pub type ReadBlock<'a> = dyn FnMut(u64, &mut [u8]) -> Result<()> + 'a;

/// The blocks of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Directory {
    nid: Nid,
    at: Address,
    size: u64,
    block_bits: u8,
    dot_omitted: bool,
}

impl Directory {
    /// Makes the directory of `inode`. Fails if it is another type of file.
    pub fn of(sb: &Superblock, inode: &Inode) -> Result<Self> {
        if inode.kind != FileKind::Directory {
            return Err(ImageError::NotADirectory { nid: inode.nid });
        }
        Ok(Directory {
            nid: inode.nid,
            at: inode.address,
            size: inode.size,
            block_bits: sb.block_bits,
            dot_omitted: inode.dot_omitted,
        })
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        self.size.div_ceil(1 << self.block_bits)
    }

    /// Length of block `number`, bytes: shorter for the last one, 0 after it.
    pub fn block_len(&self, number: u64) -> usize {
        let block_bytes = 1u64 << self.block_bits;
        let start = number.saturating_mul(block_bytes);
        self.size.saturating_sub(start).min(block_bytes) as usize
    }

    /// Reads block `number` into `block`, which is resized to its length.
    pub fn read_block<'b>(
        &self,
        number: u64,
        block: &'b mut Vec<u8>,
        read: &mut ReadBlock<'_>,
    ) -> Result<DirBlock<'b>> {
        block.resize(self.block_len(number), 0);
        read(number, block)?;
        DirBlock::parse(block, self.at)
    }

    /// Finds the entry of that name by binary search: among the blocks by their first names, then within one. `block`
    /// is scratch.
    pub fn lookup(
        &self,
        name: &[u8],
        block: &mut Vec<u8>,
        read: &mut ReadBlock<'_>,
    ) -> Result<Option<Found>> {
        if let Some(found) = self.omitted_dot(name) {
            return Ok(Some(found));
        }
        // Blocks below `low` begin with a smaller name, blocks from `high` on with a greater one.
        let (mut low, mut high) = (0, self.blocks());
        while low < high {
            let middle = low + (high - low) / 2;
            let Some(number) = self.next_valid_block(middle..high, block, read)? else {
                high = middle;
                continue;
            };
            let entries = DirBlock::parse(block, self.at)?;
            let first = entries.first()?;
            match first.name.cmp(name) {
                Ordering::Equal => return Ok(Some(first.into())),
                Ordering::Greater => high = middle,
                Ordering::Less => {
                    // Most directories have a single block, which has been read already.
                    if high - number == 1 {
                        return Ok(entries.find(name).map(Found::from));
                    }
                    low = number + 1;
                }
            }
        }
        match low.checked_sub(1) {
            None => Ok(None),
            Some(last) => Ok(self.read_block(last, block, read)?.find(name).map(Found::from)),
        }
    }

    /// Reads the first of these blocks that has a valid entry, and returns its number; `None` if there is none.
    fn next_valid_block(
        &self,
        numbers: Range<u64>,
        block: &mut Vec<u8>,
        read: &mut ReadBlock<'_>,
    ) -> Result<Option<u64>> {
        let end = numbers.end.min(numbers.start.saturating_add(MAX_INVALID_BLOCKS));
        for number in numbers.start..end {
            if self.read_block(number, block, read)?.first().is_ok() {
                return Ok(Some(number));
            }
        }
        match end < numbers.end {
            true => Err(ImageError::corrupt(self.at, "a directory of blocks without any name")),
            false => Ok(None),
        }
    }

    /// Finds the entry of that name by linear search: the reference with which tests compare [`lookup`](Self::lookup).
    #[cfg(any(test, feature = "testing"))]
    pub fn lookup_linear(
        &self,
        name: &[u8],
        block: &mut Vec<u8>,
        read: &mut ReadBlock<'_>,
    ) -> Result<Option<Found>> {
        for number in 0..self.blocks() {
            for entry in self.read_block(number, block, read)?.entries() {
                let entry = entry?;
                if entry.name == name {
                    return Ok(Some(entry.into()));
                }
            }
        }
        Ok(self.omitted_dot(name))
    }

    /// Returns the directory itself for `.` if its entry was omitted.
    fn omitted_dot(&self, name: &[u8]) -> Option<Found> {
        let omitted = self.dot_omitted && name == b".";
        omitted.then_some(Found { nid: self.nid, kind: Some(FileKind::Directory) })
    }
}

#[cfg(test)]
mod tests;
