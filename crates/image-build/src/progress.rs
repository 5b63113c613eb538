//! The builder's reports: progress while it works, and a summary at the end.

use super::compression::Compression;
use super::sort::Listed;
use super::table::Spill;
use super::target::Target;
use super::verify::Digests;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

/// Files that took longest, in a [`Summary`].
const SLOWEST_MAX: usize = 10;

/// The two times that the builder reads contents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Phase {
    /// It looks for equal parts of files, if the options ask for that ([`Dedupe::Chunks`](super::Dedupe)).
    Scanning,
    /// It compresses and writes.
    #[default]
    Writing,
}

/// How far the builder is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// The phase. `done_bytes` begins at 0 in each.
    pub phase: Phase,
    /// Bytes of contents that are in the image, or that were looked at.
    pub done_bytes: u64,
    /// Bytes of contents of the tree, or of the files that are to be looked at; holes count.
    pub total_bytes: u64,
    /// Bytes of the image so far.
    pub image_bytes: u64,
}

/// A function that the builder calls now and then; `Break` ends the build.
pub type OnProgress<'a> = dyn FnMut(Progress) -> ControlFlow<()> + 'a;

/// Files that were stored in one way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stored {
    /// Number of files.
    pub files: u64,
    /// Length of the files, bytes.
    pub content_bytes: u64,
    /// Bytes that they take in the image, without their inodes.
    pub stored_bytes: u64,
}

impl Stored {
    /// Counts a file.
    pub(crate) fn add(&mut self, content_bytes: u64, stored_bytes: u64) {
        self.files += 1;
        self.content_bytes += content_bytes;
        self.stored_bytes += stored_bytes;
    }
}

/// The summary of a build.
#[derive(Debug)]
pub struct Summary {
    /// The oldest kernel that the image was built for.
    pub target: Target,
    /// Threads that compressed.
    pub threads: usize,
    /// Number of inodes.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
    /// Length of the image, bytes.
    pub image_bytes: u64,
    /// Inodes, directories, attributes and indexes, bytes.
    pub metadata_bytes: u64,
    /// The regular files by compression; `None`: not compressed, or without gain.
    pub stored: BTreeMap<Option<Compression>, Stored>,
    /// The files among them whose contents an earlier file has, which are stored once. `stored_bytes` is the part that
    /// each of them has nevertheless: its end, if that is stored with the metadata.
    pub duplicates: Stored,
    /// The files that refer to parts of others, or of themselves: their number and the bytes that they refer to.
    /// `stored_bytes` is 0. Files in `duplicates` are not counted.
    pub shared_parts: Stored,
    /// The fragments: files and ends of files in the packed file, whose blocks `stored` counts too. Equal ones are counted
    /// each.
    pub fragments: Stored,
    /// The paths of the list of files that come first, if the options have one.
    pub listed: Listed,
    /// The files whose compression took longest, and the CPU time of it; the longest first.
    pub slowest: Vec<(PathBuf, Duration)>,
    /// Hashes of contents, for [`verify`](super::verify()); empty unless the options asked for them.
    pub digests: Digests,
}

impl Summary {
    /// Begins a summary.
    pub(crate) fn new(target: Target, spill: &Spill) -> Self {
        Summary {
            target,
            threads: 0,
            inodes: 0,
            directories: 0,
            image_bytes: 0,
            metadata_bytes: 0,
            stored: BTreeMap::new(),
            duplicates: Stored::default(),
            shared_parts: Stored::default(),
            fragments: Stored::default(),
            listed: Listed::default(),
            slowest: Vec::new(),
            digests: Digests::new(spill),
        }
    }

    /// Length of all regular files, bytes.
    pub fn content_bytes(&self) -> u64 {
        self.stored.values().map(|stored| stored.content_bytes).sum()
    }

    /// Counts a file.
    pub(crate) fn count(&mut self, compression: Option<Compression>, content_bytes: u64, stored_bytes: u64) {
        self.stored.entry(compression).or_default().add(content_bytes, stored_bytes);
    }

    /// Counts further bytes that the image has for files of a compression.
    pub(crate) fn add_stored(&mut self, compression: Compression, stored_bytes: u64) {
        self.stored.entry(Some(compression)).or_default().stored_bytes += stored_bytes;
    }

    /// Remembers the time of a file, if it is one of the longest.
    pub(crate) fn count_time(&mut self, path: impl Fn() -> Vec<u8>, elapsed: Duration) {
        let at = self.slowest.partition_point(|(_, other)| *other >= elapsed);
        if at < SLOWEST_MAX {
            self.slowest.insert(at, (super::error::path_of(&path()), elapsed));
            self.slowest.truncate(SLOWEST_MAX);
        }
    }
}
