//! Invariant: any bytes from 1024 on parse as a superblock, with all structures that it refers to, or are an error.
//!
//! The first byte chooses whether the magic number and the checksum are corrected.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pagefold_fuzz::image::{covered_bytes, repair_checksum};
use pagefold_image::read::xattr::Prefixes;
use pagefold_image::read::{SliceBytes, Superblock};
use pagefold_image::{Nid, Space};

fuzz_target!(|input: &[u8]| {
    let Some((choice, rest)) = input.split_first() else { return };
    let mut image = vec![0; 1024];
    image.extend_from_slice(rest);
    if choice & 1 != 0 && image.len() >= 1024 + 128 {
        image[1024..1028].copy_from_slice(&0xE0F5_E1E2_u32.to_le_bytes());
        image[1024 + 12] = 9 + (image[1024 + 12] & 7);
        // Images with unknown features are refused at once, so these bits are cleared.
        image[1024 + 0x51] &= 1;
        image[1024 + 0x52..1024 + 0x54].fill(0);
        image.resize(image.len().max(1024 + covered_bytes(image[1024 + 12])), 0);
        repair_checksum(&mut image);
    }
    let bytes = SliceBytes::image(&image);
    let Ok(sb) = Superblock::read(&bytes) else { return };
    assert!((9..=16).contains(&sb.block_bits) && sb.prefixes.count <= 128);
    assert!(sb.max_lz4_cluster_bytes() <= 1 << 20);
    let _ = (sb.required_kernel(), sb.volume_name(), sb.block_address(u64::MAX));
    for nid in [sb.root_nid, Nid(0), Nid(u64::MAX), Nid(i64::MAX as u64)] {
        if let Ok(at) = sb.inode_address(nid) {
            assert!(at.space != Space::Metabox || sb.metabox_nid.is_some());
        }
    }
    if let Ok(prefixes) = Prefixes::read_from(&bytes, &sb.prefixes) {
        assert_eq!(prefixes.count(), usize::from(sb.prefixes.count));
        let _ = prefixes.name(choice >> 1);
    }
});
