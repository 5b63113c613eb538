//! Inodes built by hand: both forms, every layout, and invalid fields.

use super::*;
use crate::format::features::incompat;
use crate::format::le::{Le16, Le32, Le64};
use crate::read::tests::{META_BLOCK, TestImage, compact, extended};

fn layout(number: u16) -> Le16 {
    Le16::new(number << 1)
}

#[test]
fn a_compact_inode_takes_its_time_from_the_superblock() {
    let mut image = TestImage::new(12);
    image.raw.epoch = Le64::new((-100i64).cast_unsigned());
    image.raw.fixed_nsec = Le32::new(7);
    let mut raw = compact();
    raw.i_mtime = Le32::new(30);
    raw.i_uid = Le16::new(65535);
    raw.i_gid = Le16::new(2);
    raw.i_nb = Le16::new(5);
    raw.i_ino = Le32::new(99);
    image.put_compact(4, &raw);
    let inode = image.inode(4).unwrap();
    assert_eq!(inode.mtime, Timestamp { seconds: -70, nanoseconds: 7 });
    assert_eq!((inode.uid, inode.gid, inode.nlink, inode.ino), (65535, 2, 5, 99));
    assert_eq!((inode.kind, inode.extended, inode.device), (FileKind::Regular, false, None));
    assert_eq!((inode.xattr_bytes, inode.xattr_address()), (0, None));
    assert_eq!(inode.tail.offset, inode.address.offset + 32);
}

#[test]
fn an_extended_inode_has_wide_numbers() {
    let mut image = TestImage::new(12);
    let mut raw = extended();
    raw.i_size = Le64::new(i64::MAX.unsigned_abs());
    raw.i_mtime = Le64::new((-5i64).cast_unsigned());
    raw.i_mtime_nsec = Le32::new(999_999_999);
    raw.i_uid = Le32::new(u32::MAX - 1);
    raw.i_nlink = Le32::new(70_000);
    raw.i_xattr_icount = Le16::new(4);
    image.put_extended(1, &raw);
    let inode = image.inode(1).unwrap();
    assert_eq!(inode.mtime, Timestamp { seconds: -5, nanoseconds: 999_999_999 });
    assert_eq!((inode.size, inode.uid, inode.nlink), (i64::MAX.unsigned_abs(), u32::MAX - 1, 70_000));
    assert_eq!(inode.xattr_address().unwrap().offset, inode.address.offset + 64);
    assert_eq!(inode.tail.offset, inode.address.offset + 64 + 24);
}

#[test]
fn an_invalid_owner_is_read_as_the_overflow_id() {
    let mut image = TestImage::new(12);
    let mut raw = extended();
    (raw.i_uid, raw.i_gid) = (Le32::new(u32::MAX), Le32::new(u32::MAX));
    image.put_extended(1, &raw);
    let inode = image.inode(1).unwrap();
    assert_eq!((inode.uid, inode.gid), (OVERFLOW_ID, OVERFLOW_ID));
}

#[test]
fn every_layout_is_recognised() {
    let cases = [
        (0, Layout::Plain { start: Some(Address::image(3 << 12)) }),
        (1, Layout::CompressedFull),
        (2, Layout::Inline { start: Some(Address::image(3 << 12)), tail_bytes: 100 }),
        (3, Layout::CompressedCompact),
        (4, Layout::Chunks { chunk_bits: 15, indexed: false, wide: false }),
    ];
    let mut image = TestImage::new(12);
    let mut raw = compact();
    raw.i_size = Le32::new(4196);
    raw.i_u = Le32::new(3);
    for (number, wanted) in cases {
        raw.i_format = layout(number);
        image.put_compact(0, &raw);
        let inode = image.inode(0).unwrap();
        assert_eq!(inode.layout, wanted);
        assert_eq!(inode.compressed_blocks, if number & 1 == 1 { 3 } else { 0 });
    }
    for number in 5..8 {
        raw.i_format = layout(number);
        image.put_compact(0, &raw);
        assert!(image.inode(0).is_err());
    }
}

#[test]
fn a_start_of_all_ones_is_a_hole() {
    let mut image = TestImage::new(12);
    let mut raw = compact();
    raw.i_u = Le32::new(u32::MAX);
    image.put_compact(0, &raw);
    assert_eq!(image.inode(0).unwrap().layout, Layout::Plain { start: None });
    // With the flag, the address has 48 bits and there is one link.
    raw.i_format = Le16::new(1 << 4);
    raw.i_nb = Le16::new(2);
    image.put_compact(0, &raw);
    let inode = image.inode(0).unwrap();
    let start = Some(Address::image(0x2_ffff_ffff << 12));
    assert_eq!((inode.layout, inode.nlink), (Layout::Plain { start }, 1));
    raw.i_nb = Le16::new(u16::MAX);
    image.put_compact(0, &raw);
    assert_eq!(image.inode(0).unwrap().layout, Layout::Plain { start: None });
    // An extended inode has the upper bits if the image has 48-bit addresses.
    let mut raw = extended();
    raw.i_u = Le32::new(u32::MAX);
    image.put_extended(0, &raw);
    assert_eq!(image.inode(0).unwrap().layout, Layout::Plain { start: None });
    image.raw.feature_incompat = Le32::new(incompat::WIDE_ADDRESSES);
    let start = Some(Address::image(0xffff_ffff << 12));
    assert_eq!(image.inode(0).unwrap().layout, Layout::Plain { start });
}

#[test]
fn the_flag_of_a_directory_means_an_omitted_dot_and_leaves_its_links() {
    let mut image = TestImage::new(12);
    let mut raw = compact();
    raw.i_mode = Le16::new(0o040_755);
    raw.i_format = Le16::new(0x14);
    raw.i_nb = Le16::new(9);
    image.put_compact(0, &raw);
    let inode = image.inode(0).unwrap();
    assert_eq!((inode.kind, inode.nlink, inode.dot_omitted), (FileKind::Directory, 9, true));
}

#[test]
fn devices_have_numbers_and_no_layout() {
    let mut image = TestImage::new(12);
    for (mode, kind) in [(0o020_600, FileKind::CharDevice), (0o060_600, FileKind::BlockDevice)] {
        let mut raw = compact();
        raw.i_mode = Le16::new(mode);
        raw.i_u = Le32::new(0x0103);
        raw.i_format = layout(4);
        image.put_compact(0, &raw);
        let inode = image.inode(0).unwrap();
        assert_eq!((inode.kind, inode.layout), (kind, Layout::Plain { start: None }));
        assert_eq!(inode.device, Some(DeviceNumber { major: 1, minor: 3 }));
    }
}

#[test]
fn an_inline_tail_may_fill_its_block_but_not_leave_it() {
    // The inode's tail begins 32 bytes into a block of 512.
    for (size, fits) in [(480, true), (481, false), (511, false), (512, true), (992, true), (993, false)] {
        let mut image = TestImage::new(9);
        let mut raw = compact();
        raw.i_format = layout(2);
        raw.i_size = Le32::new(size);
        image.put_compact(0, &raw);
        assert_eq!(image.inode(0).is_ok(), fits, "{size}");
    }
    assert_eq!(META_BLOCK % 2, 0);
}

#[test]
fn invalid_fields_are_refused() {
    let mut image = TestImage::new(12);
    let mut check = |change: &dyn Fn(&mut RawExtendedInode)| {
        let mut raw = extended();
        change(&mut raw);
        image.put_extended(0, &raw);
        assert!(matches!(image.inode(0), Err(ImageError::Corrupt { .. })), "{raw:?}");
    };
    for bit in 5..16 {
        check(&|raw| raw.i_format = Le16::new(1 | 1 << bit));
    }
    for kind in [0, 0o030_000, 0o050_000, 0o070_000, 0o110_000, 0o160_000, 0o170_000] {
        check(&|raw| raw.i_mode = Le16::new(kind | 0o644));
    }
    check(&|raw| raw.i_size = Le64::new(1 << 63));
    check(&|raw| raw.i_mtime_nsec = Le32::new(1_000_000_000));
    for format in [0x80, 0x8000, 0x1_0000, 0x1_0020] {
        check(&|raw| {
            raw.i_format = Le16::new(1 | 4 << 1);
            raw.i_u = Le32::new(format);
        });
    }
}

#[test]
fn an_inode_behind_the_end_of_the_image_is_an_error() {
    let image = TestImage::new(12);
    let last = (64 - u64::from(META_BLOCK)) * 128 - 1;
    assert!(matches!(image.inode(last + 1), Err(ImageError::Truncated { .. })));
    let mut image = image;
    image.put_compact(last, &compact());
    assert!(image.inode(last).is_ok());
    let mut raw = compact();
    raw.i_format = Le16::new(1);
    image.put_compact(last, &raw);
    assert!(matches!(image.inode(last), Err(ImageError::Truncated { .. })));
}
