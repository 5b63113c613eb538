//! The mapping of flat files: consecutive blocks, and perhaps an inline tail after the inode.

use super::bytes::advance;
use super::extent::{Extent, Mapping};
use super::inode::Layout;
use super::{Bytes, Inode, Superblock};
use crate::{Address, ImageError, Result};

/// Finds the extent that contains byte `offset` of a flat file.
///
/// The extent is either all full blocks or all of the tail. Nothing is read, so the blocks may lie after the end of
/// the image; `_bytes` is there because the lookups of all layouts have the same parameters.
pub fn extent_at(_bytes: &dyn Bytes, sb: &Superblock, inode: &Inode, offset: u64) -> Result<Extent> {
    if offset >= inode.size {
        return Err(ImageError::corrupt(inode.address, format!("byte {offset} requested of {}", inode.size)));
    }
    match inode.layout {
        Layout::Plain { start } => blocks(start, inode.size),
        Layout::Inline { start, tail_bytes } => {
            let tail_start = inode.size - u64::from(tail_bytes);
            if offset < tail_start {
                return blocks(start, tail_start);
            }
            let mapping = Mapping::Plain(inode.tail);
            Ok(Extent { start: tail_start, len_bytes: u64::from(tail_bytes), mapping })
        }
        _ => {
            let what = format!("inode {} is not flat (blocks of {} bytes)", inode.nid, sb.block_bytes());
            Err(ImageError::corrupt(inode.address, what))
        }
    }
}

/// Makes the extent of the blocks from `start` on, which hold the first `len_bytes` of a file.
fn blocks(start: Option<Address>, len_bytes: u64) -> Result<Extent> {
    let mapping = match start {
        None => Mapping::Hole,
        Some(at) => {
            advance(at, len_bytes)?;
            Mapping::Plain(at)
        }
    };
    Ok(Extent { start: 0, len_bytes, mapping })
}
