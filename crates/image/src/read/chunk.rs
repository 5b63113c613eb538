//! The mapping of chunk-based files: an array after the attributes, with one entry per chunk.

use super::bytes::advance;
use super::extent::{Extent, Mapping};
use super::inode::Layout;
use super::{Bytes, Inode, Superblock};
use crate::format::chunk::{self as disk, RawChunkIndex};
use crate::{Address, ImageError, Result, Space};

/// Entries that one lookup reads at most.
pub const JOINED_MAX: u64 = 64;

/// Bytes of these entries.
const READ_LEN: usize = JOINED_MAX as usize * RawChunkIndex::LEN;

/// The form of a file's array of chunks.
struct Chunks {
    indexed: bool,
    wide: bool,
}

/// Finds the extent that contains byte `offset` of a chunk-based file.
///
/// The extent begins with the chunk that contains `offset`, and includes the following chunks that are stored
/// contiguously, up to [`JOINED_MAX`] chunks in all. Chunks that may be on different devices are never joined: those
/// of device 0 are not if any device is mapped into the shared address space.
pub fn extent_at(bytes: &dyn Bytes, sb: &Superblock, inode: &Inode, offset: u64) -> Result<Extent> {
    let Layout::Chunks { chunk_bits, indexed, wide } = inode.layout else {
        return Err(ImageError::corrupt(inode.address, format!("inode {} is not in chunks", inode.nid)));
    };
    if offset >= inode.size {
        return Err(ImageError::corrupt(inode.address, format!("byte {offset} requested of {}", inode.size)));
    }
    let chunks = Chunks { indexed, wide };
    let first = offset >> chunk_bits;
    let count = (((inode.size - 1) >> chunk_bits) - first + 1).min(JOINED_MAX);
    let at = advance(chunks.array(inode)?, first.saturating_mul(chunks.entry_len() as u64))?;
    let mut buf = [0; READ_LEN];
    let entries = &mut buf[..count as usize * chunks.entry_len()];
    bytes.read_at(at, entries)?;
    let mut entries = entries.chunks_exact(chunks.entry_len()).map(|entry| chunks.mapping(sb, at, entry));
    let mapping = entries.next().unwrap_or(Ok(Mapping::Hole))?;
    let mut joined = 1u64;
    for entry in entries {
        // A corrupt entry ends the extent. A lookup of its bytes returns the error.
        match entry {
            Ok(next) if continues(sb, mapping, next, joined << chunk_bits) => joined += 1,
            _ => break,
        }
    }
    let start = first << chunk_bits;
    let len_bytes = (joined << chunk_bits).min(inode.size - start);
    if let Mapping::Plain(at) = mapping {
        advance(at, len_bytes)?;
    }
    Ok(Extent { start, len_bytes, mapping })
}

/// Offset of the end of the array of a chunk-based file; `None` if the file has another layout or the array is beyond
/// all addresses.
pub(crate) fn array_end(inode: &Inode) -> Option<u64> {
    let Layout::Chunks { chunk_bits, indexed, wide } = inode.layout else { return None };
    let chunks = Chunks { indexed, wide };
    let count = inode.size.div_ceil(1 << chunk_bits);
    chunks.array(inode).ok()?.offset.checked_add(count.checked_mul(chunks.entry_len() as u64)?)
}

/// Whether `next` begins `len_bytes` after the beginning of `mapping`, on the same device.
fn continues(sb: &Superblock, mapping: Mapping, next: Mapping, len_bytes: u64) -> bool {
    match (mapping, next) {
        (Mapping::Hole, Mapping::Hole) => true,
        (Mapping::Plain(at), Mapping::Plain(next)) => {
            let resolved =
                at.space != Space::Device(0) || sb.devices.iter().all(|d| d.unified_start.is_none());
            resolved && at.checked_add(len_bytes) == Some(next)
        }
        _ => false,
    }
}

impl Chunks {
    fn entry_len(&self) -> usize {
        if self.indexed { RawChunkIndex::LEN } else { disk::BLOCK_ENTRY_LEN }
    }

    /// Address of the array, which is aligned to the length of an entry.
    fn array(&self, inode: &Inode) -> Result<Address> {
        let offset = inode.tail.offset.checked_next_multiple_of(self.entry_len() as u64);
        let beyond = || ImageError::corrupt(inode.address, "chunks beyond all numbers");
        Ok(Address { offset: offset.ok_or_else(beyond)?, ..inode.tail })
    }

    /// Decodes an entry. `at` is the address of the entries, for errors.
    fn mapping(&self, sb: &Superblock, at: Address, entry: &[u8]) -> Result<Mapping> {
        let (block, hole, device) = match entry.as_array() {
            Some(entry) if self.indexed => {
                let raw = RawChunkIndex::parse(entry);
                let lo = u64::from(raw.startblk_lo.get());
                match self.wide {
                    true => {
                        (u64::from(raw.startblk_hi.get()) << 32 | lo, disk::HOLE_WIDE, raw.device_id.get())
                    }
                    false => (lo, u64::from(disk::HOLE), raw.device_id.get()),
                }
            }
            _ => {
                let block = entry.first_chunk().map_or(0, |block| u32::from_le_bytes(*block));
                (u64::from(block), u64::from(disk::HOLE), 0)
            }
        };
        if block == hole {
            return Ok(Mapping::Hole);
        }
        let device = device & device_mask(sb);
        if usize::from(device) > sb.devices.len() {
            return Err(ImageError::corrupt(at, format!("a chunk on device {device}, which is not listed")));
        }
        let start = sb.block_address(block);
        let start = start.ok_or_else(|| ImageError::corrupt(at, "a chunk beyond all numbers"))?;
        Ok(Mapping::Plain(Address { space: Space::Device(device), ..start }))
    }
}

/// Mask of the valid bits of a device number: as many as the largest number needs.
fn device_mask(sb: &Superblock) -> u16 {
    let numbers = sb.devices.len() as u32 + 1;
    (numbers.next_power_of_two() - 1).min(u32::from(u16::MAX)) as u16
}

#[cfg(test)]
mod tests;
