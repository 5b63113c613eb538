//! Tables of bytes.

use super::{CHUNK_BYTES, Table};
use crate::Result;
use std::ops::Range;

impl Table<u8> {
    /// Appends bytes, at most a chunk, so that they are consecutive in memory. Returns their position.
    pub fn append_run(&mut self, bytes: &[u8]) -> Result<u64> {
        assert!(bytes.len() <= CHUNK_BYTES);
        if self.len() % CHUNK_BYTES + bytes.len() > CHUNK_BYTES {
            self.grow(self.len().next_multiple_of(CHUNK_BYTES), 0)?;
        }
        let at = self.len();
        self.grow(at + bytes.len(), 0)?;
        self.write_at(at as u64, bytes);
        Ok(at as u64)
    }

    /// Bytes that [`append_run`](Self::append_run) appended.
    pub fn run(&self, at: u64, len: usize) -> &[u8] {
        if len == 0 {
            return &[];
        }
        let at = at as usize;
        let within = at % CHUNK_BYTES;
        self.records(at / CHUNK_BYTES, within..within + len)
    }

    /// Replaces bytes, all of which are there.
    pub fn write_at(&mut self, at: u64, bytes: &[u8]) {
        for (piece, within) in pieces(at, bytes.len()) {
            let start = piece.start % CHUNK_BYTES;
            let records = self.records_mut(piece.start / CHUNK_BYTES, start..start + piece.len());
            records.copy_from_slice(&bytes[within..][..piece.len()]);
        }
    }

    /// Bytes that are there.
    pub fn read_at(&self, range: Range<u64>) -> Vec<u8> {
        let mut bytes = Vec::with_capacity((range.end - range.start) as usize);
        for (piece, _) in pieces(range.start, (range.end - range.start) as usize) {
            let start = piece.start % CHUNK_BYTES;
            bytes.extend_from_slice(self.records(piece.start / CHUNK_BYTES, start..start + piece.len()));
        }
        bytes
    }
}

/// Cuts a range where chunks begin. Returns each piece, with its position in the range.
fn pieces(at: u64, len: usize) -> impl Iterator<Item = (Range<usize>, usize)> {
    let (first, end) = (at as usize, at as usize + len);
    let mut start = first;
    std::iter::from_fn(move || {
        let piece = start..end.min((start / CHUNK_BYTES + 1) * CHUNK_BYTES);
        start = piece.end;
        (!piece.is_empty()).then(|| (piece.clone(), piece.start - first))
    })
}

#[cfg(test)]
mod tests {
    use super::super::Spill;
    use super::*;

    #[test]
    fn bytes_cross_chunks_and_runs_do_not() {
        let spill = Spill::in_directory(&std::env::temp_dir(), 0).unwrap();
        let mut table = Table::<u8>::filled(&spill, 3 * CHUNK_BYTES - 10, 1).unwrap();
        let across: Vec<u8> = (0..2 * CHUNK_BYTES).map(|n| (n % 251) as u8).collect();
        let end = 100_000 + across.len() as u64;
        table.write_at(100_000, &across);
        assert_eq!(table.read_at(100_000..end), across);
        assert_eq!(table.read_at(99_999..100_002), [1, 0, 1]);
        assert!(table.read_at(5..5).is_empty());
        let at = table.append_run(b"behind the border").unwrap();
        assert_eq!((at, table.run(at, 6)), (3 * CHUNK_BYTES as u64, b"behind".as_slice()));
        let next = table.append_run(b"x").unwrap();
        assert_eq!((next, table.run(next, 1)), (at + 17, b"x".as_slice()));
        assert_eq!(table.run(u64::MAX, 0), b"");
    }
}
