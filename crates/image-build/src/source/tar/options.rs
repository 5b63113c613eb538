//! The options of reading archives.

use crate::rules::Pattern;
use crate::table::Spill;

/// Bytes of metadata, as [`TarOptions::default`] limits them.
const METADATA_BYTES_MAX: u64 = 4 << 30;

/// The choice of members.
#[derive(Debug, Clone)]
pub struct TarOptions {
    /// Names that are left out, with all below them.
    pub exclude: Vec<Pattern>,
    /// How files that stand for removed ones become part of the image.
    pub whiteouts: Whiteouts,
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
            metadata_bytes_max: METADATA_BYTES_MAX,
            spill: Spill::none(),
        }
    }
}

/// The meaning of members `.wh.NAME`, by which layers of containers remove files of the layers below.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Whiteouts {
    /// They are files like others.
    #[default]
    Files,
    /// They become what overlayfs understands: the character device 0:0 with the name that is removed, and of
    /// `.wh..wh..opq` the attribute `trusted.overlay.opaque` of the directory.
    Overlay,
}
