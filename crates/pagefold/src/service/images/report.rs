//! What the server of a mounted image tells: the JSON of `image show --live`. Names end in their unit.

use super::MountConfig;
use crate::service::report::BucketReport;
use pagefold_image::{Image, ImageStats, ReadStats};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Everything about one mount.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MountReport {
    /// The image.
    pub image: PathBuf,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// The server process.
    pub pid: u32,
    /// The server's version.
    pub version: String,
    /// Threads that answer requests.
    pub threads: usize,
    /// The longest read request, bytes.
    pub max_read_bytes: usize,
    /// Requests that the kernel has sent, of all kinds: round trips of programs that use the mount.
    pub requests: u64,
    /// All memory of the server process that is in RAM.
    pub server_rss_bytes: Option<u64>,
    /// The most that it was.
    pub server_peak_rss_bytes: Option<u64>,
    /// The budget.
    pub budget: BudgetReport,
    /// What reading has cost.
    pub reads: ReadsReport,
    /// Bytes read from the media for bytes that were asked for; absent while none were.
    pub read_amplification: Option<f64>,
    /// How long reads of contents took.
    pub latency: LatencyReport,
}

/// Use of the memory for reading.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BudgetReport {
    /// Its size.
    pub limit_bytes: u64,
    /// In use, cached data included.
    pub in_use_bytes: u64,
    /// The most that was in use.
    pub peak_bytes: u64,
    /// Cached data, which is given up when memory is needed.
    pub cached_bytes: u64,
    /// Reads that waited for memory.
    pub waits: u64,
    /// Optional requests that got none.
    pub refused: u64,
}

/// Counters since the image was mounted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReadsReport {
    /// Reads of contents.
    pub reads: u64,
    /// Reads of contents that failed.
    pub errors: u64,
    /// Bytes of contents that were asked for.
    pub asked_bytes: u64,
    /// Of these, bytes that the cache had.
    pub hit_bytes: u64,
    /// Bytes read from the media.
    pub media_bytes: u64,
    /// Of these, compressed ones.
    pub compressed_bytes: u64,
    /// Of these, contents that are stored as they are.
    pub plain_bytes: u64,
    /// Of these, metadata.
    pub metadata_bytes: u64,
    /// Clusters decoded.
    pub clusters: u64,
    /// Of these, those decoded in the buffer that held the compressed bytes.
    pub in_place: u64,
    /// Of these, those that took another buffer.
    pub bounced: u64,
    /// Of these, those decoded through a window, for want of memory.
    pub windowed: u64,
    /// Reads that waited for another's decoding of the same cluster.
    pub joined: u64,
    /// Pages that were decoded and that nobody had asked for.
    pub temporary_pages: u64,
    /// Clusters that read-ahead began.
    pub readahead_issued: u64,
    /// Clusters that read-ahead gave up.
    pub readahead_dropped: u64,
}

/// A latency histogram. Percentiles are upper bounds, less than twice too high; absent without reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyReport {
    /// Half took no longer.
    pub p50_ns: Option<u64>,
    /// 90 % took no longer.
    pub p90_ns: Option<u64>,
    /// 99 % took no longer.
    pub p99_ns: Option<u64>,
    /// 99.9 % took no longer.
    pub p999_ns: Option<u64>,
    /// Reads by time; empty buckets are left out.
    pub buckets: Vec<BucketReport>,
}

impl LatencyReport {
    /// From counts by powers of two.
    pub fn of(counts: &[u64]) -> Self {
        let total: u64 = counts.iter().sum();
        let below = |n: usize| 1u64 << (n + 1).min(63);
        let quantile = |thousandths: u64| {
            let rank = (total * thousandths).div_ceil(1000).max(1);
            let mut seen = 0;
            let reached = |count: &u64| {
                seen += count;
                seen >= rank
            };
            counts.iter().position(reached).map(below)
        };
        let full = counts.iter().enumerate().filter(|(_, count)| **count > 0);
        LatencyReport {
            p50_ns: quantile(500),
            p90_ns: quantile(900),
            p99_ns: quantile(990),
            p999_ns: quantile(999),
            buckets: full.map(|(n, &requests)| BucketReport { below_ns: below(n), requests }).collect(),
        }
    }
}

/// What of a mount is served, and how.
pub struct Serving {
    /// Threads that answer requests.
    pub threads: usize,
    /// The longest read request, bytes.
    pub max_read_bytes: usize,
    /// Requests that the kernel has sent so far.
    pub requests: Arc<AtomicU64>,
}

impl MountReport {
    /// The figures of a mount now.
    pub fn of(config: &MountConfig, image: &Image, serving: &Serving) -> Self {
        let ImageStats { reads, budget, cached_bytes, read_bytes, latency } = image.stats();
        let amplification = (reads.asked_bytes > 0).then(|| read_bytes as f64 / reads.asked_bytes as f64);
        MountReport {
            image: config.image.clone(),
            mount_point: config.mount_point.clone(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_string(),
            threads: serving.threads,
            max_read_bytes: serving.max_read_bytes,
            requests: serving.requests.load(Ordering::Relaxed),
            server_rss_bytes: pagefold_sys::pidfd::own_rss_bytes(),
            server_peak_rss_bytes: pagefold_sys::pidfd::own_peak_rss_bytes(),
            budget: BudgetReport {
                limit_bytes: budget.limit_bytes,
                in_use_bytes: budget.in_use_bytes,
                peak_bytes: budget.peak_bytes,
                cached_bytes,
                waits: budget.waits,
                refused: budget.refused,
            },
            reads: ReadsReport::of(&reads, read_bytes),
            read_amplification: amplification,
            latency: LatencyReport::of(&latency),
        }
    }
}

impl ReadsReport {
    fn of(reads: &ReadStats, media_bytes: u64) -> Self {
        ReadsReport {
            reads: reads.reads,
            errors: reads.errors,
            asked_bytes: reads.asked_bytes,
            hit_bytes: reads.hit_bytes,
            media_bytes,
            compressed_bytes: reads.compressed_bytes,
            plain_bytes: reads.plain_bytes,
            metadata_bytes: reads.metadata_bytes,
            clusters: reads.clusters,
            in_place: reads.in_place,
            bounced: reads.bounced,
            windowed: reads.windowed,
            joined: reads.joined,
            temporary_pages: reads.temporary_pages,
            readahead_issued: reads.readahead_issued,
            readahead_dropped: reads.readahead_dropped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_bounds_of_their_buckets() {
        let mut counts = [0; 32];
        assert_eq!(LatencyReport::of(&counts).p50_ns, None);
        (counts[10], counts[20], counts[25]) = (90, 9, 1);
        let latency = LatencyReport::of(&counts);
        let bound = |n: u32| Some(1u64 << (n + 1));
        assert_eq!((latency.p50_ns, latency.p90_ns), (bound(10), bound(10)));
        assert_eq!((latency.p99_ns, latency.p999_ns), (bound(20), bound(25)));
        assert_eq!(latency.buckets.len(), 3);
    }
}
