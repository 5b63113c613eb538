//! The report on a disk: the JSON of `disk show`.

use super::ConfinementReport;
use super::keeper::KeeperReport;
use super::recompress::RecompressStatus;
use super::writeback::WritebackStatus;
use super::{LatencyReport, ServerReport};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The report on one disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Report {
    /// Its name.
    pub name: String,
    /// `loop` or `nbd`.
    pub export: String,
    /// `/dev/fuse` or `io_uring`: how the requests of a loop export reach the server; null with another export.
    #[serde(default)]
    pub transport: Option<String>,
    /// Device path or NBD URI; empty if somebody detached the loop device.
    pub device: String,
    /// `ok`, or why writes fail.
    pub state: WriteState,
    /// Why the threads of the export have ended, so that every request fails; null while they serve.
    #[serde(default)]
    pub export_failure: Option<String>,
    /// Warnings for the administrator, in words.
    pub warnings: Vec<String>,
    /// The restore that goes on while the disk is used; null: the disk has all its pages.
    #[serde(default)]
    pub restoring: Option<RestoringReport>,
    /// Size of the device.
    pub size_bytes: u64,
    /// Always true: the contents are lost when the disk is removed and when the machine restarts, written-back pages
    /// included.
    pub volatile: bool,
    /// When it was created, seconds since 1970.
    pub created_unix_s: u64,
    /// How pages are compressed.
    pub codec: CodecReport,
    /// Bytes of stored pages before compression.
    pub original_bytes: u64,
    /// Bytes of the stored pages in memory after compression: raw pages count 4096, same-filled and written-back pages 0.
    pub compressed_bytes: u64,
    /// Bytes of the pages in memory before compression, divided by the memory that they take (pool, and their part of
    /// the slot table); null while there are none.
    pub ratio: Option<f64>,
    /// Pages by state.
    pub pages: PagesReport,
    /// Memory in use.
    pub memory: MemoryReport,
    /// The backing and the written-back pages; null without a backing.
    pub writeback: Option<WritebackStatus>,
    /// Recompression; null without further codecs.
    #[serde(default)]
    pub recompression: Option<RecompressStatus>,
    /// The server process.
    pub server: ServerReport,
    /// Whether the disk outlives it, and how often it did.
    #[serde(default)]
    pub keeper: KeeperReport,
    /// How the server is confined.
    #[serde(default)]
    pub confinement: ConfinementReport,
    /// Requests by operation name.
    pub io: BTreeMap<String, IoReport>,
    /// Failures and waits.
    pub events: EventsReport,
    /// Its users now (mounts, swap, NBD clients), in words.
    pub used_by: Vec<String>,
    /// Counters of NBD clients; null with another export.
    #[serde(default)]
    pub clients: Option<ClientsReport>,
    /// Every attribute that can be shown, as text.
    pub attributes: BTreeMap<String, String>,
}

/// A restore that goes on while the disk is used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RestoringReport {
    /// The saved disk. It must not be changed before the restore has ended; its name may be removed.
    #[serde(with = "crate::path")]
    #[cfg_attr(feature = "schema", schemars(with = "crate::path::PathForm"))]
    pub path: PathBuf,
    /// Pages of the saved disk that the server has fetched or passed over so far. After its death the next server begins
    /// again from 0, without reading again what it has.
    pub seen_pages: u64,
    /// Pages in all files of the saved disk.
    pub total_pages: u64,
    /// Pages that could not be read when they were tried last. They are tried again every minute.
    pub unreadable_pages: u64,
    /// The reason of the first one, with its place; null: none.
    pub first_unreadable: Option<String>,
    /// Whether the memory limit is reached, so that the rest is not fetched but read from the saved disk each time.
    pub waits_for_memory: bool,
}

/// Counters of NBD clients. `open` and `in_handshake` are current, the others since the server started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClientsReport {
    /// Clients that have the export open.
    pub open: usize,
    /// How many clients may have it open.
    pub most_open: usize,
    /// Clients in their handshake.
    pub in_handshake: usize,
    /// Clients that began a handshake.
    pub accepted: u64,
    /// Clients refused because too many had the export open.
    pub refused_full: u64,
    /// Clients refused because they ran as another user.
    pub refused_peer: u64,
    /// Clients disconnected because they did not open the export in time.
    pub slow_handshakes: u64,
    /// Clients disconnected because they had sent no request and another client needed a connection.
    pub unused: u64,
    /// Connections that failed or broke the protocol.
    pub failed: u64,
}

/// The codec in use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CodecReport {
    /// Its name.
    pub name: String,
    /// Its level, if it has levels.
    pub level: Option<i32>,
    /// Length of its dictionary, 0 for none.
    pub dictionary_bytes: u64,
}

/// Stored pages by state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PagesReport {
    /// Pages with contents.
    pub stored: u64,
    /// Pages stored compressed in the pool.
    pub compressed: u64,
    /// Pages that repeat one word; only the word is stored.
    pub same_filled: u64,
    /// Pages stored as they are because they do not compress.
    pub raw: u64,
    /// Pages moved to the backing.
    pub written_back: u64,
    /// Pages of memory that compaction has freed so far.
    pub compacted: u64,
}

/// Memory of a disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemoryReport {
    /// Memory of the pool.
    pub pool_bytes: u64,
    /// Highest value of `pool_bytes` so far.
    pub pool_max_bytes: u64,
    /// Hard limit of `pool_bytes`; null for none.
    pub limit_bytes: Option<u64>,
    /// Memory of the slot table, and of the links between frames.
    pub slot_table_bytes: u64,
    /// Free memory reserved for writes.
    pub ready_bytes: u64,
    /// The buffers of the rings through which requests come, which the limit of `--memory` contains too; null without
    /// rings.
    #[serde(default)]
    pub rings: Option<RingsReport>,
}

/// The buffers of the rings of an export.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RingsReport {
    /// Their memory.
    pub buffer_bytes: u64,
    /// The longest request for which a buffer has room.
    pub max_request_bytes: u64,
}

/// A size class of the pool: objects of one size, packed into pages of memory without gaps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClassReport {
    /// Bytes that each object takes, with the 8 bytes that name its owner.
    pub size_bytes: u64,
    /// Objects.
    pub objects: u64,
    /// Pages of memory, of 4096 bytes.
    pub pages: u64,
    /// Bytes of these pages that no object takes.
    pub unused_bytes: u64,
}

/// Requests of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct IoReport {
    /// Number of requests.
    pub requests: u64,
    /// Bytes of the requests that succeeded.
    pub bytes: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Their latency in the store, since the disk was created or its attribute `latency` was written.
    pub latency: LatencyReport,
    /// The time from when the export took them from its queue until it had answered; of reads and writes.
    #[serde(default)]
    pub reply_latency: LatencyReport,
}

/// Failures and waits since the disk was created.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EventsReport {
    /// Reads that failed.
    pub failed_reads: u64,
    /// Writes that failed, as a rule at the memory limit.
    pub failed_writes: u64,
    /// Writes that were refused for lack of memory. The file system on the disk may have lost their data.
    #[serde(default)]
    pub refused_writes: u64,
    /// Time of the last write that was refused for lack of memory, seconds since 1970; null if none was.
    pub last_refused_write_unix_s: Option<u64>,
    /// Requests outside the device.
    pub invalid_requests: u64,
    /// Pages that discard freed.
    pub discarded_pages: u64,
    /// Times a request used another CPU's codec stream.
    pub streams_borrowed: u64,
    /// Times a request waited for a codec stream.
    pub stream_waits: u64,
    /// Writes that waited because no memory was ready.
    pub slow_writes: u64,
}

/// Whether a disk accepts writes, and if not the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum WriteState {
    /// It accepts writes.
    Ok,
    /// The memory limit is reached, and no page can be written back.
    LimitReached,
    /// The system has no memory.
    NoMemory,
    /// The disk has no size yet.
    NoSize,
    /// The threads of the export have ended: reads fail too.
    ExportEnded,
}

impl WriteState {
    /// The state in words.
    pub fn in_words(self) -> &'static str {
        match self {
            WriteState::Ok => "ok",
            WriteState::LimitReached => "limit reached: writes fail",
            WriteState::NoMemory => "no memory: writes fail",
            WriteState::NoSize => "no size yet",
            WriteState::ExportEnded => "the export has ended: every request fails",
        }
    }
}

impl Report {
    /// In a few words: whether the disk accepts writes and has a device.
    pub fn state_in_words(&self) -> &'static str {
        match self.state {
            WriteState::Ok if self.device.is_empty() => "detached",
            state => state.in_words(),
        }
    }
}

/// The JSON of `disk create`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CreatedDisk {
    /// Name of the disk.
    pub name: String,
    /// Device path or NBD URI.
    pub device: String,
    /// `loop` or `nbd`.
    pub export: String,
    /// Size of the device.
    pub size_bytes: u64,
}

/// The JSON of `disk list`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiskList {
    /// The disks of this user.
    pub disks: Vec<ListedDisk>,
}

/// A disk in a list.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum ListedDisk {
    /// With the report of its server.
    Running(Box<Report>),
    /// A disk whose server does not respond.
    Silent {
        /// Name of the disk.
        name: String,
        /// The error.
        error: String,
    },
}

/// The JSON of `disk show`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ShownDisk {
    /// The report of its server.
    #[serde(flatten)]
    pub report: Report,
    /// The size classes of the pool, with `--classes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classes: Option<Vec<ClassReport>>,
}
