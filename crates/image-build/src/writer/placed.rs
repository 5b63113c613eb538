//! Directories that are placed, and the numbers of inodes.

use super::metabox::Position;
use crate::Result;
use crate::metadata::directory::{Blocks, Entry, with_dots};
use crate::options::Options;
use crate::plan::Planned;
use crate::table::{Spill, Table};
use crate::tree::{InodeId, Tree};
use pagefold_image::format::inode::{NID_METABOX, SLOT_LEN};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The directories of an image.
pub(super) struct Directories {
    pub(super) placed: Table<PlacedDirectory>,
    /// Whether they lie in the packed file.
    pub(super) is_packed: bool,
    /// Position of the first one in the packed file, bytes; known when the contents of files are written.
    pub(super) packed_at: u64,
}

/// A directory that is placed but not filled in.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct PlacedDirectory {
    pub(super) len_bytes: u64,
    /// The first of its blocks, counted from the first block of directories; in the packed file the first of its bytes,
    /// counted from the first byte of directories.
    pub(super) start: u64,
    /// Not 0: the last block lies after the inode.
    pub(super) inline: u32,
    /// Not 0: the inode has room for an address of 48 bits.
    pub(super) is_wide: u32,
}

impl PlacedDirectory {
    /// Blocks of a directory that is not in the packed file, without one after the inode.
    pub(super) fn blocks(&self, block_bytes: u32) -> u64 {
        let block = u64::from(block_bytes);
        if self.inline != 0 { self.len_bytes / block } else { self.len_bytes.div_ceil(block) }
    }
}

impl Directories {
    /// Begins the directories of an image of so many inodes.
    pub(super) fn new(options: &Options, inodes: usize, is_large: bool, spill: &Spill) -> Self {
        let has_packed_file = options.fragments && options.compression.is_some() && !is_large;
        let is_worth = inodes > 1 && inodes >= options.metadata_inodes_min;
        let is_packed = options.compress_directories && has_packed_file && is_worth;
        Directories { placed: Table::new(spill), is_packed, packed_at: 0 }
    }

    /// Blocks that directories have by themselves.
    pub(super) fn blocks(&self, block_bytes: u32) -> u64 {
        if self.is_packed { 0 } else { self.placed.iter().map(|placed| placed.blocks(block_bytes)).sum() }
    }
}

/// The places of inodes, and their numbers.
pub struct Numbers {
    pub(super) places: Table<Position>,
    /// Number of an inode at the beginning of the area that is not compressed; known when contents are written.
    pub(super) first: u64,
    block_bytes: u32,
}

impl Numbers {
    pub(super) fn new(tree: &Tree, block_bytes: u32) -> Result<Self> {
        let places = Table::filled(tree.spill(), tree.len(), Position::plain(0))?;
        Ok(Numbers { places, first: 0, block_bytes })
    }

    /// Without a number yet, while another has them.
    pub(super) fn none(&self) -> Self {
        Numbers { places: Table::new(self.places.spill()), first: 0, block_bytes: self.block_bytes }
    }

    pub(super) fn set(&mut self, id: InodeId, place: Position) {
        self.places.set(id.index(), place);
    }

    pub(super) fn place(&self, id: InodeId) -> Position {
        self.places.get(id.index())
    }

    /// The number of an inode in the image.
    pub(super) fn of(&self, id: InodeId) -> u64 {
        let place = self.place(id);
        let slot = place.at() / SLOT_LEN;
        if place.is_in_metabox() { NID_METABOX | slot } else { self.first + slot }
    }

    /// The blocks of a directory, all of whose inodes have their places.
    pub fn blocks<'a>(
        &'a self,
        tree: &'a Tree,
        planned: &Planned,
    ) -> Blocks<'a, impl Iterator<Item = Entry<'a>>> {
        let names = with_dots(tree.entries(planned.id), planned.id, planned.parent);
        Blocks::new(
            names.map(|(name, id)| Entry { name, nid: self.of(id), kind: tree.kind(id) }),
            self.block_bytes,
        )
    }
}
