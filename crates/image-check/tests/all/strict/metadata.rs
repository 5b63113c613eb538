//! Faults of the superblock, of inodes, directories and attributes.

use super::Case;
use super::patch::{Patch, SUPERBLOCK, is_compressed, is_plain, offset};
use pagefold_image::Nid;
use pagefold_image::read::{FileKind, Inode, Layout, Mapping};

/// Offset of the first configuration record in images without extension slots.
const RECORDS: usize = SUPERBLOCK + 128;

/// Appends a block that belongs to the image and that nothing uses, without its last bytes.
fn cut(patch: &mut Patch, bytes: usize) {
    patch.append_blocks(1);
    patch.bytes.truncate(patch.bytes.len() - bytes);
}

pub const CASES: &[Case] = &[
    ("sb-checksum", "plain", |p| p.superblock_bits(0x08, 0, 1)),
    ("sb-reserved", "plain", |p| p.bytes[SUPERBLOCK + 0x6a] = 1),
    ("sb-reserved", "metaboxplain", |p| p.bytes[SUPERBLOCK + 0x88] = 1),
    ("sb-reserved", "blob", |p| {
        let table = usize::from(p.get16(SUPERBLOCK + 0x58)) * 128;
        p.bytes[table + 100] = 1;
    }),
    ("sb-field", "plain", |p| p.bytes[SUPERBLOCK + 0x56] = 1),
    ("sb-field", "plain", |p| p.bytes[SUPERBLOCK + 0x70] = 1),
    ("sb-name", "plain", |p| p.bytes[SUPERBLOCK + 0x40..][..16].fill(b'x')),
    ("sb-name", "plain", |p| p.bytes[SUPERBLOCK + 0x4f] = b'x'),
    ("sb-blocks", "plain", |p| {
        let blocks = p.get32(SUPERBLOCK + 0x24);
        p.put32(SUPERBLOCK + 0x24, blocks - 1);
    }),
    ("sb-blocks", "lz4", |p| {
        let blocks = p.get32(SUPERBLOCK + 0x24);
        p.put32(SUPERBLOCK + 0x24, blocks + 1);
    }),
    ("sb-end", "plain", |p| cut(p, 1)),
    ("sb-end", "lz4", |p| cut(p, p.block_bytes - 1)),
    ("sb-inodes", "plain", |p| p.bytes[SUPERBLOCK + 0x10] ^= 1),
    ("sb-inodes", "metabox", |p| p.bytes[SUPERBLOCK + 0x10] ^= 1),
    ("sb-window", "lz4", |p| p.put16(SUPERBLOCK + 0x54, 0)),
    ("feature-unset", "chunks", |p| p.superblock_bits(0x50, 0, 4)),
    ("feature-unset", "tails", |p| p.superblock_bits(0x50, 0, 0x10)),
    ("feature-unset", "tar", |_| ()),
    ("feature-unused", "plain", |p| p.superblock_bits(0x50, 0x10, 0)),
    ("feature-unused", "lz4", |p| p.superblock_bits(0x50, 0x04, 0)),
    ("feature-unused", "plain48", |_| ()),
    ("algorithm-unset", "lz4", |p| {
        let file = p.file(is_compressed);
        p.bytes[offset(file.tail).next_multiple_of(8) + 6] = 2;
    }),
    ("algorithm-unused", "mixed", |_| ()),
    ("cfg-record", "zstd", |p| p.bytes[RECORDS + 4] = 1),
    ("cfg-record", "lz4big", |p| p.bytes[RECORDS + 10] = 1),
    ("device-overlap", "blob", |p| {
        let table = usize::from(p.get16(SUPERBLOCK + 0x58)) * 128;
        // The range begins with a block that nothing uses.
        let first = p.append_blocks(1);
        p.put32(table + 68, first);
    }),
    ("inode-reserved", "plain", |p| {
        let inode = p.file(|inode| !inode.extended);
        p.bytes[offset(inode.address) + 0x1c] = 1;
    }),
    ("inode-reserved", "plain", |p| {
        let pipe = p.find(|node| node.kind() == FileKind::Fifo).inode().clone();
        p.bytes[offset(pipe.address) + 0x10] = 1;
    }),
    ("inode-owner", "chunks48", |p| {
        let inode = p.file(|inode| inode.extended);
        p.put32(offset(inode.address) + 0x1c, u32::MAX);
    }),
    ("inode-number", "plain", |p| {
        let first = p.file(|_| true);
        let second = p.file(|inode| inode.nid != first.nid);
        p.put32(offset(second.address) + 0x14, first.ino);
    }),
    ("inode-links", "plain", |p| {
        let inode = p.file(|inode| !inode.extended);
        p.put16(offset(inode.address) + 6, 2);
    }),
    ("inode-links", "plain", |p| {
        let directory = p.find(|node| node.kind() == FileKind::Directory).inode().clone();
        let at = offset(directory.address) + if directory.extended { 0x2c } else { 6 };
        p.put16(at, 77);
    }),
    ("inode-blocks", "lz4", |p| {
        let inode = p.file(is_compressed);
        p.put32(offset(inode.address) + 0x10, inode.compressed_blocks as u32 + 1);
    }),
    ("inode-blocks", "records", |p| {
        let inode = p.file(|inode| is_compressed(inode) && inode.compressed_blocks > 0);
        p.put32(offset(inode.address) + 0x10, inode.compressed_blocks as u32 - 1);
    }),
    ("inline-tail", "plain", |p| {
        let block_bytes = p.block_bytes;
        // One byte more than the block has room for, and still less than a block.
        let len = |inode: &Inode| block_bytes - offset(inode.tail) % block_bytes + 1;
        let inode = p.file(|inode| {
            let is_inline = matches!(inode.layout, Layout::Inline { .. });
            is_inline && inode.size < block_bytes as u64 && len(inode) < block_bytes
        });
        p.put32(offset(inode.address) + 8, len(&inode) as u32);
    }),
    ("tail-fill", "plain1024", |p| {
        let block_bytes = p.block_bytes as u64;
        let inode = p.file(|inode| is_plain(inode) && !inode.size.is_multiple_of(block_bytes));
        let Layout::Plain { start: Some(start) } = inode.layout else { unreachable!() };
        p.bytes[offset(start) + inode.size as usize] = 1;
    }),
    ("tail-fill", "chunks", |p| {
        let block_bytes = p.block_bytes as u64;
        let is_right = |inode: &Inode| {
            matches!(inode.layout, Layout::Chunks { .. }) && inode.size > 0 && inode.size < block_bytes
        };
        let inode = p.file(is_right);
        let block = p.get32(offset(inode.tail).next_multiple_of(4)) as usize;
        p.bytes[block * p.block_bytes + inode.size as usize] = 1;
    }),
    ("chunk-format", "chunks", |p| {
        let inode = p.file(|inode| matches!(inode.layout, Layout::Chunks { .. }));
        p.bytes[offset(inode.address) + 0x12] = 1;
    }),
    ("chunk-entry", "blob", |p| {
        let inode = p.file(|inode| matches!(inode.layout, Layout::Chunks { .. }) && inode.size > 0);
        let entry = offset(inode.tail).next_multiple_of(8);
        // Readers use one bit of the device's number.
        p.put16(entry + 2, 3);
    }),
    ("dir-block", "plain", |p| {
        let (block, entry) = middle_of_directory(p);
        let start = p.get16(block + entry * 12 + 8);
        p.put16(block + (entry + 1) * 12 + 8, start);
    }),
    ("dir-order", "plain", |p| {
        let (block, entry) = middle_of_directory(p);
        let name = usize::from(p.get16(block + entry * 12 + 8));
        p.bytes[block + name] = 0xff;
    }),
    ("dir-dots", "plain", |p| {
        let (block, entry) = dots_of_child(p);
        let own = p.bytes[block..block + 8].to_vec();
        p.bytes[block + entry * 12..][..8].copy_from_slice(&own);
    }),
    ("dir-type", "plain", |p| {
        let (block, entry) = middle_of_directory(p);
        p.bytes[block + entry * 12 + 10] = 5;
    }),
    ("dir-fill", "plain", |p| {
        let (block, entry) = middle_of_directory(p);
        p.bytes[block + entry * 12 + 11] = 1;
    }),
    ("xattr-header", "plain", |p| {
        let at = inode_with_xattrs(p);
        p.bytes[at + 5] = 1;
    }),
    ("xattr-filter", "filter", |p| {
        let at = inode_with_xattrs(p);
        p.put32(at, 0);
    }),
    ("xattr-filter", "filter", |p| {
        let at = inode_with_xattrs(p);
        p.put32(at, u32::MAX);
    }),
    ("xattr-filter", "plain", |p| {
        let at = inode_with_xattrs(p);
        p.put32(at, 1);
    }),
    ("xattr-name", "plain", |p| {
        let entry = own_xattr(p);
        p.bytes[entry + 1] = 2;
    }),
    ("xattr-prefix", "plain", |p| {
        let entry = own_xattr(p);
        p.bytes[entry + 1] = 5;
    }),
    ("xattr-prefix", "plain", |p| {
        let entry = own_xattr(p);
        p.bytes[entry + 1] = 0x80;
    }),
    ("xattr-fill", "plain", |p| {
        let entry = own_xattr(p);
        let end = entry + 4 + usize::from(p.bytes[entry]) + usize::from(p.get16(entry + 2));
        assert!(!end.is_multiple_of(4));
        p.bytes[end] = 1;
    }),
    ("xattr-shared", "plain", |p| {
        ignore_filters(p);
        let node = p.find(|node| {
            let at = node.inode().xattr_address().map(offset);
            at.is_some_and(|at| Patch::new("plain").bytes[at + 4] > 0)
        });
        let at = offset(node.inode().xattr_address().unwrap());
        p.put32(at + 12, u32::MAX);
    }),
    ("xattr-acl", "plain", |p| {
        let entry = own_xattr(p);
        // The name becomes part of the value, which is no list.
        let (name_len, value_len) = (u16::from(p.bytes[entry]), p.get16(entry + 2));
        p.bytes[entry] = 0;
        p.bytes[entry + 1] = 2;
        p.put16(entry + 2, name_len + value_len);
    }),
    ("space-overlap", "plain", |p| {
        let block_bytes = p.block_bytes as u64;
        let inode = p.file(|inode| is_plain(inode) && inode.size == block_bytes);
        p.put32(offset(inode.address) + 0x10, 0);
    }),
];

/// The first block of a directory of files, and a regular file with one link in its middle.
fn middle_of_directory(p: &Patch) -> (usize, usize) {
    let node = p.find(|node| {
        node.kind() == FileKind::Directory && node.len_bytes() > 300 && node.inode().xattr_bytes == 0
    });
    let Ok(Some(extent)) = node.extent_at(0) else { unreachable!() };
    let Mapping::Plain(at) = extent.mapping else { unreachable!() };
    let block = offset(at);
    let count = usize::from(p.get16(block + 8)) / 12;
    let is_file = |entry: &usize| {
        let nid = u64::from_le_bytes(p.bytes[block + entry * 12..][..8].try_into().unwrap());
        let node = node.image().node(Nid(nid)).unwrap();
        node.kind() == FileKind::Regular && node.inode().nlink == 1
    };
    (block, (2..count - 2).find(is_file).unwrap())
}

/// The block of a directory below the root, and the number of its entry `..`.
fn dots_of_child(p: &Patch) -> (usize, usize) {
    let root = p.find(|node| node.kind() == FileKind::Directory).nid();
    let node = p.find(|node| node.kind() == FileKind::Directory && node.nid() != root);
    let Ok(Some(extent)) = node.extent_at(0) else { unreachable!() };
    let Mapping::Plain(at) = extent.mapping else { unreachable!() };
    (offset(at), 1)
}

/// The offset of the attributes of a file.
fn inode_with_xattrs(p: &Patch) -> usize {
    let node = p.find(|node| node.kind() == FileKind::Regular && node.inode().xattr_bytes > 12);
    offset(node.inode().xattr_address().unwrap())
}

/// Makes readers ignore the filters, which would be wrong for other names.
fn ignore_filters(p: &mut Patch) {
    p.bytes[SUPERBLOCK + 0x68] = 1;
}

/// The offset of the first private attribute of a file that has one with padding and a name.
fn own_xattr(p: &mut Patch) -> usize {
    ignore_filters(p);
    let p = &*p;
    let entry = |at: usize| at + 12 + 4 * usize::from(p.bytes[at + 4]);
    let node = p.find(|node| {
        let inode = node.inode();
        let Some(at) = inode.xattr_address().map(offset) else { return false };
        let first = entry(at);
        let end = first + 4 + usize::from(p.bytes[first]) + usize::from(p.get16(first + 2));
        node.kind() == FileKind::Regular && first + 4 < offset(inode.tail) && !end.is_multiple_of(4)
    });
    entry(offset(node.inode().xattr_address().unwrap()))
}
