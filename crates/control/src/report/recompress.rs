//! The reports on recompression: a part of the JSON of `disk show`, and the JSON of `disk recompress`.

use serde::{Deserialize, Serialize};

/// The further codecs of a disk, and the pages that were recompressed with them. Counters start when the disk is
/// created.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RecompressStatus {
    /// The further codecs, by priority.
    pub codecs: Vec<FurtherCodec>,
    /// Pages that got a smaller object.
    pub recompressed_pages: u64,
    /// Bytes by which their objects became shorter.
    pub saved_bytes: u64,
    /// Pages that were tried and would not have become smaller.
    pub not_smaller_pages: u64,
}

/// A codec that pages are recompressed with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FurtherCodec {
    /// Its priority, 1 to 3.
    pub priority: u8,
    /// Its name.
    pub name: String,
    /// Its level, if it has levels.
    pub level: Option<i32>,
    /// Pages that are objects of this codec now.
    pub pages: u64,
    /// Age from which on pages are compressed with it automatically, seconds; null if they are not.
    pub after_s: Option<u64>,
}

/// The report on a pass: the JSON of `disk recompress`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RecompressPassReport {
    /// Pages that have a smaller object now.
    pub recompressed_pages: u64,
    /// Length of their objects before, bytes.
    pub old_bytes: u64,
    /// Length of their objects now, bytes.
    pub new_bytes: u64,
    /// Pages that would not have become smaller.
    pub not_smaller_pages: u64,
    /// Pages that were changed, moved or accessed meanwhile.
    pub changed_pages: u64,
    /// Pages for whose new object there was no memory.
    pub no_memory_pages: u64,
    /// Pages that did not decompress, or whose compression failed.
    pub failed_pages: u64,
    /// Whether the pass ended early.
    pub interrupted: bool,
    /// Duration.
    pub elapsed_ns: u64,
}
