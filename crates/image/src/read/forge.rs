//! Small images made by hand, for unit tests: what no image maker at hand writes.

use super::{SliceBytes, Superblock};
use crate::format::inode::{RawCompactInode, RawExtendedInode};
use crate::format::le::{Le16, Le32, Le64};
use crate::format::superblock::{MAGIC, RawSuperblock};
use crate::{ImageError, Nid};

/// Where [`Forge`] puts inodes: this block is the first of the metadata.
pub(crate) const META_BLOCK: u32 = 8;

/// An image in the making.
pub(crate) struct Forge {
    pub(crate) raw: RawSuperblock,
    bytes: Vec<u8>,
}

impl Forge {
    /// 64 empty blocks with a superblock.
    pub(crate) fn new(block_bits: u8) -> Self {
        let mut raw = RawSuperblock::parse(&[0; 128]);
        raw.magic = Le32::new(MAGIC);
        raw.blkszbits = block_bits;
        raw.meta_blkaddr = Le32::new(META_BLOCK);
        Forge { raw, bytes: vec![0; 64 << block_bits] }
    }

    pub(crate) fn put(&mut self, at: u64, bytes: &[u8]) {
        self.bytes[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    /// Where inode `nid` lies.
    pub(crate) fn inode_at(&self, nid: u64) -> u64 {
        (u64::from(META_BLOCK) << self.raw.blkszbits) + nid * 32
    }

    pub(crate) fn put_compact(&mut self, nid: u64, inode: &RawCompactInode) {
        self.put(self.inode_at(nid), &inode.encode());
    }

    pub(crate) fn put_extended(&mut self, nid: u64, inode: &RawExtendedInode) {
        self.put(self.inode_at(nid), &inode.encode());
    }

    /// The image.
    pub(crate) fn image(&self) -> Vec<u8> {
        let mut image = self.bytes.clone();
        image[1024..1152].copy_from_slice(&self.raw.encode());
        image
    }

    pub(crate) fn superblock(&self) -> Result<Superblock, ImageError> {
        Superblock::read(&SliceBytes(&self.image()))
    }

    pub(crate) fn inode(&self, nid: u64) -> Result<super::Inode, ImageError> {
        super::Inode::read(&SliceBytes(&self.image()), &self.superblock()?, Nid(nid))
    }
}

/// An empty regular file.
pub(crate) fn compact() -> RawCompactInode {
    let mut inode = RawCompactInode::parse(&[0; 32]);
    inode.i_mode = Le16::new(0o100_644);
    inode.i_nb = Le16::new(1);
    inode
}

/// An empty regular file.
pub(crate) fn extended() -> RawExtendedInode {
    let mut inode = RawExtendedInode::parse(&[0; 64]);
    inode.i_format = Le16::new(1);
    inode.i_mode = Le16::new(0o100_644);
    inode.i_nlink = Le32::new(1);
    inode.i_size = Le64::new(0);
    inode
}

/// What an error says.
pub(crate) fn message<T: std::fmt::Debug>(result: Result<T, ImageError>) -> String {
    result.unwrap_err().to_string()
}
