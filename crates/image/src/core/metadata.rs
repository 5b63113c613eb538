//! Reading metadata (inodes, indexes, directories, attributes) by address, through the cache.
//!
//! Metadata is read and cached in aligned blocks of [`META_BLOCK_BYTES`]. If the budget has no room for a block, only
//! the requested bytes are read, and nothing is cached.

use super::Core;
use crate::budget::Budget;
use crate::clusters::{Key, Piece};
use crate::read::Bytes;
use crate::read::bytes::advance;
use crate::source::{Source, no_metabox};
use crate::work::WorkLimit;
use crate::{Address, ImageError, Result, Space};
use pagefold_backing::Demand;

/// Bytes of a cached block of metadata.
const META_BLOCK_BYTES: u64 = 16 << 10;

impl Bytes for Source {
    fn read_at(&self, at: Address, buf: &mut [u8]) -> Result<()> {
        Source::read_at(self, at, buf)
    }
}

/// Reads metadata through the cache.
impl Bytes for Core {
    fn read_at(&self, mut at: Address, mut buf: &mut [u8]) -> Result<()> {
        while !buf.is_empty() {
            let within = at.offset % META_BLOCK_BYTES;
            let len = buf.len().min((META_BLOCK_BYTES - within) as usize);
            let (here, rest) = buf.split_at_mut(len);
            self.read_block(Address { offset: at.offset - within, ..at }, within as usize, here)?;
            at = advance(at, len as u64)?;
            buf = rest;
        }
        Ok(())
    }
}

impl Core {
    /// Fills `dst` from byte `within` of a cached block, which is read into the cache first if it is not there.
    fn read_block(&self, block: Address, within: usize, dst: &mut [u8]) -> Result<()> {
        let end = within + dst.len();
        let key = Key::Meta(block);
        if let Some(piece) = self.clusters.cache.get(&key, within..end) {
            dst.copy_from_slice(&piece.bytes()[within..end]);
            return Ok(());
        }
        let space_end = self.space_end(block.space)?;
        let len = space_end.saturating_sub(block.offset).min(META_BLOCK_BYTES) as usize;
        let at = Address { offset: block.offset + within as u64, ..block };
        if end > len {
            return Err(ImageError::Truncated { at, len_bytes: dst.len() as u64, end: space_end });
        }
        // Reading the metabox decodes clusters and may wait for a grant, so it comes before this block's own grant.
        let beforehand = match block.space {
            Space::Metabox => {
                let mut bytes = vec![0; len];
                self.read_uncached(block, &mut bytes)?;
                Some(bytes)
            }
            Space::Device(_) => None,
        };
        let grant = self.clusters.decoding.budget.grant(Budget::footprint(len), Demand::BestEffort);
        let buffer = grant.ok().and_then(|mut grant| grant.buffer(len));
        match (buffer, beforehand) {
            (None, None) => return self.read_uncached(at, dst),
            (None, Some(bytes)) => dst.copy_from_slice(&bytes[within..end]),
            (Some(mut buffer), bytes) => {
                match bytes {
                    Some(bytes) => buffer.copy_from_slice(&bytes),
                    None => self.read_uncached(block, &mut buffer)?,
                }
                dst.copy_from_slice(&buffer[within..end]);
                self.clusters.insert(key, Piece { buffer, len_bytes: len, is_whole: false });
            }
        }
        Ok(())
    }

    fn read_uncached(&self, at: Address, buf: &mut [u8]) -> Result<()> {
        match (at.space, &self.metabox) {
            (Space::Metabox, Some(metabox)) => {
                // The contents of the metabox are stored outside of it, and a block of it has so many bytes at most.
                let work = WorkLimit::of_steps(4 * META_BLOCK_BYTES);
                self.reader(metabox, &work).read(at.offset, buf, false)
            }
            (Space::Metabox, None) => Err(no_metabox(at)),
            (Space::Device(device), _) => {
                self.clusters.decoding.counters.metadata_bytes.add(buf.len() as u64);
                self.source.read_own(device, at.offset, buf)
            }
        }
    }

    /// Returns the number of bytes from `at` to the end of its device or of the metabox.
    pub(crate) fn bytes_left_at(&self, at: Address) -> Result<u64> {
        match at.space {
            Space::Metabox => Ok(self.space_end(at.space)?.saturating_sub(at.offset)),
            Space::Device(_) => self.source.bytes_left_at(at),
        }
    }

    fn space_end(&self, space: Space) -> Result<u64> {
        match (space, &self.metabox) {
            (Space::Metabox, Some(metabox)) => Ok(metabox.inode.size),
            (Space::Metabox, None) => Err(no_metabox(Address { space, offset: 0 })),
            (Space::Device(device), _) => self.source.len_bytes(device),
        }
    }
}
