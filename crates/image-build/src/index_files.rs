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
/// Entries of a file at most: they are in memory while it is written.
const ENTRIES_MAX: u64 = 1 << 22;

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
        return Err(refused(NOT_ON_DEVICE));
    }
    let chunk_bits = chunk_bits(len_bytes.div_ceil(block), runs, block);
    let chunk = block << chunk_bits;
    let count = len_bytes.div_ceil(chunk);
    if count > ENTRIES_MAX {
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
