//! [`Metered`], a layer that counts requests, bytes and errors, and measures latency: that of the devices inside, and
//! that of replies, which exports note ([`BlockDevice::note_reply`]).
//!
//! A request adds 1 to a bucket of a latency histogram ([`pagefold_page::latency`]). The counters are sharded by CPU
//! and each shard has separate cache lines, so a request costs two clock readings and four uncontended additions. A
//! shard is more than [`pagefold_page::ShardedCounters`], because the longest latency is a maximum and not a sum. A
//! reader sums the shards without a lock: the figures of one report may be a few requests apart, but no request is
//! lost.

pub use crate::operation::{OPERATIONS, Operation};
use crate::{BlockDevice, BlockError, Extent};
use pagefold_page::latency::{Latency, LatencyCounters};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const SHARDS: usize = 16;

/// Counts of one operation since the device was made; its latency is counted since the last reset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// All requests, failed ones included.
    pub requests: u64,
    /// Bytes of the requests that succeeded.
    pub bytes: u64,
    /// Requests that failed.
    pub errors: u64,
    /// The time that each request took, failed ones included.
    pub latency: Latency,
    /// The time from when an export took each request from its queue until it had answered, for reads and writes.
    pub reply_latency: Latency,
}

/// A device that passes every request to the device inside and counts it.
pub struct Metered {
    inner: Arc<dyn BlockDevice>,
    shards: Box<[Shard]>,
}

#[repr(align(128))]
struct Shard {
    operations: [Counters; OPERATIONS.len()],
}

#[derive(Default)]
struct Counters {
    requests: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
    latency: LatencyCounters,
    reply_latency: LatencyCounters,
}

impl Counters {
    fn add(&self, bytes: u64, ok: bool, elapsed: Duration) {
        self.requests.fetch_add(1, Relaxed);
        match ok {
            true => self.bytes.fetch_add(bytes, Relaxed),
            false => self.errors.fetch_add(1, Relaxed),
        };
        self.latency.record(elapsed);
    }
}

impl Metered {
    /// Wraps `inner`, with all counters at zero.
    pub fn new(inner: Arc<dyn BlockDevice>) -> Self {
        let shard = |_| Shard { operations: Default::default() };
        Metered { inner, shards: (0..SHARDS).map(shard).collect() }
    }

    /// The counts of `operation` so far.
    pub fn traffic(&self, operation: Operation) -> Traffic {
        let mut sum = Traffic::default();
        for shard in &self.shards {
            let counters = &shard.operations[operation as usize];
            sum.requests += counters.requests.load(Relaxed);
            sum.bytes += counters.bytes.load(Relaxed);
            sum.errors += counters.errors.load(Relaxed);
            counters.latency.add_to(&mut sum.latency);
            counters.reply_latency.add_to(&mut sum.reply_latency);
        }
        sum
    }

    /// Resets the latency histograms. The counts of requests, bytes and errors stay.
    pub fn reset_latency(&self) {
        for counters in self.shards.iter().flat_map(|s| &s.operations) {
            counters.latency.reset();
            counters.reply_latency.reset();
        }
    }

    fn timed(
        &self,
        operation: Operation,
        bytes: u64,
        request: impl FnOnce(&dyn BlockDevice) -> Result<(), BlockError>,
    ) -> Result<(), BlockError> {
        let start = Instant::now();
        let result = request(&*self.inner);
        let elapsed = start.elapsed();
        self.counters(operation).add(bytes, result.is_ok(), elapsed);
        result
    }

    fn counters(&self, operation: Operation) -> &Counters {
        &self.shards[pagefold_sys::cpu::current() % SHARDS].operations[operation as usize]
    }
}

impl BlockDevice for Metered {
    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BlockError> {
        self.timed(Operation::Read, buf.len() as u64, |d| d.read_at(offset, buf))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), BlockError> {
        self.timed(Operation::Write, data.len() as u64, |d| d.write_at(offset, data))
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.timed(Operation::Discard, len, |d| d.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.timed(Operation::WriteZeroes, len, |d| d.write_zeroes(offset, len))
    }

    fn flush(&self) -> Result<(), BlockError> {
        self.timed(Operation::Flush, 0, |d| d.flush())
    }

    fn extent(&self, offset: u64, len: u64) -> Extent {
        self.inner.extent(offset, len)
    }

    fn waits_for_medium(&self, offset: u64, len: u64) -> bool {
        self.inner.waits_for_medium(offset, len)
    }

    fn waits_for_room(&self, len: u64) -> bool {
        self.inner.waits_for_room(len)
    }

    fn note_reply(&self, operation: Operation, took: Duration) {
        self.counters(operation).reply_latency.record(took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RamDevice;

    #[test]
    fn requests_bytes_and_errors_are_exact_over_threads() {
        let device = Metered::new(Arc::new(RamDevice::new(1 << 20)));
        std::thread::scope(|s| {
            for t in 0..4u64 {
                let device = &device;
                s.spawn(move || {
                    for i in 0..1000 {
                        device.write_at((t * 1000 + i) % 200 * 4096, &[t as u8; 512]).unwrap();
                    }
                    device.read_at(1 << 20, &mut [0; 1]).unwrap_err();
                });
            }
        });
        let written = device.traffic(Operation::Write);
        assert_eq!((written.requests, written.bytes, written.errors), (4000, 4000 * 512, 0));
        assert_eq!(written.latency.count(), 4000);
        let read = device.traffic(Operation::Read);
        assert_eq!((read.requests, read.bytes, read.errors), (4, 0, 4));
        assert_eq!(written.reply_latency.count(), 0);
        device.note_reply(Operation::Write, Duration::from_micros(9));
        assert_eq!(device.traffic(Operation::Write).reply_latency.max_ns, 9000);
        assert_eq!(device.traffic(Operation::Write).latency, written.latency);
        device.reset_latency();
        let after = device.traffic(Operation::Write);
        assert_eq!((after.requests, after.latency.count(), after.reply_latency.count()), (4000, 0, 0));
    }

    #[test]
    fn every_operation_reaches_the_device_inside() {
        let device = Metered::new(Arc::new(RamDevice::new(8192)));
        device.write_at(0, &[7; 8192]).unwrap();
        device.discard(0, 4096).unwrap();
        device.write_zeroes(4096, 1).unwrap();
        device.flush().unwrap();
        let mut buf = [1; 2];
        device.read_at(4096, &mut buf).unwrap();
        assert_eq!(buf, [0, 7]);
        assert_eq!(OPERATIONS.map(|o| device.traffic(o).requests), [1, 1, 1, 1, 1]);
        assert_eq!(device.len_bytes(), 8192);
    }
}
