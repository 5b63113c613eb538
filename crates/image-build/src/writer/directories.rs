//! Directories, which are placed first and filled in last, when all inodes have their numbers.
//!
//! Their blocks lie after all contents of files, and an end that is short after the inode. Compressed directories are
//! fragments as a whole, one after the other at the end of the packed file; so the numbers of inodes must be known before
//! the packed file ends. They count from the beginning of the area of inodes, so they are, unless the image may have 16
//! TiB: the superblock may not be able to say where that area begins then.

use super::Writer;
use super::placed::{Numbers, PlacedDirectory};
use crate::Result;
use crate::metadata::directory::{self, with_dots};
use crate::metadata::inode::Storage;
use crate::plan::Planned;
use crate::tree::InodeId;
use pagefold_image::format::inode::{LAYOUT_COMPRESSED_FULL, LAYOUT_FLAT_INLINE, LAYOUT_FLAT_PLAIN};
use pagefold_image::format::zmap::{HEADER_BYTES, MapHeader};

impl Writer<'_> {
    /// Whether directories lie in the packed file.
    pub fn has_packed_directories(&self) -> bool {
        self.directories.is_packed
    }

    /// Takes the numbers of inodes to encode directories, which begin at this byte of the packed file.
    pub fn begin_packed_directories(&mut self, packed_at: u64) -> Numbers {
        self.directories.packed_at = packed_at;
        let none = self.numbers.none();
        std::mem::replace(&mut self.numbers, none)
    }

    /// Returns the numbers, when all directories are in the packed file.
    pub fn end_packed_directories(&mut self, numbers: Numbers) {
        self.numbers = numbers;
    }

    /// Places all directories: the root first.
    pub(super) fn place_directories(&mut self) -> Result<()> {
        let plan = self.plan;
        let (mut next, block_bytes) = (0, self.geometry.block_bytes);
        for planned in plan.directories.iter() {
            let names = with_dots(self.tree.entries(planned.id), planned.id, planned.parent);
            let len_bytes = directory::len_bytes(names.map(|(name, _)| name), block_bytes);
            let placed = match self.directories.is_packed {
                true => self.place_packed(&planned, len_bytes, next)?,
                false => self.place_blocks(&planned, len_bytes, next)?,
            };
            self.directories.placed.push(placed)?;
            next += if self.directories.is_packed { len_bytes } else { placed.blocks(block_bytes) };
        }
        Ok(())
    }

    fn place_packed(&mut self, planned: &Planned, len_bytes: u64, start: u64) -> Result<PlacedDirectory> {
        let (head_bytes, _) = self.fields(planned, len_bytes, false)?;
        let end = head_bytes.next_multiple_of(HEADER_BYTES) + HEADER_BYTES;
        let place = self.reserve(end, end..end, planned.id == InodeId::ROOT)?;
        self.numbers.set(planned.id, place);
        Ok(PlacedDirectory { len_bytes, start, inline: 0, is_wide: 0 })
    }

    fn place_blocks(&mut self, planned: &Planned, len_bytes: u64, start: u64) -> Result<PlacedDirectory> {
        let tail = len_bytes % u64::from(self.geometry.block_bytes);
        let inline = tail != 0 && tail <= self.geometry.inline_bytes_max() as u64;
        let tail = if inline { tail } else { 0 };
        let is_wide = self.is_large && len_bytes > tail;
        let (head_bytes, _) = self.fields(planned, len_bytes, is_wide)?;
        let end = head_bytes..head_bytes + tail;
        let place = self.reserve(end.end, end, planned.id == InodeId::ROOT)?;
        self.numbers.set(planned.id, place);
        Ok(PlacedDirectory { len_bytes, start, inline: inline.into(), is_wide: is_wide.into() })
    }

    /// Fills in all directories, the first of which has its blocks at `first_block`.
    pub(super) fn put_directories(&mut self, first_block: u64) -> Result<()> {
        let plan = self.plan;
        for (at, planned) in plan.directories.iter().enumerate() {
            let placed = self.directories.placed.get(at);
            match self.directories.is_packed {
                true => self.put_packed_directory(&planned, &placed)?,
                false => self.put_directory(&planned, &placed, first_block)?,
            }
        }
        Ok(())
    }

    /// Writes the inode of a directory in the packed file.
    fn put_packed_directory(&mut self, planned: &Planned, placed: &PlacedDirectory) -> Result<()> {
        self.used.fragments = true;
        let (head_bytes, xattrs) = self.fields(planned, placed.len_bytes, false)?;
        let place = self.numbers.place(planned.id);
        let storage = Storage::count(LAYOUT_COMPRESSED_FULL, 0);
        self.write_head(planned, placed.len_bytes, place, storage, &xattrs);
        let header = MapHeader::of_whole_fragment(self.directories.packed_at + placed.start);
        self.write_at(place, head_bytes.next_multiple_of(HEADER_BYTES), &header.encode());
        Ok(())
    }

    fn put_directory(&mut self, planned: &Planned, placed: &PlacedDirectory, first_block: u64) -> Result<()> {
        let is_wide = placed.is_wide != 0;
        let mut blocks = self.numbers.blocks(self.tree, planned);
        let (mut tail, mut left) = (Vec::new(), placed.blocks(self.geometry.block_bytes));
        while let Some(block) = blocks.next_block() {
            match left.checked_sub(1) {
                Some(less) => {
                    self.out.append_padded(block)?;
                    left = less;
                }
                None => tail = block,
            }
        }
        drop(blocks);
        let layout = if placed.inline != 0 { LAYOUT_FLAT_INLINE } else { LAYOUT_FLAT_PLAIN };
        let block = (placed.blocks(self.geometry.block_bytes) > 0).then_some(first_block + placed.start);
        let storage = Storage::blocks(layout, block).widened(is_wide);
        let (head_bytes, xattrs) = self.fields(planned, placed.len_bytes, is_wide)?;
        let place = self.numbers.place(planned.id);
        self.write_head(planned, placed.len_bytes, place, storage, &xattrs);
        self.write_at(place, head_bytes, &tail);
        Ok(())
    }
}
