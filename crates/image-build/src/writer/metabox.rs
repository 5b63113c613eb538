//! The metabox: a compressed file that has the inodes of an image.
//!
//! Inodes are placed in it as in the uncompressed area. Some stay outside:
//!
//! - the root, which an old field of the superblock names, the packed file, and the metabox itself;
//! - files with contents or chunks after the inode: the programs of erofs-utils 1.9.4 and earlier do not find them in a
//!   metabox, not even in images that `mkfs.erofs` of the same version has made.
//!
//! The blocks of directories are outside too. A reader decodes a cluster for the first inode of it; so clusters are short,
//! and images with few inodes have no metabox.

use crate::Result;
use crate::compression::Compression;
use crate::metadata::space::Space;
use crate::options::{BLOCK_BYTES, Options};
use crate::table::Spill;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The inodes in the metabox while they are placed.
pub(super) struct Metabox {
    pub(super) space: Space,
    pub(super) compression: Compression,
}

/// Marks positions in the metabox.
const METABOX_BIT: u64 = 1 << 63;

/// Where an inode is placed: a byte of the area that is not compressed, or of the metabox.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(transparent)]
pub(super) struct Position(u64);

impl Position {
    /// A byte of the area that is not compressed.
    pub(super) fn plain(at: u64) -> Self {
        Position(at)
    }

    /// A byte of the metabox.
    pub(super) fn in_metabox(at: u64) -> Self {
        Position(at | METABOX_BIT)
    }

    /// The byte.
    pub(super) fn at(self) -> u64 {
        self.0 & !METABOX_BIT
    }

    /// Whether it is one of the metabox.
    pub(super) fn is_in_metabox(self) -> bool {
        self.0 & METABOX_BIT != 0
    }
}

impl Metabox {
    /// Begins the metabox of an image of so many inodes, with the table of prefixes of attribute names, at the first inode's
    /// position; `None` if the image has none. Images of 16 TiB and more have none.
    pub(super) fn new(
        options: &Options,
        inodes: usize,
        is_large: bool,
        prefixes: &[u8],
        spill: &Spill,
    ) -> Result<Option<Self>> {
        let is_wanted = options.compress_metadata && options.target.has_metabox() && !is_large;
        let is_worth = inodes > 1 && inodes >= options.metadata_inodes_min;
        let Some(compression) = options.compression.filter(|_| is_wanted && is_worth) else {
            return Ok(None);
        };
        let mut space = Space::new(spill, BLOCK_BYTES);
        if !prefixes.is_empty() {
            let at = space.reserve(prefixes.len() as u64, 0..0)?;
            space.write(at, prefixes);
        }
        Ok(Some(Metabox { space, compression }))
    }

    /// Whether neither inodes nor prefixes are in it.
    pub(super) fn is_empty(&self) -> bool {
        self.space.is_empty()
    }
}
