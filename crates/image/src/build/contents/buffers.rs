//! Memory of segments, to be used again.
//!
//! New memory is zeroed by the kernel, a page at a time, which takes longer than writing to it. So the memory of a segment
//! that is written serves for a later one. Lengths are rounded up to a power of two, so that much of it fits; what is not
//! accessed takes no memory.

use pagefold_sys::malloc::large_zeroed_block;

/// Shorter memory is not kept: the allocator has it at hand.
const KEPT_BYTES_MIN: usize = 1 << 20;

/// Memory that waits for another segment.
pub struct Buffers {
    free: Vec<Vec<u8>>,
    free_bytes: usize,
    most_bytes: usize,
}

impl Buffers {
    /// Keeps up to `most_bytes`.
    pub fn new(most_bytes: usize) -> Self {
        Buffers { free: Vec::new(), free_bytes: 0, most_bytes }
    }

    /// Returns memory for `len` bytes, with any contents.
    pub fn take(&mut self, len: usize) -> Vec<u8> {
        if len < KEPT_BYTES_MIN || self.most_bytes == 0 {
            return large_zeroed_block(len);
        }
        let capacity = len.next_power_of_two();
        match self.free.iter().rposition(|buffer| buffer.capacity() == capacity) {
            Some(index) => {
                self.free_bytes -= capacity;
                self.free.swap_remove(index)
            }
            None => large_zeroed_block(capacity),
        }
    }

    /// Keeps memory from [`Buffers::take`], if there is room.
    pub fn keep(&mut self, buffer: Vec<u8>) {
        let bytes = buffer.capacity();
        // A block that grew has another length, and would never be taken.
        if bytes.is_power_of_two() && bytes >= KEPT_BYTES_MIN && bytes <= self.most_bytes - self.free_bytes {
            self.free_bytes += bytes;
            self.free.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_the_same_size_is_used_again_up_to_the_limit() {
        let mut buffers = Buffers::new(12 << 20);
        let taken: Vec<_> = [3 << 20, 4 << 20, 5 << 20].map(|len| buffers.take(len)).into();
        assert!(taken.iter().all(|buffer| buffer.capacity().is_power_of_two()));
        let places: Vec<_> = taken.iter().map(|buffer| buffer.as_ptr()).collect();
        taken.into_iter().for_each(|buffer| buffers.keep(buffer));
        // The third one was above the limit.
        assert_eq!(buffers.free_bytes, 8 << 20);
        let again = [4 << 20, (2 << 20) + 1].map(|len| buffers.take(len));
        assert!(again.iter().all(|buffer| places[..2].contains(&buffer.as_ptr())));
        assert_eq!(buffers.free_bytes, 0);
        assert!(buffers.take(2 << 20).capacity() < 4 << 20);
    }

    #[test]
    fn short_memory_is_exact_and_not_kept_and_no_limit_keeps_none() {
        let (mut some, mut none) = (Buffers::new(1 << 20), Buffers::new(0));
        let short = some.take(1000);
        assert_eq!(short.capacity(), 1000);
        some.keep(short);
        assert_eq!(some.free_bytes, 0);
        let long = none.take((1 << 20) + 1);
        assert_eq!(long.capacity(), (1 << 20) + 1);
        none.keep(long);
        none.keep(Vec::with_capacity(1 << 20));
        assert_eq!(none.free_bytes, 0);
    }
}
