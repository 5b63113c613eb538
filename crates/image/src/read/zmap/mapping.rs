//! Makes the mapping of an extent from the fields of its index entry or record, and checks it against the format's
//! limits.
//!
//! All forms of indexes use these checks.

use super::header::IndexHeader;
use crate::format::zmap::advise;
use crate::read::extent::{MAX_CLUSTER_BYTES, MAX_DECODED_BYTES};
use crate::read::{Algorithm, Cluster, Extent, Mapping};
use crate::{Address, Result};

/// The stored bytes of an extent according to an index.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stored {
    /// Address of the entry or record, for messages.
    pub(super) entry: Address,
    /// First byte.
    pub(super) at: Address,
    /// Stored length, bytes; unchecked.
    pub(super) len_bytes: u64,
    /// The algorithm's number; `None` for uncompressed bytes.
    pub(super) algorithm: Option<u8>,
    /// Whether the extent is only a prefix of the decoded bytes.
    pub(super) partial: bool,
    /// Whether the bytes are in the metadata, after the index.
    pub(super) inline: bool,
}

impl IndexHeader {
    /// Makes the extent of `len_bytes` bytes from `start`, after checks of `stored`.
    pub(super) fn stored(&self, start: u64, len_bytes: u64, stored: Stored) -> Result<Extent> {
        let fault = |what| Err(self.corrupt(stored.entry, what));
        if stored.len_bytes == 0 || stored.len_bytes > u64::from(MAX_CLUSTER_BYTES) {
            return fault("a cluster of no bytes or more than 1 MiB");
        }
        // Block numbers have 48 bits, and offsets in a block 16 at most.
        let last_address = u64::MAX >> (16 - self.context.block_bits);
        if stored.at.offset.checked_add(stored.len_bytes - 1).is_none_or(|last| last > last_address) {
            return fault("a cluster beyond all addresses");
        }
        let mapping = match stored.algorithm {
            Some(number) => {
                let cluster = self.compressed(len_bytes, stored, number)?;
                Mapping::Compressed(cluster)
            }
            None if len_bytes > stored.len_bytes => return fault("an extent longer than its plain bytes"),
            None => self.plain(stored)?,
        };
        Ok(Extent { start, len_bytes, mapping })
    }

    fn compressed(&self, decoded_bytes: u64, stored: Stored, number: u8) -> Result<Cluster> {
        let fault = |what| Err(self.corrupt(stored.entry, what));
        let Some(algorithm) = Algorithm::from_number(number) else {
            return fault("an unknown compression algorithm");
        };
        if self.context.algorithms & (1 << number) == 0 {
            return fault("a compression algorithm that the image does not list");
        }
        if decoded_bytes > MAX_DECODED_BYTES {
            return fault("a compressed extent of more than 12 MiB");
        }
        if algorithm == Algorithm::Lz4 && stored.len_bytes > u64::from(self.context.max_cluster_bytes) {
            return fault("an LZ4 cluster longer than the image's longest");
        }
        let padded = self.context.zero_padding;
        Ok(Cluster {
            at: stored.at,
            len_bytes: stored.len_bytes as u32, // at most 1 MiB
            algorithm,
            prefix_only: stored.partial || !padded,
            // Inline streams have no padding.
            zero_padded: padded && !stored.inline,
        })
    }

    fn plain(&self, stored: Stored) -> Result<Mapping> {
        let block_bytes = 1_u64 << self.context.block_bits;
        let whole_blocks = (stored.at.offset | stored.len_bytes).is_multiple_of(block_bytes);
        // Inline tails are never rotated, even if the header says that blocks are.
        if !self.header.advises(advise::INTERLACED) || stored.inline || !whole_blocks {
            return Ok(Mapping::Plain(stored.at));
        }
        if stored.len_bytes > block_bytes {
            return Err(self.corrupt(stored.entry, "an interlaced extent of more than one block"));
        }
        Ok(Mapping::Interlaced { at: stored.at, len_bytes: block_bytes as u32 })
    }

    /// Makes the extent of `len_bytes` bytes from `start` that is a fragment at `offset` of the packed file.
    pub(super) fn fragment(&self, entry: Address, start: u64, len_bytes: u64, offset: u64) -> Result<Extent> {
        if !self.context.fragments {
            return Err(self.corrupt(entry, "a fragment, but the image has no packed file for it"));
        }
        if offset.checked_add(len_bytes).is_none_or(|end| end > i64::MAX as u64) {
            return Err(self.corrupt(entry, "a fragment beyond all addresses"));
        }
        Ok(Extent { start, len_bytes, mapping: Mapping::Fragment { offset } })
    }
}
