//! The record of an inode: the compact form where nothing is lost by it, else the extended one.

use crate::form::InodeForm;
use crate::tree::Metadata;
use pagefold_image::format::inode::{
    FORMAT_EXTENDED, FORMAT_LAYOUT_SHIFT, LAYOUT_CHUNK_BASED, LAYOUT_FLAT_PLAIN, RawCompactInode,
    RawExtendedInode, encode_rdev,
};
use pagefold_image::read::FileKind;
use pagefold_image::read::inode::{DeviceNumber, Timestamp};

/// The fields of an inode that do not depend on how its contents are stored.
#[derive(Debug)]
pub struct Fields {
    /// Metadata; its attributes are not used.
    pub metadata: Metadata,
    /// Type of file.
    pub kind: FileKind,
    /// Names of the inode; of a directory two, and one for each directory in it.
    pub nlink: u32,
    /// The number that `stat` shows.
    pub ino: u32,
    /// Length of the contents, bytes.
    pub len_bytes: u64,
    /// Bytes of attributes after the inode.
    pub xattr_bytes: usize,
    /// Whether the inode needs room for 48 bits of [`Storage::u`].
    pub is_wide: bool,
    /// The form that inodes of the image have.
    pub form: InodeForm,
}

/// The first block number that needs more than 32 bits: where an address has 32 bits, all ones mean no block.
pub const ADDRESS_WIDE: u64 = u32::MAX as u64;

/// How the contents are stored: the layout, and the field whose meaning depends on it.
#[derive(Debug, Clone, Copy)]
pub struct Storage {
    /// One of the constants `LAYOUT_*`.
    layout: u16,
    /// First block, number of blocks, chunk format, or device number.
    u: u64,
    /// Whether that may need 48 bits.
    pub is_wide: bool,
}

impl Storage {
    /// The storage of an inode without contents.
    pub fn device(number: Option<DeviceNumber>) -> Self {
        let u = number.map_or(0, |number| encode_rdev(number.major, number.minor));
        Storage { layout: LAYOUT_FLAT_PLAIN, u: u.into(), is_wide: false }
    }

    /// The storage of contents in consecutive blocks; `None`: they have no block.
    pub fn blocks(layout: u16, first_block: Option<u64>) -> Self {
        let is_wide = first_block.is_some_and(|block| block >= ADDRESS_WIDE);
        Storage { layout, u: first_block.unwrap_or(ADDRESS_WIDE), is_wide }
    }

    /// Gives the inode room for 48 bits, because the first block is not known when the inode is placed.
    pub fn widened(self, is_wide: bool) -> Self {
        Storage { is_wide, ..self }
    }

    /// The storage of compressed contents of this many blocks.
    pub fn count(layout: u16, blocks: u64) -> Self {
        Storage { layout, u: blocks, is_wide: blocks > u64::from(u32::MAX) }
    }

    /// Whether contents are in chunks.
    pub fn is_chunks(self) -> bool {
        self.layout == LAYOUT_CHUNK_BASED
    }

    /// The storage of contents in chunks of this format.
    pub fn chunks(format: u16) -> Self {
        Storage { layout: LAYOUT_CHUNK_BASED, u: format.into(), is_wide: false }
    }
}

impl Fields {
    /// Whether the inode has the extended form, because it needs it or because all have it.
    pub fn is_extended(&self, epoch: Timestamp) -> bool {
        let has_other_time = self.metadata.mtime != epoch && !self.form.loses_times();
        self.form == InodeForm::Extended || has_other_time || self.exceeds_compact()
    }

    /// Whether no compact inode can have these numbers and addresses.
    pub fn exceeds_compact(&self) -> bool {
        let short = u32::from(u16::MAX);
        let Metadata { uid, gid, .. } = &self.metadata;
        self.is_wide
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
        let Metadata { uid, gid, mtime, permissions, .. } = &self.metadata;
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
                i_nb: ((storage.u >> 32) as u16).into(),
                i_size: self.len_bytes.into(),
                i_u: (storage.u as u32).into(),
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
            i_u: (storage.u as u32).into(),
            i_ino: self.ino.into(),
            i_uid: (*uid as u16).into(),
            i_gid: (*gid as u16).into(),
            reserved: 0.into(),
        };
        inode.encode().to_vec()
    }
}
