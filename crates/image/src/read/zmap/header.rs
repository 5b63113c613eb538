//! The header of an index with the facts of the file: what all forms of indexes need.

use crate::format::zmap::MapHeader;
use crate::{Address, ImageError, Nid};

/// Parameters of the image and the inode that decoding an index needs.
#[derive(Debug, Clone, Copy)]
pub struct ZContext {
    /// log2 of the block size.
    pub block_bits: u8,
    /// Whether streams end where their clusters end (incompatible feature bit 0).
    pub zero_padding: bool,
    /// Whether extent records may be used (incompatible feature bit 7).
    pub extent_records: bool,
    /// Whether fragments may be used: there is a packed file, and this inode is not it.
    pub fragments: bool,
    /// The algorithms of the image: bit `n` is set for the one of number `n`. Images without configuration records
    /// have LZ4 only.
    pub algorithms: u16,
    /// Longest LZ4 cluster, bytes, from the configuration record; 1 MiB if there is none.
    pub max_cluster_bytes: u32,
    /// The inode, for messages.
    pub nid_for_errors: Nid,
}

/// The header of an index, and the file that the index belongs to.
#[derive(Debug, Clone, Copy)]
pub(super) struct IndexHeader {
    pub(super) context: ZContext,
    pub(super) header: MapHeader,
    /// The header's address.
    pub(super) at: Address,
    /// Length of the file, bytes.
    pub(super) size: u64,
    pub(super) lcluster_bits: u8,
}

impl IndexHeader {
    /// Number of logical clusters of the file.
    pub(super) fn lclusters(&self) -> u64 {
        self.size.div_ceil(1 << self.lcluster_bits)
    }

    pub(super) fn address(&self, offset: u64) -> Address {
        Address { offset, ..self.at }
    }

    pub(super) fn corrupt(&self, at: Address, what: &str) -> ImageError {
        ImageError::corrupt(at, format!("inode {}: {what}", self.context.nid_for_errors))
    }
}
