//! The record of an inode: the compact form where nothing is lost by it, else the extended one.

use crate::build::tree::Metadata;
use crate::format::inode::{
    FORMAT_EXTENDED, FORMAT_LAYOUT_SHIFT, RawCompactInode, RawExtendedInode, encode_rdev,
};
use crate::read::FileKind;
use crate::read::inode::{DeviceNumber, Timestamp};

/// The fields of an inode that do not depend on how its contents are stored.
#[derive(Debug)]
pub struct Fields<'a> {
    /// Metadata.
    pub metadata: &'a Metadata,
    /// Type of file.
    pub kind: FileKind,
    /// Names of the inode; of a directory two, and one for each directory in it.
    pub nlink: u32,
    /// The number that `stat` shows.
    pub ino: u32,
    /// Length of the contents, bytes.
    pub len_bytes: u64,
    /// Bytes of attributes behind the inode.
    pub xattr_bytes: usize,
}

/// How the contents are stored: the layout, and the field whose meaning depends on it.
#[derive(Debug, Clone, Copy)]
pub struct Storage {
    /// One of the constants `LAYOUT_*`.
    pub layout: u16,
    /// First block, number of blocks, chunk format, or device number.
    pub u: u32,
}

impl Storage {
    /// The storage of an inode without contents.
    pub fn device(number: Option<DeviceNumber>) -> Self {
        let u = number.map_or(0, |number| encode_rdev(number.major, number.minor));
        Storage { layout: crate::format::inode::LAYOUT_FLAT_PLAIN, u }
    }
}

impl Fields<'_> {
    /// Whether the inode needs the extended form: compact ones have the image's time, and short numbers.
    pub fn is_extended(&self, epoch: Timestamp) -> bool {
        let short = u32::from(u16::MAX);
        let Metadata { uid, gid, mtime, .. } = self.metadata;
        *mtime != epoch
            || *uid > short
            || *gid > short
            || self.nlink > short
            || self.len_bytes > u64::from(u32::MAX)
    }

    /// Bytes of the inode and its attributes.
    pub fn head_bytes(&self, epoch: Timestamp) -> u64 {
        let inode = if self.is_extended(epoch) { RawExtendedInode::LEN } else { RawCompactInode::LEN };
        (inode + self.xattr_bytes) as u64
    }

    /// Encodes the inode; its attributes follow it.
    pub fn encode(&self, epoch: Timestamp, storage: Storage) -> Vec<u8> {
        let Metadata { uid, gid, mtime, permissions, .. } = self.metadata;
        let icount = match self.xattr_bytes {
            0 => 0,
            bytes => ((bytes - 12) / 4 + 1) as u16,
        };
        let mode = self.kind.mode_bits() | permissions & 0o7777;
        let format = storage.layout << FORMAT_LAYOUT_SHIFT;
        if self.is_extended(epoch) {
            let inode = RawExtendedInode {
                i_format: (format | FORMAT_EXTENDED).into(),
                i_xattr_icount: icount.into(),
                i_mode: mode.into(),
                i_nb: 0.into(),
                i_size: self.len_bytes.into(),
                i_u: storage.u.into(),
                i_ino: self.ino.into(),
                i_uid: (*uid).into(),
                i_gid: (*gid).into(),
                i_mtime: (mtime.seconds as u64).into(),
                i_mtime_nsec: mtime.nanoseconds.into(),
                i_nlink: self.nlink.into(),
                reserved: [0; 16],
            };
            return inode.encode().to_vec();
        }
        let inode = RawCompactInode {
            i_format: format.into(),
            i_xattr_icount: icount.into(),
            i_mode: mode.into(),
            i_nb: (self.nlink as u16).into(),
            i_size: (self.len_bytes as u32).into(),
            i_mtime: 0.into(),
            i_u: storage.u.into(),
            i_ino: self.ino.into(),
            i_uid: (*uid as u16).into(),
            i_gid: (*gid as u16).into(),
            reserved: 0.into(),
        };
        inode.encode().to_vec()
    }
}
