//! Inodes as sources give them to a tree, and the limits of what an image can store of them.

use crate::content::{Content, Stored};
use crate::error::{BuildError, Result};
use pagefold_image::format::dirent::NAME_LEN_MAX;
use pagefold_image::read::FileKind;
use pagefold_image::read::inode::{DeviceNumber, Timestamp};
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Longest target of a symbolic link, bytes: Linux resolves no longer ones.
pub const LINK_LEN_MAX: usize = 4095;
/// Longest value of an attribute, bytes.
pub const XATTR_VALUE_LEN_MAX: usize = 65535;

/// The number of an inode in a [`Tree`](super::Tree).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, FromBytes, IntoBytes, Immutable)]
#[repr(transparent)]
pub struct InodeId(pub(super) u32);

impl InodeId {
    /// The root directory.
    pub const ROOT: InodeId = InodeId(0);

    /// The position in tables with an entry for each inode.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }

    /// The inode at a position in such tables.
    pub(crate) fn at(index: usize) -> Self {
        InodeId(index as u32)
    }
}

/// An extended attribute: full name, and value.
pub type Xattr = (Box<[u8]>, Box<[u8]>);

/// Metadata that every inode has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// Permissions, with the bits for set-user-id, set-group-id and sticky: `0o7777`.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Time of the last change of the contents.
    pub mtime: Timestamp,
    /// Extended attributes, access lists among them, as Linux encodes them; sorted by name.
    pub xattrs: Vec<Xattr>,
}

impl Default for Metadata {
    /// A directory or program of root that all may read and execute, of 1970.
    fn default() -> Self {
        let mtime = Timestamp { seconds: 0, nanoseconds: 0 };
        Metadata { permissions: 0o755, uid: 0, gid: 0, mtime, xattrs: Vec::new() }
    }
}

/// The type of an inode, with all that belongs only to this type.
#[derive(Debug, Clone)]
pub enum Body {
    /// A directory, which is empty when it is added.
    Directory,
    /// A regular file.
    Regular(Arc<dyn Content>),
    /// A regular file whose contents the tree's [`Contents`](crate::content::Contents) finds by these words.
    Stored(Stored),
    /// A symbolic link, with its target.
    Symlink(Box<[u8]>),
    /// A character device.
    CharDevice(DeviceNumber),
    /// A block device.
    BlockDevice(DeviceNumber),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

impl Body {
    /// The type of file.
    pub fn kind(&self) -> FileKind {
        match self {
            Body::Directory => FileKind::Directory,
            Body::Regular(_) | Body::Stored(_) => FileKind::Regular,
            Body::Symlink(_) => FileKind::Symlink,
            Body::CharDevice(_) => FileKind::CharDevice,
            Body::BlockDevice(_) => FileKind::BlockDevice,
            Body::Fifo => FileKind::Fifo,
            Body::Socket => FileKind::Socket,
        }
    }
}

/// Checks whether an inode may have this name and body.
pub(super) fn check(name: &[u8], body: &Body) -> Result<()> {
    check_name(name)?;
    let what = match body {
        Body::Symlink(target) if target.is_empty() => "an empty link".to_string(),
        Body::Symlink(target) if target.len() > LINK_LEN_MAX => {
            format!("a link of {} bytes; Linux has {LINK_LEN_MAX}", target.len())
        }
        Body::Symlink(target) if target.contains(&0) => "a link with a NUL byte".to_string(),
        Body::CharDevice(DeviceNumber { major, minor })
        | Body::BlockDevice(DeviceNumber { major, minor })
            if *major > 0xfff || *minor > 0xf_ffff =>
        {
            format!("device {major}:{minor}; Linux has up to 4095:1048575")
        }
        _ => return Ok(()),
    };
    Err(BuildError::refused(name, what))
}

/// Checks whether a directory may have this name.
pub(super) fn check_name(name: &[u8]) -> Result<()> {
    let what = match name {
        b"" => "an empty name",
        b"." | b".." => "a name of a directory itself",
        name if name.len() > NAME_LEN_MAX => "a name of more than 255 bytes",
        name if name.contains(&b'/') => "a name with a slash",
        name if name.contains(&0) => "a name with a NUL byte",
        _ => return Ok(()),
    };
    Err(BuildError::refused(name, what))
}
