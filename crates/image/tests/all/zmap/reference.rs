//! Every index of the reference images, compared with the slow twin and with the files' checksums.

use super::Slice;
use super::decode::contents;
use super::image::{Image, Inode};
use super::twin;
use crate::support::{manifest, reference_image};
use pagefold_image::read::{Extent, Mapping, ZMap};
use sha2::{Digest, Sha256};
use std::collections::HashMap;

fn image(name: &str) -> Image {
    Image { data: std::fs::read(reference_image(name)).unwrap() }
}

/// Numbers of extents of an image, by kind.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Census {
    pub inodes: usize,
    pub compressed: usize,
    prefixes: usize,
    unpadded: usize,
    plain: usize,
    interlaced: usize,
    fragments: usize,
    holes: usize,
}

impl Census {
    fn count(&mut self, extent: &Extent) {
        match extent.mapping {
            Mapping::Hole => self.holes += 1,
            Mapping::Plain(_) => self.plain += 1,
            Mapping::Interlaced { .. } => self.interlaced += 1,
            Mapping::Fragment { .. } => self.fragments += 1,
            Mapping::Compressed(cluster) => {
                self.compressed += 1;
                self.prefixes += usize::from(cluster.prefix_only);
                self.unpadded += usize::from(!cluster.zero_padded);
            }
        }
    }
}

/// Compares every logical cluster of the inode with the twin's extents.
pub fn compare(image: &Image, inode: &Inode, census: &mut Census) {
    let Some(form) = inode.form().filter(|_| inode.size > 0) else { return };
    let (bytes, context) = (Slice(&image.data), image.context(inode.nid));
    let extents = twin::all_extents(&image.data, &context, form, inode.tail_address(), inode.size);
    let map = ZMap::open(&bytes, &context, form, inode.tail_address(), inode.size).unwrap();
    let mut position = 0;
    for extent in &extents {
        assert_eq!(extent.start, position, "inode {inode:?}");
        position = extent.end();
        census.count(extent);
        // Look up its first byte, its last byte, and the first byte of every 512-byte unit between.
        let within = (extent.start.next_multiple_of(512)..extent.end()).step_by(512);
        for offset in within.chain([extent.start, extent.end() - 1]) {
            assert_eq!(map.extent_at(&bytes, offset).unwrap(), *extent, "inode {inode:?}, byte {offset}");
        }
    }
    assert_eq!(position, inode.size);
    census.inodes += 1;
}

fn census(name: &str) -> Census {
    let image = image(name);
    let mut census = Census::default();
    for (_, inode) in image.inodes() {
        compare(&image, &inode, &mut census);
    }
    eprintln!("{name}: {census:?}");
    assert!(census.compressed > 60, "{name} has hardly anything compressed: {census:?}");
    census
}

#[test]
fn every_extent_equals_that_of_the_twin() {
    for name in ["lz4hc64", "legacy", "zstd", "deflate", "lzma", "xflt"] {
        census(name);
    }
    let census_of = census("fragzt");
    assert!(census_of.fragments > 0 && census_of.unpadded > 0 && census_of.interlaced > 0, "{census_of:?}");
    let census_of = census("dedfrag");
    assert!(census_of.fragments > 0 && census_of.prefixes > 0, "{census_of:?}");
}

#[test]
fn every_extent_decodes_to_the_files_bytes() {
    let sums: HashMap<String, String> =
        manifest().into_iter().filter_map(|entry| Some((entry.path, entry.sha256?))).collect();
    for name in ["lz4hc64", "legacy", "fragzt", "dedfrag", "zstd", "deflate", "xflt"] {
        let image = image(name);
        let (mut packed, mut files) = (Vec::new(), 0);
        for (path, inode) in image.inodes() {
            if inode.form().is_none() {
                if path.is_none() {
                    packed = image.flat(&inode);
                }
                continue;
            }
            let data = contents(&image, &inode, &packed);
            let Some(path) = path else {
                packed = data;
                continue;
            };
            let sum: String = Sha256::digest(&data).iter().map(|b| format!("{b:02x}")).collect();
            assert_eq!(Some(&sum), sums.get(&path), "{path} of {name}");
            files += 1;
        }
        eprintln!("{name}: {files} compressed files");
        assert!(files > 20, "{name} has {files} compressed files");
    }
}
