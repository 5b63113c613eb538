//! Fragments: small files, and the ends of others, in the packed file.

use super::{Files, build_checked, options, text};
use pagefold_image_build::Options;
use std::fs;

fn noise(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64)
        .map(|i| ((i + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 29).wrapping_mul(i) as u8)
        .collect()
}

/// Small files, files with ends of all lengths, files that do not compress, and copies.
fn files(count: u64) -> Files {
    let mut files = Files::new();
    for i in 0..count {
        files.push((format!("small/{i}"), text(1 + (i as usize * 37) % 5000, i)));
        files.push((format!("small/{i}.c"), text(1 + (i as usize * 7919) % 70_000, i + 1000)));
        files.push((format!("large/{i}"), text(66_000 + (i as usize * 54_321) % 700_000, i + 2000)));
    }
    files.push(("noise".into(), noise(200_001, 1)));
    files.push(("small-noise".into(), noise(3001, 2)));
    files.push(("large/copy".into(), files[2].1.clone()));
    files.push(("small/copy".into(), files[0].1.clone()));
    // A copy of an end.
    let end = files[5].1.len() - 200;
    files.push(("small/end".into(), files[5].1[end..].to_vec()));
    files.push(("one".into(), vec![b'1']));
    files.push(("empty".into(), Vec::new()));
    files
}

#[test]
fn small_files_and_ends_are_packed() {
    let (work, files) = (tempfile::tempdir().unwrap(), files(10));
    let path = work.path().join("image");
    for compression in ["lz4", "lz4hc:9", "zstd:1", "deflate:3", "lzma:0"] {
        for cluster_bytes in [4096, 65536, 1 << 20] {
            let without = options(compression, cluster_bytes, true);
            let with = Options { fragments: true, ..without.clone() };
            let (with, without) =
                (build_checked(&path, &files, &with), build_checked(&path, &files, &without));
            assert_eq!(without.fragments.files, 0);
            assert!(with.fragments.files > 20 && with.fragments.stored_bytes > 0, "{:?}", with.fragments);
            let (with, without) = (with.image_bytes, without.image_bytes);
            assert!(with < without * 102 / 100, "{compression}, {cluster_bytes}: {with}, {without}");
        }
    }
}

#[test]
fn small_files_that_are_alike_take_less_room_together() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("image");
    let files: Files = (0..200).map(|i| (format!("{i}"), text(2000 + i % 7 * 100, i as u64 % 10))).collect();
    let options = options("zstd:3", 65536, true);
    let without = build_checked(&path, &files, &options).image_bytes;
    let with = build_checked(&path, &files, &Options { fragments: true, ..options }).image_bytes;
    assert!(with * 4 < without, "{with}, {without}");
}

/// Segments of the packed file are 2 MiB and more; those of ends are written behind others.
#[test]
fn a_packed_file_of_several_segments_comes_back() {
    let (work, files) = (tempfile::tempdir().unwrap(), files(180));
    let image = |threads| {
        let path = work.path().join(format!("{threads}"));
        let options = Options { fragments: true, threads, ..options("lz4", 65536, false) };
        let summary = build_checked(&path, &files, &options);
        assert!(summary.fragments.content_bytes > 10 << 20, "{:?}", summary.fragments);
        fs::read(path).unwrap()
    };
    let first = image(1);
    assert!([2, 4, 7].into_iter().all(|threads| image(threads) == first));
}

#[test]
fn only_files_with_the_compression_of_the_packed_file_are_in_it() {
    let work = tempfile::tempdir().unwrap();
    let files: Files = ["a", "b.so", "c.txt"].map(|name| (name.into(), text(3000, 9))).into();
    let mut options = Options { fragments: true, ..options("zstd:1", 65536, true) };
    options.rules.push("*.so=lz4").unwrap();
    options.rules.push("*.txt=none").unwrap();
    let summary = build_checked(&work.path().join("image"), &files, &options);
    assert_eq!(summary.fragments.files, 1);
    let none = Options { compression: None, ..options };
    let summary = build_checked(&work.path().join("image"), &files, &none);
    assert_eq!(summary.fragments.files, 0);
}
