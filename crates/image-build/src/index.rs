//! Images that have metadata alone: the contents of files stay where they are, in an archive or in images, which are the further
//! devices of the image.
//!
//! A file is stored in chunks that refer to its device, so all its bytes have to lie there uncompressed and in whole blocks. Blocks
//! are as short as the sources have them: 512 bytes in archives. In the address space that all devices share, they follow the
//! image in their order: a kernel, or [`Image::open`](pagefold_image::Image::open), needs no devices if one file has them all.
//!
//! Not here: merging of images, which `source/layers` does, and copies of contents.

use super::metadata::inode::ADDRESS_WIDE;
use super::options::BLOCK_BYTES;
use super::plan::Planned;
use super::sparse::encode_on;
use super::tree::Tree;
use super::writer::Writer;
use crate::{BuildError, Result};
use pagefold_image::format::device::RawDeviceSlot;
use pagefold_image::format::superblock::{OFFSET, RawSuperblock};
use std::ops::Range;

/// Smallest block of the format, bytes.
pub const BLOCK_BYTES_MIN: u32 = 512;
/// Largest chunk of the format, as a power of two in blocks.
const CHUNK_BITS_MAX: u32 = 31;
/// Entries of a file at most: they are in memory while it is written.
const ENTRIES_MAX: u64 = 1 << 22;

/// A source that is a device of the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceDevice {
    /// The name in the table of devices, padded with NULs.
    pub tag: [u8; 64],
    /// Length, bytes.
    pub len_bytes: u64,
    /// A block, bytes: contents begin at multiples of this.
    pub block_bytes: u32,
}

/// A part of a file that lies on its device as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRun {
    /// The bytes of the file.
    pub range: Range<u64>,
    /// The first of them on the device.
    pub at: u64,
}

/// The blocks of an image, and its further devices.
#[derive(Debug)]
pub struct Geometry {
    /// A block, bytes.
    pub block_bytes: u32,
    /// The devices; none if the image has its contents.
    pub devices: Vec<SourceDevice>,
}

impl Geometry {
    /// The geometry of an image of a tree; `is_index`: one without contents.
    pub fn of(tree: &Tree, is_index: bool) -> Result<Self> {
        if !is_index {
            return Ok(Geometry { block_bytes: BLOCK_BYTES, devices: Vec::new() });
        }
        let devices = tree.contents().map(|contents| contents.devices()).unwrap_or_default();
        let shortest = devices.iter().map(|device| device.block_bytes).min();
        match shortest {
            Some(block_bytes) if devices.len() <= usize::from(u16::MAX) => Ok(Geometry { block_bytes, devices }),
            _ => Err(BuildError::Options { what: "only archives and images can be devices of an image".into() }),
        }
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
            let end = end.ok_or_else(|| BuildError::TooLarge { what: "its devices have 2^32 blocks".into() })?;
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

/// Writes a file of `len_bytes` bytes, whose contents are these runs of the device with this number, counted from 1.
pub fn write(
    writer: &mut Writer<'_>,
    planned: &Planned,
    len_bytes: u64,
    runs: &[DeviceRun],
    device: u16,
) -> Result<()> {
    let refused = |what: &str| BuildError::refused(&planned.path(writer.tree), what);
    let block = u64::from(writer.geometry.block_bytes);
    let is_whole = |run: &DeviceRun| {
        let ends = run.range.end == len_bytes || run.range.end.is_multiple_of(block);
        run.range.start.is_multiple_of(block) && run.at.is_multiple_of(block) && ends
    };
    if !runs.iter().all(is_whole) {
        return Err(refused("its contents do not begin at a block of the device; build an image with all contents"));
    }
    let chunk_bits = chunk_bits(len_bytes.div_ceil(block), runs, block);
    let chunk = block << chunk_bits;
    let count = len_bytes.div_ceil(chunk);
    if count > ENTRIES_MAX {
        return Err(refused("it has too many parts on the device; build an image with all contents"));
    }
    let mut blocks = vec![pagefold_image::format::chunk::HOLE_WIDE; count as usize];
    for run in runs {
        for (number, start) in (run.range.start / chunk..).zip(run.range.clone().step_by(chunk as usize)) {
            let first = (run.at + (start - run.range.start)) / block;
            if first >= ADDRESS_WIDE {
                return Err(BuildError::TooLarge { what: "a device has 2^32 blocks".into() });
            }
            blocks[number as usize] = first;
        }
    }
    let (further_format, entries, entry_bytes) = encode_on(&blocks, true, device);
    writer.put_chunks(planned, chunk_bits as u16 | further_format, (&entries, entry_bytes), 0)?;
    writer.report(len_bytes)
}

/// The longest chunk, as a power of two in blocks, at whose multiples all runs begin and end. The last chunk may be longer than
/// the file.
fn chunk_bits(blocks: u64, runs: &[DeviceRun], block: u64) -> u32 {
    let inner = runs.iter().flat_map(|run| [run.range.start / block, run.range.end.div_ceil(block)]);
    let borders = inner.filter(|border| *border != 0 && *border < blocks);
    let one = blocks.next_power_of_two().trailing_zeros();
    borders.map(u64::trailing_zeros).fold(one, u32::min).min(CHUNK_BITS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(range: Range<u64>) -> DeviceRun {
        DeviceRun { range, at: 0 }
    }

    #[test]
    fn a_file_in_one_piece_has_one_chunk_and_others_as_few_as_possible() {
        let whole = |blocks: u64| chunk_bits(blocks, &[run(0..blocks * 512)], 512);
        assert_eq!([1, 2, 3, 20, 1 << 40].map(whole), [0, 1, 2, 5, CHUNK_BITS_MAX]);
        // 16 blocks of data, a hole of 16, and 7 blocks of data.
        assert_eq!(chunk_bits(39, &[run(0..8192), run(16384..19900)], 512), 4);
        assert_eq!(chunk_bits(39, &[run(512..19900)], 512), 0);
        // Without data one hole covers the file.
        assert_eq!(chunk_bits(39, &[], 512), 6);
    }

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
