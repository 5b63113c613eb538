//! [`Buffer`], a byte queue in a fixed allocation.
//!
//! A connection has two: one for its input, one for its output. The size of a buffer never changes, which bounds the
//! memory of a connection. It is zeroed once, at allocation; a device reads straight into it, over stale bytes. An
//! empty buffer is filled from its front again, so that a connection with little traffic touches few of its pages.

/// A byte queue in a fixed allocation: bytes `start..end` are filled.
pub struct Buffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Buffer {
    /// Makes an empty buffer of `capacity` bytes. The system allocates its pages as they are touched.
    pub fn new(capacity: usize) -> Self {
        Buffer { bytes: vec![0; capacity].into_boxed_slice(), start: 0, end: 0 }
    }

    /// The filled bytes, in the order they were appended.
    #[inline]
    pub fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// The number of filled bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether no byte is filled.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Whether all bytes are filled.
    pub fn is_full(&self) -> bool {
        self.len() == self.bytes.len()
    }

    /// Removes the first `n` filled bytes, or all if there are fewer.
    #[inline]
    pub fn consume(&mut self, n: usize) {
        self.start = (self.start + n).min(self.end);
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Moves the filled bytes to the front of the allocation if fewer than `n` bytes are free after them.
    #[inline]
    pub fn make_room(&mut self, n: usize) {
        if self.bytes.len() - self.end < n && self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
    }

    /// The free bytes after the filled ones. A caller that wrote some of them calls [`Buffer::advance`].
    #[inline]
    pub fn space(&mut self) -> &mut [u8] {
        &mut self.bytes[self.end..]
    }

    /// Appends the first `n` bytes of [`Buffer::space`].
    #[inline]
    pub fn advance(&mut self, n: usize) {
        self.end = (self.end + n).min(self.bytes.len());
    }

    /// Keeps only the first `len` filled bytes.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.end = self.end.min(self.start + len);
    }

    /// Appends `data`. The caller has made space for it.
    #[inline]
    pub fn put(&mut self, data: &[u8]) {
        self.grow(data.len()).copy_from_slice(data);
    }

    /// Appends `n` bytes with stale contents, and returns them for the caller to overwrite. The caller has made space.
    #[inline]
    pub fn grow(&mut self, n: usize) -> &mut [u8] {
        let at = self.end;
        self.end += n;
        &mut self.bytes[at..self.end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_consumed_in_the_order_of_appending() {
        let mut b = Buffer::new(8);
        b.put(b"abcdef");
        b.consume(4);
        b.make_room(4);
        b.put(b"ghij");
        assert_eq!(b.filled(), b"efghij");
        b.truncate(3);
        assert_eq!(b.filled(), b"efg");
        b.consume(9);
        assert!(b.is_empty() && b.space().len() == 8);
    }

    #[test]
    fn make_room_moves_bytes_only_if_needed() {
        let mut b = Buffer::new(8);
        b.put(b"abcd");
        b.consume(2);
        b.make_room(4);
        assert_eq!(b.space().len(), 4);
        b.make_room(5);
        assert_eq!((b.space().len(), b.filled()), (6, &b"cd"[..]));
    }
}
