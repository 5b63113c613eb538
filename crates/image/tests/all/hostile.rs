//! Metadata with changed bytes: everything may be refused, but nothing may panic, loop, or read out of bounds.

use crate::support::reference_image;
use pagefold_image::read::dir::Directory;
use pagefold_image::read::xattr::{Prefixes, Xattrs};
use pagefold_image::read::{Bytes, Extent, FileKind, Inode, Layout, Mapping, Superblock, chunk, flat};
use pagefold_image::{Address, ImageError, Nid, Space};
use proptest::prelude::*;
use std::cell::Cell;
use std::fs;
use std::sync::LazyLock;

/// An image whose inodes are spread over all of it. Its checksum is turned off, so that changes are not refused at
/// once.
static IMAGE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut image = fs::read(reference_image("xflt")).unwrap();
    image[1024 + 8] &= !1;
    image
});

/// The numbers of all inodes in the tree of [`IMAGE`].
static NIDS: LazyLock<Vec<Nid>> = LazyLock::new(|| {
    let bytes = Patched { patches: Vec::new(), reads: Cell::new(0) };
    let sb = Superblock::read(&bytes).unwrap();
    let mut nids = Vec::new();
    let mut stack = vec![sb.root_nid];
    while let Some(nid) = stack.pop() {
        nids.push(nid);
        let inode = Inode::read(&bytes, &sb, nid).unwrap();
        let Ok(directory) = Directory::of(&sb, &inode) else { continue };
        let mut block = Vec::new();
        let mut read = |number, buf: &mut [u8]| read_block(&bytes, &sb, &inode, number, buf);
        for number in 0..directory.blocks() {
            for entry in directory.read_block(number, &mut block, &mut read).unwrap().entries() {
                let entry = entry.unwrap();
                if entry.name != b"." && entry.name != b".." {
                    stack.push(entry.nid);
                }
            }
        }
    }
    nids.sort();
    nids
});

/// Reads a block of an uncompressed directory.
fn read_block(
    bytes: &Patched,
    sb: &Superblock,
    inode: &Inode,
    number: u64,
    buf: &mut [u8],
) -> Result<(), ImageError> {
    let offset = number << sb.block_bits;
    let extent = extent_at(bytes, sb, inode, offset)?;
    match extent.mapping {
        Mapping::Plain(at) => bytes.read_at(at.checked_add(offset - extent.start).unwrap(), buf),
        _ => {
            buf.fill(0);
            Ok(())
        }
    }
}

/// The image with some bytes changed. Limits the number of reads, so that an endless loop fails.
struct Patched {
    patches: Vec<(u64, Vec<u8>)>,
    reads: Cell<u64>,
}

impl Bytes for Patched {
    fn read_at(&self, at: Address, buf: &mut [u8]) -> Result<(), ImageError> {
        self.reads.set(self.reads.get() + 1);
        assert!(self.reads.get() < 1_000_000, "endless reads");
        // Other devices and the metabox hold the same bytes.
        let end = IMAGE.len() as u64;
        let start = usize::try_from(at.offset).ok().filter(|_| at.space != Space::Device(9));
        let found = start.and_then(|start| IMAGE.get(start..start.checked_add(buf.len())?));
        let Some(found) = found else {
            return Err(ImageError::Truncated { at, len_bytes: buf.len() as u64, end });
        };
        buf.copy_from_slice(found);
        for (offset, bytes) in &self.patches {
            for (i, byte) in bytes.iter().enumerate() {
                let inside = (offset + i as u64).checked_sub(at.offset).and_then(|i| usize::try_from(i).ok());
                if let Some(to) = inside.and_then(|i| buf.get_mut(i)) {
                    *to = *byte;
                }
            }
        }
        Ok(())
    }
}

fn extent_at(bytes: &Patched, sb: &Superblock, inode: &Inode, offset: u64) -> Result<Extent, ImageError> {
    match inode.layout {
        Layout::Chunks { .. } => chunk::extent_at(bytes, sb, inode, offset),
        _ => flat::extent_at(bytes, sb, inode, offset),
    }
}

/// Reads everything that an inode has: attributes, extents, and entries if it is a directory.
fn explore(bytes: &Patched, sb: &Superblock, prefixes: &Prefixes, nid: Nid) -> Result<(), ImageError> {
    let inode = Inode::read(bytes, sb, nid)?;
    if let Ok(xattrs) = Xattrs::open(bytes, sb, prefixes, &inode) {
        _ = (xattrs.names(), xattrs.list(), xattrs.get(b"user.test"));
    }
    for offset in [0, 1, 4095, 4096, inode.size / 2, inode.size.saturating_sub(1)] {
        if let Ok(extent) = extent_at(bytes, sb, &inode, offset) {
            assert!(extent.start <= offset && offset < extent.start + extent.len_bytes, "{extent:?}");
            assert!(extent.start + extent.len_bytes <= inode.size, "{extent:?}");
        }
    }
    if inode.kind == FileKind::Directory {
        let directory = Directory::of(sb, &inode)?;
        let mut block = Vec::new();
        let mut read = |number, buf: &mut [u8]| read_block(bytes, sb, &inode, number, buf);
        for name in [&b"."[..], b"bigdir", b"file_0500_x.txt", b"zzz"] {
            _ = directory.lookup(name, &mut block, &mut read);
        }
        _ = directory.lookup_linear(b"none", &mut block, &mut read);
    }
    Ok(())
}

/// An offset to change: in most cases in the super block, or in an inode and the data after it.
fn offset() -> impl Strategy<Value = u64> {
    let inode = (any::<prop::sample::Index>(), 0..200u64);
    prop_oneof![
        2 => 1028..1200u64,
        4 => inode.prop_map(|(index, offset)| index.get(&NIDS).0 * 32 + offset),
        2 => (0..200u64).prop_map(|offset| NIDS[0].0 * 32 + offset),
        1 => 0..IMAGE.len() as u64,
    ]
}

fn change() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        any::<u8>().prop_map(|byte| vec![byte]),
        (0..8u8).prop_map(|bit| vec![1 << bit]),
        Just(vec![0; 4]),
        Just(vec![0xff; 4]),
        Just(vec![0xff; 8]),
        prop::collection::vec(any::<u8>(), 1..32),
    ]
}

/// A change of an inode's layout, or of another of its fields, to a plausible value.
fn field() -> impl Strategy<Value = (u64, Vec<u8>)> {
    let inode = any::<prop::sample::Index>().prop_map(|index| index.get(&NIDS).0 * 32);
    let layout = (0..2u8, 0..5u8).prop_map(|(extended, layout)| (0, vec![extended | layout << 1, 0]));
    let number = prop_oneof![Just(u32::MAX), 0..70u32, any::<u32>()];
    let other = (1..16u64, number).prop_map(|(field, number)| (field * 4, number.to_le_bytes().to_vec()));
    let attributes = (0..300u16).prop_map(|count| (2, count.to_le_bytes().to_vec()));
    let chunks = (0..0x82u32, 0..1_000_000u32).prop_map(|(format, size)| {
        let beginning = [8, 0, 0, 0, 0xa4, 0x81, 1, 0].into_iter().chain(size.to_le_bytes());
        (0, beginning.chain([0; 4]).chain(format.to_le_bytes()).collect())
    });
    (inode, prop_oneof![layout, other, attributes, chunks])
        .prop_map(|(at, (offset, bytes))| (at + offset, bytes))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6000))]

    #[test]
    fn changed_metadata_never_panics(
        patches in prop::collection::vec(prop_oneof![(offset(), change()), field(), field()], 1..6),
        nids in prop::collection::vec(any::<u64>(), 2),
    ) {
        // Explore the inodes near the changes.
        let is_near = |nid: &&Nid| patches.iter().any(|(offset, _)| (nid.0..nid.0 + 7).contains(&(offset / 32)));
        let near: Vec<Nid> = NIDS.iter().filter(is_near).copied().collect();
        let bytes = Patched { patches, reads: Cell::new(0) };
        if let Ok(sb) = Superblock::read(&bytes) {
            _ = sb.required_kernel();
            let prefixes = Prefixes::read_from(&bytes, &sb.prefixes).unwrap_or_default();
            for nid in nids.into_iter().map(Nid).chain(near).chain([sb.root_nid]) {
                _ = explore(&bytes, &sb, &prefixes, nid);
            }
        }
    }
}

/// Without changes everything can be explored, so the test above reaches all of it.
#[test]
fn unchanged_metadata_is_explored_without_errors() {
    assert_eq!(NIDS.len(), 1023);
    let bytes = Patched { patches: Vec::new(), reads: Cell::new(0) };
    let sb = Superblock::read(&bytes).unwrap();
    assert_eq!(sb.meta_blkaddr, 0);
    let prefixes = Prefixes::read_from(&bytes, &sb.prefixes).unwrap();
    assert_eq!(prefixes.count(), 1);
    for nid in NIDS.iter() {
        explore(&bytes, &sb, &prefixes, *nid).unwrap();
    }
}
