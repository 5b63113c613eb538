//! The index of a page and a number of pages, as two types that cannot be mixed up.

use crate::PAGE_SHIFT;
use std::fmt;

/// The index of a page in a store, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageIndex(pub u64);

/// A number of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageCount(pub u64);

impl PageIndex {
    /// The page that holds byte `offset_bytes`.
    pub const fn containing(offset_bytes: u64) -> Self {
        PageIndex(offset_bytes >> PAGE_SHIFT)
    }
}

impl PageCount {
    /// The number of pages that hold `len_bytes` bytes, the last page perhaps in part.
    pub const fn covering(len_bytes: u64) -> Self {
        PageCount((len_bytes >> PAGE_SHIFT) + ((len_bytes & ((1 << PAGE_SHIFT) - 1) != 0) as u64))
    }

    /// The number of bytes in this many pages; `None` if that exceeds 64 bits.
    pub const fn bytes(self) -> Option<u64> {
        self.0.checked_mul(1 << PAGE_SHIFT)
    }

    /// Whether `index` is one of the first `self` pages.
    pub const fn contains(self, index: PageIndex) -> bool {
        index.0 < self.0
    }
}

impl fmt::Display for PageIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for PageCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn covering_rounds_up_and_never_overflows() {
        for (len, pages) in [(0, 0), (1, 1), (4095, 1), (4096, 1), (4097, 2)] {
            assert_eq!(PageCount::covering(len), PageCount(pages), "{len}");
        }
        assert_eq!(PageCount::covering(u64::MAX), PageCount(1 << 52));
        assert_eq!(PageCount(1 << 52).bytes(), None);
    }

    #[test]
    fn containing_is_division_by_page_size() {
        assert_eq!(PageIndex::containing(4095), PageIndex(0));
        assert_eq!(PageIndex::containing(4096), PageIndex(1));
    }
}
