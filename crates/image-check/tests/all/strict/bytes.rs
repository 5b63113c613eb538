//! Faults of the bytes of clusters.

use super::Case;
use super::patch::{SUPERBLOCK, is_compressed, offset};
use pagefold_image::read::Mapping;

pub const CASES: &[Case] = &[
    ("stream-padding", "lz4big", |p| {
        let at = p.cluster(4096);
        p.bytes[at..at + 4096].fill(0);
    }),
    ("plain-fill", "lz4", |p| {
        let mut found = None;
        p.find(|node| {
            let extents = node.extents().flatten();
            let mut plain = extents.filter_map(|extent| match extent.mapping {
                Mapping::Plain(at) if is_compressed(node.inode()) && extent.len_bytes < 4096 => {
                    Some(offset(at) + extent.len_bytes as usize)
                }
                _ => None,
            });
            found = plain.next();
            found.is_some()
        });
        p.bytes[found.unwrap()] = 1;
    }),
    ("lz4-window", "lz4", |p| p.put16(SUPERBLOCK + 0x54, 16)),
    ("lzma-first", "lzma", |p| {
        let at = p.cluster(0);
        let first = (at..).find(|at| p.bytes[*at] != 0).unwrap();
        p.bytes[first] = 1;
    }),
    ("deflate-window", "deflate", |p| p.bytes[SUPERBLOCK + 128 + 2] = 14),
    ("zstd-frame", "zstd", |p| p.bytes[SUPERBLOCK + 128 + 3] = 0),
    ("zstd-frame", "zstd", |p| {
        let at = p.cluster(0);
        let first = (at..).find(|at| p.bytes[*at] != 0).unwrap();
        p.bytes[first] = 1;
    }),
];
