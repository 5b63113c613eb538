//! Directories, which are placed first and filled in last, and the end of the image.

use super::metabox::Position;
use super::{BLOCK, Writer};
use crate::build::BuildError;
use crate::build::compress::segment::INLINE_BYTES_MAX;
use crate::build::metadata::directory::{self, Blocks, Entry, with_dots};
use crate::build::metadata::inode::Storage;
use crate::build::plan::Planned;
use crate::build::progress::Summary;
use crate::build::superblock::{Head, Prefixes};
use crate::build::table::Table;
use crate::build::tree::InodeId;
use crate::format::inode::{LAYOUT_FLAT_INLINE, LAYOUT_FLAT_PLAIN, NID_METABOX, SLOT_LEN};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A directory that is placed but not filled in.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct PlacedDirectory {
    len_bytes: u64,
    /// First of its blocks, counted from the first block of directories.
    first_block: u64,
    /// Not 0: the last block lies behind the inode.
    inline: u32,
    /// Not 0: the inode has room for an address of 48 bits.
    is_wide: u32,
}

impl PlacedDirectory {
    /// Blocks, without one behind the inode.
    fn blocks(&self) -> u64 {
        if self.inline != 0 { self.len_bytes / BLOCK } else { self.len_bytes.div_ceil(BLOCK) }
    }
}

impl Writer<'_> {
    /// Places all directories: the root first.
    pub(super) fn place_directories(&mut self) -> Result<Table<PlacedDirectory>, BuildError> {
        let plan = self.plan;
        let mut next_block = 0;
        let mut placed = Table::new(self.tree.spill());
        for planned in plan.directories.iter() {
            let names = with_dots(self.tree.entries(planned.id), planned.id, planned.parent);
            let len_bytes = directory::len_bytes(names.map(|(name, _)| name));
            let tail = len_bytes % BLOCK;
            let inline = tail != 0 && tail <= INLINE_BYTES_MAX as u64;
            let tail = if inline { tail } else { 0 };
            let is_wide = self.is_large && len_bytes > tail;
            let (head_bytes, _) = self.fields(&planned, len_bytes, is_wide)?;
            let end = head_bytes..head_bytes + tail;
            let place = self.reserve(end.end, end, planned.id == InodeId::ROOT)?;
            self.places.set(planned.id.index(), place.encode());
            placed.push(PlacedDirectory {
                len_bytes,
                first_block: next_block,
                inline: inline.into(),
                is_wide: is_wide.into(),
            })?;
            next_block += (len_bytes - tail).div_ceil(BLOCK);
        }
        Ok(placed)
    }

    /// Appends directories, shared attributes and inodes, and writes the superblock.
    pub(super) fn finish(mut self, directories: &Table<PlacedDirectory>) -> Result<Summary, BuildError> {
        let first_block = self.out.next_block();
        // Numbers of inodes have 64 bits, and the block that they count from has 32.
        if self.metabox.is_none() {
            let meta_block = first_block
                + directories.iter().map(|directory| directory.blocks()).sum::<u64>()
                + if self.is_large { 0 } else { self.pool.bytes().len() as u64 / BLOCK };
            let meta_start = u32::try_from(meta_block).unwrap_or(0);
            self.first_nid = (meta_block - u64::from(meta_start)) * (BLOCK / SLOT_LEN);
        }
        for (planned, placed) in self.plan.directories.iter().zip(directories.iter()) {
            self.put_directory(&planned, &placed, first_block)?;
        }
        if !self.is_large {
            self.put_shared_attributes()?;
        }
        let root_nid = nid(&self.places, self.first_nid, InodeId::ROOT);
        let prefixes = match (&self.metabox, self.packed_place) {
            (Some(_), _) => Prefixes::InFile { at: SLOT_LEN },
            (None, Some(_)) => Prefixes::InFile { at: 0 },
            (None, None) => Prefixes::InFirstBlock(self.prefixes()),
        };
        let (meta_block, metabox_place) = self.put_inodes()?;
        let blocks = self.out.next_block();
        self.used.wide = blocks > u64::from(u32::MAX);
        self.used.prefixes = self.pool.prefixes().count();
        debug_assert!(self.used.is_in(self.options.target), "{:?}", self.used);
        let hash = self.out.flush_all(prefixes.in_first_block())?;
        let too_large = |_| BuildError::TooLarge { what: "its metadata needs addresses of 48 bits".into() };
        let hidden = u64::from(self.packed_place.is_some()) + u64::from(metabox_place.is_some());
        let meta_start = meta_block - self.first_nid / (BLOCK / SLOT_LEN);
        let head = Head {
            root_nid,
            meta_block: u32::try_from(meta_start).map_err(too_large)?,
            xattr_block: u32::try_from(self.xattr_block).map_err(too_large)?,
            blocks,
            inodes: self.summary.inodes + hidden,
            packed_nid: self.packed_place.map_or(0, |at| self.first_nid + at / SLOT_LEN),
            metabox_nid: metabox_place.map(|at| at / SLOT_LEN),
            prefixes,
            epoch: self.plan.epoch,
            build_time: self.plan.build_time,
            hash,
        };
        let head = head.encode(&self.used, self.options)?;
        self.out.finish(&head)?;
        self.summary.directories = directories.len() as u64;
        self.summary.image_bytes = blocks * BLOCK;
        self.summary.metadata_bytes = (blocks - first_block) * BLOCK;
        Ok(self.summary)
    }

    /// Appends the attributes that several inodes share.
    pub(super) fn put_shared_attributes(&mut self) -> Result<(), BuildError> {
        self.xattr_block = self.out.next_block();
        self.out.append_table(self.pool.bytes())
    }

    fn put_directory(
        &mut self,
        planned: &Planned,
        placed: &PlacedDirectory,
        first_block: u64,
    ) -> Result<(), BuildError> {
        let is_wide = placed.is_wide != 0;
        let names = with_dots(self.tree.entries(planned.id), planned.id, planned.parent);
        let (tree, places, first_nid) = (self.tree, &self.places, self.first_nid);
        let entries =
            names.map(|(name, id)| Entry { name, nid: nid(places, first_nid, id), kind: tree.kind(id) });
        let (mut blocks, mut tail, mut left) = (Blocks::new(entries), Vec::new(), placed.blocks());
        while let Some(block) = blocks.next_block() {
            match left.checked_sub(1) {
                Some(less) => {
                    self.out.append_padded(block)?;
                    left = less;
                }
                None => tail = block,
            }
        }
        let layout = if placed.inline != 0 { LAYOUT_FLAT_INLINE } else { LAYOUT_FLAT_PLAIN };
        let block = (placed.blocks() > 0).then_some(first_block + placed.first_block);
        let storage = Storage::blocks(layout, block).with_room(is_wide);
        let (head_bytes, xattrs) = self.fields(planned, placed.len_bytes, is_wide)?;
        let place = Position::decode(self.places.get(planned.id.index()));
        self.write_head(planned, placed.len_bytes, place, storage, &xattrs);
        self.write_at(place, head_bytes, &tail);
        Ok(())
    }
}

/// The number of an inode in the image.
fn nid(places: &Table<u64>, first_nid: u64, id: InodeId) -> u64 {
    match Position::decode(places.get(id.index())) {
        Position::Plain(at) => first_nid + at / SLOT_LEN,
        Position::Metabox(at) => NID_METABOX | (at / SLOT_LEN),
    }
}
