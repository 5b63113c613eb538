//! What reading has cost, counted without locks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters of one image since it was opened. Each is right by itself; together they may be a request apart.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct ReadStats { $($(#[$doc])* pub $name: u64),* }

        #[derive(Default)]
        pub(crate) struct Counters { $(pub(crate) $name: Counter),* }

        impl Counters {
            pub(crate) fn snapshot(&self) -> ReadStats {
                ReadStats { $($name: self.$name.get()),* }
            }
        }
    };
}

counters! {
    /// Reads of file contents that were asked for.
    reads,
    /// Bytes of file contents that were asked for and given.
    asked_bytes,
    /// Bytes of compressed clusters read from the media.
    compressed_bytes,
    /// Bytes of contents that are stored as they are, read from the media.
    plain_bytes,
    /// Bytes of metadata read from the media.
    metadata_bytes,
    /// Asked bytes that the cache had.
    hit_bytes,
    /// Clusters decoded.
    clusters,
    /// Of these, LZ4 clusters whose compressed bytes lay in the output's own buffer.
    in_place,
    /// Of these, LZ4 clusters that took a buffer for the compressed bytes.
    bounced,
    /// Of these, clusters whose unwanted output went through a window, for want of room.
    windowed,
    /// Reads that waited for another's decoding of the same cluster.
    joined,
    /// Pages of output that nobody had asked for, of all clusters decoded for a reader.
    temporary_pages,
    /// Clusters that read-ahead began.
    readahead_issued,
    /// Clusters that read-ahead gave up, because the budget or its queue had no room.
    readahead_dropped,
    /// Reads of contents that failed.
    errors,
}

/// A number that only grows.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Buckets of [`ImageStats::latency`](crate::ImageStats::latency).
pub const BUCKETS: usize = 32;

/// How long things took: bucket `n` counts those of at least 2^n and less than 2^(n+1) nanoseconds, the last one
/// everything longer.
#[derive(Default)]
pub(crate) struct Histogram([Counter; BUCKETS]);

impl Histogram {
    pub(crate) fn record(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1);
        self.0[(nanos.ilog2() as usize).min(BUCKETS - 1)].add(1);
    }

    pub(crate) fn snapshot(&self) -> [u64; BUCKETS] {
        std::array::from_fn(|n| self.0[n].get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_fall_into_their_bucket() {
        let histogram = Histogram::default();
        for nanos in [0, 1, 2, 3, 4, 1023, 1024] {
            histogram.record(Duration::from_nanos(nanos));
        }
        histogram.record(Duration::from_secs(1000));
        let buckets = histogram.snapshot();
        assert_eq!(
            (buckets[0], buckets[1], buckets[2], buckets[9], buckets[10], buckets[31]),
            (2, 2, 1, 1, 1, 1)
        );
    }
}
