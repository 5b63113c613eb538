//! The end of an image: directories, shared attributes, inodes, and the superblock.

use super::Writer;
use crate::progress::Summary;
use crate::superblock::{Head, Prefixes};
use crate::tree::InodeId;
use crate::{BuildError, Result};
use pagefold_image::format::inode::SLOT_LEN;

impl Writer<'_> {
    /// Appends directories, shared attributes and inodes, and writes the superblock.
    pub(super) fn finish(mut self) -> Result<Summary> {
        let (first_block, block_bytes) = (self.out.next_block(), self.geometry.block_bytes);
        let block = u64::from(block_bytes);
        // All inodes may have to stay outside. Then a metabox has nothing but the prefixes of attribute names, if there are any.
        self.metabox = self.metabox.take().filter(|metabox| !metabox.is_empty());
        // Numbers of inodes have 64 bits, and the block that they count from has 32.
        if self.metabox.is_none() {
            let meta_block = first_block
                + self.directories.blocks(block_bytes)
                + if self.is_large { 0 } else { self.pool.bytes().len() as u64 / block };
            let meta_start = u32::try_from(meta_block).unwrap_or(0);
            self.numbers.first = (meta_block - u64::from(meta_start)) * (block / SLOT_LEN);
        }
        self.put_directories(first_block)?;
        if !self.is_large {
            self.put_shared_attributes()?;
        }
        let root_nid = self.numbers.of(InodeId::ROOT);
        let first_nid = self.numbers.first;
        let prefixes = match (&self.metabox, self.packed_place) {
            (Some(_), _) => Prefixes::InFile { at: SLOT_LEN },
            (None, Some(_)) => Prefixes::InFile { at: 0 },
            (None, None) => Prefixes::InFirstBlock(self.prefixes()),
        };
        let (meta_block, metabox_place) = self.put_inodes()?;
        let blocks = self.out.next_block();
        self.used.wide = blocks > u64::from(u32::MAX);
        self.used.devices = self.geometry.is_index();
        self.used.prefixes = self.pool.prefixes().count();
        debug_assert!(self.used.is_in(self.options.target), "{:?}", self.used);
        // The image also is its devices, of which it has only the table.
        let further = [prefixes.in_first_block(), &self.geometry.table(blocks)?].concat();
        let hash = self.out.flush_all(&further)?;
        let too_large = |_| BuildError::TooLarge { what: "its metadata needs addresses of 48 bits".into() };
        let hidden = u64::from(self.packed_place.is_some()) + u64::from(metabox_place.is_some());
        let meta_start = meta_block - first_nid / (block / SLOT_LEN);
        let head = Head {
            root_nid,
            meta_block: u32::try_from(meta_start).map_err(too_large)?,
            xattr_block: u32::try_from(self.xattr_block).map_err(too_large)?,
            blocks,
            inodes: self.summary.inodes + hidden,
            packed_nid: self.packed_place.map_or(0, |at| first_nid + at / SLOT_LEN),
            metabox_nid: metabox_place.map(|at| at / SLOT_LEN),
            prefixes,
            epoch: self.plan.epoch,
            build_time: self.plan.build_time,
            hash,
        };
        let head = head.encode(&self.used, self.options, &self.geometry)?;
        self.out.finish(&head)?;
        self.summary.directories = self.plan.directories.len() as u64;
        self.summary.image_bytes = blocks * block;
        self.summary.metadata_bytes += (blocks - first_block) * block;
        Ok(self.summary)
    }

    /// Appends the attributes that several inodes share.
    pub(super) fn put_shared_attributes(&mut self) -> Result<()> {
        self.xattr_block = self.out.next_block();
        self.out.append_table(self.pool.bytes())
    }
}
