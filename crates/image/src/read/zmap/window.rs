//! A few hundred bytes of an index at a time, on the stack.
//!
//! Neighbouring entries are asked for one after the other, so a lookup costs a read or two of the medium.
//! It knows nothing of what the bytes mean.

use crate::read::Bytes;
use crate::{Address, ImageError, Space};

/// Bytes per read. Every form's entries are aligned to their size, so none crosses such a border.
const WINDOW_BYTES: u64 = 512;

/// Reads an index; holds the last part that was read.
pub(super) struct Window<'a> {
    bytes: &'a dyn Bytes,
    space: Space,
    begin: u64,
    end: u64,
    at: u64,
    len: usize,
    buf: [u8; WINDOW_BYTES as usize],
}

impl<'a> Window<'a> {
    /// Over the bytes from `begin` to `end`.
    pub(super) fn new(bytes: &'a dyn Bytes, begin: Address, end: u64) -> Self {
        let (space, begin) = (begin.space, begin.offset);
        Window { bytes, space, begin, end, at: 0, len: 0, buf: [0; WINDOW_BYTES as usize] }
    }

    /// The `N` bytes at `offset`, which is a multiple of `N`.
    pub(super) fn array<const N: usize>(&mut self, offset: u64) -> Result<[u8; N], ImageError> {
        if let Some(found) = self.held(offset) {
            return Ok(found);
        }
        self.fill(offset)?;
        self.held(offset).ok_or_else(|| {
            ImageError::corrupt(Address { space: self.space, offset }, "an index entry outside of its index")
        })
    }

    fn held<const N: usize>(&self, offset: u64) -> Option<[u8; N]> {
        let from = usize::try_from(offset.checked_sub(self.at)?).ok()?;
        self.buf.get(..self.len)?.get(from..from.checked_add(N)?)?.try_into().ok()
    }

    fn fill(&mut self, offset: u64) -> Result<(), ImageError> {
        let border = offset & !(WINDOW_BYTES - 1);
        let from = border.max(self.begin);
        let to = border.saturating_add(WINDOW_BYTES).min(self.end);
        self.len = 0;
        let len = to.saturating_sub(from) as usize;
        if let Some(buf) = self.buf.get_mut(..len) {
            self.bytes.read_at(Address { space: self.space, offset: from }, buf)?;
            (self.at, self.len) = (from, len);
        }
        Ok(())
    }
}
