//! Cutting a byte range at page borders.
//!
//! I/O requests are byte ranges, and the store works in pages; this is the one place that converts between them.

use crate::{PAGE_SIZE, PageIndex};

/// The overlap of a byte range with one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The page.
    pub index: PageIndex,
    /// The first byte of the overlap, as an offset in the page.
    pub start: usize,
    /// Bytes of the overlap, 1 to 4096.
    pub len: usize,
    /// The first byte of the overlap, as an offset in the caller's buffer.
    pub at: usize,
}

impl Span {
    /// Whether the byte range contains the whole page.
    pub const fn is_whole(&self) -> bool {
        self.len == PAGE_SIZE
    }
}

/// The iterator that [`spans`] returns.
#[derive(Clone, Debug)]
pub struct Spans {
    offset: u64,
    at: usize,
    left: usize,
}

/// Iterates over the page spans of `len` bytes at byte `offset`, in ascending order.
///
/// The caller must ensure that `offset + len` does not overflow.
pub fn spans(offset: u64, len: usize) -> Spans {
    debug_assert!(offset.checked_add(len as u64).is_some());
    Spans { offset, at: 0, left: len }
}

impl Iterator for Spans {
    type Item = Span;

    fn next(&mut self) -> Option<Span> {
        if self.left == 0 {
            return None;
        }
        let start = (self.offset % PAGE_SIZE as u64) as usize;
        let len = self.left.min(PAGE_SIZE - start);
        let span = Span { index: PageIndex::containing(self.offset), start, len, at: self.at };
        self.offset += len as u64;
        self.at += len;
        self.left -= len;
        Some(span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_cover_the_range_once_and_in_order() {
        for offset in [0u64, 1, 511, 4095, 4096, 10_000] {
            for len in [0usize, 1, 512, 4096, 4097, 20_000] {
                let mut next = offset;
                for s in spans(offset, len) {
                    assert_eq!(s.index.0 * 4096 + s.start as u64, next);
                    assert_eq!(s.at as u64, next - offset);
                    assert!(s.len > 0 && s.start + s.len <= PAGE_SIZE);
                    next += s.len as u64;
                }
                assert_eq!(next, offset + len as u64);
            }
        }
    }
}
