//! Recognises contents that were made for sectors of 512 bytes, which a device with larger ones does not mount.

use pagefold_page::PAGE_SIZE;

/// Names the contents of which a device's first page is the beginning, if they were made for sectors of 512 bytes; `None`
/// if nothing says so. `size_bytes`: the size of the device.
pub fn made_for_512(first: &[u8; PAGE_SIZE], size_bytes: u64) -> Option<&'static str> {
    match () {
        _ if &first[512..520] == b"EFI PART" => Some("a partition table (GPT)"),
        _ if is_fat_or_ntfs(first) => Some("a FAT or NTFS file system"),
        _ if has_partitions(first, size_bytes) => Some("a partition table (MBR)"),
        _ if &first[..4] == b"XFSB" && first[102..104] == 512u16.to_be_bytes() => Some("an XFS file system"),
        _ if is_ext_of_1k(first) => Some("an ext4 file system with blocks of 1 KiB"),
        _ => None,
    }
}

fn has_boot_signature(first: &[u8]) -> bool {
    first[510..512] == [0x55, 0xaa]
}

/// Both begin with a jump, and name the size of a sector at byte 11.
fn is_fat_or_ntfs(first: &[u8]) -> bool {
    let jumps = matches!(first[..3], [0xeb, _, 0x90] | [0xe9, _, _]);
    jumps && has_boot_signature(first) && first[11..13] == 512u16.to_le_bytes()
}

/// Whether there is a partition that ends within the device only if its sectors have 512 bytes.
fn has_partitions(first: &[u8], size_bytes: u64) -> bool {
    let number =
        |entry: &[u8], at: usize| entry[at..at + 4].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
    let mut ends = first[446..510].chunks(16).filter(|entry| entry[4] != 0 && entry[0] & 0x7f == 0);
    has_boot_signature(first)
        && ends.any(|entry| {
            let end = number(entry, 8) + number(entry, 12);
            end * 512 <= size_bytes && end * PAGE_SIZE as u64 > size_bytes
        })
}

fn is_ext_of_1k(first: &[u8]) -> bool {
    let superblock = &first[1024..];
    superblock[56..58] == [0x53, 0xef] && superblock[24..28] == [0; 4]
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 256 << 20;

    /// A page of zeroes with these parts.
    fn page(parts: &[(usize, &[u8])]) -> [u8; PAGE_SIZE] {
        let mut page = [0; PAGE_SIZE];
        parts.iter().for_each(|(at, bytes)| page[*at..at + bytes.len()].copy_from_slice(bytes));
        page
    }

    #[test]
    fn contents_for_small_sectors_are_recognised_and_others_are_not() {
        let signature: (usize, &[u8]) = (510, &[0x55, 0xaa]);
        let partition = |start: u32, count: u32| {
            let [start, count] = [start.to_le_bytes(), count.to_le_bytes()];
            [&[0x80, 0, 0, 0, 0x83, 0, 0, 0][..], &start[..], &count[..]].concat()
        };
        let (small, large) = (partition(2048, 200_000), partition(256, 60_000));
        for (parts, found) in [
            (&[signature, (512, &b"EFI PART"[..])][..], true),
            (&[signature, (446, &small)], true),
            // The same disk, partitioned with sectors of 4096 bytes.
            (&[signature, (446, &large)], false),
            (&[signature, (0, &[0xeb, 0x58, 0x90]), (11, &[0, 2])], true),
            (&[signature, (0, &[0xeb, 0x58, 0x90]), (11, &[0, 16])], false),
            (&[(0, b"XFSB"), (102, &[2, 0])], true),
            (&[(0, b"XFSB"), (102, &[16, 0])], false),
            (&[(1024 + 56, &[0x53, 0xef])], true),
            (&[(1024 + 56, &[0x53, 0xef]), (1024 + 24, &[2])], false),
            (&[], false),
            (&[signature], false),
        ] {
            assert_eq!(made_for_512(&page(parts), SIZE).is_some(), found, "{parts:?}");
        }
        assert_eq!(made_for_512(&[0xff; PAGE_SIZE], SIZE), None);
    }
}
