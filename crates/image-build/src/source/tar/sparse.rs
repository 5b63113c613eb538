//! Maps of sparse members: GNU's old headers, and its pax forms 0.0, 0.1 and 1.0.

use super::archive::{BLOCK_BYTES, Block, Cursor, LEN_BYTES_MAX};
use super::fault::refused;
use super::header::Header;
use super::pax::SparseRecords;
use crate::{BuildError, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Entries of a map at most.
const ENTRIES_MAX: usize = 1 << 20;
/// Digits of a number in the map of form 1.0 at most.
const DIGITS_MAX: usize = 20;
/// Entries in GNU's old header, and in each block that continues it.
const ENTRIES_IN_HEADER: usize = 4;
const ENTRIES_IN_BLOCK: usize = 21;
/// Position of the entries in the old header, of the mark that a block follows, and of the file's length.
const OLD_MAP: usize = 386;
const OLD_IS_CONTINUED: usize = 482;
const OLD_REAL_BYTES: std::ops::Range<usize> = 483..495;
/// Position of that mark in a block that continues it.
const BLOCK_IS_CONTINUED: usize = 504;

/// Bytes of a file that the archive has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct SparseRun {
    /// First byte.
    pub start: u64,
    /// First byte after it.
    pub end: u64,
    /// Position of the first byte in the data of the member.
    pub stored_at: u64,
}

/// Offsets and lengths of data, as they are in the archive.
pub type RawMap = Vec<(u64, u64)>;

/// Length of the file, and its map.
pub struct Sparse {
    /// Length of the file, bytes.
    pub len_bytes: u64,
    /// Offsets and lengths of the data.
    pub map: RawMap,
}

impl Sparse {
    /// Reads the map of GNU's old form: in the header, and in blocks after it.
    pub fn old(header: Header<'_>, cursor: &mut Cursor<'_>) -> Result<Self> {
        let mut map = Vec::new();
        add_old(header.0, OLD_MAP, ENTRIES_IN_HEADER, &mut map)?;
        let mut is_continued = header.0[OLD_IS_CONTINUED] != 0;
        while is_continued {
            let block = cursor.block()?;
            add_old(&block, 0, ENTRIES_IN_BLOCK, &mut map)?;
            is_continued = block[BLOCK_IS_CONTINUED] != 0;
        }
        Ok(Sparse { len_bytes: header.length_at(OLD_REAL_BYTES)?, map })
    }

    /// Reads the map of a pax form. Form 1.0 has it before the data, whose length is `size` with the map; `size` becomes
    /// that without it. `None`: the member is not sparse.
    pub fn pax(records: &mut SparseRecords, size: &mut u64, cursor: &mut Cursor<'_>) -> Result<Option<Self>> {
        let map = match (records.major.unwrap_or(0), records.minor.unwrap_or(0)) {
            (0, 0 | 1) => match records.map.take() {
                Some(map) => map,
                None if records.real_bytes.is_none() => return Ok(None),
                None => Vec::new(),
            },
            (1, 0) => read_text(size, cursor)?,
            (major, minor) => return Err(refused(format!("a sparse file of form {major}.{minor}"))),
        };
        let Some(len_bytes) = records.real_bytes else {
            return Err(refused("a sparse file without a length"));
        };
        Ok(Some(Sparse { len_bytes, map }))
    }

    /// Checks the map against the file's length and the `stored_bytes` of data. Entries without bytes are left out, and
    /// adjacent ones become one.
    pub fn runs(&self, stored_bytes: u64) -> Result<Box<[SparseRun]>> {
        if self.len_bytes > LEN_BYTES_MAX {
            return Err(refused(format!("a sparse file of {} bytes; up to 2^47", self.len_bytes)));
        }
        let mut runs: Vec<SparseRun> = Vec::new();
        let (mut end, mut stored_at) = (0, 0);
        for &(start, len) in &self.map {
            let next = start.checked_add(len).filter(|&next| next <= self.len_bytes);
            let Some(next) = next.filter(|_| start >= end) else {
                let what = format!(
                    "the map of a sparse file of {} bytes has {len} bytes at {start} after byte {end}",
                    self.len_bytes
                );
                return Err(refused(what));
            };
            match runs.last_mut() {
                _ if len == 0 => {}
                Some(last) if last.end == start => last.end = next,
                _ => runs.push(SparseRun { start, end: next, stored_at }),
            }
            (end, stored_at) = (next, stored_at + len);
        }
        match stored_at == stored_bytes {
            true => Ok(runs.into()),
            false => {
                let what =
                    format!("the map of a sparse file has {stored_at} bytes, the archive {stored_bytes}");
                Err(refused(what))
            }
        }
    }
}

/// Adds the entries of a header or block of the old form. The first one without bytes and offset ends the map.
fn add_old(block: &Block, first: usize, count: usize, map: &mut RawMap) -> Result<()> {
    let header = Header(block);
    for entry in (0..count).map(|n| first + n * 24) {
        if block[entry + 12] == 0 {
            break;
        }
        push(map, (header.length_at(entry..entry + 12)?, header.length_at(entry + 12..entry + 24)?))?;
    }
    Ok(())
}

fn push(map: &mut RawMap, entry: (u64, u64)) -> Result<()> {
    match map.len() < ENTRIES_MAX {
        true => {
            map.push(entry);
            Ok(())
        }
        false => Err(refused("the map of a sparse file has more than 2^20 entries")),
    }
}

/// Reads the map of form 1.0: numbers in lines, the number of entries first, and padding up to a whole block.
fn read_text(size: &mut u64, cursor: &mut Cursor<'_>) -> Result<RawMap> {
    let mut numbers = Numbers { cursor, block: [0; BLOCK_BYTES], at: BLOCK_BYTES, left: size };
    let count = numbers.next()?;
    let mut map = Vec::new();
    for _ in 0..count {
        let offset = numbers.next()?;
        push(&mut map, (offset, numbers.next()?))?;
    }
    Ok(map)
}

struct Numbers<'c, 'a> {
    cursor: &'c mut Cursor<'a>,
    block: Block,
    /// Position in `block`.
    at: usize,
    /// Bytes of the member after `block`.
    left: &'c mut u64,
}

impl Numbers<'_, '_> {
    fn next(&mut self) -> Result<u64> {
        let mut number: u64 = 0;
        for digits in 0..=DIGITS_MAX {
            let byte = self.byte()?;
            if byte == b'\n' && digits > 0 {
                return Ok(number);
            }
            let next = char::from(byte).to_digit(10).map(u64::from);
            let next = next.and_then(|digit| number.checked_mul(10)?.checked_add(digit));
            number = next.ok_or_else(damaged)?;
        }
        Err(damaged())
    }

    fn byte(&mut self) -> Result<u8> {
        if self.at == BLOCK_BYTES {
            *self.left = self.left.checked_sub(BLOCK_BYTES as u64).ok_or_else(damaged)?;
            self.block = self.cursor.block()?;
            self.at = 0;
        }
        self.at += 1;
        Ok(self.block[self.at - 1])
    }
}

fn damaged() -> BuildError {
    refused("the map of a sparse file is damaged")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(len_bytes: u64, map: &[(u64, u64)], stored: u64) -> Option<Vec<(u64, u64, u64)>> {
        let runs = Sparse { len_bytes, map: map.to_vec() }.runs(stored).ok()?;
        Some(runs.iter().map(|run| (run.start, run.end, run.stored_at)).collect())
    }

    #[test]
    fn maps_become_runs() {
        assert_eq!(runs(100, &[], 0), Some(vec![]));
        assert_eq!(runs(100, &[(100, 0)], 0), Some(vec![]));
        assert_eq!(
            runs(100, &[(10, 5), (15, 5), (30, 0), (40, 1), (100, 0)], 11),
            Some(vec![(10, 20, 0), (40, 41, 10)])
        );
    }

    #[test]
    fn maps_that_contradict_the_file_are_refused() {
        for map in [
            &[(10, 5), (14, 1)][..],
            &[(10, 5), (0, 1)],
            &[(99, 2)],
            &[(101, 0)],
            &[(u64::MAX, 1)],
            &[(1 << 63, 1 << 63)],
            &[(5, u64::MAX)],
        ] {
            let sum = map.iter().fold(0u64, |sum, (_, len)| sum.wrapping_add(*len));
            assert_eq!(runs(100, map, sum), None, "{map:?}");
        }
        assert_eq!(runs(100, &[(0, 10)], 9), None);
        assert_eq!(runs(100, &[(0, 10)], 11), None);
        assert_eq!(runs((1 << 47) + 1, &[], 0), None);
    }
}
