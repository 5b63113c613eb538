//! A part of a source, as a source: an image inside a larger file.
//!
//! [`Section`] adds its start to each offset, and does nothing else. Its bytes are not copied, and reads need no alignment that
//! the source does not need.

use crate::{BackingError, ByteSource, Prefetched};

/// The bytes of a source from an offset to its end.
pub struct Section<S> {
    source: S,
    start: u64,
}

impl<S: ByteSource> Section<S> {
    /// The bytes of `source` from byte `start` on. Fails with [`BackingError::OutOfRange`] if the source ends before.
    pub fn new(source: S, start: u64) -> Result<Self, BackingError> {
        source.check_range(start, 0)?;
        Ok(Section { source, start })
    }

    /// The offset in the source of a range that lies inside this section.
    fn offset_of(&self, offset: u64, len_bytes: u64) -> Result<u64, BackingError> {
        self.check_range(offset, len_bytes)?;
        // The end of the range is not beyond that of the source, so the sum is a number.
        Ok(self.start.saturating_add(offset))
    }
}

impl<S: ByteSource> ByteSource for Section<S> {
    fn len_bytes(&self) -> u64 {
        self.source.len_bytes().saturating_sub(self.start)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BackingError> {
        self.source.read_at(self.offset_of(offset, buf.len() as u64)?, buf)
    }

    fn discard_cached(&self, offset: u64, len_bytes: u64) -> bool {
        self.source.discard_cached(self.start.saturating_add(offset), len_bytes)
    }

    fn prefetch(&self, offset: u64, len_bytes: u64) -> Prefetched {
        self.source.prefetch(self.start.saturating_add(offset), len_bytes)
    }

    fn describe(&self) -> String {
        format!("{}, from byte {}", self.source.describe(), self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Backing, MemoryBacking};
    use std::sync::Arc;

    #[test]
    fn a_section_reads_the_bytes_of_its_source_and_ends_with_it() {
        let medium = Arc::new(MemoryBacking::new(8192));
        let bytes: Vec<u8> = (0..8192u32).map(|n| (n * 7 / 3) as u8).collect();
        medium.write_at(0, &bytes).unwrap();
        for start in [0usize, 1, 512, 4096, 8191, 8192] {
            let section = Section::new(medium.clone(), start as u64).unwrap();
            let len = 8192 - start;
            assert_eq!(section.len_bytes(), len as u64);
            for (from, to) in [(0, len), (len / 3, len / 2), (len, len)] {
                let mut buf = vec![0; to - from];
                section.read_at(from as u64, &mut buf).unwrap();
                assert_eq!(buf, bytes[start + from..start + to]);
            }
            for (offset, len) in [(len as u64, 1), (0, len + 1), (u64::MAX, 1), (u64::MAX, 0)] {
                let read = section.read_at(offset, &mut vec![0; len]);
                assert!(matches!(read, Err(BackingError::OutOfRange { .. })), "{offset} {len}");
            }
        }
        for start in [8193, u64::MAX] {
            assert!(matches!(Section::new(medium.clone(), start), Err(BackingError::OutOfRange { .. })));
        }
    }
}
