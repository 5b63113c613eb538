//! Attributes built by hand: prefixes, sharing, filters, and corrupt areas.

use super::*;
use crate::Nid;
use crate::Result;
use crate::format::features::{compat, incompat};
use crate::format::le::{Le16, Le32};
use crate::read::SliceBytes;
use crate::read::tests::{TestImage, compact, message};
use proptest::prelude::*;

/// Encodes an attribute, padded.
fn entry(index: u8, name: &[u8], value: &[u8]) -> Vec<u8> {
    let raw = RawXattrEntry {
        name_len: name.len() as u8,
        name_index: index,
        value_size: Le16::new(value.len() as u16),
    };
    let mut bytes = [&raw.encode(), name, value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn header(filter: u32, shared: &[u32]) -> Vec<u8> {
    let raw =
        RawXattrHeader { name_filter: Le32::new(filter), shared_count: shared.len() as u8, reserved: [0; 7] };
    let ids = shared.iter().flat_map(|id| id.to_le_bytes());
    raw.encode().into_iter().chain(ids).collect()
}

/// Makes an image whose inode 0 has these attributes, and whose shared attributes begin at block 16.
fn with_xattrs(area: &[u8]) -> TestImage {
    let mut test_image = TestImage::new(12);
    let mut raw = compact();
    raw.i_xattr_icount = Le16::new(((area.len() - 12) / 4 + 1) as u16);
    test_image.put_compact(0, &raw);
    test_image.put(test_image.inode_at(0) + 32, area);
    test_image.raw.xattr_blkaddr = Le32::new(16);
    test_image
}

/// Adds two long prefixes at byte 2000: `trusted.overlay.`, and a hidden one.
fn add_prefixes(test_image: &mut TestImage) {
    test_image.put(2000, &[&[9, 0, 4][..], b"overlay.", &[0], &[3, 0, 0], b"hi"].concat());
    test_image.raw.feature_incompat = Le32::new(incompat::XATTR_PREFIXES);
    test_image.raw.xattr_prefix_start = Le32::new(500);
    test_image.raw.xattr_prefix_count = 2;
}

struct Open {
    image: Vec<u8>,
    sb: Superblock,
    prefixes: Prefixes,
    inode: Inode,
}

fn open(test_image: &TestImage) -> Open {
    let (image, sb) = (test_image.image(), test_image.superblock().unwrap());
    let prefixes = Prefixes::read_from(&SliceBytes::image(&image), &sb.prefixes).unwrap();
    let inode = Inode::read(&SliceBytes::image(&image), &sb, Nid(0)).unwrap();
    Open { image, sb, prefixes, inode }
}

impl Open {
    fn list(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let bytes = SliceBytes::image(&self.image);
        let xattrs = Xattrs::open(&bytes, &self.sb, &self.prefixes, &self.inode)?;
        let (listed, names) = (xattrs.list()?, xattrs.names()?);
        assert!(names.iter().eq(listed.iter().map(|xattr| &xattr.name)));
        Ok(listed.into_iter().map(|x| (String::from_utf8(x.name).unwrap(), x.value)).collect())
    }

    fn get(&self, name: &str) -> Option<Vec<u8>> {
        let bytes = SliceBytes::image(&self.image);
        Xattrs::open(&bytes, &self.sb, &self.prefixes, &self.inode).unwrap().get(name.as_bytes()).unwrap()
    }
}

#[test]
fn names_are_listed_with_their_prefixes() {
    let entries = [
        entry(1, b"a", b"1"),
        entry(2, b"", b"acl"),
        entry(3, b"", b"default"),
        entry(4, b"t", b""),
        entry(6, b"selinux", &[0, 1, 2]),
        entry(5, b"lustre", b"not shown"),
        entry(0, b"nothing", b"not shown"),
        entry(0x80, b"opaque", b"y"),
        entry(0x81, b"den", b"not shown"),
    ];
    let mut test_image = with_xattrs(&[header(0, &[]), entries.concat()].concat());
    add_prefixes(&mut test_image);
    let open = open(&test_image);
    assert_eq!(open.prefixes.count(), 2);
    assert_eq!(open.prefixes.name(0).unwrap(), b"trusted.overlay.");
    let wanted = [
        ("user.a", &b"1"[..]),
        ("system.posix_acl_access", b"acl"),
        ("system.posix_acl_default", b"default"),
        ("trusted.t", b""),
        ("security.selinux", &[0, 1, 2]),
        ("trusted.overlay.opaque", b"y"),
    ];
    let wanted: Vec<_> = wanted.map(|(name, value)| (name.to_owned(), value.to_vec())).into();
    assert_eq!(open.list().unwrap(), wanted);
    for (name, value) in wanted {
        assert_eq!(open.get(&name), Some(value));
    }
    for name in ["user.", "user.b", "trusted.overlay.", "hiden", "lustre.lustre", ""] {
        assert_eq!(open.get(name), None, "{name}");
    }
}

#[test]
fn shared_attributes_follow_inline_ones() {
    let mut test_image = with_xattrs(&[header(0, &[1, 4]), entry(1, b"own", b"0")].concat());
    test_image.put(16 * 4096 + 4, &entry(1, b"shared", b"1"));
    test_image.put(16 * 4096 + 16, &entry(6, b"also", b"2"));
    let listed = open(&test_image).list().unwrap();
    let names: Vec<&str> = listed.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["user.own", "user.shared", "security.also"]);
    assert_eq!(open(&test_image).get("security.also"), Some(b"2".to_vec()));
}

#[test]
fn the_filter_is_used_if_the_image_has_valid_filters() {
    let bit = disk::filter_bit(1, b"a");
    let mut test_image = with_xattrs(&[header(bit, &[]), entry(1, b"a", b"1")].concat());
    // A wrong filter shows whether a lookup uses it.
    assert_eq!(open(&test_image).get("user.a"), Some(b"1".to_vec()));
    test_image.raw.feature_compat = Le32::new(compat::XATTR_FILTER);
    assert_eq!(open(&test_image).get("user.a"), None);
    assert_eq!(open(&test_image).list().unwrap().len(), 1);
    test_image.raw.xattr_filter_reserved = 1;
    assert_eq!(open(&test_image).get("user.a"), Some(b"1".to_vec()));
}

#[test]
fn corrupt_areas_are_refused() {
    let refused = |area: &[u8], what: &str| {
        let message = message(open(&with_xattrs(area)).list());
        assert!(message.contains(what), "{message}");
    };
    refused(&header(0, &[]), "only the header");
    let mut many = header(0, &[0]);
    many[4] = 2;
    refused(&many, "shared attributes");
    let mut long = [header(0, &[]), entry(1, b"a", b"1")].concat();
    long[14] = 200;
    refused(&long, "extends past");
    refused(&[header(0, &[]), entry(0x85, b"a", b"1")].concat(), "long prefix 5");
    refused(&[header(0, &[]), entry(1, b"a\0", b"1")].concat(), "NUL");
}

#[test]
fn a_shared_attribute_behind_the_end_of_the_image_is_an_error() {
    let open = open(&with_xattrs(&[header(0, &[u32::MAX]), entry(1, b"a", b"")].concat()));
    assert!(matches!(open.list(), Err(ImageError::Truncated { .. })));
}

#[test]
fn many_large_attributes_are_read_one_at_a_time() {
    let mut test_image = with_xattrs(&header(0, &[0; 255]));
    test_image.put(16 * 4096, &entry(1, b"large", &[7; 60_000]));
    let open = open(&test_image);
    assert_eq!(open.list().unwrap().len(), 255);
    let mut count = 0;
    let bytes = SliceBytes::image(&open.image);
    let xattrs = Xattrs::open(&bytes, &open.sb, &open.prefixes, &open.inode).unwrap();
    xattrs.visit(|xattr, _| count += usize::from(xattr.value.len() == 60_000)).unwrap();
    assert_eq!(count, 255);
}

#[test]
fn prefixes_of_impossible_lengths_are_refused() {
    for len in [0u16, 257, u16::MAX] {
        let mut test_image = TestImage::new(12);
        add_prefixes(&mut test_image);
        test_image.put(2000, &len.to_le_bytes());
        let table = test_image.superblock().unwrap().prefixes;
        assert!(Prefixes::read_from(&SliceBytes::image(&test_image.image()), &table).is_err());
    }
}

proptest! {
    #[test]
    fn any_area_is_attributes_or_an_error(
        area in prop::collection::vec(any::<u8>(), 16..400),
        shared in 0u8..6,
        indexes in any::<bool>(),
    ) {
        let mut area = area;
        area.truncate(area.len() / 4 * 4);
        area[4] = shared;
        // Half of the time, entries that are more likely to be sound.
        if indexes {
            area[12..].iter_mut().for_each(|byte| *byte %= 9);
        }
        let mut test_image = with_xattrs(&area);
        add_prefixes(&mut test_image);
        let open = open(&test_image);
        let bytes = SliceBytes::image(&open.image);
        let Ok(xattrs) = Xattrs::open(&bytes, &open.sb, &open.prefixes, &open.inode) else { return Ok(()) };
        if let Ok(listed) = xattrs.list() {
            for (number, xattr) in listed.iter().enumerate() {
                let first = listed.iter().position(|other| other.name == xattr.name);
                let found = xattrs.get(&xattr.name).unwrap();
                if first == Some(number) {
                    prop_assert_eq!(found.as_ref(), Some(&xattr.value));
                }
            }
        }
        _ = xattrs.names();
    }
}
