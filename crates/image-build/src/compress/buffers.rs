//! Memory of segments, to be used again.
//!
//! New memory is zeroed by the kernel, a page at a time, which takes longer than writing to it, and it is in no cache of
//! the processor. So the memory of a segment that is written serves for a later one. Lengths are rounded up to a power of
//! two, so that much of it fits; what is not accessed takes no memory.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Shorter memory is not kept: the allocator has it at hand.
const KEPT_BYTES_MIN: usize = 4 << 10;
/// Memory serves for segments down to this part of its length: longer ones would take new memory.
const LONGER_MAX: usize = 4;
/// The same if the memory of the build is limited: what is under way is counted by the lengths of segments.
const LIMITED_LONGER_MAX: usize = 1;

/// Bytes at the beginning of memory that may be longer. A buffer becomes longer without writing to bytes that it had
/// before.
#[derive(Debug, Clone, Default)]
pub struct Buffer {
    /// All of it is initialised.
    memory: Vec<u8>,
    len: usize,
}

impl PartialEq for Buffer {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Buffer {}

impl Buffer {
    /// Makes it `len` bytes long if it is longer.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Appends `count` bytes with any contents, and returns them.
    pub fn append_any(&mut self, count: usize) -> &mut [u8] {
        let (at, len) = (self.len, self.len + count);
        if self.memory.len() < len {
            self.memory.resize(len, 0);
        }
        self.len = len;
        &mut self.memory[at..len]
    }

    /// Appends zeroes.
    pub fn append_zeroes(&mut self, count: usize) {
        self.append_any(count).fill(0);
    }

    /// Appends bytes.
    pub fn append(&mut self, bytes: &[u8]) {
        self.append_any(bytes.len()).copy_from_slice(bytes);
    }

    /// Makes it `len` bytes long. Its contents are arbitrary.
    pub fn set_len(&mut self, len: usize) {
        if self.memory.capacity() < len {
            self.memory = vec![0; len.next_power_of_two()];
        }
        if self.memory.len() < len {
            self.memory.clear();
            self.memory.resize(len, 0);
        }
        self.len = len;
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(memory: Vec<u8>) -> Self {
        let len = memory.len();
        Buffer { memory, len }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[..self.len]
    }
}

/// Memory that waits for another segment.
pub struct Buffers {
    free: Vec<Vec<u8>>,
    free_bytes: usize,
    most_bytes: usize,
    longer_max: usize,
}

impl Buffers {
    /// Keeps up to `most_bytes`.
    pub fn new(most_bytes: usize) -> Self {
        Buffers { free: Vec::new(), free_bytes: 0, most_bytes, longer_max: LONGER_MAX }
    }

    /// Keeps up to `most_bytes`, in a build whose memory is limited.
    pub fn limited(most_bytes: usize) -> Self {
        Buffers { longer_max: LIMITED_LONGER_MAX, ..Self::new(most_bytes) }
    }

    /// Returns `len` bytes with any contents.
    pub fn take(&mut self, len: usize) -> Buffer {
        let mut buffer = self.take_empty(len);
        buffer.set_len(len);
        buffer
    }

    /// Returns an empty buffer with memory for `len` bytes.
    fn take_empty(&mut self, len: usize) -> Buffer {
        Buffer { memory: self.take_memory(len), len: 0 }
    }

    /// Returns memory for `len` bytes, with any contents, and of any length.
    fn take_memory(&mut self, len: usize) -> Vec<u8> {
        if len < KEPT_BYTES_MIN || self.most_bytes == 0 {
            return vec![0; len];
        }
        let capacity = len.next_power_of_two();
        // The memory that was kept last is most likely in a cache.
        let fitting = (self.free.iter().enumerate().rev())
            .filter(|(_, memory)| (capacity..=self.longer_max * capacity).contains(&memory.capacity()))
            .min_by_key(|(_, memory)| memory.capacity());
        match fitting.map(|(index, _)| index) {
            Some(index) => {
                let memory = self.free.remove(index);
                self.free_bytes -= memory.capacity();
                memory
            }
            None => vec![0; capacity],
        }
    }

    /// Keeps the memory of a buffer, if there is room.
    pub fn keep(&mut self, Buffer { memory, .. }: Buffer) {
        let bytes = memory.capacity();
        // A block that grew has another length, and would never be taken.
        if bytes.is_power_of_two() && bytes >= KEPT_BYTES_MIN && bytes <= self.most_bytes - self.free_bytes {
            self.free_bytes += bytes;
            self.free.push(memory);
        }
    }
}

/// Memory for the blocks of segments, which the threads take when they begin one: so as much as they work on at once serves
/// for all, and segments that wait for a thread have none.
pub struct SharedBuffers(Mutex<Buffers>);

impl SharedBuffers {
    /// Keeps up to `most_bytes`.
    pub fn new(most_bytes: usize) -> Self {
        SharedBuffers(Mutex::new(Buffers::new(most_bytes)))
    }

    /// Returns an empty buffer with memory for `len` bytes.
    pub fn take(&self, len: usize) -> Buffer {
        self.lock().take_empty(len)
    }

    /// Keeps the memory of a buffer, if there is room.
    pub fn keep(&self, buffer: Buffer) {
        self.lock().keep(buffer);
    }

    fn lock(&self) -> MutexGuard<'_, Buffers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_up_to_the_limit() {
        let mut buffers = Buffers::new(12 << 20);
        let taken: Vec<_> = [3 << 20, 4 << 20, 5 << 20].map(|len| buffers.take(len)).into();
        assert!(taken.iter().all(|buffer| buffer.memory.capacity().is_power_of_two()));
        let places: Vec<_> = taken.iter().map(|buffer| buffer.as_ptr()).collect();
        taken.into_iter().for_each(|buffer| buffers.keep(buffer));
        // The third one was above the limit.
        assert_eq!(buffers.free_bytes, 8 << 20);
        let again = [4 << 20, (2 << 20) + 1].map(|len| buffers.take(len));
        assert!(again.iter().all(|buffer| places[..2].contains(&buffer.as_ptr())));
        assert_eq!(buffers.free_bytes, 0);
        assert!(buffers.take(2 << 20).memory.capacity() < 4 << 20);
    }

    #[test]
    fn the_shortest_memory_that_fits_is_taken_and_much_longer_memory_is_not() {
        let mut buffers = Buffers::new(1 << 20);
        let taken = [64 << 10, 16 << 10, 32 << 10, 16 << 10].map(|len| buffers.take(len));
        let places = taken.each_ref().map(|buffer| buffer.as_ptr());
        taken.into_iter().for_each(|buffer| buffers.keep(buffer));
        // Of equal ones, that which was kept last.
        let again = [10_000, 10_000, 10_000, 10_000].map(|len| buffers.take(len));
        assert_eq!(again.each_ref().map(|buffer| buffer.as_ptr()), [3, 1, 2, 0].map(|index| places[index]));
        let long = buffers.take(64 << 10);
        buffers.keep(long);
        let short = buffers.take(8192);
        assert_eq!((short.memory.capacity(), buffers.free_bytes), (8192, 64 << 10));
        let mut limited = Buffers::limited(1 << 20);
        limited.keep(buffers.take(64 << 10));
        let [shorter, equal] = [32 << 10, 40 << 10].map(|len| limited.take(len).memory.capacity());
        assert_eq!((shorter, equal, limited.free_bytes), (32 << 10, 64 << 10, 0));
    }

    #[test]
    fn memory_that_came_from_elsewhere_is_as_long_as_it_is_taken() {
        let mut buffers = Buffers::new(1 << 20);
        let mut elsewhere = Vec::with_capacity(16 << 10);
        elsewhere.resize(9000, 7);
        buffers.keep(elsewhere.into());
        assert_eq!((buffers.free_bytes, buffers.take(16 << 10).len()), (16 << 10, 16 << 10));
    }

    #[test]
    fn short_memory_is_exact_and_not_kept_and_no_limit_keeps_none() {
        let (mut some, mut none) = (Buffers::new(1 << 20), Buffers::new(0));
        let short = some.take(1000);
        assert_eq!(short.memory.capacity(), 1000);
        some.keep(short);
        assert_eq!(some.free_bytes, 0);
        let long = none.take((1 << 20) + 1);
        assert_eq!(long.memory.capacity(), (1 << 20) + 1);
        none.keep(long);
        none.keep(Vec::with_capacity(1 << 20).into());
        assert_eq!(none.free_bytes, 0);
    }

    #[test]
    fn a_buffer_keeps_its_memory_when_its_length_changes() {
        let mut buffer = Buffer::from(vec![7; 100]);
        for len in [10, 100, 0, 50] {
            buffer.set_len(len);
            assert!(buffer.len() == len && buffer.iter().all(|byte| *byte == 7), "{len}");
        }
        buffer.set_len(101);
        assert!(buffer.len() == 101 && buffer.iter().all(|byte| *byte == 0));
    }
}
