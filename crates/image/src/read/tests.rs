//! Small images built field by field, for unit tests of structures that no available image builder writes.

use super::{SliceBytes, Superblock};
use crate::format::inode::{RawCompactInode, RawExtendedInode};
use crate::format::le::{Le16, Le32, Le64};
use crate::format::superblock::{MAGIC, RawSuperblock};
use crate::{Nid, Result};

/// First block of the metadata of a [`TestImage`], where its inodes are.
pub(crate) const META_BLOCK: u32 = 8;

/// An image under construction.
pub(crate) struct TestImage {
    pub(crate) raw: RawSuperblock,
    bytes: Vec<u8>,
}

impl TestImage {
    /// Makes an image of 64 empty blocks with a superblock.
    pub(crate) fn new(block_bits: u8) -> Self {
        let mut raw = RawSuperblock::parse(&[0; 128]);
        raw.magic = Le32::new(MAGIC);
        raw.blkszbits = block_bits;
        raw.meta_blkaddr = Le32::new(META_BLOCK);
        TestImage { raw, bytes: vec![0; 64 << block_bits] }
    }

    pub(crate) fn put(&mut self, at: u64, bytes: &[u8]) {
        self.bytes[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    /// Offset of inode `nid`, bytes.
    pub(crate) fn inode_at(&self, nid: u64) -> u64 {
        (u64::from(META_BLOCK) << self.raw.blkszbits) + nid * 32
    }

    pub(crate) fn put_compact(&mut self, nid: u64, inode: &RawCompactInode) {
        self.put(self.inode_at(nid), &inode.encode());
    }

    pub(crate) fn put_extended(&mut self, nid: u64, inode: &RawExtendedInode) {
        self.put(self.inode_at(nid), &inode.encode());
    }

    /// Returns the bytes of the image.
    pub(crate) fn image(&self) -> Vec<u8> {
        let mut image = self.bytes.clone();
        image[1024..1152].copy_from_slice(&self.raw.encode());
        image
    }

    pub(crate) fn superblock(&self) -> Result<Superblock> {
        Superblock::read(&SliceBytes::image(&self.image()))
    }

    pub(crate) fn inode(&self, nid: u64) -> Result<super::Inode> {
        super::Inode::read(&SliceBytes::image(&self.image()), &self.superblock()?, Nid(nid))
    }
}

/// The compact inode of an empty regular file.
pub(crate) fn compact() -> RawCompactInode {
    let mut inode = RawCompactInode::parse(&[0; 32]);
    inode.i_mode = Le16::new(0o100_644);
    inode.i_nb = Le16::new(1);
    inode
}

/// The extended inode of an empty regular file.
pub(crate) fn extended() -> RawExtendedInode {
    let mut inode = RawExtendedInode::parse(&[0; 64]);
    inode.i_format = Le16::new(1);
    inode.i_mode = Le16::new(0o100_644);
    inode.i_nlink = Le32::new(1);
    inode.i_size = Le64::new(0);
    inode
}

/// Returns the message of an error.
pub(crate) fn message<T: std::fmt::Debug>(result: Result<T>) -> String {
    result.unwrap_err().to_string()
}
