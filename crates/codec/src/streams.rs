//! One stream per CPU, each behind a mutex: a caller takes a stream for one operation and puts it back.
//!
//! [`Streams::get`] tries the stream of the caller's CPU, then every other stream, and sleeps only when all are in
//! use, until the stream of its CPU is free. [`StreamWaits`] counts the second and the third case. There is
//! nothing to size and no wait queue. A caller holds a stream only for a codec call and a copy, and takes no other
//! stream meanwhile.

use crate::backend::{COMPRESS_BUF_LEN, Stream};
use crate::codec::Codec;
use crate::error::CodecError;
use crossbeam_utils::CachePadded;
use pagefold_page::PAGE_SIZE;
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A stream and the buffer that its output goes to.
pub struct PerCpuStream {
    /// The working state.
    pub stream: Box<dyn Stream>,
    /// Buffer for compressed bytes; two pages.
    pub buf: Box<[u8; COMPRESS_BUF_LEN]>,
}

/// The streams of one codec.
pub struct Streams {
    per_cpu: Box<[CachePadded<Mutex<PerCpuStream>>]>,
    borrowed: AtomicU64,
    waited: AtomicU64,
}

/// How often the stream of the calling CPU was not free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamWaits {
    /// Calls that took the free stream of another CPU.
    pub borrowed: u64,
    /// Calls that found all streams in use and slept.
    pub waited: u64,
}

/// A stream and its output buffer, held by one caller; dropping the guard puts both back.
pub type StreamGuard<'a> = MutexGuard<'a, PerCpuStream>;

impl Streams {
    /// Makes one stream for each of `cpu_count` CPUs (at least one), and uses each once so that it has the memory
    /// it needs before the first page arrives.
    pub fn new(codec: &Codec, cpu_count: usize) -> Result<Self, CodecError> {
        let per_cpu = (0..cpu_count.max(1))
            .map(|_| Ok(CachePadded::new(Mutex::new(PerCpuStream::new(codec)?))))
            .collect::<Result<_, CodecError>>()?;
        Ok(Streams { per_cpu, borrowed: AtomicU64::new(0), waited: AtomicU64::new(0) })
    }

    /// Takes a stream, if possible that of CPU `cpu`; sleeps where all are in use.
    #[inline]
    pub fn get(&self, cpu: usize) -> StreamGuard<'_> {
        let own = cpu % self.per_cpu.len();
        match self.per_cpu[own].try_lock() {
            Some(guard) => guard,
            None => self.get_slow(own),
        }
    }

    #[cold]
    fn get_slow(&self, own: usize) -> StreamGuard<'_> {
        let others = (1..self.per_cpu.len()).map(|i| &self.per_cpu[(own + i) % self.per_cpu.len()]);
        if let Some(guard) = others.filter_map(|s| s.try_lock()).next() {
            self.borrowed.fetch_add(1, Relaxed);
            return guard;
        }
        self.waited.fetch_add(1, Relaxed);
        self.per_cpu[own].lock()
    }

    /// The counts so far of calls that did not get the stream of their CPU.
    pub fn waits(&self) -> StreamWaits {
        StreamWaits { borrowed: self.borrowed.load(Relaxed), waited: self.waited.load(Relaxed) }
    }
}

impl PerCpuStream {
    /// Makes a stream of `codec` and uses it once, so that it has all the memory it will ever need.
    pub fn new(codec: &Codec) -> Result<Self, CodecError> {
        let mut per_cpu_stream =
            PerCpuStream { stream: codec.stream()?, buf: Box::new([0; COMPRESS_BUF_LEN]) };
        per_cpu_stream.warm_up()?;
        Ok(per_cpu_stream)
    }

    /// Compresses and decompresses one page: codecs allocate at first use, which must not happen under memory
    /// pressure.
    fn warm_up(&mut self) -> Result<(), CodecError> {
        let mut page = [0u8; PAGE_SIZE];
        // Any content with matches and literals will do; a multiplicative sequence has both.
        for (i, byte) in page.iter_mut().enumerate() {
            *byte = ((i / 3).wrapping_mul(2_654_435_761) >> 24) as u8;
        }
        let len = self.stream.compress(&page, &mut self.buf[..])?;
        self.stream.decompress(&self.buf[..len], &mut page)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::CodecSpec;

    fn streams(count: usize) -> Streams {
        Streams::new(&Codec::new(&CodecSpec::named("lz4")).unwrap(), count).unwrap()
    }

    #[test]
    fn get_borrows_a_free_stream_when_its_own_is_busy() {
        let streams = streams(2);
        let own = streams.get(0);
        assert_eq!(streams.waits(), StreamWaits::default());
        let other = streams.get(0);
        assert_eq!(streams.waits(), StreamWaits { borrowed: 1, waited: 0 });
        drop((own, other));
    }

    #[test]
    fn get_waits_for_its_own_stream_when_all_are_busy() {
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
