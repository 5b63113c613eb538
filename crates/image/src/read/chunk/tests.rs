//! Chunk arrays built by hand: both kinds of entries, holes, joining, and device numbers.

use super::*;
use crate::Nid;
use crate::Result;
use crate::format::device::RawDeviceSlot;
use crate::format::features::incompat;
use crate::format::le::{Le16, Le32};
use crate::read::SliceBytes;
use crate::read::tests::{TestImage, compact};

/// The extents of a file of `size` bytes in chunks of 2 blocks of 512, front to back.
fn extents(test_image: &mut TestImage, format: u16, entries: &[u8], size: u32) -> Result<Vec<Extent>> {
    let mut raw = compact();
    raw.i_format = Le16::new(4 << 1);
    raw.i_u = Le32::new(u32::from(format | 1));
    raw.i_size = Le32::new(size);
    // Attributes of 20 bytes, so that 8-byte entries are not where the attributes end.
    raw.i_xattr_icount = Le16::new(3);
    test_image.put_compact(0, &raw);
    let tail = test_image.inode_at(0) + 32 + 20;
    let len = if format & disk::FORMAT_INDEXES != 0 { 8 } else { 4 };
    test_image.put(tail.next_multiple_of(len), entries);
    let (sb, inode, image) = (test_image.superblock()?, test_image.inode(0)?, test_image.image());
    let mut found: Vec<Extent> = Vec::new();
    let mut offset = 0;
    while offset < inode.size {
        let extent = extent_at(&SliceBytes::image(&image), &sb, &inode, offset)?;
        assert_eq!(extent.start, offset);
        // The same extent is found from its first chunk's last byte.
        let again = extent_at(&SliceBytes::image(&image), &sb, &inode, (offset + 1023).min(inode.size - 1));
        assert_eq!(again?, extent);
        offset = extent.end();
        found.push(extent);
    }
    assert!(extent_at(&SliceBytes::image(&image), &sb, &inode, inode.size).is_err());
    assert_eq!(inode.nid, Nid(0));
    Ok(found)
}

fn plain(start: u64, len_bytes: u64, device: u16, block: u64) -> Extent {
    let at = Address { space: Space::Device(device), offset: block * 512 };
    Extent { start, len_bytes, mapping: Mapping::Plain(at) }
}

fn index(device: u16, hi: u16, block: u32) -> [u8; 8] {
    RawChunkIndex { startblk_hi: Le16::new(hi), device_id: Le16::new(device), startblk_lo: Le32::new(block) }
        .encode()
}

#[test]
fn contiguous_chunks_are_one_extent() {
    let blocks = [10u32, 12, 14, u32::MAX, u32::MAX, 16, 20, 21];
    let entries: Vec<u8> = blocks.iter().flat_map(|block| block.to_le_bytes()).collect();
    let found = extents(&mut TestImage::new(9), 0, &entries, 7 * 1024 + 1).unwrap();
    let hole = Extent { start: 3072, len_bytes: 2048, mapping: Mapping::Hole };
    let wanted = [
        plain(0, 3072, 0, 10),
        hole,
        plain(5120, 1024, 0, 16),
        plain(6144, 1024, 0, 20),
        plain(7168, 1, 0, 21),
    ];
    assert_eq!(found, wanted);
}

#[test]
fn an_extent_joins_64_entries_at_most() {
    let entries: Vec<u8> = (0..200u32).flat_map(|i| (i * 2).to_le_bytes()).collect();
    let found = extents(&mut TestImage::new(9), 0, &entries, 200 * 1024).unwrap();
    assert_eq!(found.iter().map(|e| e.len_bytes / 1024).collect::<Vec<_>>(), [64, 64, 64, 8]);
}

fn with_devices(unified: u32) -> TestImage {
    let mut test_image = TestImage::new(9);
    test_image.raw.feature_incompat = Le32::new(incompat::DEVICE_TABLE);
    test_image.raw.extra_devices = Le16::new(2);
    test_image.raw.devt_slotoff = Le16::new(16);
    let mut slot = RawDeviceSlot::parse(&[0; 128]);
    slot.uniaddr_lo = Le32::new(unified);
    test_image.put(16 * 128, &slot.encode());
    test_image
}

#[test]
fn device_numbers_have_as_many_bits_as_the_largest_needs() {
    // Two devices: two bits count, so 5 is 1, and 3 is none.
    let entries = [index(1, 9, 4), index(5, 0, 6), index(2, 0, 8), index(0, 0, u32::MAX)].concat();
    let found = extents(&mut with_devices(0), disk::FORMAT_INDEXES, &entries, 4096).unwrap();
    let hole = Extent { start: 3072, len_bytes: 1024, mapping: Mapping::Hole };
    assert_eq!(found, [plain(0, 2048, 1, 4), plain(2048, 1024, 2, 8), hole]);
    let result = extents(&mut with_devices(0), disk::FORMAT_INDEXES, &index(3, 0, 4), 10);
    assert!(matches!(result, Err(ImageError::Corrupt { .. })));
}

#[test]
fn wide_entries_have_48_bits_and_48_ones_are_a_hole() {
    let entries = [index(0, 1, 4), index(0, 0, u32::MAX), index(0, u16::MAX, u32::MAX)].concat();
    let format = disk::FORMAT_INDEXES | disk::FORMAT_WIDE;
    let found = extents(&mut TestImage::new(9), format, &entries, 3072).unwrap();
    let hole = Extent { start: 2048, len_bytes: 1024, mapping: Mapping::Hole };
    assert_eq!(found, [plain(0, 1024, 0, 1 << 32 | 4), plain(1024, 1024, 0, u64::from(u32::MAX)), hole]);
}

#[test]
fn chunks_that_may_be_on_different_devices_are_not_joined() {
    let entries = [index(0, 0, 4), index(0, 0, 6), index(2, 0, 8), index(2, 0, 10)].concat();
    let joined = extents(&mut with_devices(0), disk::FORMAT_INDEXES, &entries, 4096).unwrap();
    assert_eq!(joined, [plain(0, 2048, 0, 4), plain(2048, 2048, 2, 8)]);
    let apart = extents(&mut with_devices(6), disk::FORMAT_INDEXES, &entries, 4096).unwrap();
    assert_eq!(apart, [plain(0, 1024, 0, 4), plain(1024, 1024, 0, 6), plain(2048, 2048, 2, 8)]);
}
