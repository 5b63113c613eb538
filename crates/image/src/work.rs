//! [`WorkLimit`]: how much work an image may cost.
//!
//! An image of 12 KiB can claim a directory of 2^62 bytes, or a file with as many extents. Memory is bounded by the budget;
//! this bounds the time. Whatever loops over lengths or numbers that the image claims takes a step for each extent, block,
//! entry, attribute and fault: the functions that find an extent or read a block of a directory want a limit, so that a
//! loop without one cannot be written. A hole is one extent, whatever its length.
//!
//! The limit of a whole walk is 2^15 steps, and 16 for each stored byte. The densest structures that
//! cost a step are entries of directories (13 bytes or more), those of chunks (4 bytes) and of indexes (2 bytes for each
//! logical cluster), and a tool looks at each of them a few times. That leaves a factor of ten or more for metadata that
//! is itself compressed; then the stored contents add to the limit too. Sharing is free of charge: a file of many TiB takes
//! as many steps as its index has extents, and its index is stored. `check`, which decodes what it finds, takes a step
//! for each 16 KiB besides, so contents may be 2^18 times as long as the image.
//!
//! A request of the kernel has a smaller limit, because a thread and a program wait for it (`of_request`).
//! A call of the library has that of a walk.
//!
//! The counter belongs to one thread and is no atomic. Threads that share a limit take steps from it in batches.

use crate::read::Bytes;
use crate::{Address, ImageError, Result};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Steps that even the smallest image may cost.
const FREE_STEPS: u64 = 1 << 15;
/// Steps of a walk for each stored byte.
const STEPS_PER_BYTE: u64 = 16;
/// Stored bytes for which a request may take one more step, and the steps of the largest request.
const BYTES_PER_REQUEST_STEP: u64 = 128;
const REQUEST_STEPS_MAX: u64 = 1 << 18;
/// Contents that cost a step where they are decoded only to see whether they can be.
const DECODED_BYTES_PER_STEP: u64 = 16 << 10;
/// Stored bytes of a cluster that cost one more step: all of it is read, however few of its bytes are wanted.
const CLUSTER_BYTES_PER_STEP: u64 = 16 << 10;
/// Bytes of metadata, in one piece, that cost one more step.
const PIECE_BYTES_PER_STEP: u64 = 4 << 10;
/// Steps that are taken from the rest at once, and after which a request looks whether it was interrupted.
const BATCH_STEPS: u64 = 1 << 12;

/// The steps that a walk, a call or a request may still take. Reaching it is [`ImageError::TooMuchWork`], now and later.
#[derive(Debug)]
pub struct WorkLimit {
    /// Steps that were taken from the rest and are not used yet.
    batch: Cell<u64>,
    rest: Rest,
    /// The whole limit, for the error.
    max: u64,
}

#[derive(Debug)]
enum Rest {
    /// Steps of this limit only. The function says whether nobody waits for the result any more.
    Own {
        left: Cell<u64>,
        is_interrupted: fn() -> bool,
    },
    Shared(Arc<AtomicU64>),
}

impl WorkLimit {
    /// So many steps.
    pub(crate) fn of_steps(max: u64) -> Self {
        let rest = Rest::Own { left: Cell::new(max), is_interrupted: || false };
        WorkLimit { batch: Cell::new(0), rest, max }
    }

    /// The limit of a walk over an image of [so many bytes](crate::Image::stored_bytes), or of a call.
    pub fn of_image(stored_bytes: u64) -> Self {
        WorkLimit::of_steps(steps_of(stored_bytes))
    }

    /// The limit of a request of the kernel. An interruption of the request ends its work too, but not before it took a
    /// batch of steps, which ordinary requests do not take: programs do not expect EINTR of files.
    pub(crate) fn of_request(stored_bytes: u64, is_interrupted: fn() -> bool) -> Self {
        let max = FREE_STEPS + stored_bytes / BYTES_PER_REQUEST_STEP;
        let max = max.min(REQUEST_STEPS_MAX);
        let rest = Rest::Own { left: Cell::new(max), is_interrupted };
        WorkLimit { batch: Cell::new(0), rest, max }
    }

    /// Takes a step.
    pub fn step(&self) -> Result<()> {
        self.steps(1)
    }

    /// Takes `n` steps.
    pub fn steps(&self, n: u64) -> Result<()> {
        match self.batch.get().checked_sub(n) {
            Some(left) => {
                self.batch.set(left);
                Ok(())
            }
            None => self.take_batch(n),
        }
    }

    /// Takes the steps for decoding contents that nobody wants.
    pub fn decoded(&self, len_bytes: u64) -> Result<()> {
        self.steps(len_bytes / DECODED_BYTES_PER_STEP)
    }

    /// Takes the steps for reading a stored cluster.
    pub(crate) fn cluster(&self, stored_bytes: u32) -> Result<()> {
        self.steps(u64::from(stored_bytes) / CLUSTER_BYTES_PER_STEP)
    }

    #[cold]
    fn take_batch(&self, n: u64) -> Result<()> {
        let had = self.batch.replace(0);
        let wanted = n.saturating_add(BATCH_STEPS) - had;
        let taken = match &self.rest {
            Rest::Own { left, is_interrupted } if left.get() < self.max && is_interrupted() => {
                return Err(ImageError::Interrupted);
            }
            Rest::Own { left, .. } => {
                let taken = left.get().min(wanted);
                left.set(left.get() - taken);
                taken
            }
            Rest::Shared(left) => {
                let subtract = |left: u64| Some(left - left.min(wanted));
                let before = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, subtract);
                before.unwrap_or(0).min(wanted)
            }
        };
        // If they do not suffice, nothing is left for later steps either.
        let left = (had + taken).checked_sub(n).ok_or(ImageError::TooMuchWork { steps: self.max })?;
        self.batch.set(left);
        Ok(())
    }
}

impl Drop for WorkLimit {
    fn drop(&mut self) {
        if let Rest::Shared(left) = &self.rest {
            left.fetch_add(self.batch.get(), Ordering::Relaxed);
        }
    }
}

/// The limit of a walk whose work several threads do.
#[derive(Debug)]
pub struct SharedWork {
    left: Arc<AtomicU64>,
    max: u64,
}

impl SharedWork {
    /// The limit of a walk over an image of [so many bytes](crate::Image::stored_bytes).
    pub fn of_image(stored_bytes: u64) -> Self {
        let max = steps_of(stored_bytes);
        SharedWork { left: Arc::new(AtomicU64::new(max)), max }
    }

    /// A part of the limit for one thread.
    pub fn limit(&self) -> WorkLimit {
        WorkLimit { batch: Cell::new(0), rest: Rest::Shared(self.left.clone()), max: self.max }
    }
}

fn steps_of(stored_bytes: u64) -> u64 {
    stored_bytes.saturating_mul(STEPS_PER_BYTE).saturating_add(FREE_STEPS)
}

/// Bytes each of whose readings is a step, for parsers that read one structure after the other.
pub struct CountedBytes<'a> {
    /// The bytes.
    pub bytes: &'a dyn Bytes,
    /// The limit that the readings count against.
    pub work: &'a WorkLimit,
}

impl Bytes for CountedBytes<'_> {
    fn read_at(&self, at: Address, buf: &mut [u8]) -> Result<()> {
        self.work.steps(1 + buf.len() as u64 / PIECE_BYTES_PER_STEP)?;
        self.bytes.read_at(at, buf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes single steps until there are no more.
    fn count(work: &WorkLimit) -> u64 {
        (0..).take_while(|_| work.step().is_ok()).count() as u64
    }

    #[test]
    fn all_steps_can_be_taken_and_no_more() {
        for max in [0, 1, BATCH_STEPS - 1, BATCH_STEPS, BATCH_STEPS + 1, 3 * BATCH_STEPS] {
            let work = WorkLimit::of_steps(max);
            assert_eq!(count(&work), max);
            assert!(matches!(work.step(), Err(ImageError::TooMuchWork { steps }) if steps == max));
        }
    }

    #[test]
    fn a_limit_stays_reached_after_many_steps_at_once() {
        let work = WorkLimit::of_steps(100);
        assert!(work.steps(100).is_ok() && work.steps(0).is_ok());
        let work = WorkLimit::of_steps(100);
        assert!(work.steps(101).is_err() && work.steps(u64::MAX).is_err());
        assert_eq!(count(&work), 0);
        assert_eq!(steps_of(u64::MAX), u64::MAX);
    }

    #[test]
    fn an_interruption_is_seen_between_two_batches() {
        thread_local!(static CALLS: Cell<u64> = const { Cell::new(0) });
        let is_interrupted = || CALLS.replace(CALLS.get() + 1) == 1;
        let rest = Rest::Own { left: Cell::new(u64::MAX), is_interrupted };
        let work = WorkLimit { batch: Cell::new(0), rest, max: u64::MAX };
        // A batch is one step longer than its name says, because it begins with the step that needed it.
        assert_eq!(count(&work), 2 * (BATCH_STEPS + 1));
    }

    #[test]
    fn threads_share_all_steps_of_a_limit() {
        let shared = SharedWork { left: Arc::new(AtomicU64::new(10 * BATCH_STEPS)), max: 7 };
        let taken = std::thread::scope(|scope| {
            let early = shared.limit();
            early.step().unwrap();
            drop(early);
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(|| count(&shared.limit()))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u64>()
        });
        assert_eq!(taken, 10 * BATCH_STEPS - 1);
    }
}
