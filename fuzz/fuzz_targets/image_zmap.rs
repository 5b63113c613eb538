//! Invariant: any bytes parse as an index of a compressed file, in each of its forms, or are errors; every byte is in
//! one extent, which lies inside the file and respects the limits; and a search with a cursor finds the same extent.
//!
//! The first byte chooses the form: full, compact with packs of 2 or of 16, with or without big clusters, records of
//! 4, 8, 16 or 32 bytes. Then follow the block size and features, four bytes of the file's length, and the index from
//! its header on.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pagefold_fuzz::image::check_extent;
use pagefold_image::read::{Cursor, IndexForm, Mapping, SliceBytes, ZContext, ZMap};
use pagefold_image::{Address, Nid};

fuzz_target!(|input: &[u8]| {
    let Some(([form, features, s0, s1, s2, s3], index)) = input.split_first_chunk::<6>() else { return };
    let mut image = index.to_vec();
    if image.len() < 8 {
        return;
    }
    let big = if form & 8 != 0 { 0x06 } else { 0 };
    // Bits of the advice: packs of 16 or records; big clusters or size of a record. The other bits do not change.
    let (kind, advice) = match form & 7 {
        0 => (IndexForm::Full, big),
        1 => (IndexForm::Compact, big),
        2 | 3 => (IndexForm::Compact, 0x01 | big),
        n => (IndexForm::Full, 0x01 | (u16::from(n) - 4) << 1),
    };
    image[4] = image[4] & !0x07 | advice as u8;
    let extent_records = form & 7 >= 4;
    let context = ZContext {
        block_bits: [9, 12, 10, 16][usize::from(features & 3)],
        zero_padding: features & 4 != 0,
        extent_records,
        fragments: features & 8 != 0,
        algorithms: u16::from(features >> 4),
        max_cluster_bytes: 64 << 10,
        nid_for_errors: Nid(1),
    };
    let size = u64::from(u32::from_le_bytes([*s0, *s1, *s2, *s3])) << if form & 16 != 0 { 31 } else { 0 };
    let bytes = SliceBytes::image(&image);
    let Ok(map) = ZMap::open(&bytes, &context, kind, Address::image(0), size) else { return };
    let _ = map.header();
    let (mut offset, mut cursor) = (0, Cursor::default());
    for step in 0..64 {
        if offset >= size {
            break;
        }
        let found = map.extent_at(&bytes, offset);
        let near = map.extent_near(&bytes, offset, &mut cursor);
        let Ok(extent) = found else {
            assert!(near.is_err());
            offset += 4096 << (step / 2);
            continue;
        };
        assert_eq!(near.expect("the same with a cursor"), extent);
        check_extent(&extent, offset, size);
        match extent.mapping {
            Mapping::Compressed(cluster) => {
                assert!(extent.len_bytes <= 12 << 20 && (1..=1 << 20).contains(&cluster.len_bytes));
                assert!(context.algorithms & (1 << cluster.algorithm as u8) != 0);
                assert!(cluster.at.checked_add(cluster.len_bytes.into()).is_some());
            }
            Mapping::Plain(at) => assert!(at.checked_add(extent.len_bytes).is_some()),
            Mapping::Interlaced { at, len_bytes } => {
                assert!(len_bytes == 1 << context.block_bits && extent.len_bytes <= len_bytes.into());
                assert!(at.offset.is_multiple_of(len_bytes.into()));
            }
            Mapping::Fragment { offset } => {
                assert!(context.fragments && offset.checked_add(extent.len_bytes).is_some())
            }
            Mapping::Hole => {}
        }
        offset = extent.end();
    }
    for offset in [size / 2, size.saturating_sub(1), size, u64::MAX] {
        if let Ok(extent) = map.extent_at(&bytes, offset) {
            check_extent(&extent, offset, size);
        }
    }
});
