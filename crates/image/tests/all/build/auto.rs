//! Files that are stored plain because a sample does not compress.

use super::{Files, build_at, build_checked, options, text, tree_of};
use pagefold_image::build::source::image::scan;
use pagefold_image::build::{Compression, Options};
use pagefold_image::read::Layout;
use pagefold_image::{Image, Options as ReadOptions};
use std::fs;

/// Bytes that do not compress (SplitMix64).
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mixed = |i: u64| {
        let z = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 56
    };
    (0..len as u64).map(|i| mixed((seed << 40) + i + 1) as u8).collect()
}

fn files() -> Files {
    let named = |name: &str, contents: Vec<u8>| (name.to_owned(), contents);
    vec![
        named("copy", noise(300_001, 1)),
        named("long", noise(18 << 20, 2)),
        named("mixed", [noise(400_000, 3), text(400_000, 3)].concat()),
        named("noise", noise(300_001, 1)),
        named("rule", noise(300_000, 4)),
        named("small", noise(50_000, 5)),
        named("text", text(300_000, 6)),
    ]
}

#[test]
fn files_that_do_not_compress_are_plain_and_others_are_not() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("image");
    for name in ["zstd:1", "lz4"] {
        let mut auto =
            Options { fragments: true, plain_if_incompressible: true, ..options(name, 65536, true) };
        auto.rules.push("rule=deflate:1").unwrap();
        let summary = build_checked(&path, &files(), &auto);
        assert_eq!(summary.duplicates.files, 1, "{name}");
        let image = Image::open_file(&path, ReadOptions::default()).unwrap();
        let is_plain = |file: &(String, Vec<u8>)| {
            let layout = image.find(file.0.as_bytes()).unwrap().inode().layout;
            let is_plain = matches!(layout, Layout::Plain { .. } | Layout::Inline { .. });
            is_plain.then(|| file.0.clone())
        };
        // A rule does not ask whether it is of use, and the builder stores what does not get smaller plain.
        let plain: Vec<_> = files().iter().filter_map(is_plain).collect();
        assert_eq!(plain, ["copy", "long", "noise", "rule"], "{name}");
        let compression = Compression::parse(name).unwrap();
        assert_eq!(summary.stored[&compression].files, 3, "{name}");
        // Without samples, a file of several segments has an index.
        build_checked(&path, &files(), &Options { plain_if_incompressible: false, ..auto });
        let image = Image::open_file(&path, ReadOptions::default()).unwrap();
        assert!(matches!(image.find(b"long").unwrap().inode().layout, Layout::CompressedCompact), "{name}");
    }
}

#[test]
fn the_image_depends_on_neither_threads_nor_the_source() {
    let work = tempfile::tempdir().unwrap();
    let (first, again) = (work.path().join("first"), work.path().join("again"));
    let auto = Options { plain_if_incompressible: true, threads: 1, ..options("zstd:1", 65536, true) };
    build_at(&first, &tree_of(&files()), &auto);
    let wanted = fs::read(&first).unwrap();
    build_at(&again, &tree_of(&files()), &Options { threads: 3, ..auto.clone() });
    assert!(fs::read(&again).unwrap() == wanted);
    let image = Image::open_file(&first, ReadOptions::default()).unwrap();
    build_at(&again, &scan(&image, &[]).unwrap().tree, &auto);
    assert!(fs::read(&again).unwrap() == wanted);
}
