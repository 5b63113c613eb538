//! Entries of an index, and the extents that they describe.

use pagefold_image::Address;
use pagefold_image::format::zmap::EntryType;

/// An extent that has a cluster.
#[derive(Debug, Clone, Copy)]
pub(in crate::strict) struct Extent {
    /// The entry or record, for messages.
    pub(in crate::strict) entry: Address,
    /// Length of the extent, bytes.
    pub(in crate::strict) len_bytes: u64,
    /// First stored byte.
    pub(in crate::strict) at: Address,
    /// Stored length, bytes.
    pub(in crate::strict) stored_bytes: u64,
    /// The number of the algorithm; `None` for plain bytes.
    pub(in crate::strict) algorithm: Option<u8>,
    pub(in crate::strict) partial: bool,
    /// Whether the file ends with it.
    pub(in crate::strict) is_last: bool,
    /// Whether the bytes lie after the index.
    pub(in crate::strict) inline: bool,
}

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

impl Default for Entry {
    fn default() -> Self {
        Entry {
            at: Address::image(0),
            kind: EntryType::NonHead,
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
