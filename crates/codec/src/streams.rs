//! One stream per CPU, taken for one operation and put back.
//!
//! A caller tries the stream of the CPU it runs on, then any other that is free,
//! and only then sleeps until its own CPU's is put back; both detours are
//! counted. There is nothing to size and no list to wait on. A stream is never
//! held across anything but a codec call and a copy.

use crate::{COMPRESS_BUF_LEN, Codec, CodecError, Stream};
use crossbeam_utils::CachePadded;
use pagefold_page::PAGE_SIZE;
use parking_lot::{Mutex, MutexGuard};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A stream with the output buffer of its operation.
pub struct Executor {
    /// The working state.
    pub stream: Box<dyn Stream>,
    /// Where compressed bytes go; two pages.
    pub buf: Box<[u8; COMPRESS_BUF_LEN]>,
}

/// The streams of one codec.
pub struct Streams {
    per_cpu: Box<[CachePadded<Mutex<Executor>>]>,
    borrowed: AtomicU64,
    waited: AtomicU64,
}

/// How often the calling CPU's own stream was not free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamWaits {
    /// Another CPU's free stream served.
    pub borrowed: u64,
    /// All were taken; the caller slept.
    pub waited: u64,
}

/// A stream and its output buffer in use; put back when dropped.
pub struct StreamGuard<'a>(MutexGuard<'a, Executor>);

impl Streams {
    /// One stream for each of `cpu_count` CPUs (at least one), each used once so that it has the memory
    /// it needs before the first page arrives.
    pub fn new(codec: &Codec, cpu_count: usize) -> Result<Self, CodecError> {
        let per_cpu = (0..cpu_count.max(1))
            .map(|_| Ok(CachePadded::new(Mutex::new(Executor::new(codec)?))))
            .collect::<Result<_, CodecError>>()?;
        Ok(Streams { per_cpu, borrowed: AtomicU64::new(0), waited: AtomicU64::new(0) })
    }

    /// Takes a stream, preferring that of CPU `cpu`.
    #[inline]
    pub fn get(&self, cpu: usize) -> StreamGuard<'_> {
        let own = cpu % self.per_cpu.len();
        match self.per_cpu[own].try_lock() {
            Some(guard) => StreamGuard(guard),
            None => self.get_slow(own),
        }
    }

    #[cold]
    fn get_slow(&self, own: usize) -> StreamGuard<'_> {
        let others = (1..self.per_cpu.len()).map(|i| &self.per_cpu[(own + i) % self.per_cpu.len()]);
        if let Some(guard) = others.filter_map(|s| s.try_lock()).next() {
            self.borrowed.fetch_add(1, Relaxed);
            return StreamGuard(guard);
        }
        self.waited.fetch_add(1, Relaxed);
        StreamGuard(self.per_cpu[own].lock())
    }

    /// The detours taken so far.
    pub fn waits(&self) -> StreamWaits {
        StreamWaits { borrowed: self.borrowed.load(Relaxed), waited: self.waited.load(Relaxed) }
    }
}

impl Executor {
    /// A stream of `codec` that was used once, so that it has all the memory it will ever need.
    pub fn new(codec: &Codec) -> Result<Self, CodecError> {
        let mut executor = Executor { stream: codec.stream()?, buf: Box::new([0; COMPRESS_BUF_LEN]) };
        executor.warm_up()?;
        Ok(executor)
    }

    /// Runs one page through both directions; codecs allocate lazily and a store under memory pressure
    /// must find everything in place.
    fn warm_up(&mut self) -> Result<(), CodecError> {
        let mut page = [0u8; PAGE_SIZE];
        // Any text with matches and literals will do; a multiplicative sequence has both.
        for (i, byte) in page.iter_mut().enumerate() {
            *byte = ((i / 3).wrapping_mul(2_654_435_761) >> 24) as u8;
        }
        let len = self.stream.compress(&page, &mut self.buf[..])?;
        self.stream.decompress(&self.buf[..len], &mut page)?;
        Ok(())
    }
}

impl Deref for StreamGuard<'_> {
    type Target = Executor;

    fn deref(&self) -> &Executor {
        &self.0
    }
}

impl DerefMut for StreamGuard<'_> {
    fn deref_mut(&mut self) -> &mut Executor {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CodecSpec;

    fn streams(count: usize) -> Streams {
        Streams::new(&Codec::new(&CodecSpec::named("lz4")).unwrap(), count).unwrap()
    }

    #[test]
    fn get_own_stream_busy_borrows_another_and_counts() {
        let streams = streams(2);
        let own = streams.get(0);
        assert_eq!(streams.waits(), StreamWaits::default());
        let other = streams.get(0);
        assert_eq!(streams.waits(), StreamWaits { borrowed: 1, waited: 0 });
        drop((own, other));
    }

    #[test]
    fn get_all_busy_waits_for_own_and_counts() {
        let streams = streams(1);
        let held = streams.get(0);
        std::thread::scope(|s| {
            let waiter = s.spawn(|| drop(streams.get(7)));
            while streams.waits().waited == 0 {
                std::thread::yield_now();
            }
            drop(held);
            waiter.join().unwrap();
        });
        assert_eq!(streams.waits(), StreamWaits { borrowed: 0, waited: 1 });
    }
}
