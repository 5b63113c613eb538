//! Where answers to reads are made: one buffer a thread, paid from the image's budget.

use super::MountError;
use crate::{Image, ImageError};
use pagefold_backing::Aside;
use std::cell::RefCell;

/// The longest read request, bytes.
const READ_BYTES_MAX: u64 = 1 << 20;
/// The shortest that the kernel can be held to: a page.
const READ_BYTES_MIN: u64 = 4096;

/// What a buffer has behind the longest answer, bytes: the margin that the last cluster of an answer needs to be decoded in
/// place, which is a 256th of the cluster (of 1 MiB at most) and 32 bytes.
pub(super) const DECODING_ROOM_BYTES: usize = 8 << 10;

/// What a mount sets aside of the budget at least: one buffer of the shortest kind.
pub const LEAST_REPLY_BYTES: u64 = READ_BYTES_MIN + DECODING_ROOM_BYTES as u64;

/// How long reads may be, and the memory that stands for.
#[derive(Debug)]
pub(super) struct ReplyMemory {
    /// Threads that answer.
    pub(super) threads: usize,
    /// Bytes of each one's buffer.
    pub(super) read_bytes: usize,
    /// Held for as long as the threads are there.
    #[expect(dead_code, reason = "held for its drop")]
    aside: Aside,
}

impl ReplyMemory {
    /// Takes a part of the budget for good, and leaves what a read needs. A small budget has small reads and
    /// perhaps fewer threads.
    pub(super) fn take(image: &Image, threads: usize) -> Result<Self, MountError> {
        let (limit, reserve) = (image.budget().stats().limit_bytes, image.reserve_bytes());
        let Some((threads, read_bytes)) = share(limit, reserve, threads.max(1) as u64) else {
            let needed_bytes = least_bytes(image);
            return Err(ImageError::TooLittleMemory { needed_bytes, limit_bytes: limit }.into());
        };
        let total = (read_bytes + DECODING_ROOM_BYTES as u64) * threads;
        let aside = image.budget().set_aside(total);
        let aside =
            aside.map_err(|_| ImageError::TooLittleMemory { needed_bytes: total, limit_bytes: limit })?;
        Ok(ReplyMemory { threads: threads as usize, read_bytes: read_bytes as usize, aside })
    }
}

/// What one read needs at most, and one buffer of the shortest kind.
pub(super) fn least_bytes(image: &Image) -> u64 {
    image.reserve_bytes().saturating_add(LEAST_REPLY_BYTES)
}

/// Threads, and bytes of each one's buffer; `None` if not even one page is left.
fn share(limit: u64, reserve: u64, threads: u64) -> Option<(u64, u64)> {
    let room = DECODING_ROOM_BYTES as u64;
    let spare = limit.checked_sub(reserve).filter(|spare| *spare >= READ_BYTES_MIN + room)?;
    let threads = threads.min(spare / (READ_BYTES_MIN + room)).max(1);
    let wanted = (limit / 16).clamp(READ_BYTES_MIN, READ_BYTES_MAX).min(spare / threads - room);
    Some((threads, wanted / READ_BYTES_MIN * READ_BYTES_MIN))
}

thread_local! {
    static REPLY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f` on this thread's buffer of `len_bytes`, which are the same for all calls on a thread.
pub(super) fn with_reply_buffer<T>(len_bytes: usize, f: impl FnOnce(&mut [u8]) -> T) -> T {
    REPLY.with_borrow_mut(|buffer| {
        if buffer.len() < len_bytes {
            buffer.resize(len_bytes, 0);
        }
        f(buffer.get_mut(..len_bytes).unwrap_or(&mut []))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_leave_the_reserve_and_shrink_with_the_budget() {
        assert_eq!(share(64 << 20, 256 << 10, 3), Some((3, 1 << 20)));
        assert_eq!(share(4 << 20, 256 << 10, 3), Some((3, 256 << 10)));
        assert_eq!(share(304 << 10, 256 << 10, 4), Some((4, 4096)));
        assert_eq!(share(280 << 10, 256 << 10, 4), Some((2, 4096)));
        assert_eq!(share(256 << 10, 256 << 10, 4), None);
        for limit in (268..2000).map(|kib| kib << 10) {
            let (threads, bytes) = share(limit, 256 << 10, 4).unwrap();
            assert!(
                threads * (bytes + (8 << 10)) + (256 << 10) <= limit && bytes % 4096 == 0 && bytes > 0,
                "{limit}"
            );
        }
    }

    #[test]
    fn a_thread_keeps_its_buffer() {
        let first = with_reply_buffer(8192, |b| (b.as_ptr() as usize, b.len()));
        assert_eq!(first.1, 8192);
        assert_eq!(with_reply_buffer(8192, |b| b.as_ptr() as usize), first.0);
    }
}
