//! Files that are stored plain because a sample does not compress.

use super::{Files, build_at, build_checked, options, text, tree_of};
use pagefold_image::read::Layout;
use pagefold_image::{Image, Options as ReadOptions};
use pagefold_image_build::source::image::scan;
use pagefold_image_build::{Compression, Options};
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
        let mut auto = Options { fragments: true, choose_by_sample: true, ..options(name, 65536, true) };
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
        build_checked(&path, &files(), &Options { choose_by_sample: false, ..auto });
        let image = Image::open_file(&path, ReadOptions::default()).unwrap();
        assert!(matches!(image.find(b"long").unwrap().inode().layout, Layout::CompressedCompact), "{name}");
    }
}

#[test]
fn the_image_depends_on_neither_threads_nor_the_source() {
    let work = tempfile::tempdir().unwrap();
    let (first, again) = (work.path().join("first"), work.path().join("again"));
    let auto = Options { choose_by_sample: true, threads: 1, ..options("zstd:1", 65536, true) };
    build_at(&first, &tree_of(&files()), &auto);
    let wanted = fs::read(&first).unwrap();
    build_at(&again, &tree_of(&files()), &Options { threads: 3, ..auto.clone() });
    assert!(fs::read(&again).unwrap() == wanted);
    let image = Image::open_file(&first, ReadOptions::default()).unwrap();
    build_at(&again, &scan(&image, &[]).unwrap().tree, &auto);
    assert!(fs::read(&again).unwrap() == wanted);
}

/// Text of 500 words in an order without a pattern, in which longer matches are there to be found.
fn sentences(len: usize) -> Vec<u8> {
    let words: Vec<Vec<u8>> = noise(4000, 11).chunks(5).map(|word| word.to_vec()).collect();
    let word = |pair: &[u8]| words[(usize::from(pair[0]) << 8 | usize::from(pair[1])) % words.len()].clone();
    noise(len, 12).chunks_exact(2).flat_map(word).take(len).collect()
}

#[test]
fn contents_in_which_a_search_finds_nothing_get_a_low_level_and_parts_are_shared() {
    let work = tempfile::tempdir().unwrap();
    let (path, again) = (work.path().join("image"), work.path().join("again"));
    let numbers = |seed| noise(300_001, seed).into_iter().map(|byte| byte >> 2).collect::<Vec<_>>();
    let words = sentences(500_000);
    let edited = [&words[..200_000], &b"an insertion"[..], &words[200_000..]].concat();
    let mut photo = noise(300_000, 9);
    photo[..8].copy_from_slice(b"\x89PNG\r\n\x1a\n");
    photo[292_000..].fill(0);
    let named = |name: &str, contents: Vec<u8>| (name.to_owned(), contents);
    let files = vec![
        named("edited", edited),
        named("numbers", numbers(8)),
        named("numbers-again", numbers(8)),
        named("photo.png", photo),
        named("words", words),
    ];
    for (name, light) in [("zstd:9", "zstd:3"), ("lzma:6", "lzma:1"), ("deflate:9", "deflate:3")] {
        let auto = Options {
            fragments: true,
            choose_by_sample: true,
            threads: 1,
            digests: true,
            ..options(name, 65536, true)
        };
        let summary = build_checked(&path, &files, &auto);
        let stored = |name: &str| summary.stored[&Compression::parse(name).unwrap()];
        assert_eq!((stored(name).files, stored(light).files, stored("none").files), (2, 2, 1), "{name}");
        assert_eq!(summary.duplicates.files, 1, "{name}");
        let shared = summary.shared_parts;
        assert!(shared.files == 1 && shared.content_bytes > 350_000, "{name}: {shared:?}");
        build_at(&again, &tree_of(&files), &Options { threads: 4, memory_bytes: Some(256 << 20), ..auto });
        assert!(fs::read(&again).unwrap() == fs::read(&path).unwrap(), "{name}");
    }
}

#[test]
fn plain_files_of_several_segments_are_found_again_and_have_consecutive_blocks() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("image");
    let named = |name: &str, contents: Vec<u8>| (name.to_owned(), contents);
    // Compressed files are under way before and behind each plain one.
    let long = noise((40 << 20) + 5001, 1);
    let files = vec![
        named("a", text(3 << 20, 1)),
        named("b", long.clone()),
        named("c", text(3 << 20, 2)),
        named("d", long),
        named("e", noise(100_000, 3)),
        named("f", text(100_000, 4)),
    ];
    let auto = Options { choose_by_sample: true, ..options("zstd:1", 65536, true) };
    let summary = build_checked(&path, &files, &auto);
    assert_eq!((summary.stored[&None].files, summary.duplicates.files), (3, 1));
    let image = Image::open_file(&path, ReadOptions::default()).unwrap();
    for name in ["b", "d", "e"] {
        let layout = image.find(name.as_bytes()).unwrap().inode().layout;
        assert!(matches!(layout, Layout::Plain { .. } | Layout::Inline { .. }), "{name}");
    }
}
