//! Files whose contents stay where they are: in an archive or in images, which are the further devices of the image.
//!
//! Such a file is stored in chunks that refer to its device, so all its bytes have to lie there uncompressed and in whole blocks.
//! Blocks are as short as the sources have them: 512 bytes in archives.
//!
//! Not here: merging of images, which `source/layers` does, and copies of contents.

use super::content::DeviceRun;
use super::metadata::inode::ADDRESS_WIDE;
use super::plan::Planned;
use super::sparse::encode_on;
use super::writer::Writer;
use crate::{BuildError, Result};
use pagefold_image::format::chunk::HOLE_WIDE;

/// The reason that a file is refused, and the remedy.
pub const NOT_ON_DEVICE: &str = "its contents do not lie in the source uncompressed and in whole blocks; build images that are \
                                 sources without -z and with -Enoinline_data, or build an image with all contents";
/// Largest chunk of the format, as a power of two in blocks.
const CHUNK_BITS_MAX: u32 = 31;
/// Entries of a file at most: they are in memory while it is written. Some bytes of an archive may describe a long file of holes,
/// so a file has no more than its blocks of data and a few.
const ENTRIES_MAX: u64 = 1 << 22;
const HOLE_ENTRIES_MAX: u64 = 1 << 16;

/// Writes a file of `len_bytes` bytes, whose contents are these runs of the device with this number, counted from 1.
pub fn write(
    writer: &mut Writer<'_>,
    planned: &Planned,
    len_bytes: u64,
    runs: &[DeviceRun],
    device: u16,
) -> Result<()> {
    let refused = |what: &str| BuildError::refused(&planned.path(writer.tree), what);
    // The devices are numbered from 1. Bytes after the end of one would be those of the next.
    let device_bytes =
        usize::from(device).checked_sub(1).and_then(|index| writer.geometry.devices.get(index));
    let device_bytes = device_bytes.map_or(0, |device| device.len_bytes);
    let ends_on_device = |run: &DeviceRun| {
        let end = run.at.checked_add(run.range.end.saturating_sub(run.range.start));
        end.is_some_and(|end| end <= device_bytes)
    };
    if !runs.iter().all(ends_on_device) {
        return Err(refused("its contents go beyond the end of the source, which is cut off; get it again"));
    }
    let block = u64::from(writer.geometry.block_bytes);
    let is_whole = |run: &DeviceRun| {
        let ends = run.range.end == len_bytes || run.range.end.is_multiple_of(block);
        run.range.start.is_multiple_of(block) && run.at.is_multiple_of(block) && ends
    };
    if !runs.iter().all(is_whole) {
        return Err(refused(NOT_ON_DEVICE));
    }
    let chunk_bits = chunk_bits(len_bytes.div_ceil(block), runs, block);
    let chunk = block << chunk_bits;
    let count = len_bytes.div_ceil(chunk);
    if count > entries_max(runs, block) {
        return Err(refused("it has too many parts on the device; build an image with all contents"));
    }
    let mut blocks = vec![HOLE_WIDE; count as usize];
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

/// The most entries of a file with these runs.
fn entries_max(runs: &[DeviceRun], block: u64) -> u64 {
    let data_blocks = runs.iter().map(|run| (run.range.end - run.range.start).div_ceil(block)).sum::<u64>();
    data_blocks.saturating_add(HOLE_ENTRIES_MAX).min(ENTRIES_MAX)
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
    use std::ops::Range;

    fn run(range: Range<u64>) -> DeviceRun {
        DeviceRun { range, at: 0 }
    }

    #[test]
    fn holes_do_not_make_the_index_long() {
        assert_eq!(entries_max(&[], 512), HOLE_ENTRIES_MAX);
        assert_eq!(entries_max(&[run(0..513), run(1024..1536)], 512), HOLE_ENTRIES_MAX + 3);
        assert_eq!(entries_max(&[run(0..1 << 47)], 512), ENTRIES_MAX);
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
}
