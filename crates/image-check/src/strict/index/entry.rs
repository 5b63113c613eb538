//! Entries of an index.

use pagefold_image::Address;
use pagefold_image::format::zmap::EntryType;

/// An entry of either form.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    /// The entry or its pack.
    pub(super) at: Address,
    pub(super) kind: EntryType,
    /// Offset of the extent in the head's logical cluster. Other entries may repeat it.
    pub(super) offset: u64,
    pub(super) partial: bool,
    /// Heads: the first block.
    pub(super) block: u32,
    /// The distance back, the one forward and the number of blocks, if the entry has them.
    pub(super) back: Option<u16>,
    pub(super) forward: Option<u16>,
    pub(super) blocks: Option<u16>,
    pub(super) has_unused_bits: bool,
}

impl Entry {
    /// An entry with nothing but its kind.
    pub(super) fn new(at: Address, kind: EntryType) -> Self {
        Entry {
            at,
            kind,
            offset: 0,
            partial: false,
            block: 0,
            back: None,
            forward: None,
            blocks: None,
            has_unused_bits: false,
        }
    }
}
