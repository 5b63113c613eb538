//! A fixed piece of memory that bytes enter at one end and leave at the other.
//!
//! Both directions of a connection go through one of these. Its size never
//! changes, which is what bounds the memory of a connection; it is zeroed by the
//! system once, not per use, so that a device can read straight into it; and it
//! starts over at the front whenever it runs empty, so that a connection with
//! little traffic touches few pages of it.

/// Bytes `start..end` of a fixed allocation.
pub struct Buffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Buffer {
    /// An empty buffer of `capacity` bytes. The system backs them as they are touched.
    pub fn new(capacity: usize) -> Self {
        Buffer { bytes: vec![0; capacity].into_boxed_slice(), start: 0, end: 0 }
    }

    /// The bytes held.
    #[inline]
    pub fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// How many bytes are held.
    #[inline]
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether no bytes are held.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Whether no byte more can be held.
    pub fn is_full(&self) -> bool {
        self.len() == self.bytes.len()
    }

    /// Drops the first `n` bytes held; all of them if there are fewer.
    #[inline]
    pub fn consume(&mut self, n: usize) {
        self.start = (self.start + n).min(self.end);
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Moves the bytes held to the front if fewer than `n` bytes are free behind them.
    #[inline]
    pub fn make_room(&mut self, n: usize) {
        if self.bytes.len() - self.end < n && self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
    }

    /// The free bytes behind those held; after filling some, [`Buffer::advance`].
    #[inline]
    pub fn space(&mut self) -> &mut [u8] {
        &mut self.bytes[self.end..]
    }

    /// Counts the first `n` bytes of [`Buffer::space`] as held.
    #[inline]
    pub fn advance(&mut self, n: usize) {
        self.end = (self.end + n).min(self.bytes.len());
    }

    /// Drops all but the first `len` bytes held.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.end = self.end.min(self.start + len);
    }

    /// Appends `data`. The caller has made room for it.
    #[inline]
    pub fn put(&mut self, data: &[u8]) {
        self.grow(data.len()).copy_from_slice(data);
    }

    /// Appends `n` bytes of whatever the memory holds, to be overwritten. The caller has made room.
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
    fn bytes_leave_in_the_order_they_came() {
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
    fn room_is_made_only_when_needed() {
        let mut b = Buffer::new(8);
        b.put(b"abcd");
        b.consume(2);
        b.make_room(4);
        assert_eq!(b.space().len(), 4);
        b.make_room(5);
        assert_eq!((b.space().len(), b.filled()), (6, &b"cd"[..]));
    }
}
