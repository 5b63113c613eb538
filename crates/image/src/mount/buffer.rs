//! The memory of reply buffers: one per thread, set aside from the image's budget for the life of the mount.
//!
//! The threads of `pagefold_fuse` allocate the buffers; this only reserves the budget for them. With rings, each possible
//! CPU has a thread or two, so there may be many buffers: then they are shorter, so that the cache keeps most of the
//! budget.

use super::error::MountError;
use crate::budget::BudgetReservation;
use crate::{Image, ImageError};

/// Longest read request, bytes.
const READ_BYTES_MAX: u64 = 1 << 20;
/// Smallest limit for read requests that the kernel accepts, bytes: a page.
const READ_BYTES_MIN: u64 = 4096;

/// Scratch at the end of each buffer, bytes: the margin that decoding the last cluster of a reply in place needs, which
/// is a 255th of the compressed cluster (of 1 MiB at most) and 64 bytes.
pub(super) const DECODING_SCRATCH_BYTES: usize = 8 << 10;

/// The part of the budget, and the number of bytes, that the buffers of rings take at most.
const BUDGET_PER_RINGS: u64 = 4;
const RING_BYTES_MAX: u64 = 32 << 20;
/// Shapes of rings, the best first: threads for the queue of each CPU, and the longest request, bytes. While one of two
/// threads decompresses on another CPU, a program reads what the other has served. Shorter requests are not worth a ring.
const RING_SHAPES: [(u64, u64); 6] =
    [(2, 1 << 20), (2, 512 << 10), (2, 256 << 10), (2, 128 << 10), (1, 256 << 10), (1, 128 << 10)];

/// Bytes that a mount sets aside from the budget at least: one buffer for the smallest request limit.
pub const LEAST_REPLY_BYTES: u64 = READ_BYTES_MIN + DECODING_SCRATCH_BYTES as u64;

/// The number and size of reply buffers, and the reservation that pays for them.
#[derive(Debug)]
pub(super) struct ReplyMemory {
    /// Threads that serve requests.
    pub(super) threads: usize,
    /// Longest read request, bytes; each buffer has scratch besides.
    pub(super) read_bytes: usize,
    /// Returned to the budget when the mount is dropped.
    #[expect(dead_code, reason = "held for its drop")]
    reservation: BudgetReservation,
}

impl ReplyMemory {
    /// Sets memory for `threads` buffers aside from the budget, and leaves the most that one read needs. With a small
    /// budget, the request limit is smaller and there may be fewer threads.
    pub(super) fn take(image: &Image, threads: usize) -> Result<Self, MountError> {
        let (limit, reserve) = (image.budget().stats().limit_bytes, image.reserve_bytes());
        let Some((threads, read_bytes)) = divide(limit, reserve, threads.max(1) as u64) else {
            let needed_bytes = least_bytes(image);
            return Err(ImageError::TooLittleMemory { needed_bytes, limit_bytes: limit }.into());
        };
        Self::reserve(image, threads, read_bytes)
    }

    /// Sets memory aside for rings with so many queues, and for the thread beside them that reads from `/dev/fuse`.
    /// Returns it with the number of threads for each queue, or `None` if the budget has no room for rings.
    pub(super) fn take_for_rings(image: &Image, queues: usize) -> Result<Option<(Self, usize)>, MountError> {
        let (limit, reserve) = (image.budget().stats().limit_bytes, image.reserve_bytes());
        let Some((threads_per_queue, read_bytes)) = ring_shape(limit, reserve, queues as u64) else {
            return Ok(None);
        };
        let memory = Self::reserve(image, threads_per_queue * queues as u64 + 1, read_bytes)?;
        Ok(Some((memory, threads_per_queue as usize)))
    }

    /// Sets memory aside for buffers of so many threads and for reads of so many bytes.
    pub(super) fn reserve(image: &Image, threads: u64, read_bytes: u64) -> Result<Self, MountError> {
        let (total, limit) = (buffer_bytes(read_bytes) * threads, image.budget().stats().limit_bytes);
        let reservation = image.budget().reserve(total);
        let reservation = reservation
            .map_err(|_| ImageError::TooLittleMemory { needed_bytes: total, limit_bytes: limit })?;
        Ok(ReplyMemory { threads: threads as usize, read_bytes: read_bytes as usize, reservation })
    }
}

/// Bytes of a buffer for requests of at most `read_bytes`.
fn buffer_bytes(read_bytes: u64) -> u64 {
    read_bytes + DECODING_SCRATCH_BYTES as u64
}

/// The best of [`RING_SHAPES`] for so many queues whose buffers fit, with one more for `/dev/fuse`.
fn ring_shape(limit: u64, reserve: u64, queues: u64) -> Option<(u64, u64)> {
    let most = (limit / BUDGET_PER_RINGS).min(RING_BYTES_MAX).min(limit.checked_sub(reserve)?);
    let fits = |(threads, bytes): &(u64, u64)| (threads * queues + 1) * buffer_bytes(*bytes) <= most;
    RING_SHAPES.into_iter().find(fits)
}

/// Bytes of the smallest budget for a mount: the most that one read needs, and one buffer for the smallest request
/// limit.
pub(super) fn least_bytes(image: &Image) -> u64 {
    image.reserve_bytes().saturating_add(LEAST_REPLY_BYTES)
}

/// Divides the budget: returns the number of threads and the request limit in bytes, or `None` if there is not even a
/// page.
fn divide(limit: u64, reserve: u64, threads: u64) -> Option<(u64, u64)> {
    let scratch = DECODING_SCRATCH_BYTES as u64;
    let spare = limit.checked_sub(reserve).filter(|spare| *spare >= READ_BYTES_MIN + scratch)?;
    let threads = threads.min(spare / (READ_BYTES_MIN + scratch)).max(1);
    let wanted = (limit / 16).clamp(READ_BYTES_MIN, READ_BYTES_MAX).min(spare / threads - scratch);
    Some((threads, wanted / READ_BYTES_MIN * READ_BYTES_MIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_have_the_longest_requests_that_fit_their_part_of_the_budget() {
        let shape = |limit_mib: u64, queues| {
            ring_shape(limit_mib << 20, 256 << 10, queues).map(|(threads, bytes)| (threads, bytes >> 10))
        };
        assert_eq!([1, 2, 7].map(|queues| shape(64, queues)), [Some((2, 1024)); 3]);
        assert_eq!(
            [8, 16, 32, 64, 96, 128].map(|queues| shape(64, queues)),
            [Some((2, 512)), Some((2, 256)), Some((2, 128)), Some((1, 128)), Some((1, 128)), None]
        );
        assert_eq!(
            [1, 2, 3, 4, 16].map(|limit_mib| shape(limit_mib, 2)),
            [None, Some((1, 128)), Some((2, 128)), Some((2, 128)), Some((2, 512))]
        );
        // The most that one read needs stays free.
        assert_eq!(ring_shape(4 << 20, (4 << 20) - (100 << 10), 2), None);
        assert_eq!(ring_shape(1 << 20, 2 << 20, 2), None);
    }

    #[test]
    fn buffers_shrink_with_the_budget_and_leave_the_reserve() {
        assert_eq!(divide(64 << 20, 256 << 10, 3), Some((3, 1 << 20)));
        assert_eq!(divide(4 << 20, 256 << 10, 3), Some((3, 256 << 10)));
        assert_eq!(divide(304 << 10, 256 << 10, 4), Some((4, 4096)));
        assert_eq!(divide(280 << 10, 256 << 10, 4), Some((2, 4096)));
        assert_eq!(divide(256 << 10, 256 << 10, 4), None);
        for limit in (268..2000).map(|kib| kib << 10) {
            let (threads, bytes) = divide(limit, 256 << 10, 4).unwrap();
            assert!(
                threads * (bytes + (8 << 10)) + (256 << 10) <= limit && bytes % 4096 == 0 && bytes > 0,
                "{limit}"
            );
        }
    }
}
