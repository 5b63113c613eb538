//! A layer that counts requests and how long they took.
//!
//! Every request adds one to a bucket of a histogram whose bounds are powers of
//! two of nanoseconds, so memory is fixed and nothing is sampled away. Counters
//! are spread over shards by CPU, each on cache lines of its own, and are only
//! added to: a request takes two clock readings and four uncontended additions.
//! Reading sums the shards without stopping anybody, so figures of one report
//! may be a few requests apart; none is ever lost.

use crate::{BlockDevice, BlockError, Extent};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Buckets of a latency histogram. Bucket `b` counts requests of `2^b` to `2^(b+1) - 1` ns; the
/// first also those below, the last also those above (half an hour and more).
pub const BUCKETS: usize = 41;

const SHARDS: usize = 16;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reading bytes.
    Read,
    /// Storing bytes.
    Write,
    /// Saying that bytes are not needed.
    Discard,
    /// Making bytes zero.
    WriteZeroes,
    /// Waiting for durability.
    Flush,
}

/// All operations, in the order of reports.
pub const OPERATIONS: [Operation; 5] =
    [Operation::Read, Operation::Write, Operation::Discard, Operation::WriteZeroes, Operation::Flush];

impl Operation {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Discard => "discard",
            Operation::WriteZeroes => "write_zeroes",
            Operation::Flush => "flush",
        }
    }
}

/// What one operation did since the device was made; latencies since they were last reset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Requests that came.
    pub requests: u64,
    /// Bytes of the requests that succeeded.
    pub bytes: u64,
    /// Requests that failed.
    pub errors: u64,
    /// How long they took, failed ones included.
    pub latency: Latency,
}

/// A latency histogram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latency {
    /// Requests per bucket; see [`BUCKETS`].
    pub buckets: [u64; BUCKETS],
    /// The longest request, ns.
    pub max_ns: u64,
}

impl Latency {
    /// Requests counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// A time that at least `per_mille` thousandths of the requests did not exceed, ns.
    ///
    /// It is the upper bound of the bucket that holds the wanted request (at most the longest
    /// request), so it is never too low and less than twice too high. `None` without requests.
    pub fn quantile_ns(&self, per_mille: u32) -> Option<u64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let wanted = (u128::from(count) * u128::from(per_mille.min(1000))).div_ceil(1000).max(1) as u64;
        let mut seen = 0;
        for (b, n) in self.buckets.iter().enumerate() {
            seen += n;
            if seen >= wanted {
                return Some(bucket_end_ns(b).saturating_sub(1).min(self.max_ns));
            }
        }
        Some(self.max_ns)
    }
}

/// The first nanosecond that belongs to the bucket after `bucket`.
pub fn bucket_end_ns(bucket: usize) -> u64 {
    if bucket + 1 >= BUCKETS { u64::MAX } else { 1 << (bucket + 1) }
}

fn bucket_of(ns: u64) -> usize {
    (ns.max(1).ilog2() as usize).min(BUCKETS - 1)
}

/// A device that counts what goes through it to the device inside.
pub struct Metered<D> {
    inner: D,
    shards: Box<[Shard]>,
}

#[repr(align(128))]
struct Shard {
    operations: [Counters; OPERATIONS.len()],
}

struct Counters {
    requests: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
    max_ns: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Counters {
    fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Counters {
            requests: zero(),
            bytes: zero(),
            errors: zero(),
            max_ns: zero(),
            buckets: std::array::from_fn(|_| zero()),
        }
    }

    fn add(&self, bytes: u64, ok: bool, ns: u64) {
        self.requests.fetch_add(1, Relaxed);
        match ok {
            true => self.bytes.fetch_add(bytes, Relaxed),
            false => self.errors.fetch_add(1, Relaxed),
        };
        self.buckets[bucket_of(ns)].fetch_add(1, Relaxed);
        // A load first: a new maximum is rare, and an exclusive cache line is not free.
        if ns > self.max_ns.load(Relaxed) {
            self.max_ns.fetch_max(ns, Relaxed);
        }
    }
}

impl<D: BlockDevice> Metered<D> {
    /// Counts what goes to `inner`, from zero.
    pub fn new(inner: D) -> Self {
        let shard = |_| Shard { operations: std::array::from_fn(|_| Counters::new()) };
        Metered { inner, shards: (0..SHARDS).map(shard).collect() }
    }

    /// The device inside.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// What `operation` did so far.
    pub fn traffic(&self, operation: Operation) -> Traffic {
        let mut sum = Traffic {
            requests: 0,
            bytes: 0,
            errors: 0,
            latency: Latency { buckets: [0; BUCKETS], max_ns: 0 },
        };
        for shard in &self.shards {
            let c = &shard.operations[operation as usize];
            sum.requests += c.requests.load(Relaxed);
            sum.bytes += c.bytes.load(Relaxed);
            sum.errors += c.errors.load(Relaxed);
            sum.latency.max_ns = sum.latency.max_ns.max(c.max_ns.load(Relaxed));
            for (total, n) in sum.latency.buckets.iter_mut().zip(&c.buckets) {
                *total += n.load(Relaxed);
            }
        }
        sum
    }

    /// Empties the latency histograms. Requests, bytes and errors go on.
    pub fn reset_latency(&self) {
        for c in self.shards.iter().flat_map(|s| &s.operations) {
            c.max_ns.store(0, Relaxed);
            c.buckets.iter().for_each(|n| n.store(0, Relaxed));
        }
    }

    fn timed(
        &self,
        operation: Operation,
        bytes: u64,
        request: impl FnOnce(&D) -> Result<(), BlockError>,
    ) -> Result<(), BlockError> {
        let start = Instant::now();
        let result = request(&self.inner);
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let shard = &self.shards[pagefold_sys::cpu::current() % SHARDS];
        shard.operations[operation as usize].add(bytes, result.is_ok(), ns);
        result
    }
}

impl<D: BlockDevice> BlockDevice for Metered<D> {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RamDevice;

    #[test]
    fn requests_bytes_and_errors_are_exact_over_threads() {
        let device = Metered::new(RamDevice::new(1 << 20));
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
        device.reset_latency();
        let after = device.traffic(Operation::Write);
        assert_eq!((after.requests, after.latency.count(), after.latency.max_ns), (4000, 0, 0));
    }

    #[test]
    fn every_operation_reaches_the_device_inside() {
        let device = Metered::new(RamDevice::new(8192));
        device.write_at(0, &[7; 8192]).unwrap();
        device.discard(0, 4096).unwrap();
        device.write_zeroes(4096, 1).unwrap();
        device.flush().unwrap();
        let mut buf = [1; 2];
        device.read_at(4096, &mut buf).unwrap();
        assert_eq!(buf, [0, 7]);
        assert_eq!(OPERATIONS.map(|o| device.traffic(o).requests), [1, 1, 1, 1, 1]);
        assert_eq!(device.len_bytes(), device.inner().len_bytes());
    }

    /// The slow twin: sort all times and pick.
    fn exact_quantile(times: &[u64], per_mille: u32) -> u64 {
        let mut sorted = times.to_vec();
        sorted.sort_unstable();
        let wanted = (sorted.len() * per_mille as usize).div_ceil(1000).max(1);
        sorted[wanted - 1]
    }

    #[test]
    fn quantiles_are_never_low_and_less_than_double() {
        let mut x = 1u64;
        let times: Vec<u64> = (0..5000)
            .map(|_| {
                x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (x >> 33) % (1 << ((x >> 59) + 3)) + 1
            })
            .collect();
        let counters = Counters::new();
        times.iter().for_each(|&ns| counters.add(1, true, ns));
        let latency = Latency {
            buckets: std::array::from_fn(|b| counters.buckets[b].load(Relaxed)),
            max_ns: counters.max_ns.load(Relaxed),
        };
        for per_mille in [1, 500, 990, 999, 1000] {
            let exact = exact_quantile(&times, per_mille);
            let got = latency.quantile_ns(per_mille).unwrap();
            assert!(got >= exact && got < exact * 2, "{per_mille}: {got} for {exact}");
        }
        assert_eq!(latency.max_ns, *times.iter().max().unwrap());
    }

    #[test]
    fn buckets_meet_without_gap() {
        for b in 0..BUCKETS - 1 {
            assert_eq!(bucket_of(bucket_end_ns(b) - 1), b);
            assert_eq!(bucket_of(bucket_end_ns(b)), b + 1);
        }
        assert_eq!(bucket_of(0), 0);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        let none = Latency { buckets: [0; BUCKETS], max_ns: 0 };
        assert_eq!(none.quantile_ns(500), None);
    }
}
