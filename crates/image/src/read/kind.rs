//! The type of a file, from the mode of its inode or from a directory entry.

use crate::format::{dirent, inode};

/// The type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

impl FileKind {
    /// Decodes the type from `st_mode`; `None` for an invalid one.
    pub fn from_mode(mode: u16) -> Option<Self> {
        match mode & inode::MODE_TYPE_MASK {
            0o100_000 => Some(FileKind::Regular),
            0o040_000 => Some(FileKind::Directory),
            0o120_000 => Some(FileKind::Symlink),
            0o020_000 => Some(FileKind::CharDevice),
            0o060_000 => Some(FileKind::BlockDevice),
            0o010_000 => Some(FileKind::Fifo),
            0o140_000 => Some(FileKind::Socket),
            _ => None,
        }
    }

    /// Encodes the type as in `st_mode`; the inverse of [`from_mode`](Self::from_mode).
    pub fn mode_bits(self) -> u16 {
        match self {
            FileKind::Regular => 0o100_000,
            FileKind::Directory => 0o040_000,
            FileKind::Symlink => 0o120_000,
            FileKind::CharDevice => 0o020_000,
            FileKind::BlockDevice => 0o060_000,
            FileKind::Fifo => 0o010_000,
            FileKind::Socket => 0o140_000,
        }
    }

    /// Decodes the type from a directory entry; `None` for 0, which means unknown, and for an invalid one.
    pub fn from_dirent(file_type: u8) -> Option<Self> {
        match file_type {
            dirent::TYPE_REGULAR => Some(FileKind::Regular),
            dirent::TYPE_DIRECTORY => Some(FileKind::Directory),
            dirent::TYPE_SYMLINK => Some(FileKind::Symlink),
            dirent::TYPE_CHAR_DEVICE => Some(FileKind::CharDevice),
            dirent::TYPE_BLOCK_DEVICE => Some(FileKind::BlockDevice),
            dirent::TYPE_FIFO => Some(FileKind::Fifo),
            dirent::TYPE_SOCKET => Some(FileKind::Socket),
            _ => None,
        }
    }

    /// Whether files of this type have contents: regular files, directories and symbolic links.
    pub fn has_contents(self) -> bool {
        matches!(self, FileKind::Regular | FileKind::Directory | FileKind::Symlink)
    }

    /// Returns the type in words, with an article.
    pub fn name(self) -> &'static str {
        match self {
            FileKind::Regular => "a regular file",
            FileKind::Directory => "a directory",
            FileKind::Symlink => "a symbolic link",
            FileKind::CharDevice => "a character device",
            FileKind::BlockDevice => "a block device",
            FileKind::Fifo => "a named pipe",
            FileKind::Socket => "a socket",
        }
    }
}
