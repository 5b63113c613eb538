//! Tables of fixed records, which may be larger than memory.
//!
//! The builder keeps some records for each file of a tree, and there may be millions of files. A [`Table`] has its
//! first records in memory. If there is a [`Spill`], what follows lies in a file beside the image, which is mapped;
//! pages of it are resident only as long as the memory that the caller allows has room for them. Without one, all is
//! in memory.
//!
//! | module | contents |
//! |---|---|
//! | `spill` | the file, and how much of it is resident |
//! | `bytes` | tables of bytes: names, and the area of inodes |
//! | `sort` | sorting a table |
//! | `hashes` | a table from hashes to numbers |

mod bytes;
mod hashes;
mod sort;
mod spill;

pub use hashes::{Hashes, Key, key_of_hash};
pub use spill::Spill;

use crate::Result;
use pagefold_sys::spool::Mapping;
use std::ops::Range;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Bytes of a chunk of a table; the last bytes are unused if records do not fill it.
pub const CHUNK_BYTES: usize = 512 << 10;

/// Types that a table can hold: any bytes are a valid record, and a record has no padding.
pub trait Record: Copy + FromBytes + IntoBytes + Immutable {}
impl<T: Copy + FromBytes + IntoBytes + Immutable> Record for T {}

/// Consecutive records.
#[derive(Debug)]
enum Chunk<T> {
    Memory(Vec<T>),
    Spilled(Mapping),
}

impl<T: Record> Chunk<T> {
    /// The records of a range, as far as they are there.
    fn records(&self, range: Range<usize>) -> &[T] {
        match self {
            Chunk::Memory(records) => records.get(range).unwrap_or(&[]),
            // A mapping begins at a page, so records lie where their type may lie.
            Chunk::Spilled(map) => <[T]>::ref_from_bytes(map.bytes(byte_range::<T>(range))).unwrap_or(&[]),
        }
    }

    fn records_mut(&mut self, range: Range<usize>) -> &mut [T] {
        match self {
            Chunk::Memory(records) => records.get_mut(range).unwrap_or(&mut []),
            Chunk::Spilled(map) => {
                <[T]>::mut_from_bytes(map.bytes_mut(byte_range::<T>(range))).unwrap_or(&mut [])
            }
        }
    }
}

fn byte_range<T>(range: Range<usize>) -> Range<usize> {
    range.start * size_of::<T>()..range.end * size_of::<T>()
}

/// A sequence of records. Only the end of it grows.
#[derive(Debug)]
pub struct Table<T> {
    chunks: Vec<Chunk<T>>,
    len: usize,
    spill: Spill,
}

impl<T: Record> Table<T> {
    /// Records of a chunk.
    const PER_CHUNK: usize = CHUNK_BYTES / size_of::<T>();

    /// An empty table.
    pub fn new(spill: &Spill) -> Self {
        Table { chunks: Vec::new(), len: 0, spill: spill.clone() }
    }

    /// A table of `len` equal records.
    pub fn filled(spill: &Spill, len: usize, record: T) -> Result<Self> {
        let mut table = Table::new(spill);
        table.grow(len, record)?;
        Ok(table)
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no record.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The spill that the table uses.
    pub fn spill(&self) -> &Spill {
        &self.spill
    }

    /// The record at an index below the length.
    pub fn get(&self, index: usize) -> T {
        assert!(index < self.len, "record {index} of {}", self.len);
        let within = index % Self::PER_CHUNK;
        self.records(index / Self::PER_CHUNK, within..within + 1)[0]
    }

    /// Replaces the record at an index below the length.
    pub fn set(&mut self, index: usize, record: T) {
        assert!(index < self.len, "record {index} of {}", self.len);
        let within = index % Self::PER_CHUNK;
        self.records_mut(index / Self::PER_CHUNK, within..within + 1)[0] = record;
    }

    /// The record at an index; `default` after the end.
    pub fn get_or(&self, index: usize, default: T) -> T {
        if index < self.len { self.get(index) } else { default }
    }

    /// Sets the record at an index. Records before it that are missing become `default`.
    pub fn put(&mut self, index: usize, record: T, default: T) -> Result<()> {
        self.grow(index + 1, default)?;
        self.set(index, record);
        Ok(())
    }

    /// Appends a record, and returns its index.
    pub fn push(&mut self, record: T) -> Result<usize> {
        let index = self.len;
        self.grow(index + 1, record)?;
        Ok(index)
    }

    /// Appends records that equal this one up to a length.
    pub fn grow(&mut self, len: usize, record: T) -> Result<()> {
        while self.len < len {
            let (chunk, within) = (self.len / Self::PER_CHUNK, self.len % Self::PER_CHUNK);
            let count = (len - self.len).min(Self::PER_CHUNK - within);
            if chunk == self.chunks.len() {
                self.add_chunk()?;
            }
            self.spill.bound();
            match &mut self.chunks[chunk] {
                Chunk::Memory(records) => {
                    // Records that were removed are still there.
                    records.truncate(within);
                    records.resize(within + count, record);
                }
                spilled => spilled.records_mut(within..within + count).fill(record),
            }
            self.len += count;
        }
        Ok(())
    }

    /// Removes the last record.
    pub fn pop(&mut self) -> Option<T> {
        let last = self.len.checked_sub(1)?;
        let record = self.get(last);
        self.len = last;
        Some(record)
    }

    /// The first index in a range whose record does not have a property, or the range's end: the records that have it come
    /// first.
    pub fn partition_point(&self, range: Range<usize>, has: impl Fn(&T) -> bool) -> usize {
        let (mut first, mut end) = (range.start, range.end);
        while first < end {
            let middle = first.midpoint(end);
            if has(&self.get(middle)) { first = middle + 1 } else { end = middle }
        }
        first
    }

    /// Reverses the order of the records from an index on.
    pub fn reverse_from(&mut self, start: usize) {
        let (mut first, mut end) = (start, self.len);
        while first + 1 < end {
            end -= 1;
            let (a, b) = (self.get(first), self.get(end));
            self.set(first, b);
            self.set(end, a);
            first += 1;
        }
    }

    /// The records in order.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        (0..self.len).map(|index| self.get(index))
    }

    fn add_chunk(&mut self) -> Result<()> {
        let spilled = if self.chunks.is_empty() { None } else { self.spill.map(CHUNK_BYTES)? };
        self.chunks.push(match spilled {
            Some(map) => Chunk::Spilled(map),
            None if self.chunks.is_empty() => Chunk::Memory(Vec::new()),
            None => Chunk::Memory(Vec::with_capacity(Self::PER_CHUNK)),
        });
        Ok(())
    }

    /// Records of a chunk, which are there.
    fn records(&self, chunk: usize, range: Range<usize>) -> &[T] {
        self.spill.bound();
        self.chunks[chunk].records(range)
    }

    fn records_mut(&mut self, chunk: usize, range: Range<usize>) -> &mut [T] {
        self.spill.bound();
        self.chunks[chunk].records_mut(range)
    }
}

impl<T> Default for Table<T> {
    /// An empty table in memory.
    fn default() -> Self {
        Table { chunks: Vec::new(), len: 0, spill: Spill::none() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record whose size does not divide a chunk.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
    #[repr(C)]
    struct Odd([u32; 7]);

    #[test]
    fn a_spilled_table_holds_what_a_vector_holds() {
        let spill = Spill::in_directory(&std::env::temp_dir(), 0).unwrap();
        for spill in [spill, Spill::none()] {
            let mut table = Table::new(&spill);
            let count = 3 * CHUNK_BYTES / size_of::<Odd>();
            let mut twin: Vec<Odd> = (0..count as u32).map(|n| Odd([n; 7])).collect();
            for (n, record) in twin.iter().enumerate() {
                assert_eq!(table.push(*record).unwrap(), n);
            }
            for n in (0..count).step_by(977) {
                (twin[n].0[3], _) = (7, ());
                table.set(n, twin[n]);
            }
            table.grow(count + 70_000, Odd([9; 7])).unwrap();
            twin.resize(count + 70_000, Odd([9; 7]));
            assert_eq!(table.len(), twin.len());
            assert!(table.iter().eq(twin.iter().copied()));
            assert_eq!(spill.mapped_bytes() > 0, spill.is_file());
            let limit = |record: &Odd| record.0[0] < 1234;
            assert_eq!(table.partition_point(3..count, limit), 3 + twin[3..count].partition_point(limit));
            table.reverse_from(5);
            twin[5..].reverse();
            for _ in 0..100_000 {
                assert_eq!(table.pop(), twin.pop());
            }
            table.push(Odd([4; 7])).unwrap();
            twin.push(Odd([4; 7]));
            assert!(table.iter().eq(twin.iter().copied()));
        }
    }
}
