//! The type of a file, from the mode of its inode or from a directory entry.

use crate::format::{dirent, inode};

/// The type of a file, with its number in directory entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// A regular file.
    Regular = dirent::TYPE_REGULAR,
    /// A directory.
    Directory = dirent::TYPE_DIRECTORY,
    /// A symbolic link.
    Symlink = dirent::TYPE_SYMLINK,
    /// A character device.
    CharDevice = dirent::TYPE_CHAR_DEVICE,
    /// A block device.
    BlockDevice = dirent::TYPE_BLOCK_DEVICE,
    /// A named pipe.
    Fifo = dirent::TYPE_FIFO,
    /// A socket.
    Socket = dirent::TYPE_SOCKET,
}

impl FileKind {
    const ALL: [FileKind; 7] = [
        FileKind::Regular,
        FileKind::Directory,
        FileKind::Symlink,
        FileKind::CharDevice,
        FileKind::BlockDevice,
        FileKind::Fifo,
        FileKind::Socket,
    ];

    /// Decodes the type from `st_mode`; `None` for an invalid one.
    pub fn from_mode(mode: u16) -> Option<Self> {
        FileKind::ALL.into_iter().find(|kind| kind.mode_bits() == mode & inode::MODE_TYPE_MASK)
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
        FileKind::ALL.into_iter().find(|kind| kind.to_dirent() == file_type)
    }

    /// Encodes the type as in a directory entry.
    pub fn to_dirent(self) -> u8 {
        self as u8
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
