//! Invariant: any bytes parse as the attributes of an inode, of bounded length, or are errors; every listed attribute
//! is found by its name (unless the filter excludes it), and the lists of names and of values agree.
//!
//! The first four bytes choose features and the number of attributes; the rest is an image: the inode's attributes
//! from byte 32 on, shared attributes and long prefixes anywhere.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pagefold_fuzz::image::PLAIN;
use pagefold_image::read::SliceBytes;
use pagefold_image::read::xattr::{self, Prefixes, Xattrs};
use pagefold_image::{Address, Nid, Space};

fuzz_target!(|input: &[u8]| {
    let Some((choice, image)) = input.split_first_chunk::<4>() else { return };
    let (mut sb, mut inode) = PLAIN.clone();
    sb.xattr_filter = choice[0] & 1 != 0;
    sb.xattr_blkaddr = u32::from(choice[0] >> 1 & 1);
    sb.prefixes.count = choice[1] & 7;
    sb.prefixes.place = pagefold_image::read::superblock::PrefixPlace::Space(Space::Device(0));
    sb.prefixes.offset = u64::from(choice[1] >> 3) * 4;
    inode.nid = Nid(0);
    inode.xattr_bytes = 12 + 4 * u32::from(u16::from_le_bytes([choice[2], choice[3]]) >> 4);
    inode.address = Address::image(0);
    inode.tail = Address::image(32 + u64::from(inode.xattr_bytes));
    let bytes = SliceBytes::image(image);
    let prefixes = Prefixes::read_from(&bytes, &sb.prefixes).unwrap_or_default();
    let Ok(xattrs) = Xattrs::open(&bytes, &sb, &prefixes, &inode) else { return };
    let (names, list) = (xattrs.names(), xattrs.list());
    if let Ok(names) = &names {
        assert!(names.iter().map(|name| name.len() + 1).sum::<usize>() <= xattr::NAMES_BYTES_MAX);
        if let Ok(list) = &list {
            assert!(list.iter().map(|xattr| &xattr.name).eq(names));
        }
    }
    if let Ok(list) = &list {
        for xattr in list.iter().take(8) {
            let found = xattrs.get(&xattr.name).expect("it was listed");
            let first = list.iter().find(|other| other.name == xattr.name).expect("itself");
            assert!(found.as_ref() == Some(&first.value) || (found.is_none() && sb.xattr_filter));
        }
    }
    let _ = xattrs.get(b"user.none");
});
