//! A buffer on the stack for a few hundred bytes of an index, which does not interpret them.
//!
//! A lookup reads neighbouring entries one after the other, so it costs a read or two through the metadata cache.

use crate::read::Bytes;
use crate::{Address, ImageError, Result, Space};

/// Bytes per read. Entries of all forms are aligned to their size, so none crosses a multiple of this.
const BUFFER_BYTES: u64 = 512;

/// Reads an index, and buffers the last part that was read.
pub(super) struct IndexReader<'a> {
    bytes: &'a dyn Bytes,
    space: Space,
    begin: u64,
    end: u64,
    at: u64,
    len: usize,
    buf: [u8; BUFFER_BYTES as usize],
}

impl<'a> IndexReader<'a> {
    /// Makes a reader with an empty buffer over the bytes from `begin` to `end`.
    pub(super) fn new(bytes: &'a dyn Bytes, begin: Address, end: u64) -> Self {
        let (space, begin) = (begin.space, begin.offset);
        IndexReader { bytes, space, begin, end, at: 0, len: 0, buf: [0; BUFFER_BYTES as usize] }
    }

    /// Returns the `N` bytes at `offset`, which is a multiple of `N`.
    pub(super) fn array<const N: usize>(&mut self, offset: u64) -> Result<[u8; N]> {
        if let Some(found) = self.buffered(offset) {
            return Ok(found);
        }
        self.fill(offset)?;
        self.buffered(offset).ok_or_else(|| {
            ImageError::corrupt(Address { space: self.space, offset }, "an index entry outside of its index")
        })
    }

    fn buffered<const N: usize>(&self, offset: u64) -> Option<[u8; N]> {
        let from = usize::try_from(offset.checked_sub(self.at)?).ok()?;
        self.buf.get(..self.len)?.get(from..from.checked_add(N)?)?.try_into().ok()
    }

    fn fill(&mut self, offset: u64) -> Result<()> {
        let border = offset & !(BUFFER_BYTES - 1);
        let from = border.max(self.begin);
        let to = border.saturating_add(BUFFER_BYTES).min(self.end);
        self.len = 0;
        let len = to.saturating_sub(from) as usize;
        if let Some(buf) = self.buf.get_mut(..len) {
            self.bytes.read_at(Address { space: self.space, offset: from }, buf)?;
            (self.at, self.len) = (from, len);
        }
        Ok(())
    }
}
