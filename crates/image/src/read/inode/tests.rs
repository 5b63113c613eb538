//! Inodes by hand: both forms, every layout, and what is refused.

use super::*;
use crate::format::features::incompat;
use crate::format::le::{Le16, Le32, Le64};
use crate::read::forge::{Forge, META_BLOCK, compact, extended};

fn layout(number: u16) -> Le16 {
    Le16::new(number << 1)
}

#[test]
fn a_compact_inode_takes_its_time_from_the_superblock() {
    let mut forge = Forge::new(12);
    forge.raw.epoch = Le64::new((-100i64).cast_unsigned());
    forge.raw.fixed_nsec = Le32::new(7);
    let mut raw = compact();
    raw.i_mtime = Le32::new(30);
    raw.i_uid = Le16::new(65535);
    raw.i_gid = Le16::new(2);
    raw.i_nb = Le16::new(5);
    raw.i_ino = Le32::new(99);
    forge.put_compact(4, &raw);
    let inode = forge.inode(4).unwrap();
    assert_eq!(inode.mtime, Timestamp { seconds: -70, nanoseconds: 7 });
    assert_eq!((inode.uid, inode.gid, inode.nlink, inode.ino), (65535, 2, 5, 99));
    assert_eq!((inode.kind, inode.extended, inode.device), (FileKind::Regular, false, None));
    assert_eq!((inode.xattr_bytes, inode.xattr_address()), (0, None));
    assert_eq!(inode.tail.offset, inode.address.offset + 32);
}

#[test]
fn an_extended_inode_has_wide_numbers() {
    let mut forge = Forge::new(12);
    let mut raw = extended();
    raw.i_size = Le64::new(i64::MAX.unsigned_abs());
    raw.i_mtime = Le64::new((-5i64).cast_unsigned());
    raw.i_mtime_nsec = Le32::new(999_999_999);
    raw.i_uid = Le32::new(u32::MAX);
    raw.i_nlink = Le32::new(70_000);
    raw.i_xattr_icount = Le16::new(4);
    forge.put_extended(1, &raw);
    let inode = forge.inode(1).unwrap();
    assert_eq!(inode.mtime, Timestamp { seconds: -5, nanoseconds: 999_999_999 });
    assert_eq!((inode.size, inode.uid, inode.nlink), (i64::MAX.unsigned_abs(), u32::MAX, 70_000));
    assert_eq!(inode.xattr_address().unwrap().offset, inode.address.offset + 64);
    assert_eq!(inode.tail.offset, inode.address.offset + 64 + 24);
}

#[test]
fn every_layout_is_told() {
    let cases = [
        (0, Layout::Plain { start: Some(Address::image(3 << 12)) }),
        (1, Layout::CompressedFull),
        (2, Layout::Inline { start: Some(Address::image(3 << 12)), tail_bytes: 100 }),
        (3, Layout::CompressedCompact),
        (4, Layout::Chunks { chunk_bits: 15, indexed: false, wide: false }),
    ];
    let mut forge = Forge::new(12);
    let mut raw = compact();
    raw.i_size = Le32::new(4196);
    raw.i_u = Le32::new(3);
    for (number, wanted) in cases {
        raw.i_format = layout(number);
        forge.put_compact(0, &raw);
        let inode = forge.inode(0).unwrap();
        assert_eq!(inode.layout, wanted);
        assert_eq!(inode.compressed_blocks, if number & 1 == 1 { 3 } else { 0 });
    }
    for number in 5..8 {
        raw.i_format = layout(number);
        forge.put_compact(0, &raw);
        assert!(forge.inode(0).is_err());
    }
}

#[test]
fn a_start_of_all_ones_is_a_hole() {
    let mut forge = Forge::new(12);
    let mut raw = compact();
    raw.i_u = Le32::new(u32::MAX);
    forge.put_compact(0, &raw);
    assert_eq!(forge.inode(0).unwrap().layout, Layout::Plain { start: None });
    // With the flag there are 48 bits, and one link.
    raw.i_format = Le16::new(1 << 4);
    raw.i_nb = Le16::new(2);
    forge.put_compact(0, &raw);
    let inode = forge.inode(0).unwrap();
    let start = Some(Address::image(0x2_ffff_ffff << 12));
    assert_eq!((inode.layout, inode.nlink), (Layout::Plain { start }, 1));
    raw.i_nb = Le16::new(u16::MAX);
    forge.put_compact(0, &raw);
    assert_eq!(forge.inode(0).unwrap().layout, Layout::Plain { start: None });
    // An extended inode has the upper bits if the image has 48-bit addresses.
    let mut raw = extended();
    raw.i_u = Le32::new(u32::MAX);
    forge.put_extended(0, &raw);
    assert_eq!(forge.inode(0).unwrap().layout, Layout::Plain { start: None });
    forge.raw.feature_incompat = Le32::new(incompat::WIDE_ADDRESSES);
    let start = Some(Address::image(0xffff_ffff << 12));
    assert_eq!(forge.inode(0).unwrap().layout, Layout::Plain { start });
}

#[test]
fn a_directory_keeps_its_links_and_may_lack_its_dot() {
    let mut forge = Forge::new(12);
    let mut raw = compact();
    raw.i_mode = Le16::new(0o040_755);
    raw.i_format = Le16::new(0x14);
    raw.i_nb = Le16::new(9);
    forge.put_compact(0, &raw);
    let inode = forge.inode(0).unwrap();
    assert_eq!((inode.kind, inode.nlink, inode.dot_omitted), (FileKind::Directory, 9, true));
}

#[test]
fn devices_have_numbers_and_no_layout() {
    let mut forge = Forge::new(12);
    for (mode, kind) in [(0o020_600, FileKind::CharDevice), (0o060_600, FileKind::BlockDevice)] {
        let mut raw = compact();
        raw.i_mode = Le16::new(mode);
        raw.i_u = Le32::new(0x0103);
        raw.i_format = layout(4);
        forge.put_compact(0, &raw);
        let inode = forge.inode(0).unwrap();
        assert_eq!((inode.kind, inode.layout), (kind, Layout::Plain { start: None }));
        assert_eq!(inode.device, Some(DeviceNumber { major: 1, minor: 3 }));
    }
}

#[test]
fn a_tail_may_fill_its_block_and_not_leave_it() {
    // The inode's tail begins 32 bytes into a block of 512.
    for (size, fits) in [(480, true), (481, false), (511, false), (512, true), (992, true), (993, false)] {
        let mut forge = Forge::new(9);
        let mut raw = compact();
        raw.i_format = layout(2);
        raw.i_size = Le32::new(size);
        forge.put_compact(0, &raw);
        assert_eq!(forge.inode(0).is_ok(), fits, "{size}");
    }
    assert_eq!(META_BLOCK % 2, 0);
}

#[test]
fn nonsense_is_refused() {
    let mut forge = Forge::new(12);
    let mut check = |change: &dyn Fn(&mut RawExtendedInode)| {
        let mut raw = extended();
        change(&mut raw);
        forge.put_extended(0, &raw);
        assert!(matches!(forge.inode(0), Err(ImageError::Corrupt { .. })), "{raw:?}");
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
fn an_inode_is_cut_off_with_its_image() {
    let forge = Forge::new(12);
    let last = (64 - u64::from(META_BLOCK)) * 128 - 1;
    assert!(matches!(forge.inode(last + 1), Err(ImageError::Truncated { .. })));
    let mut forge = forge;
    forge.put_compact(last, &compact());
    assert!(forge.inode(last).is_ok());
    let mut raw = compact();
    raw.i_format = Le16::new(1);
    forge.put_compact(last, &raw);
    assert!(matches!(forge.inode(last), Err(ImageError::Truncated { .. })));
}
