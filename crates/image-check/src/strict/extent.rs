//! The extents that an index describes.

use pagefold_image::Address;

/// An extent that has a cluster.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    /// The entry or record, for messages.
    pub(super) entry: Address,
    /// Length of the extent, bytes.
    pub(super) len_bytes: u64,
    /// First stored byte.
    pub(super) at: Address,
    /// Stored length, bytes.
    pub(super) stored_bytes: u64,
    /// The number of the algorithm; `None` for plain bytes.
    pub(super) algorithm: Option<u8>,
    pub(super) partial: bool,
    /// Whether the file ends with it.
    pub(super) is_last: bool,
    /// Whether the bytes lie after the index.
    pub(super) inline: bool,
}
