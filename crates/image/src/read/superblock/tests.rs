//! Superblocks built by hand: decoded fields, and invalid ones.

use super::*;
use crate::format::le::{Le16, Le32, Le64};
use crate::read::SliceBytes;
use crate::read::tests::{TestImage, message};

/// Makes an image with `incompat` features and `records` after the superblock.
fn with_records(incompat: u32, algorithms: u16, records: &[u8]) -> TestImage {
    let mut test_image = TestImage::new(12);
    test_image.raw.feature_incompat = Le32::new(incompat);
    test_image.raw.u1 = Le16::new(algorithms);
    test_image.put(1024 + 128, records);
    test_image
}

#[test]
fn a_superblock_of_zeroes_has_defaults() {
    let sb = TestImage::new(12).superblock().unwrap();
    assert_eq!((sb.block_bytes(), sb.root_nid, sb.epoch), (4096, Nid(0), 0));
    assert_eq!((sb.packed_nid, sb.metabox_nid, sb.image_share_prefix), (None, None, None));
    assert_eq!((sb.algorithms.lz4_window_bytes, sb.algorithms.max_pcluster_blocks), (65535, 1));
    assert_eq!(sb.algorithms.iter().collect::<Vec<_>>(), [Algorithm::Lz4]);
    assert_eq!(sb.required_kernel(), features::FIRST_KERNEL);
    assert!(sb.devices.is_empty() && !sb.zero_padding && !sb.big_pcluster && !sb.wide_addresses);
}

#[test]
fn bytes_without_a_superblock_are_not_an_image() {
    for bytes in [vec![], vec![0; 1024], vec![0; 1151], vec![0; 4096]] {
        let error = Superblock::read(&SliceBytes::image(&bytes)).unwrap_err();
        assert!(matches!(error, ImageError::NotAnImage { .. }), "{error}");
    }
}

#[test]
fn block_sizes_from_512_to_64_kib_are_read() {
    for bits in 0..=20 {
        let mut test_image = TestImage::new(12);
        test_image.raw.blkszbits = bits;
        assert_eq!(test_image.superblock().is_ok(), (9..=16).contains(&bits), "2^{bits}");
    }
}

#[test]
fn the_checksum_covers_the_block_behind_byte_1024_and_only_that() {
    for bits in [9, 10, 11, 12, 16] {
        let mut test_image = TestImage::new(bits);
        test_image.raw.feature_compat = Le32::new(compat::SB_CHKSUM);
        assert!(message(test_image.superblock()).contains("checksum"));
        let len = if bits <= 10 { 1 << bits } else { (1 << bits) - 1024 };
        let image = test_image.image();
        test_image.raw.checksum = Le32::new(!crc32c::crc32c(&image[1024..1024 + len]));
        assert!(test_image.superblock().is_ok(), "2^{bits}");
        let mut image = test_image.image();
        for (at, covered) in
            [(0, false), (1023, false), (1040, true), (1023 + len, true), (1024 + len, false)]
        {
            image[at] ^= 1;
            assert_eq!(Superblock::read(&SliceBytes::image(&image)).is_err(), covered, "byte {at}, 2^{bits}");
            image[at] ^= 1;
        }
    }
}

#[test]
fn unknown_features_are_refused_by_number() {
    let mut test_image = TestImage::new(12);
    test_image.raw.feature_incompat = Le32::new(0x8000_0203);
    assert!(message(test_image.superblock()).contains("0x80000200"));
    test_image.raw.feature_incompat = Le32::new(0);
    test_image.raw.feature_compat = Le32::new(0x0800_0000);
    assert!(test_image.superblock().is_ok());
    test_image.raw.dirblkbits = 1;
    assert!(matches!(test_image.superblock(), Err(ImageError::Unsupported { .. })));
}

#[test]
fn records_of_all_algorithms_are_read_in_order_and_aligned() {
    let records = [
        &[14, 0, 0x00, 0x40, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..],
        &[14, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        // One byte longer than known: the byte is skipped, and the next record is aligned again.
        &[7, 0, 15, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[6, 0, 0, 9, 0, 0, 0, 0],
    ];
    let sb = with_records(incompat::COMPR_CFGS, 0b1111, &records.concat()).superblock().unwrap();
    let a = sb.algorithms;
    assert_eq!((a.lz4_window_bytes, a.max_pcluster_blocks), (0x4000, 16));
    assert_eq!(
        (a.lzma_dict_bytes, a.deflate_window_bits, a.zstd_window_log),
        (Some(0x4_0000), Some(15), Some(19))
    );
    assert_eq!(sb.required_kernel().to_string(), "6.10");
}

#[test]
fn records_with_invalid_values_are_refused() {
    let bad: [(u16, &[u8]); 9] = [
        (1, &[13, 0, 0, 0, 1, 0]),
        (1, &[14, 0, 0, 0, 1, 1]),
        (2, &[14, 0, 0xff, 0x0f, 0, 0]),
        (2, &[14, 0, 1, 0, 0x80, 0]),
        (2, &[14, 0, 0, 0, 4, 0, 1, 0]),
        (4, &[6, 0, 16]),
        (8, &[6, 0, 1, 0]),
        (8, &[6, 0, 0, 11]),
        (0x10, &[6, 0, 0, 0]),
    ];
    for (algorithms, record) in bad {
        assert!(with_records(2, algorithms, record).superblock().is_err(), "{algorithms} {record:?}");
    }
}

#[test]
fn a_wide_root_number_replaces_the_narrow_one() {
    let mut test_image = TestImage::new(12);
    test_image.raw.rootnid_2b = Le16::new(7);
    test_image.raw.blocks_lo = Le32::new(5);
    test_image.raw.rootnid_8b = Le64::new(1 << 40);
    let sb = test_image.superblock().unwrap();
    assert_eq!((sb.root_nid, sb.blocks), (Nid(7), 5));
    test_image.raw.feature_incompat = Le32::new(incompat::WIDE_ADDRESSES);
    let sb = test_image.superblock().unwrap();
    assert_eq!((sb.root_nid, sb.blocks), (Nid(1 << 40), 7 << 32 | 5));
    test_image.raw.rootnid_8b = Le64::new(0);
    let sb = test_image.superblock().unwrap();
    assert_eq!((sb.root_nid, sb.blocks), (Nid(7), 5));
}

#[test]
fn the_device_table_is_read_and_must_end_inside_the_image() {
    let mut test_image = TestImage::new(12);
    test_image.raw.feature_incompat = Le32::new(incompat::DEVICE_TABLE);
    test_image.raw.extra_devices = Le16::new(2);
    test_image.raw.devt_slotoff = Le16::new(20);
    let mut slot = RawDeviceSlot::parse(&[0; 128]);
    slot.tag[..3].copy_from_slice(b"tag");
    slot.blocks_lo = Le32::new(3);
    slot.blocks_hi = Le16::new(1);
    test_image.put(20 * 128, &slot.encode());
    slot.uniaddr_lo = Le32::new(9);
    test_image.put(21 * 128, &slot.encode());
    let sb = test_image.superblock().unwrap();
    assert_eq!(sb.devices.len(), 2);
    assert_eq!((sb.devices[0].blocks, sb.devices[0].unified_start), (1 << 32 | 3, None));
    assert_eq!((sb.devices[1].unified_start, &sb.devices[1].tag[..4]), (Some(9), &b"tag\0"[..]));
    test_image.raw.extra_devices = Le16::new(u16::MAX);
    assert!(matches!(test_image.superblock(), Err(ImageError::Truncated { .. })));
    test_image.raw.feature_incompat = Le32::new(0);
    assert!(test_image.superblock().unwrap().devices.is_empty());
}

#[test]
fn the_metabox_needs_an_extension_slot_and_is_not_in_itself() {
    let mut test_image = TestImage::new(12);
    test_image.raw.feature_incompat = Le32::new(incompat::METABOX);
    assert!(test_image.superblock().is_err());
    test_image.raw.sb_extslots = 1;
    test_image.put(1024 + 128, &36u64.to_le_bytes());
    let sb = test_image.superblock().unwrap();
    assert_eq!(sb.metabox_nid, Some(Nid(36)));
    let at = sb.inode_address(Nid(NID_METABOX | 3)).unwrap();
    assert_eq!(at, Address { space: Space::Metabox, offset: 96 });
    assert_eq!(sb.prefixes.place, PrefixPlace::Space(Space::Metabox));
    test_image.put(1024 + 128, &(NID_METABOX | 36).to_le_bytes());
    assert!(test_image.superblock().is_err());
}

#[test]
fn features_determine_the_location_of_long_prefixes() {
    let place = |compat: u32, incompat: u32, packed: u64| {
        let mut test_image = TestImage::new(12);
        test_image.raw.feature_compat = Le32::new(compat);
        test_image.raw.feature_incompat = Le32::new(incompat | incompat::XATTR_PREFIXES);
        test_image.raw.packed_nid = Le64::new(packed);
        test_image.raw.xattr_prefix_count = 2;
        test_image.raw.xattr_prefix_start = Le32::new(10);
        test_image.superblock().unwrap().prefixes
    };
    let image = PrefixPlace::Space(Space::Device(0));
    assert_eq!(place(0, 0, 0), PrefixTable { place: image, offset: 40, count: 2 });
    assert_eq!(place(0, incompat::FRAGMENTS, 9).place, PrefixPlace::Packed);
    assert_eq!(place(0, incompat::FRAGMENTS, 0).place, image);
    assert_eq!(place(compat::PLAIN_XATTR_PFX, incompat::FRAGMENTS, 9).place, image);
}

#[test]
fn addresses_of_inodes_do_not_overflow() {
    let sb = TestImage::new(12).superblock().unwrap();
    assert_eq!(sb.inode_address(Nid(3)).unwrap(), Address::image(8 * 4096 + 96));
    for nid in [u64::MAX, NID_METABOX, NID_METABOX - 1, 1 << 59] {
        assert!(sb.inode_address(Nid(nid)).is_err(), "{nid:#x}");
    }
}
