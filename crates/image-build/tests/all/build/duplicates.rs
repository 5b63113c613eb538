//! Equal files, whose contents an image has once.

use super::{Files, build_at, build_checked, options, text, tree_of};
use pagefold_image::tree_stats::TreeStats;
use pagefold_image::walk::Limits;
use pagefold_image::{Image, Options as ReadOptions};
use pagefold_image_build::{Dedupe, Options, Target};
use std::fs;

/// Files with these names and contents.
fn files(files: &[(&str, &[u8])]) -> Files {
    files.iter().map(|(name, contents)| ((*name).to_owned(), contents.to_vec())).collect()
}

#[test]
fn equal_files_are_stored_once() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("image");
    // One segment, several segments, a tail behind the inode.
    for len in [70_000, 5 << 20, 8192 + 100] {
        let (one, other) = (text(len, 1), text(len, 2));
        let files = files(&[
            ("a", &one),
            ("b", &other),
            ("c/d", &one),
            ("c/e", &one),
            ("f", &other),
            ("g", &one[1..]),
        ]);
        for (compression, tail_packing) in
            [("none", false), ("lz4", true), ("zstd:1", false), ("zstd:1", true)]
        {
            let options = options(compression, 65536, tail_packing);
            let summary = build_checked(&path, &files, &options);
            assert_eq!(summary.duplicates.files, 3, "{compression}, {len}");
            assert_eq!(summary.duplicates.content_bytes, 3 * len as u64, "{compression}, {len}");
            let whole = build_checked(&path, &files, &Options { dedupe: Dedupe::Nothing, ..options });
            assert_eq!(whole.duplicates.files, 0);
            // Half of the contents, and a part of the overhead.
            assert!(
                summary.image_bytes < whole.image_bytes * 6 / 10 + 12_288,
                "{compression}, {len}: {} of {}",
                summary.image_bytes,
                whole.image_bytes
            );
        }
    }
}

#[test]
fn statistics_count_shared_contents_once() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("image");
    // Whole blocks: ends of files are stored with each inode.
    let (one, other) = (text(81_920, 1), text(40_960, 2));
    let files = files(&[("a", &one), ("b", &one), ("c", &other), ("d", &one)]);
    for compression in ["none", "lz4"] {
        let stats = |dedupe| {
            let mut options = options(compression, 65536, false);
            options.dedupe = dedupe;
            build_checked(&path, &files, &options);
            let image = Image::open_file(&path, ReadOptions::default()).unwrap();
            let stats = TreeStats::of_image(&image, &Limits::default()).unwrap();
            (stats.plain_bytes + stats.clusters.bytes, stats.shared.bytes)
        };
        let (stored, shared) = stats(Dedupe::Files);
        assert_eq!(shared, 2 * one.len() as u64, "{compression}");
        let (whole, not_shared) = stats(Dedupe::Nothing);
        assert_eq!(not_shared, 0, "{compression}");
        match compression {
            "none" => assert_eq!(whole - stored, shared),
            _ => assert!(stored < whole / 2, "{stored} of {whole}"),
        }
    }
}

#[test]
fn equal_files_of_different_compressions_are_different() {
    let (work, contents) = (tempfile::tempdir().unwrap(), text(50_000, 3));
    let mut options = options("zstd:1", 65536, true);
    options.rules.push("*.so=lz4").unwrap();
    let files = files(&[("a", &contents), ("b.so", &contents), ("c.so", &contents)]);
    let summary = build_checked(&work.path().join("image"), &files, &options);
    assert_eq!(summary.duplicates.files, 1);
    assert_eq!(summary.stored.values().map(|stored| stored.files).collect::<Vec<_>>(), [2, 1]);
}

#[test]
fn old_kernels_get_clusters_of_one_file() {
    let (work, contents) = (tempfile::tempdir().unwrap(), text(50_000, 4));
    let files = files(&[("a", &contents), ("b", &contents)]);
    for (kernel, compressed, duplicates) in
        [((5, 4), true, 0), ((5, 15), true, 0), ((5, 15), false, 1), ((6, 1), true, 1)]
    {
        let mut options = Options::for_target(Target::new(kernel.0, kernel.1));
        options.fragments = false;
        if !compressed {
            options.compression = None;
        }
        let summary = build_checked(&work.path().join("image"), &files, &options);
        assert_eq!(summary.duplicates.files, duplicates, "{kernel:?}, {compressed}");
    }
}

#[test]
fn the_bytes_do_not_depend_on_threads() {
    let work = tempfile::tempdir().unwrap();
    let (one, other) = (text(3 << 20, 5), text(100_000, 6));
    let files =
        files(&[("a", &one), ("b", &other), ("c", &one), ("d", &other), ("e", &one[7..]), ("f", &one)]);
    let image = |threads| {
        let path = work.path().join(format!("{threads}"));
        build_at(&path, &tree_of(&files), &Options { threads, ..options("zstd:1", 65536, true) });
        fs::read(path).unwrap()
    };
    let first = image(1);
    assert!([2, 4, 7].into_iter().all(|threads| image(threads) == first));
}
