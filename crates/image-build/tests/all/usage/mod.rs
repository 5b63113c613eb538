//! The uses of an image's stored bytes, compared with a map of every byte, and for images that lie.

mod hostile;
mod twin;

use crate::built::{build_at, tree, ways};
use crate::support::features::{features, memory};
use crate::support::{reference_image, reference_names};
use pagefold_backing::ByteSource;
use pagefold_image::tree_stats::TreeStats;
use pagefold_image::usage::{Usage, UsagePart};
use pagefold_image::walk::Limits;
use pagefold_image::{Image, Options};
use pagefold_image_build::{Compression, Dedupe, Metadata, Options as BuildOptions, Target, Tree};
use std::fs;
use std::sync::Arc;
use twin::Twin;

fn usage_of(image: &Image) -> Usage {
    let stats = TreeStats::of_image(image, &Limits::default()).unwrap();
    assert_eq!(stats.findings.errors(), 0, "{:?}", stats.findings);
    stats.usage.unwrap()
}

/// Compares the usage of an image with the twin's. Bytes that have no use must be zero, as padding is.
fn compare(name: &str, devices: &[Vec<u8>]) -> Usage {
    let further = devices[1..].iter().map(|bytes| -> Arc<dyn ByteSource> { memory(bytes) }).collect();
    let options = Options { devices: further, ..Options::default() };
    let image = Image::open(memory(&devices[0]), options).unwrap();
    let (usage, twin) = (usage_of(&image), Twin::of(&image, devices.to_vec()));
    let wanted = UsagePart::ALL.map(|part| (part, twin.part_bytes(part)));
    assert_eq!(UsagePart::ALL.map(|part| (part, usage.part_bytes(part))), wanted, "{name}");
    assert_eq!(usage.total_bytes(), image.media_bytes(), "{name}");
    assert_eq!(usage.fragment_bytes, twin.fragment_bytes, "{name}");
    assert_eq!(usage.saved_bytes, twin.saved_bytes, "{name}");
    assert_eq!([&usage.largest, &usage.worst], twin.lists().each_ref(), "{name}");
    let unused = devices[0].iter().zip(&twin.parts[0]).filter(|(_, part)| **part == UsagePart::Unused);
    let lost = unused.filter(|(byte, _)| **byte != 0).count();
    assert_eq!(lost, 0, "{name}: bytes without a use that are not zero");
    usage
}

#[test]
fn every_byte_of_the_feature_images_has_the_use_of_the_twin() {
    let mut found = std::collections::BTreeSet::new();
    for feature in features() {
        let devices = [std::slice::from_ref(&feature.bytes), &feature.devices[..]].concat();
        let usage = compare(&feature.name, &devices);
        found.extend(UsagePart::ALL.into_iter().filter(|part| usage.part_bytes(*part) > 0));
    }
    assert_eq!(found.into_iter().collect::<Vec<_>>(), UsagePart::ALL);
}

#[test]
fn every_byte_of_the_reference_images_has_the_use_of_the_twin() {
    for name in reference_names() {
        compare(name, &[fs::read(reference_image(name)).unwrap()]);
    }
}

#[test]
fn every_byte_of_built_images_has_the_use_of_the_twin() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("image");
    let tree = tree();
    for way in ways() {
        build_at(&path, &tree, &way.options);
        compare(&way.name, &[fs::read(&path).unwrap()]);
    }
}

/// Sharing makes the image smaller by what it is said to save, and only the first of equal files is charged.
#[test]
fn equal_files_save_what_a_second_one_would_store() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("image");
    let contents: Vec<u8> = (0..81_920u32).flat_map(|n| (n / 3 * 7919).to_le_bytes()).collect();
    for name in ["none", "zstd:1"] {
        let usage = |dedupe| {
            let compression = Compression::parse(name).unwrap();
            let newest = BuildOptions::for_target(Target::new(6, 12));
            let options =
                BuildOptions { compression, dedupe, fragments: false, tail_packing: false, ..newest };
            let mut tree = Tree::new(Metadata::default());
            for path in [b"a", b"b", b"c"] {
                tree.add_bytes(path, contents.clone()).unwrap();
            }
            build_at(&path, &tree, &options);
            compare(name, &[fs::read(&path).unwrap()])
        };
        let (shared, whole) = (usage(Dedupe::Files), usage(Dedupe::Nothing));
        assert_eq!((whole.saved_bytes, whole.shared_bytes), (0, 0));
        assert_eq!(shared.shared_bytes, 2 * contents.len() as u64, "{name}");
        assert_eq!(shared.saved_bytes, whole.total_bytes() - shared.total_bytes(), "{name}");
        let charged: Vec<_> = shared.largest.iter().map(|file| file.stored_bytes).collect();
        assert_eq!(charged[1..], [0, 0]);
        assert_eq!(shared.largest[0].path, b"/a");
    }
}

#[test]
fn files_in_fragments_are_charged_by_their_length() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("image");
    let options = BuildOptions::for_target(Target::new(6, 12));
    let mut tree = Tree::new(Metadata::default());
    for (name, len) in [("long", 30_000), ("short", 10_000)] {
        let contents = (0..len).flat_map(|n: u32| (n / 3 * 7919).to_le_bytes()).take(len as usize);
        tree.add_bytes(name.as_bytes(), contents.collect::<Vec<u8>>()).unwrap();
    }
    build_at(&path, &tree, &options);
    let usage = compare("fragments", &[fs::read(&path).unwrap()]);
    assert_eq!(usage.fragment_bytes, 40_000);
    let stored = usage.part_bytes(UsagePart::Fragments);
    assert!(stored > 0);
    let charged: Vec<_> = usage.largest.iter().map(|file| file.stored_bytes).collect();
    assert_eq!(charged, [stored * 3 / 4, stored / 4]);
}
