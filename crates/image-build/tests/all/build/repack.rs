//! Images that are built from images.

use super::{build_at, directory, open_checked, options};
use pagefold_image::{Image, Options as ReadOptions};
use pagefold_image_build::source::directory::{DirectoryOptions, scan as scan_directory};
use pagefold_image_build::source::image::scan;
use pagefold_image_build::{BuildError, Pattern, build};
use std::fs;
use std::ops::ControlFlow;

#[test]
fn an_image_built_from_an_image_with_the_same_options_is_the_same() {
    let work = tempfile::tempdir().unwrap();
    let (root, first, again) =
        (work.path().join("tree"), work.path().join("first"), work.path().join("again"));
    directory::make_source(&root);
    let tree = scan_directory(&root, &DirectoryOptions::default()).unwrap().tree;
    for (compression, cluster, tail_packing) in
        [("none", 4096, false), ("lz4hc:3", 4096, true), ("zstd:3", 65536, true), ("lzma:1", 65536, false)]
    {
        let options = options(compression, cluster, tail_packing);
        build_at(&first, &tree, &options);
        let image = Image::open_file(&first, ReadOptions::default()).unwrap();
        let scanned = scan(&image, &[]).unwrap();
        build_at(&again, &scanned.tree, &options);
        assert!(fs::read(&first).unwrap() == fs::read(&again).unwrap(), "{compression}");
    }
    let image = Image::open_file(&first, ReadOptions::default()).unwrap();
    let patterns = ["len-*", "deep/er"].map(|text| Pattern::parse(text).unwrap());
    build_at(&again, &scan(&image, &patterns).unwrap().tree, &options("lz4", 4096, false));
    let again = open_checked(&again, "with patterns");
    assert!(again.find(b"/deep").is_ok() && again.find(b"/link-a").is_ok());
    assert!(again.find(b"/deep/er").is_err() && again.find(b"/len-4097").is_err());
    assert_eq!(again.find(b"/link-a").unwrap().inode().nlink, 2);
}

#[test]
fn a_damaged_image_is_an_error_and_not_half_an_image() {
    let work = tempfile::tempdir().unwrap();
    let (root, path) = (work.path().join("tree"), work.path().join("image"));
    fs::create_dir(&root).unwrap();
    let text: String = (0..20_000).map(|i| format!("line {i}\n")).collect();
    fs::write(root.join("text"), text).unwrap();
    let tree = scan_directory(&root, &DirectoryOptions::default()).unwrap().tree;
    build_at(&path, &tree, &options("zstd:3", 65536, false));
    let whole = fs::read(&path).unwrap();
    let outcome = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let image = Image::open_file(&path, ReadOptions::default()).unwrap();
        let scanned = scan(&image, &[])?;
        let out = tempfile::tempfile().unwrap();
        build(&scanned.tree, &options("lz4", 4096, false), &out, &mut |_| ControlFlow::Continue(()))
            .map(|_| ())
    };
    assert!(outcome(&whole).is_ok());
    let mut damaged = whole.clone();
    damaged[4096 + 2000..4096 + 2100].fill(0x55);
    assert!(matches!(outcome(&damaged), Err(BuildError::Image { path, .. }) if path.ends_with("text")));
}
