//! What a file is: as its mode says, and as directories repeat it.

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
    /// From `st_mode`; `None` for what is no type.
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

    /// From a directory entry; `None` for 0, which says nothing, and for what is no type.
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

    /// Whether it has contents: a regular file, a directory, or a symbolic link.
    pub fn has_contents(self) -> bool {
        matches!(self, FileKind::Regular | FileKind::Directory | FileKind::Symlink)
    }

    /// In words, with an article.
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
