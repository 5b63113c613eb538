//! The blocks of an image, and its further devices: the sources of an image without contents (`index_files`).
//!
//! In the address space that all devices share, they follow the image in their order: a kernel, or
//! [`Image::open`](pagefold_image::Image::open), needs no devices if one file has them all.

use super::content::SourceDevice;
use super::metadata::inode::ADDRESS_WIDE;
use super::options::{BLOCK_BYTES, Options};
use super::tree::Tree;
use crate::{BuildError, Result};
use pagefold_image::format::device::RawDeviceSlot;
use pagefold_image::format::features;
use pagefold_image::format::superblock::{OFFSET, RawSuperblock};

/// The blocks of an image, and its further devices.
#[derive(Debug)]
pub struct Geometry {
    /// A block, bytes.
    pub block_bytes: u32,
    /// The devices; none if the image has its contents.
    pub devices: Vec<SourceDevice>,
}

impl Geometry {
    /// The geometry of the image of a tree. Fails if the target does not read blocks as short as the sources have them.
    pub fn of(tree: &Tree, options: &Options) -> Result<Self> {
        if !options.is_index {
            return Ok(Geometry::with_contents());
        }
        let devices = tree.contents().map(|contents| contents.devices()).unwrap_or_default();
        let shortest = devices.iter().map(|device| device.block_bytes).min();
        let first = features::block_kernel(shortest.map_or(0, |bytes| bytes.trailing_zeros() as u8), false);
        match shortest {
            Some(bytes) if first > options.target.0 => Err(BuildError::Options {
                what: format!(
                    "Linux {} does not read blocks of {bytes} bytes, as the source has them; it came with {first}",
                    options.target
                ),
            }),
            Some(block_bytes) if devices.len() <= usize::from(u16::MAX) => {
                Ok(Geometry { block_bytes, devices })
            }
            _ => Err(BuildError::Options {
                what: "only archives and images can be devices of an image".into(),
            }),
        }
    }

    /// The geometry of an image that has its contents.
    pub fn with_contents() -> Self {
        Geometry { block_bytes: BLOCK_BYTES, devices: Vec::new() }
    }

    /// Whether the image has no contents.
    pub fn is_index(&self) -> bool {
        !self.devices.is_empty()
    }

    /// Longest end of contents after an inode, bytes.
    pub fn inline_bytes_max(&self) -> usize {
        self.block_bytes as usize - 32
    }

    /// Blocks before the first that the writer appends: they have the superblock and the table of devices.
    pub fn head_blocks(&self) -> u64 {
        let table = self.devices.len() * RawDeviceSlot::LEN;
        (OFFSET + (RawSuperblock::LEN + table) as u64).div_ceil(self.block_bytes.into())
    }

    /// The table of devices of an image of so many blocks.
    pub fn table(&self, image_blocks: u64) -> Result<Vec<u8>> {
        let (mut table, mut start) = (Vec::new(), image_blocks);
        for device in &self.devices {
            let blocks = device.len_bytes.div_ceil(self.block_bytes.into());
            let end = start.checked_add(blocks).filter(|end| *end < ADDRESS_WIDE);
            let end =
                end.ok_or_else(|| BuildError::TooLarge { what: "its devices have 2^32 blocks".into() })?;
            let slot = RawDeviceSlot {
                tag: device.tag,
                blocks_lo: (blocks as u32).into(),
                uniaddr_lo: (start as u32).into(),
                blocks_hi: 0.into(),
                uniaddr_hi: 0.into(),
                reserved: [0; 52],
            };
            table.extend(slot.encode());
            start = end;
        }
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_follow_the_image_in_their_order() {
        let device = |len_bytes| SourceDevice { tag: [7; 64], len_bytes, block_bytes: 512 };
        let geometry = Geometry { block_bytes: 512, devices: vec![device(1000), device(512)] };
        assert_eq!(geometry.head_blocks(), 3);
        let table = geometry.table(9).unwrap();
        let slots: Vec<_> = table.as_chunks().0.iter().map(RawDeviceSlot::parse).collect();
        let places: Vec<_> = slots.iter().map(|slot| (slot.uniaddr_lo.get(), slot.blocks_lo.get())).collect();
        assert_eq!(places, [(9, 2), (11, 1)]);
        let large = Geometry { block_bytes: 512, devices: vec![device(1 << 41)] };
        assert!(large.table(9).is_err(), "addresses have 32 bits");
    }
}
