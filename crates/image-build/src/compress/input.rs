//! How the bytes of a segment come to the thread that works on it.
//!
//! The builder's thread has read those of short segments. Those of a long one are read by the thread that works on it: all
//! at once, or a window of them after another.
//!
//! The bytes of a long segment are in no cache of the processor any more when the last of them have been read, and their
//! memory is long too, which the kernel fills with zeroes first. So what can be compressed while it is read has a window
//! that stays in the second cache. Which bytes a window has is of no importance for the image: see `segment`.

use super::buffers::Buffer;
use crate::Result;
use crate::content::RangeReader;
use std::time::{Duration, Instant};

/// The length of a window, unless more bytes are needed at once.
const WINDOW_BYTES: usize = 512 << 10;

/// The bytes of a segment.
pub enum Src {
    /// They are here.
    Bytes(Buffer),
    /// The thread that works on the segment reads them, to its private memory.
    Unread {
        /// Their number.
        len: usize,
        /// Reads them.
        range: Box<dyn RangeReader>,
    },
}

impl Src {
    /// Length, bytes.
    pub fn len(&self) -> usize {
        match self {
            Src::Bytes(bytes) => bytes.len(),
            Src::Unread { len, .. } => *len,
        }
    }

    /// Returns how a thread gets the bytes. Those that are not here are read to `memory`.
    pub fn input<'s>(&'s mut self, memory: &'s mut Buffer) -> SegmentInput<'s> {
        match self {
            Src::Bytes(bytes) => SegmentInput::of_bytes(bytes),
            Src::Unread { len, range } => SegmentInput::unread(*len, &**range, memory),
        }
    }

    /// Returns its memory, if that is not the thread's own.
    pub fn into_memory(self) -> Option<Buffer> {
        match self {
            Src::Bytes(bytes) => Some(bytes),
            Src::Unread { .. } => None,
        }
    }
}

impl From<Vec<u8>> for Src {
    fn from(bytes: Vec<u8>) -> Self {
        Src::Bytes(bytes.into())
    }
}

impl From<Buffer> for Src {
    fn from(bytes: Buffer) -> Self {
        Src::Bytes(bytes)
    }
}

/// The bytes of a segment, for the thread that works on it: a window of them has been read.
pub struct SegmentInput<'s> {
    len: usize,
    /// Reads the bytes; `None`: all are in memory.
    range: Option<&'s dyn RangeReader>,
    /// The bytes of the segment from `begin` to `end` are at its beginning.
    memory: &'s mut Buffer,
    begin: usize,
    end: usize,
    reading: Duration,
}

impl<'s> SegmentInput<'s> {
    /// All of these bytes.
    pub fn of_bytes(memory: &'s mut Buffer) -> Self {
        let len = memory.len();
        SegmentInput { len, range: None, memory, begin: 0, end: len, reading: Duration::ZERO }
    }

    /// Nothing is read yet of this range of `len` bytes.
    pub fn unread(len: usize, range: &'s dyn RangeReader, memory: &'s mut Buffer) -> Self {
        SegmentInput { len, range: Some(range), memory, begin: 0, end: 0, reading: Duration::ZERO }
    }

    /// Length of the segment, bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Time that reading has taken.
    pub fn reading(&self) -> Duration {
        self.reading
    }

    /// Returns all bytes, which are read if they are not here.
    pub fn all(&mut self) -> Result<&[u8]> {
        if self.range.is_some() {
            (self.begin, self.end) = (0, 0);
        }
        self.read_to(self.len)
    }

    /// Moves the window to begin at byte `from` of the segment, which is in it or at its end, and reads on. Returns the
    /// window, which has more of the bytes from there on than before, unless that is impossible. Bytes that are here are
    /// one window.
    pub fn read_on(&mut self, from: usize) -> Result<&[u8]> {
        if self.range.is_none() {
            return Ok(&self.memory[from..]);
        }
        let has = self.end - from;
        self.memory.copy_within(from - self.begin..self.end - self.begin, 0);
        self.begin = from;
        // Little is left of most windows. If much is, more bytes are needed at once.
        let window_bytes = if has <= WINDOW_BYTES / 2 { WINDOW_BYTES } else { 4 * has };
        self.read_to(self.len.min(from + window_bytes))
    }

    /// Makes the window end at byte `end` of the segment. It ended before.
    fn read_to(&mut self, end: usize) -> Result<&[u8]> {
        let (has, len) = (self.end - self.begin, end - self.begin);
        let Some(range) = self.range else { return Ok(&self.memory[..len]) };
        if self.memory.len() < len {
            let mut longer = Buffer::default();
            longer.set_len(len.next_power_of_two().max(WINDOW_BYTES));
            longer[..has].copy_from_slice(&self.memory[..has]);
            *self.memory = longer;
        }
        let begun = Instant::now();
        range.read(self.end as u64, &mut self.memory[has..len])?;
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
        fn read(&self, at: u64, buf: &mut [u8]) -> Result<()> {
            (at as usize..).zip(buf).for_each(|(at, slot)| *slot = byte(at));
            Ok(())
        }
    }

    #[test]
    fn windows_have_the_bytes_of_the_segment_and_grow_as_long_as_it_is() {
        let mut memory = Buffer::default();
        for len in [1, 1000, WINDOW_BYTES - 1, WINDOW_BYTES, WINDOW_BYTES + 1, (5 << 20) + 7] {
            let mut unread = SegmentInput::unread(len, &Numbers, &mut memory);
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
