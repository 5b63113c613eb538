//! The form in which an image stores what it contains: choices that change bytes and lengths, but no contents.
//!
//! The defaults suit all uses. The others are for programs that ask for a certain form, as callers of mkfs.erofs do: they
//! map files into memory past the page cache (`inline_data`), overwrite parts of an image afterwards (`inodes`,
//! `checksum`), or compare images (`uuid`).

use super::chunk_files::ChunkForm;

/// The form of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// The identity of the image. `None`: one that follows from its contents.
    pub uuid: Option<[u8; 16]>,
    /// The form of inodes.
    pub inodes: InodeForm,
    /// Whether the ends of files that are stored uncompressed stand after their inodes, where there is room.
    pub inline_data: bool,
    /// The chunks in which files are stored, all uncompressed. `None`: they have none, but for files that are mostly holes.
    pub chunks: Option<ChunkForm>,
    /// Whether all indexes of compressed files have the full form, of 8 bytes for each block of a file.
    pub full_indexes: bool,
    /// Whether the superblock has a checksum.
    pub checksum: bool,
    /// An attribute that at least this many inodes have is stored once.
    pub xattr_shared_min: u32,
}

/// The form of inodes: compact ones take 32 bytes, extended ones 64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InodeForm {
    /// Compact where nothing is lost by that.
    Lossless,
    /// Compact also where the time of the file is lost: it gets the time of creation of the image.
    WithoutTimes,
    /// All compact, without their times. The build fails at an inode that cannot be compact.
    Compact,
    /// All extended.
    Extended,
}

impl InodeForm {
    /// Whether compact inodes may lose their times.
    pub fn loses_times(self) -> bool {
        matches!(self, InodeForm::WithoutTimes | InodeForm::Compact)
    }
}

/// An attribute that at least this many inodes have is shared by default: it takes 4 bytes in each, and once its length.
const XATTR_SHARED_MIN: u32 = 3;

impl Default for Form {
    fn default() -> Self {
        Form {
            uuid: None,
            inodes: InodeForm::Lossless,
            inline_data: true,
            chunks: None,
            full_indexes: false,
            checksum: true,
            xattr_shared_min: XATTR_SHARED_MIN,
        }
    }
}
