//! [`ForkShared`]: memory that a process shares with those that it forks, for bytes on their way between them.
//!
//! It is no file, so no process can make it shorter, and no limit of the length of files holds for it. Each side takes the
//! other for hostile: bytes are copied in and out by atomic accesses, so a change at the same time changes bytes only, and
//! there are no references to the memory.

use crate::SysError;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const WORD_BYTES: usize = size_of::<u64>();

/// A range of memory.
#[derive(Debug)]
pub struct ForkShared {
    base: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: the value has the address and length of a mapping, which are not bound to a thread and never change; all accesses
// to the memory are atomic.
unsafe impl Send for ForkShared {}
// SAFETY: as above.
unsafe impl Sync for ForkShared {}

impl ForkShared {
    /// Maps `len_bytes` bytes, one at least. They are zeroes, and use memory when they are accessed first.
    pub fn new(len_bytes: usize) -> Result<Self, SysError> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        let len_bytes = len_bytes.max(1);
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no other.
        let addr =
            unsafe { libc::mmap(std::ptr::null_mut(), len_bytes, access, kind | libc::MAP_NORESERVE, -1, 0) };
        match NonNull::new(addr.cast::<u8>()) {
            Some(base) if addr != libc::MAP_FAILED => Ok(ForkShared { base, len_bytes }),
            _ => Err(SysError::last(format!("mapping {len_bytes} bytes to share"))),
        }
    }

    /// Copies `bytes` to byte `offset` on. False, and nothing is copied, if they do not lie inside.
    #[must_use]
    pub fn write(&self, offset: usize, bytes: &[u8]) -> bool {
        let Some(at) = self.at(offset, bytes.len()) else { return false };
        let (head, rest) = bytes.split_at(head_bytes(at).min(bytes.len()));
        let (words, tail) = rest.as_chunks::<WORD_BYTES>();
        let put = |from: usize, bytes: &[u8]| {
            // SAFETY: `at` and the number of all bytes were checked against the mapping, which lives as long as `self`.
            let store = |(n, byte): (usize, &u8)| unsafe { byte_at(at, from + n) }.store(*byte, RELAXED);
            bytes.iter().enumerate().for_each(store);
        };
        put(0, head);
        for (n, word) in words.iter().enumerate() {
            // SAFETY: as above; after the head, the address is a multiple of a word.
            let shared = unsafe { word_at(at, head.len() + n * WORD_BYTES) };
            shared.store(u64::from_ne_bytes(*word), RELAXED);
        }
        put(bytes.len() - tail.len(), tail);
        true
    }

    /// Fills `bytes` from byte `offset` on. False, and nothing is copied, if they do not lie inside.
    #[must_use]
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> bool {
        let len = bytes.len();
        let Some(at) = self.at(offset, len) else { return false };
        let (head, rest) = bytes.split_at_mut(head_bytes(at).min(len));
        let (words, tail) = rest.as_chunks_mut::<WORD_BYTES>();
        let get = |from: usize, bytes: &mut [u8]| {
            // SAFETY: as in `write`.
            let load = |(n, byte): (usize, &mut u8)| *byte = unsafe { byte_at(at, from + n) }.load(RELAXED);
            bytes.iter_mut().enumerate().for_each(load);
        };
        get(0, head);
        for (n, word) in words.iter_mut().enumerate() {
            // SAFETY: as in `write`.
            let shared = unsafe { word_at(at, head.len() + n * WORD_BYTES) };
            *word = shared.load(RELAXED).to_ne_bytes();
        }
        get(len - tail.len(), tail);
        true
    }

    /// The address of byte `offset`, if as many bytes follow.
    fn at(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len)?;
        // SAFETY: the offset lies inside the mapping, or is its end.
        (end <= self.len_bytes).then(|| unsafe { self.base.add(offset) })
    }
}

/// A message announces bytes to the other process, and orders these accesses.
const RELAXED: Ordering = Ordering::Relaxed;

/// Bytes up to the next address that is a multiple of a word.
fn head_bytes(at: NonNull<u8>) -> usize {
    at.addr().get().wrapping_neg() % WORD_BYTES
}

/// The byte `n` after `at`.
///
/// # Safety
/// It lies inside a mapping that lives as long as the result.
unsafe fn byte_at<'a>(at: NonNull<u8>, n: usize) -> &'a AtomicU8 {
    // SAFETY: the caller's.
    unsafe { AtomicU8::from_ptr(at.as_ptr().add(n)) }
}

/// The word `n` bytes after `at`.
///
/// # Safety
/// It lies inside a mapping that lives as long as the result, at a multiple of its length.
unsafe fn word_at<'a>(at: NonNull<u8>, n: usize) -> &'a AtomicU64 {
    // SAFETY: the caller's.
    unsafe { AtomicU64::from_ptr(at.as_ptr().add(n).cast()) }
}

impl Drop for ForkShared {
    fn drop(&mut self) {
        // SAFETY: the range is this value's mapping, to which nothing refers any more. It cannot fail for a mapping as a whole.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_from_any_place_and_ranges_outside_are_refused() {
        let shared = ForkShared::new(4096).unwrap();
        let bytes: Vec<u8> = (0..200).map(|n| n as u8 + 1).collect();
        for offset in (0..20).chain(4096 - 222..4096 - 202) {
            for len in (0..20).chain([100, 199, 200]) {
                let mut read = vec![0; len + 2];
                assert!(shared.write(offset, &[0; 202]) && shared.write(offset + 1, &bytes[..len]));
                assert!(shared.read(offset, &mut read), "{offset} {len}");
                assert!(
                    read[0] == 0 && read[1..=len] == bytes[..len] && read[len + 1] == 0,
                    "{offset} {len}"
                );
            }
        }
        for (offset, len) in [(4096, 1), (4095, 2), (usize::MAX, 1), (usize::MAX, 0), (0, 4097)] {
            assert!(!shared.write(offset, &vec![1; len]) && !shared.read(offset, &mut vec![1; len]));
        }
        assert!(shared.write(4096, &[]) && shared.read(4096, &mut []));
    }
}
