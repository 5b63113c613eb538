//! Refusing a metabox whose bytes are not stored.
//!
//! Inodes, indexes and directories may lie in the metabox. A hole of 2^62 bytes in it would be metadata of that length,
//! without a stored byte, for every reader of it. No builder makes holes there: an empty slot is not worth an extent.

use super::{Contents, Core};
use crate::read::bytes::advance;
use crate::read::{Cursor, Extent, Layout, Mapping};
use crate::work::WorkLimit;
use crate::{Address, ImageError, Result};

/// Bytes of metabox for each stored byte of the image at most. Metadata compresses to a tenth, and DEFLATE cannot make
/// anything shorter than a 1032nd.
const METABOX_BYTES_PER_STORED_BYTE: u64 = 1024;

impl Core {
    /// Fails if the metabox has holes, or is larger than the image can hold.
    pub(super) fn check_metabox(&self) -> Result<()> {
        let Some(metabox) = &self.metabox else { return Ok(()) };
        let (size, stored_bytes) = (metabox.inode.size, self.stored_bytes());
        if size > stored_bytes.saturating_mul(METABOX_BYTES_PER_STORED_BYTE) {
            let what = format!("a metabox of {size} bytes in an image of {stored_bytes}");
            return Err(ImageError::corrupt(metabox.inode.address, what));
        }
        // Looking at all extents of any index would make opening slow.
        let is_compressed =
            matches!(metabox.inode.layout, Layout::CompressedFull | Layout::CompressedCompact);
        if is_compressed && !metabox.has_byte_addresses() && !self.packed_may_have_holes() {
            return Ok(());
        }
        let (mut at, mut cursor, work) = (0, Cursor::default(), WorkLimit::of_image(self.stored_bytes));
        while at < size {
            let extent = self.reader(metabox, &work).extent_near(at, &mut cursor)?;
            self.check_metabox_extent(metabox, &extent, &work)?;
            at = extent.end();
        }
        Ok(())
    }

    fn check_metabox_extent(&self, metabox: &Contents, extent: &Extent, work: &WorkLimit) -> Result<()> {
        let hole = |start| {
            let what = format!("a hole in the metabox, at its byte {start}");
            Err(ImageError::corrupt(metabox.inode.address, what))
        };
        match extent.mapping {
            Mapping::Hole => hole(extent.start),
            Mapping::Plain(at) => self.check_stored(at, extent.len_bytes),
            Mapping::Interlaced { .. } | Mapping::Compressed(_) => Ok(()),
            Mapping::Fragment { offset } => {
                let (mut at, end) = (offset, offset.saturating_add(extent.len_bytes));
                while at < end {
                    let packed = self.packed_extent_at(&metabox.inode, at, work)?;
                    match packed.mapping {
                        Mapping::Hole => return hole(extent.start + (at - offset)),
                        Mapping::Plain(start) => self.check_stored(start, packed.len_bytes)?,
                        _ => {}
                    }
                    at = packed.end();
                }
                Ok(())
            }
        }
    }

    /// Fails if plain bytes lie after the end of their device.
    fn check_stored(&self, at: Address, len_bytes: u64) -> Result<()> {
        match self.bytes_left_at(at)? < len_bytes {
            // The error of reading the last byte has the end of the device.
            true => self.source.read_at(advance(at, len_bytes - 1)?, &mut [0]),
            false => Ok(()),
        }
    }
}
