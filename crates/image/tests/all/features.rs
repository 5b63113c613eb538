//! Images of one tree that together use every feature of the format: the library reads the same tree from each.

use crate::support::features::{Feature, features, tree};
use crate::support::walk::{assert_same, walk};
use pagefold_image::format::features::{Feature as Feat, compat, incompat, split};
use pagefold_image::read::{Cluster, FileKind, Layout, Mapping};
use pagefold_image::{Address, Image, Node, Options, Space};
use std::collections::BTreeSet;

#[test]
fn every_feature_image_holds_the_tree() {
    let wanted = tree();
    for feature in features() {
        for (cache_full_reads, step) in [(false, 1 << 20), (true, 5000)] {
            let options = feature.options(Options { cache_full_reads, ..Options::default() });
            let image =
                Image::open(feature.medium(), options).unwrap_or_else(|e| panic!("{}: {e}", feature.name));
            let found = walk(&image, step).unwrap_or_else(|e| panic!("{}: {e}", feature.name));
            assert_same(&feature.name, &found, &wanted);
            let budget = image.stats().budget;
            assert!(budget.peak_bytes <= budget.limit_bytes, "{}: {budget:?}", feature.name);
        }
    }
}

/// Adds the names of the features that an image uses to `found`.
fn uses(feature: &Feature, image: &Image, found: &mut BTreeSet<String>) {
    let sb = image.superblock();
    let words = |bits, table: &[Feat]| split(bits, table).0.into_iter().map(|f| f.name.to_owned());
    found.extend(words(sb.incompat, &incompat::ALL).chain(words(sb.compat, &compat::ALL)));
    found.insert(format!("blocks of {}", sb.block_bytes()));
    if sb.prefixes.count > 0 {
        found.insert(format!("prefixes in {:?}", sb.prefixes.place));
    }
    let mut stack = vec![image.root().unwrap()];
    while let Some(node) = stack.pop() {
        node_uses(feature, &node, found);
        if node.kind() == FileKind::Directory {
            stack.extend(node.entries().unwrap().map(|entry| image.node(entry.unwrap().nid).unwrap()));
        }
    }
}

fn node_uses(feature: &Feature, node: &Node, found: &mut BTreeSet<String>) {
    let inode = node.inode();
    let is_directory = node.kind() == FileKind::Directory;
    found.insert(format!("{:?} inode, extended {}", inode.address.space, inode.extended));
    if inode.dot_omitted {
        found.insert("no dot".to_owned());
    }
    let stored = |at: Address, len: usize| match at.space {
        Space::Device(0) => feature.bytes.get(at.offset as usize..at.offset as usize + len),
        _ => None,
    };
    if let Some(header) = inode.xattr_address().and_then(|at| stored(at, 12))
        && header[4] > 0
    {
        found.insert("shared attributes".to_owned());
    }
    match inode.layout {
        Layout::Chunks { indexed, wide, .. } => {
            found.insert(format!("chunks, indexed {indexed}, wide {wide}"));
        }
        Layout::CompressedFull if image_has_records(node) => {
            let tail = Address { offset: inode.tail.offset.next_multiple_of(8), ..inode.tail };
            if let Some(header) = stored(tail, 8)
                && header[7] < 0x80
            {
                found.insert(match header[4] & 1 {
                    0 => "full, and not records".to_owned(),
                    _ => format!("records of {}", 4 << (header[4] >> 1 & 3)),
                });
            }
        }
        Layout::CompressedFull => _ = found.insert("full".to_owned()),
        Layout::CompressedCompact => _ = found.insert("compact".to_owned()),
        Layout::Plain { start: Some(_) } if !is_directory => _ = found.insert("plain".to_owned()),
        Layout::Inline { .. } => _ = found.insert("inline".to_owned()),
        Layout::Plain { .. } => {}
    }
    let mut offset = 0;
    while let Some(extent) = node.extent_at(offset).unwrap() {
        offset = extent.end();
        let mapping = match extent.mapping {
            Mapping::Hole => "hole".to_owned(),
            Mapping::Plain(at) => format!("bytes on {:?}", at.space),
            Mapping::Interlaced { .. } => "interlaced".to_owned(),
            Mapping::Fragment { .. } => format!("fragment, directory {is_directory}"),
            Mapping::Compressed(cluster) => {
                let Cluster { algorithm, prefix_only, zero_padded, .. } = cluster;
                if zero_padded {
                    found.insert(format!("cluster in {:?}", cluster.at.space));
                } else {
                    found.insert(format!("inline cluster in {:?}", cluster.at.space));
                }
                if !cluster.at.offset.is_multiple_of(u64::from(node.image().superblock().block_bytes())) {
                    found.insert("cluster not at a block".to_owned());
                }
                format!("{algorithm:?}, prefix {prefix_only}, directory {is_directory}")
            }
        };
        found.insert(mapping);
    }
}

fn image_has_records(node: &Node) -> bool {
    node.image().superblock().wide_addresses
}

/// Structures that the images must use together, besides the features of their super blocks. Interlaced blocks are in
/// the reference images.
const WANTED: [&str; 37] = [
    "Device(0) inode, extended false",
    "Device(0) inode, extended true",
    "Metabox inode, extended false",
    "Metabox inode, extended true",
    "Deflate, prefix false, directory false",
    "Lz4, prefix false, directory false",
    "MicroLzma, prefix false, directory false",
    "Zstd, prefix false, directory false",
    "Zstd, prefix true, directory false",
    "blocks of 1024",
    "blocks of 4096",
    "blocks of 512",
    "bytes on Device(0)",
    "bytes on Device(1)",
    "bytes on Metabox",
    "chunks, indexed false, wide false",
    "chunks, indexed true, wide false",
    "cluster in Device(0)",
    "cluster not at a block",
    "inline cluster in Device(0)",
    "inline cluster in Metabox",
    "compact",
    "full",
    "full, and not records",
    "records of 4",
    "records of 8",
    "records of 16",
    "fragment, directory false",
    "fragment, directory true",
    "shared attributes",
    "prefixes in Packed",
    "prefixes in Space(Device(0))",
    "prefixes in Space(Metabox)",
    "hole",
    "inline",
    "plain",
    "no dot",
];

#[test]
fn the_images_use_every_feature() {
    let mut found = BTreeSet::new();
    for feature in features() {
        let image = Image::open(feature.medium(), feature.options(Options::default())).unwrap();
        let mut of_this = BTreeSet::new();
        uses(feature, &image, &mut of_this);
        found.append(&mut of_this);
    }
    let features = incompat::ALL.iter().chain(&compat::ALL).map(|feature| feature.name);
    // No tool writes the first. Another tool writes the second, with layouts that these images have too.
    let features = features.filter(|name| !["shared_ea_in_metabox", "rafs_v6"].contains(name));
    let all = features.chain(WANTED);
    let missing: Vec<_> = all.filter(|name| !found.contains(*name)).collect();
    assert!(missing.is_empty(), "{missing:?} of {found:#?}");
}
