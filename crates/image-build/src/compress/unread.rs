//! The bytes of a segment that the thread which works on it reads: all at once, or a window of them after another.
//!
//! The bytes of a long segment are in no cache of the processor any more when the last of them have been read, and their
//! memory is long too, which the kernel fills with zeroes first. So what can be compressed while it is read has a window
//! that stays in the second cache. Which bytes a window has is of no importance for the image: see `segment`.

use super::buffers::Buffer;
use crate::BuildError;
use crate::content::RangeReader;
use std::time::{Duration, Instant};

/// The length of a window, unless more bytes are needed at once.
const WINDOW_BYTES: usize = 512 << 10;

/// A segment that is in a file, and a window of its bytes that have been read.
pub struct Unread<'s> {
    len: usize,
    range: &'s dyn RangeReader,
    /// The bytes of the segment from `begin` to `end` are at its beginning.
    memory: &'s mut Buffer,
    begin: usize,
    end: usize,
    reading: Duration,
}

impl<'s> Unread<'s> {
    /// Nothing is read yet of this range of `len` bytes.
    pub fn new(len: usize, range: &'s dyn RangeReader, memory: &'s mut Buffer) -> Self {
        Unread { len, range, memory, begin: 0, end: 0, reading: Duration::ZERO }
    }

    /// Length of the segment, bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Time that reading has taken.
    pub fn reading(&self) -> Duration {
        self.reading
    }

    /// Reads all of the segment.
    pub fn all(&mut self) -> Result<&[u8], BuildError> {
        (self.begin, self.end) = (0, 0);
        self.read_to(self.len)
    }

    /// Moves the window to begin at byte `from` of the segment, which is in it or at its end, and reads on. Returns the
    /// window, which has more of the bytes from there on than before, unless that is impossible.
    pub fn read_on(&mut self, from: usize) -> Result<&[u8], BuildError> {
        let has = self.end - from;
        self.memory.copy_within(from - self.begin..self.end - self.begin, 0);
        self.begin = from;
        // Little is left of most windows. If much is, more bytes are needed at once.
        let window_bytes = if has <= WINDOW_BYTES / 2 { WINDOW_BYTES } else { 4 * has };
        self.read_to(self.len.min(from + window_bytes))
    }

    /// Makes the window end at byte `end` of the segment. It ended before.
    fn read_to(&mut self, end: usize) -> Result<&[u8], BuildError> {
        let (has, len) = (self.end - self.begin, end - self.begin);
        if self.memory.len() < len {
            let mut longer = Buffer::default();
            longer.set_len(len.next_power_of_two().max(WINDOW_BYTES));
            longer[..has].copy_from_slice(&self.memory[..has]);
            *self.memory = longer;
        }
        let begun = Instant::now();
        self.range.read(self.end as u64, &mut self.memory[has..len])?;
        self.reading += begun.elapsed();
        self.end = end;
        Ok(&self.memory[..len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of which each piece is different.
    struct Numbers;

    fn byte(at: usize) -> u8 {
        (at.wrapping_mul(0x9e37_79b9) >> 13) as u8
    }

    impl RangeReader for Numbers {
        fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), BuildError> {
            (at as usize..).zip(buf).for_each(|(at, slot)| *slot = byte(at));
            Ok(())
        }
    }

    #[test]
    fn windows_have_the_bytes_of_the_segment_and_grow_as_long_as_it_is() {
        let mut memory = Buffer::default();
        for len in [1, 1000, WINDOW_BYTES - 1, WINDOW_BYTES, WINDOW_BYTES + 1, (5 << 20) + 7] {
            let mut unread = Unread::new(len, &Numbers, &mut memory);
            let (mut from, mut has, mut step) = (0, 0, 1);
            while from + has < len {
                let window = unread.read_on(from).unwrap();
                assert!(
                    window.len() > has && window.iter().copied().eq((from..).map(byte).take(window.len()))
                );
                assert!(window.len() >= WINDOW_BYTES.min(len - from));
                // Nothing, much or all of it is used.
                let used = [0, window.len() / 3, window.len() - 1, window.len()][step % 4];
                (from, has, step) = (from + used, window.len() - used, step * 5 + 1);
            }
            let all = unread.all().unwrap();
            assert!(all.len() == len && all.iter().copied().eq((0..len).map(byte)), "{len}");
        }
    }
}
