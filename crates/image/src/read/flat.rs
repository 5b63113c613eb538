//! Where the bytes of a flat file lie: in blocks one behind the other, and perhaps the rest with the inode.

use super::bytes::advance;
use super::extent::{Extent, Place};
use super::inode::Layout;
use super::{Bytes, Inode, Superblock};
use crate::{Address, ImageError};

/// The extent that byte `offset` of a flat file is in; `offset` is inside the file.
///
/// It is all of the full blocks or all of the rest. Nothing is read, so nothing says whether the blocks exist;
/// the bytes are a parameter because every layout takes them.
pub fn extent_at(
    _bytes: &dyn Bytes,
    sb: &Superblock,
    inode: &Inode,
    offset: u64,
) -> Result<Extent, ImageError> {
    if offset >= inode.size {
        return Err(ImageError::corrupt(inode.address, format!("byte {offset} wanted of {}", inode.size)));
    }
    match inode.layout {
        Layout::Plain { start } => blocks(start, inode.size),
        Layout::Inline { start, tail_bytes } => {
            let tail_start = inode.size - u64::from(tail_bytes);
            if offset < tail_start {
                return blocks(start, tail_start);
            }
            let place = Place::Plain(inode.tail);
            Ok(Extent { start: tail_start, len_bytes: u64::from(tail_bytes), place })
        }
        _ => {
            let what = format!("inode {} is not flat (blocks of {} bytes)", inode.nid, sb.block_bytes());
            Err(ImageError::corrupt(inode.address, what))
        }
    }
}

/// The blocks from `start` on, which hold the first `len_bytes` of a file.
fn blocks(start: Option<Address>, len_bytes: u64) -> Result<Extent, ImageError> {
    let place = match start {
        None => Place::Hole,
        Some(at) => {
            advance(at, len_bytes)?;
            Place::Plain(at)
        }
    };
    Ok(Extent { start: 0, len_bytes, place })
}
