//! The reports on writeback: a part of the JSON of `disk show`, and the JSON of `disk writeback`.

use crate::error::CliError;
use serde::{Deserialize, Serialize};

/// The backing of a disk and the pages written back to it. Counters start when the disk is created; fields that say
/// "now" are current.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WritebackStatus {
    /// The file or device.
    pub path: String,
    /// The kind of medium and of I/O, in words.
    pub medium: String,
    /// `log` or `blocks`.
    pub layout: String,
    /// Whether the file was created for the disk, and so is removed with it.
    pub created: bool,
    /// The present activity of automatic writeback, or the reason that it is idle, in words.
    pub condition: String,
    /// Pages on the backing now.
    pub pages: u64,
    /// Bytes that they take on the medium now, headers not counted.
    pub bytes: u64,
    /// Usable bytes of the medium.
    pub capacity_bytes: u64,
    /// Bytes of it that are free now.
    pub free_bytes: u64,
    /// Pages written back.
    pub written_back_pages: u64,
    /// Size of these pages as they were stored in memory.
    pub payload_bytes: u64,
    /// Bytes written for these, headers and padding included.
    pub written_bytes: u64,
    /// `written_bytes` divided by `payload_bytes`; null while nothing was written back.
    pub write_ratio: Option<f64>,
    /// Bytes that the cleaner wrote.
    pub cleaned_bytes: u64,
    /// Segments that the cleaner emptied.
    pub cleaned_segments: u64,
    /// Write requests, the cleaner's included.
    pub writes: u64,
    /// Pages read back.
    pub read_pages: u64,
    /// Bytes read back.
    pub read_bytes: u64,
    /// Read requests.
    pub reads: u64,
    /// Pages read back with a neighbour's request.
    pub read_ahead_hits: u64,
    /// Reads repeated because the page changed meanwhile.
    pub read_repeats: u64,
    /// Pages moved back to memory because they were read twice.
    pub promoted_pages: u64,
    /// Pages that stayed in memory because their write failed.
    pub failed_pages: u64,
    /// Pages that were changed or freed while their write was in flight.
    pub changed_pages: u64,
    /// Reads of written-back pages that failed because the medium did.
    pub unreadable_pages: u64,
    /// Reads of written-back pages that failed because what was read is corrupt.
    pub corrupt_pages: u64,
    /// Writes that waited at the memory limit for pages to be written back.
    pub throttled_writes: u64,
    /// Total time of these waits.
    pub throttled_ns: u64,
    /// Pages that may still be written back under `writeback_limit`; null while that is disabled.
    pub limit_left_pages: Option<u64>,
    /// Rate limit of automatic writeback; null for none.
    pub rate_bytes_per_s: Option<u64>,
    /// Most bytes that automatic writeback writes within 24 hours; null for no limit.
    pub daily_bytes: Option<u64>,
}

/// The progress of a pass of writeback or of recompression, or of a save.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassProgress {
    /// Pages visited.
    pub seen_pages: u64,
    /// Pages to visit in all; 0 while the number is not known. In a save it is known from its moment on.
    pub total_pages: u64,
    /// Pages written back, or recompressed.
    pub done_pages: u64,
    /// Bytes written, or saved.
    pub done_bytes: u64,
}

/// The report on a pass: the JSON of `disk writeback`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PassReport {
    /// Pages written back.
    pub written_back_pages: u64,
    /// Size of these pages as they were stored in memory.
    pub payload_bytes: u64,
    /// Bytes written, headers and padding included.
    pub written_bytes: u64,
    /// Pages that stayed because their write failed.
    pub failed_pages: u64,
    /// Pages that stayed because they were changed or freed meanwhile.
    pub changed_pages: u64,
    /// Duration.
    pub elapsed_ns: u64,
    /// The error that ended it early, or else the most recent error of a write.
    pub failure: Option<CliError>,
}
