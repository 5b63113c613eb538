//! The report on a mounted image: the JSON of `image stats`.

use super::disk::RingsReport;
use super::keeper::KeeperReport;
use super::{ConfinementReport, LatencyReport, ServerReport};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The report on one mounted image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MountReport {
    /// The image.
    #[serde(with = "crate::path")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::path::PathForm"))]
    pub image: PathBuf,
    /// The byte of the file at which the image begins (`--offset`).
    #[serde(default)]
    pub offset_bytes: u64,
    /// Where it is mounted.
    #[serde(with = "crate::path")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::path::PathForm"))]
    pub mount_point: PathBuf,
    /// The server process.
    pub server: ServerReport,
    /// Threads that serve FUSE requests.
    pub threads: usize,
    /// `/dev/fuse` or `io_uring`: how FUSE requests reach the server.
    #[serde(default)]
    pub transport: String,
    /// The reason that io_uring does not serve although it was wanted (`--fuse-uring on`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_rings: Option<String>,
    /// The buffers of the rings, if io_uring serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rings: Option<RingsReport>,
    /// Whether the mount outlives its server, and how often it did.
    #[serde(default)]
    pub keeper: KeeperReport,
    /// How the server is confined.
    #[serde(default)]
    pub confinement: ConfinementReport,
    /// The longest read request, bytes.
    pub max_read_bytes: usize,
    /// FUSE requests of all kinds that the kernel has sent.
    pub requests: u64,
    /// Requests that failed with EIO because the server panicked while it executed them, since its start. After 100 the keeper
    /// starts another server.
    #[serde(default)]
    pub panics: u64,
    /// Use of the memory budget.
    pub budget: BudgetReport,
    /// Counters of reads.
    pub reads: ReadsReport,
    /// Bytes read from the media divided by bytes requested; null while none were.
    pub read_amplification: Option<f64>,
    /// Latency of reads of contents.
    pub latency: LatencyReport,
    /// Requests to servers; absent if the image is in files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<RemoteReport>,
    /// Time from the start of the server to the first read of contents that was answered, ns; null before it.
    #[serde(default)]
    pub first_read_ns: Option<u64>,
    /// The list that `--record` writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<RecordReport>,
    /// The list that `--prefetch` fetches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefetch: Option<PrefetchReport>,
}

/// The state of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RecordState {
    /// Under way.
    Recording,
    /// The list is written.
    Written,
    /// The list could not be written.
    Failed,
}

/// A start-up list that is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RecordReport {
    /// The list.
    #[serde(with = "crate::path")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::path::PathForm"))]
    pub list: PathBuf,
    /// How far it is.
    pub state: RecordState,
    /// Entries written.
    pub entries: u64,
    /// Reads that are not in the list, for lack of room or of a name.
    pub lost: u64,
    /// Why it could not be written.
    pub error: Option<String>,
}

/// A start-up list that is fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PrefetchReport {
    /// The list.
    #[serde(with = "crate::path")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::path::PathForm"))]
    pub list: PathBuf,
    /// Its entries.
    pub list_entries: u64,
    /// Malformed lines: not one or three fields, or a field that is not a number.
    pub malformed: u64,
    /// Entries that were looked up so far.
    pub entries: u64,
    /// Of these, entries that do not fit the image.
    pub skipped: u64,
    /// Stored bytes of these entries.
    pub planned_bytes: u64,
    /// Of these, bytes that were fetched, or were there.
    pub done_bytes: u64,
    /// Of these, bytes that were not fetched, for lack of room or because of an error.
    pub left_out_bytes: u64,
    /// Whether all has been fetched or left out.
    pub has_ended: bool,
}

/// Counters of the sources on servers since the image was mounted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RemoteReport {
    /// Requests sent, redirects and further attempts included.
    pub requests: u64,
    /// Of these, further attempts after a failure.
    pub retries: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes of reads that had been received before.
    pub hit_bytes: u64,
    /// Memory for ranges that were received, at most, a part of the memory budget.
    #[serde(default)]
    pub cache_bytes: u64,
    /// The sum of the times of all requests that succeeded, from sending to the last byte.
    #[serde(default)]
    pub request_ns: u64,
    /// The times of these requests.
    #[serde(default)]
    pub latency: LatencyReport,
    /// Reads that failed.
    pub failed_reads: u64,
    /// The error of the last read that failed; null if none has.
    pub last_error: Option<String>,
    /// The cache on disk; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheReport>,
}

/// The cache of remote images on disk, and its use since the image was mounted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CacheReport {
    /// Its folder.
    #[serde(with = "crate::path")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::path::PathForm"))]
    pub folder: PathBuf,
    /// The largest size of its files.
    pub size_bytes: u64,
    /// Bytes that its files take now, for all images.
    pub used_bytes: u64,
    /// Bytes that this mount has read from it.
    pub hit_bytes: u64,
    /// Bytes that this mount has stored in it.
    pub written_bytes: u64,
    /// Bytes that this mount has evicted.
    pub evicted_bytes: u64,
    /// Damaged blocks, which were fetched again.
    pub refused_blocks: u64,
    /// Waits for other processes that fetched the same range.
    pub waits: u64,
    /// Why it is not used, or not written, now; null if it works.
    pub error: Option<String>,
}

/// Use of the memory budget for reading.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BudgetReport {
    /// Its size.
    pub limit_bytes: u64,
    /// In use, cached data included.
    pub in_use_bytes: u64,
    /// Highest value of `in_use_bytes` so far.
    pub peak_bytes: u64,
    /// Cached data, which is evicted when memory is needed.
    pub cached_bytes: u64,
    /// Reads that waited for memory.
    pub waits: u64,
    /// Optional requests for memory that were refused.
    pub refused: u64,
}

/// Counters since the image was mounted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReadsReport {
    /// Reads of contents.
    pub reads: u64,
    /// Reads of contents that failed.
    pub errors: u64,
    /// Bytes of contents requested.
    pub asked_bytes: u64,
    /// Of these, bytes found in the cache.
    pub hit_bytes: u64,
    /// Bytes read from the media: the sum of the next three.
    pub media_bytes: u64,
    /// Compressed contents.
    pub compressed_bytes: u64,
    /// Contents stored uncompressed.
    pub plain_bytes: u64,
    /// Metadata.
    pub metadata_bytes: u64,
    /// Clusters decoded.
    pub clusters: u64,
    /// Of these, clusters decoded in the buffer that held the compressed bytes.
    pub in_place: u64,
    /// Of these, clusters decoded from a second buffer.
    pub bounced: u64,
    /// Of these, clusters decoded in parts, for lack of memory.
    pub windowed: u64,
    /// Reads that waited while another reader decoded the same cluster.
    pub joined: u64,
    /// Pages that were decoded without having been requested.
    pub temporary_pages: u64,
    /// Clusters that read-ahead started to read.
    pub readahead_issued: u64,
    /// Clusters that read-ahead dropped.
    pub readahead_dropped: u64,
}

/// The JSON of `image mounts`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MountList {
    /// The mounted images, ordered by mount point.
    pub mounts: Vec<ListedMount>,
}

/// A mounted image in a list.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListedMount {
    /// `ok`; `unmounted, in use`; `does not respond` (then an `error`, and no statistics); or `mounted by the kernel`
    /// (then `image`, `mount_point` and `state` only).
    pub state: String,
    /// Its report, or what is known without one.
    #[serde(flatten)]
    pub mount: MountDetails,
}

/// A mounted image with the report of its server, or without one.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum MountDetails {
    /// With the report of its server.
    Served(Box<MountReport>),
    /// Without a report.
    Silent {
        /// The image; null where the kernel's table does not name the file.
        #[serde(with = "crate::path::option")]
        #[cfg_attr(feature = "schema", schemars(with = "Option<crate::path::PathForm>"))]
        image: Option<PathBuf>,
        /// Where it is mounted.
        #[serde(with = "crate::path")]
        #[cfg_attr(feature = "schema", schemars(with = "crate::path::PathForm"))]
        mount_point: PathBuf,
        /// Why its server does not respond; absent of images that the kernel mounted.
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
}

/// The JSON of `image stats`; with `--watch`, one line for each sample.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MountStats {
    /// The report of its server.
    #[serde(flatten)]
    pub report: MountReport,
    /// The change since the previous sample, with `--watch`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change: Option<MountChange>,
}

/// The difference of two samples. Of the first sample, the figures since the mount began.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MountChange {
    /// The time between the samples; null in the first.
    pub interval_ms: Option<u64>,
    /// Reads of contents.
    pub reads: u64,
    /// Bytes of contents requested.
    pub asked_bytes: u64,
    /// Requests to servers.
    pub requests: u64,
    /// Of these, further attempts after a failure.
    pub retries: u64,
    /// Bytes received from servers.
    pub received_bytes: u64,
    /// Mean time of the requests to servers that ended; null if none did.
    pub request_mean_ns: Option<u64>,
    /// 99 % of these requests took no longer; null if none ended.
    pub request_p99_ns: Option<u64>,
}
