//! The record that a tree has for each inode.

use super::names::{NO_NODE, Name};
use super::{Body, InodeId, Metadata};
use pagefold_image::read::FileKind;
use pagefold_image::read::inode::{DeviceNumber, Timestamp};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// An inode. Its attributes are elsewhere.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Record {
    seconds: i64,
    /// The property that only this type of file has: see [`Detail`].
    detail: u64,
    /// The name of a directory, which has one.
    pub name: Name,
    nanoseconds: u32,
    uid: u32,
    gid: u32,
    /// The number of its set of attributes.
    pub xattrs: u32,
    permissions: u16,
    /// The type of file, as a directory entry has it.
    kind: u16,
    /// The parent of a directory.
    pub parent: InodeId,
}

/// A property that only some types of files have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// The root of the tree of entries.
    Directory(u32),
    /// A regular file: the number of its contents.
    Regular(u64),
    /// A symbolic link: its target.
    Symlink(Name),
    /// A device.
    Device(FileKind, DeviceNumber),
    /// A pipe or socket.
    Other(FileKind),
}

impl Record {
    /// Makes a record. `xattrs` is the number of its set of attributes.
    pub fn new(metadata: &Metadata, xattrs: u32, detail: Detail) -> Self {
        let empty = Record {
            seconds: 0,
            detail: 0,
            name: Name::default(),
            nanoseconds: 0,
            uid: 0,
            gid: 0,
            xattrs,
            permissions: 0,
            kind: 0,
            parent: InodeId::ROOT,
        };
        empty.with_metadata(metadata, xattrs).with_detail(detail)
    }

    /// The record at a place of the tree.
    pub fn at(self, parent: InodeId, name: Name) -> Self {
        Record { parent, name, ..self }
    }

    /// The record with other metadata.
    pub fn with_metadata(self, metadata: &Metadata, xattrs: u32) -> Self {
        let Metadata { permissions, uid, gid, mtime: Timestamp { seconds, nanoseconds }, .. } = *metadata;
        Record { seconds, nanoseconds, uid, gid, xattrs, permissions, ..self }
    }

    /// The metadata, without attributes.
    pub fn metadata(&self) -> Metadata {
        let Record { permissions, uid, gid, .. } = *self;
        Metadata { permissions, uid, gid, mtime: self.mtime(), xattrs: Vec::new() }
    }

    /// The time of the last change.
    pub fn mtime(&self) -> Timestamp {
        Timestamp { seconds: self.seconds, nanoseconds: self.nanoseconds }
    }

    /// The record with another detail.
    pub fn with_detail(self, detail: Detail) -> Self {
        let (kind, detail) = match detail {
            Detail::Directory(root) => (FileKind::Directory, root.into()),
            Detail::Regular(number) => (FileKind::Regular, number),
            Detail::Symlink(target) => (FileKind::Symlink, zerocopy::transmute!(target)),
            Detail::Device(kind, number) => (kind, u64::from(number.major) << 32 | u64::from(number.minor)),
            Detail::Other(kind) => (kind, 0),
        };
        Record { kind: kind.to_dirent().into(), detail, ..self }
    }

    /// The property that only this type of file has.
    pub fn detail(&self) -> Detail {
        let device = || DeviceNumber { major: (self.detail >> 32) as u32, minor: self.detail as u32 };
        match self.kind() {
            FileKind::Directory => Detail::Directory(self.detail as u32),
            FileKind::Regular => Detail::Regular(self.detail),
            FileKind::Symlink => Detail::Symlink(zerocopy::transmute!(self.detail)),
            kind @ (FileKind::CharDevice | FileKind::BlockDevice) => Detail::Device(kind, device()),
            kind => Detail::Other(kind),
        }
    }

    /// The type of file.
    pub fn kind(&self) -> FileKind {
        FileKind::from_dirent(self.kind as u8).unwrap_or(FileKind::Regular)
    }
}

impl Detail {
    /// The detail of a body that needs no table.
    pub fn of(body: &Body) -> Option<Self> {
        Some(match body {
            Body::Directory => Detail::Directory(NO_NODE),
            Body::CharDevice(number) => Detail::Device(FileKind::CharDevice, *number),
            Body::BlockDevice(number) => Detail::Device(FileKind::BlockDevice, *number),
            Body::Fifo | Body::Socket => Detail::Other(body.kind()),
            Body::Regular(_) | Body::Stored(_) | Body::Symlink(_) => return None,
        })
    }
}
