//! Where the bytes of a chunk-based file lie: one entry for each chunk, in an array behind the attributes.

use super::bytes::advance;
use super::extent::{Extent, Place};
use super::inode::Layout;
use super::{Bytes, Inode, Superblock};
use crate::format::chunk::{self as disk, RawChunkIndex};
use crate::format::le::{Field, Le32};
use crate::{Address, ImageError, Space};

/// How many entries one call looks at.
pub const JOINED_MAX: u64 = 64;

/// What of a chunk's array one call reads at most.
const READ_LEN: usize = JOINED_MAX as usize * RawChunkIndex::LEN;

/// The shape of a file's array of chunks.
struct Chunks {
    indexed: bool,
    wide: bool,
}

/// The extent that byte `offset` of a chunk-based file is in; `offset` is inside the file.
///
/// It begins with the chunk that `offset` is in, and has as many of the next ones as continue it, up to
/// [`JOINED_MAX`] entries in all. An extent never joins chunks that may be on different devices: of device 0
/// none are joined if some device has a place in the shared address space.
pub fn extent_at(
    bytes: &dyn Bytes,
    sb: &Superblock,
    inode: &Inode,
    offset: u64,
) -> Result<Extent, ImageError> {
    let Layout::Chunks { chunk_bits, indexed, wide } = inode.layout else {
        return Err(ImageError::corrupt(inode.address, format!("inode {} is not in chunks", inode.nid)));
    };
    if offset >= inode.size {
        return Err(ImageError::corrupt(inode.address, format!("byte {offset} wanted of {}", inode.size)));
    }
    let chunks = Chunks { indexed, wide };
    let first = offset >> chunk_bits;
    let count = (((inode.size - 1) >> chunk_bits) - first + 1).min(JOINED_MAX);
    let at = advance(chunks.array(inode)?, first.saturating_mul(chunks.entry_len() as u64))?;
    let mut buf = [0; READ_LEN];
    let entries = &mut buf[..count as usize * chunks.entry_len()];
    bytes.read_at(at, entries)?;
    let mut entries = entries.chunks_exact(chunks.entry_len()).map(|entry| chunks.place(sb, at, entry));
    let place = entries.next().unwrap_or(Ok(Place::Hole))?;
    let mut joined = 1u64;
    for entry in entries {
        // A broken entry ends the extent, and is an error to whoever asks for its own bytes.
        match entry {
            Ok(next) if continues(sb, place, next, joined << chunk_bits) => joined += 1,
            _ => break,
        }
    }
    let start = first << chunk_bits;
    let len_bytes = (joined << chunk_bits).min(inode.size - start);
    if let Place::Plain(at) = place {
        advance(at, len_bytes)?;
    }
    Ok(Extent { start, len_bytes, place })
}

/// Whether `next` is what lies `len_bytes` behind `place`.
fn continues(sb: &Superblock, place: Place, next: Place, len_bytes: u64) -> bool {
    match (place, next) {
        (Place::Hole, Place::Hole) => true,
        (Place::Plain(at), Place::Plain(next)) => {
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

    /// Where the array begins: at the next multiple of an entry.
    fn array(&self, inode: &Inode) -> Result<Address, ImageError> {
        let offset = inode.tail.offset.checked_next_multiple_of(self.entry_len() as u64);
        let beyond = || ImageError::corrupt(inode.address, "chunks beyond all numbers");
        Ok(Address { offset: offset.ok_or_else(beyond)?, ..inode.tail })
    }

    /// What an entry says; `at` is where the entries were read, for errors.
    fn place(&self, sb: &Superblock, at: Address, entry: &[u8]) -> Result<Place, ImageError> {
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
            _ => (u64::from(Le32::take(entry, 0).get()), u64::from(disk::HOLE), 0),
        };
        if block == hole {
            return Ok(Place::Hole);
        }
        let device = device & device_mask(sb);
        if usize::from(device) > sb.devices.len() {
            return Err(ImageError::corrupt(at, format!("a chunk on device {device}, which is not listed")));
        }
        let start = sb.block_address(block);
        let start = start.ok_or_else(|| ImageError::corrupt(at, "a chunk beyond all numbers"))?;
        Ok(Place::Plain(Address { space: Space::Device(device), ..start }))
    }
}

/// Which bits of a device number count: as many as the largest number needs.
fn device_mask(sb: &Superblock) -> u16 {
    let numbers = sb.devices.len() as u32 + 1;
    (numbers.next_power_of_two() - 1).min(u32::from(u16::MAX)) as u16
}

#[cfg(test)]
mod tests;
