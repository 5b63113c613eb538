//! Bytes that begin at a multiple of the page size, as direct I/O wants them.

use crate::PAGE_SIZE;
use std::ops::{Deref, DerefMut};

/// A buffer on the heap that begins at a multiple of [`PAGE_SIZE`].
///
/// Tools and tests use it. The buffers of a backing come from a reserved region instead.
#[derive(Debug)]
pub struct AlignedBytes {
    raw: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBytes {
    /// `len` bytes of value `fill`.
    pub fn new(len: usize, fill: u8) -> Self {
        let raw = vec![fill; len + PAGE_SIZE];
        let start = raw.as_ptr().align_offset(PAGE_SIZE);
        AlignedBytes { raw, start, len }
    }
}

impl Deref for AlignedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.raw[self.start..self.start + self.len]
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.raw[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_begin_at_a_page_wherever_the_buffer_is_moved() {
        let moved: Vec<_> =
            [0, 1, PAGE_SIZE, 3 * PAGE_SIZE + 1].map(|len| (len, AlignedBytes::new(len, 7))).into();
        for (len, bytes) in &moved {
            assert_eq!((bytes.as_ptr().align_offset(PAGE_SIZE), bytes.len()), (0, *len));
            assert!(bytes.iter().all(|byte| *byte == 7));
        }
    }
}
