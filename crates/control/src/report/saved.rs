//! The reports on saved disks: the JSON of `disk save` and of `disk saved`.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The figures of a saved disk that both reports have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SavedFigures {
    /// Identity of the saved disk: 32 hexadecimal digits, random.
    pub id: String,
    /// Identity of the save before, which has the pages that are not in this file; null: it has all.
    pub parent: Option<String>,
    /// SHA-256 of all bytes of the file but the last 128, as the file says.
    pub digest: String,
    /// Size of the disk.
    pub size_bytes: u64,
    /// Pages in the file. Other pages are those of the parent, or read as zeroes without one.
    pub pages: u64,
    /// Those of them that repeat a word.
    pub same_filled_pages: u64,
    /// Those of them that do not compress.
    pub raw_pages: u64,
    /// Those of them whose contents were lost before the disk was saved.
    pub lost_pages: u64,
    /// Bytes of these pages as they are stored, those that repeat a word not counted.
    pub payload_bytes: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
}

/// The report on a save: the JSON of `disk save`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SaveReport {
    /// The file.
    #[serde(flatten)]
    pub figures: SavedFigures,
    /// Why a save with `--incremental` has all pages; null if it has not, and without the option.
    pub full_because: Option<String>,
    /// Duration.
    pub elapsed_ns: u64,
    /// The state of file systems in it.
    #[serde(flatten)]
    pub moment: SaveMoment,
}

/// The state of file systems on a disk at the moment of a save. The command knows it, and not the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SaveMoment {
    /// The state of the file system on the disk.
    pub consistency: Consistency,
    /// How long the file system was frozen; null if it was not.
    pub frozen_ns: Option<u64>,
    /// The reason that no file system was frozen; null if one was.
    pub not_frozen: Option<String>,
}

/// The state of a file system in a saved disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Consistency {
    /// As after a power failure at the moment of the save. One that was unmounted then is complete.
    #[default]
    Crash,
    /// The file system was frozen at the moment of the save: it is complete, and a mount of an ext4 replays no journal.
    Frozen,
}

/// A saved disk: the JSON of `disk saved`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SavedDisk {
    /// The file.
    #[serde(flatten)]
    pub figures: SavedFigures,
    /// When the disk was saved, seconds since 1970.
    pub saved_unix_s: u64,
    /// The file of the parent, in the folder of this one; null for a full save.
    #[serde(with = "crate::path::option")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<crate::path::PathForm>"))]
    pub parent_file: Option<PathBuf>,
    /// Files of the chain that have to be read for a restore, this one included.
    pub chain_files: u32,
    /// The codecs by priority; an empty name: none.
    pub codecs: Vec<SavedCodec>,
    /// Size of the pages divided by that of the file; null without pages.
    pub ratio: Option<f64>,
    /// Whether all bytes were read and verified.
    pub checked: bool,
}

/// A codec of a saved disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SavedCodec {
    /// Its name.
    pub name: String,
    /// Its level; null for its default.
    pub level: Option<i32>,
    /// Length of its dictionary, 0 for none.
    pub dictionary_bytes: u64,
}

/// The report on objects of a bucket that were removed: the JSON of `disk saved --clean`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CleanReport {
    /// The objects that were removed.
    pub removed: Vec<CleanedObject>,
    /// Objects that the manifest does not name either, and that are too young.
    pub younger: u64,
}

/// An object of a bucket that was removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CleanedObject {
    /// Its key.
    pub key: String,
    /// Its length.
    pub bytes: u64,
    /// When it was written, seconds since 1970.
    pub modified_unix_s: i64,
}
