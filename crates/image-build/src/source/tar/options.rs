//! The options of reading archives.

use crate::rules::Pattern;
use crate::source::{NestedOverlay, Whiteouts};
use crate::table::Spill;
use crate::xattrs::XattrFilter;

/// Bytes of metadata, as [`TarOptions::default`] limits them.
const METADATA_BYTES_MAX: u64 = 4 << 30;

/// The choice of members.
#[derive(Debug, Clone)]
pub struct TarOptions {
    /// Names that are left out, with all below them.
    pub exclude: Vec<Pattern>,
    /// How files that stand for removed ones become part of the image.
    pub whiteouts: Whiteouts,
    /// The treatment of an overlay mount inside.
    pub nested: NestedOverlay,
    /// The attributes that stay.
    pub xattrs: XattrFilter,
    /// Blocks of zeroes do not end the archive: archives that were written one after another are read.
    pub ignore_zeros: bool,
    /// Whether the archive is a layer for [`Layers`](crate::source::Layers): its whiteouts stay files `.wh.NAME`, and hard
    /// links may have their target in a lower layer.
    pub is_layer: bool,
    /// Limit of the memory for names and metadata of all members, bytes, roughly.
    pub metadata_bytes_max: u64,
    /// Where the tree goes if it is large.
    pub spill: Spill,
}

impl Default for TarOptions {
    fn default() -> Self {
        TarOptions {
            exclude: Vec::new(),
            whiteouts: Whiteouts::Files,
            nested: NestedOverlay::Keep,
            xattrs: XattrFilter::default(),
            ignore_zeros: false,
            is_layer: false,
            metadata_bytes_max: METADATA_BYTES_MAX,
            spill: Spill::none(),
        }
    }
}
