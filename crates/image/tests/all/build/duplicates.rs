//! Equal files, whose contents an image has once.

use super::{build_at, open_checked, options};
use crate::support::walk::contents;
use pagefold_image::build::{Metadata, verify};
use pagefold_image::build::{Options, Summary, Target, Tree};
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

/// Words of which no two parts of some KiB are equal.
fn text(len: usize, seed: u64) -> Vec<u8> {
    let word = |i: u64| format!("{} ", (i + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44);
    let mut text: Vec<u8> = (0..len as u64 / 6 + 1).flat_map(|i| word(i).into_bytes()).collect();
    text.truncate(len);
    text
}

/// A tree of files with these contents.
fn tree(files: &[(&str, &[u8])]) -> Tree {
    let mut tree = Tree::new(Metadata::default());
    for (path, contents) in files {
        tree.add_bytes(path.as_bytes(), contents.to_vec()).unwrap();
    }
    tree
}

/// Builds an image, and checks that its files have their contents.
fn build_checked(path: &Path, files: &[(&str, &[u8])], options: &Options) -> Summary {
    let tree = tree(files);
    let summary = build_at(path, &tree, &Options { digests: true, ..options.clone() });
    let image = open_checked(path, "equal files");
    for (name, wanted) in files {
        assert!(contents(&image.find(name.as_bytes()).unwrap(), 100_000).unwrap() == *wanted, "{name}");
    }
    verify(&image, &tree, &summary.digests, &mut |_| ControlFlow::Continue(())).unwrap();
    summary
}

#[test]
fn equal_files_are_stored_once() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("image");
    // One segment, several segments, a tail behind the inode.
    for len in [70_000, 5 << 20, 8192 + 100] {
        let (one, other) = (text(len, 1), text(len, 2));
        let files: &[(&str, &[u8])] =
            &[("a", &one), ("b", &other), ("c/d", &one), ("c/e", &one), ("f", &other), ("g", &one[1..])];
        for (compression, tail_packing) in
            [("none", false), ("lz4", true), ("zstd:1", false), ("zstd:1", true)]
        {
            let options = options(compression, 65536, tail_packing);
            let summary = build_checked(&path, files, &options);
            assert_eq!(summary.duplicates.files, 3, "{compression}, {len}");
            assert_eq!(summary.duplicates.content_bytes, 3 * len as u64, "{compression}, {len}");
            let whole = build_checked(&path, files, &Options { share_equal_files: false, ..options });
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
fn equal_files_of_different_compressions_are_different() {
    let (work, contents) = (tempfile::tempdir().unwrap(), text(50_000, 3));
    let mut options = options("zstd:1", 65536, true);
    options.rules.push("*.so=lz4").unwrap();
    let files: &[(&str, &[u8])] = &[("a", &contents), ("b.so", &contents), ("c.so", &contents)];
    let summary = build_checked(&work.path().join("image"), files, &options);
    assert_eq!(summary.duplicates.files, 1);
    assert_eq!(summary.stored.values().map(|stored| stored.files).collect::<Vec<_>>(), [2, 1]);
}

#[test]
fn old_kernels_get_clusters_of_one_file() {
    let (work, contents) = (tempfile::tempdir().unwrap(), text(50_000, 4));
    let files: &[(&str, &[u8])] = &[("a", &contents), ("b", &contents)];
    for (kernel, compressed, duplicates) in
        [((5, 4), true, 0), ((5, 15), true, 0), ((5, 15), false, 1), ((6, 1), true, 1)]
    {
        let mut options = Options::for_target(Target::new(kernel.0, kernel.1));
        options.fragments = false;
        if !compressed {
            options.compression = None;
        }
        let summary = build_checked(&work.path().join("image"), files, &options);
        assert_eq!(summary.duplicates.files, duplicates, "{kernel:?}, {compressed}");
    }
}

#[test]
fn the_bytes_do_not_depend_on_threads() {
    let work = tempfile::tempdir().unwrap();
    let (one, other) = (text(3 << 20, 5), text(100_000, 6));
    let files: &[(&str, &[u8])] =
        &[("a", &one), ("b", &other), ("c", &one), ("d", &other), ("e", &one[7..]), ("f", &one)];
    let image = |threads| {
        let path = work.path().join(format!("{threads}"));
        build_at(&path, &tree(files), &Options { threads, ..options("zstd:1", 65536, true) });
        fs::read(path).unwrap()
    };
    let first = image(1);
    assert!([2, 4, 7].into_iter().all(|threads| image(threads) == first));
}
