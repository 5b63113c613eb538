//! The uses of the stored bytes of an image.
//!
//! Each byte of the image and its further devices is attributed once, to one [`UsagePart`]; the parts add up to the
//! length of all devices. [`Usage`] also has the files that take most.
//!
//! [`TreeStats`](crate::tree_stats::TreeStats) computes it during its walk: `Collector` gets every inode and extent, and
//! `claims` decides what was attributed before. The rules:
//!
//! - The metabox and the packed file come first, then the files in the order of the walk. Bytes that several files share
//!   belong to the first of them; the others are charged nothing, and count as saved.
//! - Plain contents take whole blocks, and clusters their stored length, padding included. Contents after an inode, and
//!   plain contents with extent records (which may end inside a block), take their exact length.
//! - A file is charged for a fragment by its length: the packed file's stored bytes are distributed evenly over its
//!   contents. So files that share a fragment are each charged for it, and what they saved is an estimate. The part of
//!   directories in it counts as theirs.
//! - Contents after an inode of the metabox are charged in the same way, by the metabox's stored bytes.

mod claims;
mod collector;
mod top;

pub(crate) use collector::{Collector, Owner};
pub use top::LISTED_FILES;

/// Shortest file in the list of the files that are compressed worst, bytes.
pub const WORST_LEN_BYTES: u64 = 64 << 10;

macro_rules! usage_parts {
    ($($(#[$doc:meta])* $part:ident $name:literal,)*) => {
        /// A use of stored bytes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum UsagePart { $($(#[$doc])* $part,)* }

        impl UsagePart {
            /// All parts, in the order of their declaration.
            pub const ALL: [UsagePart; [$($name),*].len()] = [$(UsagePart::$part),*];

            /// The name in JSON and in text.
            pub fn name(self) -> &'static str {
                [$($name),*][self as usize]
            }
        }
    };
}

usage_parts! {
    /// Clusters of files, compressed with LZ4.
    Lz4 "lz4",
    /// Clusters of files, compressed with MicroLZMA.
    Lzma "lzma",
    /// Clusters of files, compressed with DEFLATE.
    Deflate "deflate",
    /// Clusters of files, compressed with Zstandard.
    Zstd "zstd",
    /// Uncompressed contents of files, in blocks.
    Plain "plain",
    /// The packed file, which holds fragments, without the part of directories.
    Fragments "fragments",
    /// Contents after inodes, compressed or not: ends of files, targets of symbolic links.
    Inline "inline",
    /// Contents of directories. If these are fragments, their part of the packed file.
    Directories "directories",
    /// Inodes, and the rest of their last slots.
    Inodes "inodes",
    /// Indexes of compressed files, and arrays of chunks.
    Indexes "indexes",
    /// Extended attributes, and the prefixes of their names.
    Xattrs "xattrs",
    /// The metabox, which holds compressed metadata.
    Metabox "metabox",
    /// The bytes before the superblock, the superblock, and the records and the table of devices that belong to it.
    Superblock "superblock",
    /// Padding of blocks, and bytes that nothing refers to.
    Unused "unused",
}

/// A regular file and its stored bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileUsage {
    /// The path from the root, `/` first; cut after 4096 bytes.
    pub path: Vec<u8>,
    /// Length of the contents, bytes.
    pub len_bytes: u64,
    /// Bytes that are stored for the contents and that no file before it in the walk shares.
    pub stored_bytes: u64,
}

impl FileUsage {
    /// Stored bytes for each byte of contents; `None` if the file is empty.
    pub fn fraction(&self) -> Option<f64> {
        (self.len_bytes > 0).then(|| self.stored_bytes as f64 / self.len_bytes as f64)
    }
}

/// The uses of an image's stored bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    parts: [u64; UsagePart::ALL.len()],
    /// Bytes of contents in fragments.
    pub fragment_bytes: u64,
    /// Bytes of contents that are stored with the contents of an earlier file, or earlier in the same file.
    pub shared_bytes: u64,
    /// Bytes that would be stored in addition if nothing was shared. Those of fragments are an estimate.
    pub saved_bytes: u64,
    /// The files with most stored bytes, at most [`LISTED_FILES`], most first.
    pub largest: Vec<FileUsage>,
    /// The files of at least [`WORST_LEN_BYTES`] with most stored bytes for each byte of contents, at most
    /// [`LISTED_FILES`], most first; of equal ones, those with most stored bytes.
    pub worst: Vec<FileUsage>,
}

impl Usage {
    /// Stored bytes of one use.
    pub fn part_bytes(&self, part: UsagePart) -> u64 {
        self.parts[part as usize]
    }

    /// Stored bytes of all uses: the length of the image and its further devices.
    pub fn total_bytes(&self) -> u64 {
        self.parts.iter().sum()
    }
}
