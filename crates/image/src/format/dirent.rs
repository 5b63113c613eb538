//! Directory entries: a directory block begins with an array of entries, and their names follow.

use super::le::{Le16, Le64, on_disk};

/// Longest name, bytes.
pub const NAME_LEN_MAX: usize = 255;

on_disk! {
    /// An entry without its name.
    pub struct RawDirent: 12 {
        /// Number of the inode.
        pub nid: Le64,
        /// Offset of the name in the block, bytes.
        pub nameoff: Le16,
        /// Type of file: one of the constants `TYPE_*`.
        pub file_type: u8,
        /// Zero.
        pub reserved: u8,
    }
}

/// Unknown type of file.
pub const TYPE_UNKNOWN: u8 = 0;
/// Regular file.
pub const TYPE_REGULAR: u8 = 1;
/// Directory.
pub const TYPE_DIRECTORY: u8 = 2;
/// Character device.
pub const TYPE_CHAR_DEVICE: u8 = 3;
/// Block device.
pub const TYPE_BLOCK_DEVICE: u8 = 4;
/// Named pipe.
pub const TYPE_FIFO: u8 = 5;
/// Socket.
pub const TYPE_SOCKET: u8 = 6;
/// Symbolic link.
pub const TYPE_SYMLINK: u8 = 7;
