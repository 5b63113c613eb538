//! Looking for an image inside a larger file, for the message about a file that does not begin with one.
//!
//! Images lie in partitions, and behind the headers of self-extracting programs, containers and firmware. [`find_image`] looks at
//! the starts of partitions, and then for the magic number of a superblock at each byte of the beginning. A place counts if
//! readers would accept the superblock there, its checksum included.
//!
//! The bytes are hostile. So the part that is searched, the partitions, and the number of superblocks that are read are bounded.
//! An error of reading ends the search: the caller has another error to report.

use crate::format::superblock::{MAGIC, OFFSET};
use crate::read::superblock::Superblock;
use crate::source::Source;
use pagefold_backing::{ByteSource, Section};
use std::sync::Arc;

/// Bytes that are read at a time.
const STEP_BYTES: u64 = 1 << 20;
/// Superblocks that are read at most. Each may claim 65535 devices.
const TRIES_MAX: u32 = 16;
/// Partitions of a GPT that are looked at.
const PARTITIONS_MAX: u32 = 128;
/// Lengths of sectors: a GPT counts in those of its disk.
const SECTORS_BYTES: [u64; 2] = [512, 4096];
/// The magic number as it is stored.
const MAGIC_BYTES: [u8; 4] = MAGIC.to_le_bytes();

/// The offset of the first image found in `source`: in a partition, or whose superblock lies in the first `searched_bytes`.
pub fn find_image(source: &Arc<dyn ByteSource>, searched_bytes: u64) -> Option<u64> {
    let mut search = Search { source, tries_left: TRIES_MAX };
    search.in_partitions().or_else(|| search.in_beginning(searched_bytes))
}

struct Search<'a> {
    source: &'a Arc<dyn ByteSource>,
    tries_left: u32,
}

impl Search<'_> {
    /// Whether an image begins at `start`.
    fn is_image(&mut self, start: u64) -> bool {
        let Ok(section) = Section::new(self.source.clone(), start) else { return false };
        let mut magic = [0; MAGIC_BYTES.len()];
        let is_magic = section.read_at(OFFSET, &mut magic).is_ok() && magic == MAGIC_BYTES;
        if !is_magic || self.tries_left == 0 {
            return false;
        }
        self.tries_left -= 1;
        Superblock::read(&Source::new(Arc::new(section))).is_ok()
    }

    /// Looks at the starts of partitions.
    fn in_partitions(&mut self) -> Option<u64> {
        let starts = partitions(&**self.source);
        starts.into_iter().find(|start| self.is_image(*start))
    }

    /// Looks at each byte of the beginning.
    fn in_beginning(&mut self, searched_bytes: u64) -> Option<u64> {
        let end = self.source.len_bytes().min(searched_bytes);
        let mut buffer = Vec::new();
        let mut at = OFFSET;
        while at < end && self.tries_left > 0 {
            // A magic number may lie across two steps.
            let len_bytes = (STEP_BYTES + MAGIC_BYTES.len() as u64 - 1).min(end - at);
            buffer.resize(len_bytes as usize, 0);
            self.source.read_at(at, &mut buffer).ok()?;
            let found = buffer.windows(MAGIC_BYTES.len()).enumerate();
            let found = found.filter(|(_, bytes)| *bytes == MAGIC_BYTES).map(|(n, _)| at + n as u64 - OFFSET);
            for start in found {
                if self.is_image(start) {
                    return Some(start);
                }
            }
            at += STEP_BYTES;
        }
        None
    }
}

/// The starts of the partitions of a disk, bytes: those of a master boot record, and of a GUID partition table. Reference: UEFI
/// Specification, chapter 5.
fn partitions(source: &dyn ByteSource) -> Vec<u64> {
    const SIGNATURE: [u8; 2] = [0x55, 0xAA];
    let mut record = [0; 512];
    if source.read_at(0, &mut record).is_err() || record[510..] != SIGNATURE {
        return Vec::new();
    }
    let rows = record[446..510].chunks_exact(16);
    let of_record = rows.map(|row| u64::from(le_u32(row, 8)) * 512).filter(|start| *start > 0);
    let of_table = SECTORS_BYTES.into_iter().flat_map(|sector_bytes| guid_partitions(source, sector_bytes));
    of_record.chain(of_table).collect()
}

/// The starts of the partitions of a GUID partition table with sectors of this length, bytes.
fn guid_partitions(source: &dyn ByteSource, sector_bytes: u64) -> Vec<u64> {
    let mut header = [0; 92];
    if source.read_at(sector_bytes, &mut header).is_err() || !header.starts_with(b"EFI PART") {
        return Vec::new();
    }
    let (table, count, row_bytes) = (le_u64(&header, 72), le_u32(&header, 80), le_u32(&header, 84));
    let start_of = |number: u32| {
        let at = u64::from(number).checked_mul(row_bytes.into())?;
        let at = table.checked_mul(sector_bytes)?.checked_add(at)?;
        let mut row = [0; 48];
        source.read_at(at, &mut row).ok()?;
        let is_used = row[..16] != [0; 16];
        le_u64(&row, 32).checked_mul(sector_bytes).filter(|_| is_used)
    };
    (0..count.min(PARTITIONS_MAX)).filter_map(start_of).collect()
}

/// The number at `at`; 0 if the bytes end before.
fn le_u32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// As [`le_u32`].
fn le_u64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagefold_backing::{Backing, MemoryBacking};

    /// A block of a smallest superblock, with its checksum.
    fn image() -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        bytes[1024..1028].copy_from_slice(&MAGIC_BYTES);
        // The feature of a checksum, and blocks of 4096 bytes.
        (bytes[1032], bytes[1036]) = (1, 12);
        let sum = !crc32c::crc32c(&bytes[1024..]);
        bytes[1028..1032].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn medium(len: u64, parts: &[(u64, &[u8])]) -> Arc<dyn ByteSource> {
        let medium = MemoryBacking::new(len as usize);
        parts.iter().for_each(|(at, bytes)| medium.write_at(*at, bytes).unwrap());
        Arc::new(medium)
    }

    #[test]
    fn an_image_is_found_at_any_byte_of_the_beginning() {
        let image = image();
        for start in [0, 1, 512, 12_345, STEP_BYTES - 2, STEP_BYTES - 1, STEP_BYTES, 2 * STEP_BYTES + 7] {
            let source = medium(4 << 20, &[(start, &image)]);
            assert_eq!(find_image(&source, 4 << 20), Some(start));
            // Beyond the part that is searched.
            assert_eq!(find_image(&source, start + 1027), None);
            assert_eq!(find_image(&source, start + 1028), Some(start));
        }
        assert_eq!(find_image(&medium(0, &[]), 1 << 20), None);
        assert_eq!(find_image(&medium(5000, &[]), 1 << 20), None);
    }

    #[test]
    fn superblocks_that_readers_refuse_are_passed_over_and_their_number_is_bounded() {
        let (image, mut bad) = (image(), image());
        bad[1100] ^= 1;
        let with_bad = |count: u64| {
            let mut parts: Vec<(u64, &[u8])> = (0..count).map(|n| (n * 4096, &bad[..])).collect();
            parts.push((count * 4096, &image));
            medium(1 << 20, &parts)
        };
        assert_eq!(find_image(&with_bad(15), 1 << 20), Some(15 * 4096));
        assert_eq!(find_image(&with_bad(u64::from(TRIES_MAX)), 1 << 20), None);
    }

    #[test]
    fn an_image_in_a_partition_is_found_wherever_it_is() {
        let (image, at) = (image(), 20 << 20);
        let boot = |lba: u32| {
            let mut record = [0; 512];
            record[446 + 16 + 8..][..4].copy_from_slice(&lba.to_le_bytes());
            record[510..].copy_from_slice(&[0x55, 0xAA]);
            record
        };
        let source = medium(24 << 20, &[(at, &image), (0, &boot((at / 512) as u32))]);
        assert_eq!(find_image(&source, 0), Some(at));
        for sector in SECTORS_BYTES {
            let mut header = [0; 92];
            header[..8].copy_from_slice(b"EFI PART");
            header[72..80].copy_from_slice(&2u64.to_le_bytes());
            header[80..84].copy_from_slice(&4u32.to_le_bytes());
            header[84..88].copy_from_slice(&128u32.to_le_bytes());
            let mut row = [1; 48];
            row[32..40].copy_from_slice(&(at / sector).to_le_bytes());
            let parts: [(u64, &[u8]); 4] =
                [(at, &image), (0, &boot(1)), (sector, &header), (2 * sector + 3 * 128, &row)];
            assert_eq!(find_image(&medium(24 << 20, &parts), 0), Some(at));
            // Numbers beyond all media.
            header[72..88].fill(0xFF);
            let parts: [(u64, &[u8]); 3] = [(at, &image), (0, &boot(u32::MAX)), (sector, &header)];
            assert_eq!(find_image(&medium(24 << 20, &parts), 1 << 20), None);
        }
    }
}
