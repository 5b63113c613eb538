//! Invariant: any bytes parse as an inode, or are an error; and each byte of a flat or chunked file is in one extent,
//! which lies inside the file and is found from its first byte too.
//!
//! The first four bytes choose the block size, the features, and the position of the inode; the rest is an image of
//! inodes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pagefold_fuzz::image::check_extent;
use pagefold_image::Nid;
use pagefold_image::read::dir::Directory;
use pagefold_image::read::{FileKind, Inode, Layout, SliceBytes, Superblock, chunk, flat};
use std::sync::LazyLock;

/// The superblock of a small image; inputs change fields of a copy.
static PLAIN: LazyLock<Superblock> = LazyLock::new(|| {
    let image = include_bytes!("../seeds/blob.erofs");
    Superblock::read(&SliceBytes::image(image)).expect("a seed")
});

fuzz_target!(|input: &[u8]| {
    let Some((choice, image)) = input.split_first_chunk::<4>() else { return };
    let mut sb = PLAIN.clone();
    sb.block_bits = 9 + (choice[0] & 7);
    sb.wide_addresses = choice[0] & 8 != 0;
    sb.meta_blkaddr = u32::from(choice[0] & 16);
    sb.metabox_nid = (choice[0] & 32 != 0).then_some(Nid(7));
    let bytes = SliceBytes::image(image);
    for nid in [u64::from(choice[1]) % 16, u64::from(u32::from_le_bytes(*choice)) << 31] {
        let Ok(inode) = Inode::read(&bytes, &sb, Nid(nid)) else { continue };
        assert!(inode.size <= i64::MAX as u64 && inode.mtime.nanoseconds < 1_000_000_000);
        assert!(inode.tail.offset >= inode.address.offset + 32 + u64::from(inode.xattr_bytes));
        if let Ok(directory) = Directory::of(&sb, &inode) {
            assert_eq!(inode.kind, FileKind::Directory);
            let _ = (directory.blocks(), directory.block_len(u64::MAX), directory.block_len(0));
        }
        let find = |offset| match inode.layout {
            Layout::Chunks { .. } => chunk::extent_at(&bytes, &sb, &inode, offset),
            _ => flat::extent_at(&bytes, &sb, &inode, offset),
        };
        for offset in [0, 1, 511, 65_536, inode.size / 2, inode.size.saturating_sub(1), inode.size, u64::MAX]
        {
            let Ok(extent) = find(offset) else { continue };
            check_extent(&extent, offset, inode.size);
            let again = find(extent.start).expect("the same extent again");
            assert!(again.start == extent.start && again.mapping == extent.mapping, "{again:?} {extent:?}");
        }
    }
});
