//! Compressed directories: fragments at the end of the packed file.

use super::{build_at, open_checked, options, text};
use pagefold_image::format::features::incompat;
use pagefold_image::read::{FileKind, Layout};
use pagefold_image::{Image, Node};
use pagefold_image_build::source::image::scan;
use pagefold_image_build::{Metadata, Options, Spill, Target, Tree, verify};
use std::fs;
use std::ops::ControlFlow;

/// A directory of several hundred blocks, small ones, and some that are empty. Files have fewer than
/// `len_max` bytes, except one.
fn fill(tree: &mut Tree, len_max: usize) {
    for i in 0..20_000_u64 {
        let folder = if i % 2 == 0 { "large".to_string() } else { format!("d{}/e{}", i % 41, i % 23) };
        let path =
            format!("{folder}/a-name-that-needs-some-room-{}", i.wrapping_mul(0x9e37_79b9) % 1_000_003);
        tree.add_bytes(path.as_bytes(), text(i as usize % len_max, i)).unwrap();
    }
    for i in 0..50 {
        tree.make_directories(format!("empty/{i}").as_bytes(), &Metadata::default()).unwrap();
    }
    if len_max > 1 {
        tree.add_bytes(b"long", text(700_001, 7)).unwrap();
    }
}

fn tree(len_max: usize) -> Tree {
    let mut tree = Tree::new(Metadata::default());
    fill(&mut tree, len_max);
    tree
}

fn compressed(compression: &str, cluster_bytes: u32) -> Options {
    let target = Target::new(6, 12);
    Options { target, fragments: true, digests: true, ..options(compression, cluster_bytes, true) }
}

fn is_packed(node: &Node) -> bool {
    node.inode().layout == Layout::CompressedFull
}

/// Calls a function with each directory.
fn each_directory(node: &Node, visit: &mut dyn FnMut(&Node)) {
    visit(node);
    for entry in node.entries().unwrap() {
        let entry = entry.unwrap();
        if entry.kind == Some(FileKind::Directory) && ![&b"."[..], b".."].contains(&&*entry.name) {
            each_directory(&node.image().node(entry.nid).unwrap(), visit);
        }
    }
}

fn directories(image: &Image) -> (usize, usize) {
    let (mut all, mut packed) = (0, 0);
    each_directory(&image.root().unwrap(), &mut |node| {
        (all, packed) = (all + 1, packed + usize::from(is_packed(node)));
    });
    (all, packed)
}

#[test]
fn many_directories_take_less_room_compressed() {
    let (work, tree) = (tempfile::tempdir().unwrap(), tree(60));
    let (path, again) = (work.path().join("image"), work.path().join("again"));
    for (compression, cluster_bytes) in
        [("lz4", 4096), ("lz4hc:9", 65536), ("zstd:3", 65536), ("deflate:3", 4096), ("lzma:1", 1 << 20)]
    {
        let with = compressed(compression, cluster_bytes);
        let plain = build_at(&path, &tree, &Options { compress_directories: false, ..with.clone() });
        let image = open_checked(&path, compression);
        assert_eq!(directories(&image).1, 0);

        let summary = build_at(&path, &tree, &with);
        let (less, more) = (summary.metadata_bytes, plain.metadata_bytes);
        println!("{compression}, {cluster_bytes}: {less} of {more} bytes of metadata");
        assert!(less < more && summary.image_bytes < plain.image_bytes, "{less} of {more}");
        assert_eq!(path.metadata().unwrap().len(), summary.image_bytes);
        assert_eq!(summary.fragments, plain.fragments, "directories are not contents");
        assert_eq!(summary.stored, plain.stored, "directories are not contents");

        let image = open_checked(&path, compression);
        let (all, packed) = directories(&image);
        assert_eq!((all as u64, packed as u64), (summary.directories, summary.directories));
        verify(&image, &tree, &summary.digests, &mut |_| ControlFlow::Continue(())).unwrap();
        build_at(&again, &scan(&image, &[]).unwrap().tree, &Options { threads: 1, ..with });
        assert!(fs::read(&path).unwrap() == fs::read(&again).unwrap(), "{compression}: built again");
    }
}

/// The packed file has nothing but directories, and the prefixes of attribute names, if no file has contents.
#[test]
fn the_packed_file_may_have_directories_alone() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("image");
    for with_prefixes in [false, true] {
        let mut tree = tree(1);
        if with_prefixes {
            let id = tree.find(b"large/a-name-that-needs-some-room-0").unwrap();
            let xattrs = (0..40).map(|i| {
                let name = format!("user.org.example.program.setting-{i:02}");
                (name.into_bytes().into(), b"1".as_slice().into())
            });
            let xattrs = xattrs.collect();
            tree.change(id, |metadata| metadata.xattrs = xattrs).unwrap();
        }
        let summary = build_at(&path, &tree, &compressed("zstd:3", 4096));
        assert_eq!(summary.fragments.files, 0);
        // The block of prefixes is no contents of files.
        assert!(summary.stored.values().all(|stored| stored.files > 0 && stored.stored_bytes == 0));
        let image = open_checked(&path, "directories alone");
        assert_eq!(image.superblock().prefixes.count > 0, with_prefixes);
        let (all, packed) = directories(&image);
        assert!(all == packed && image.superblock().incompat & incompat::FRAGMENTS != 0);
        verify(&image, &tree, &summary.digests, &mut |_| ControlFlow::Continue(())).unwrap();
    }
}

#[test]
fn the_image_does_not_depend_on_threads_or_memory() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("image");
    let spill = Spill::in_directory(&std::env::temp_dir(), 0).unwrap();
    let mut spilled = Tree::with_spill(Metadata::default(), &spill).unwrap();
    fill(&mut spilled, 300);
    for compress_metadata in [false, true] {
        let target = Target::new(6, if compress_metadata { 17 } else { 12 });
        let options = Options { target, compress_metadata, ..compressed("zstd:1", 65536) };
        build_at(&path, &tree(300), &Options { threads: 1, ..options.clone() });
        let wanted = fs::read(&path).unwrap();
        for (threads, memory_mib) in [(2, 64), (4, 256), (7, 1024)] {
            let memory_bytes = Some(memory_mib << 20);
            build_at(&path, &spilled, &Options { threads, memory_bytes, ..options.clone() });
            assert!(fs::read(&path).unwrap() == wanted, "{threads} threads, {memory_mib} MiB");
        }
    }
}

#[test]
fn few_directories_and_those_for_older_kernels_stay_plain() {
    let (work, many) = (tempfile::tempdir().unwrap(), tree(60));
    let path = work.path().join("image");
    let mut few = Tree::new(Metadata::default());
    for i in 0..900 {
        few.add_bytes(format!("name-{i}").as_bytes(), *b"contents").unwrap();
    }
    let packed = |tree: &Tree, options: &Options| {
        build_at(&path, tree, options);
        directories(&open_checked(&path, "few")).1 > 0
    };
    let with = compressed("lz4", 65536);
    assert!(packed(&many, &with));
    assert!(!packed(&few, &with));
    assert!(packed(&few, &Options { metadata_inodes_min: 0, ..with.clone() }));
    assert!(!packed(&many, &Options { compression: None, ..with.clone() }));
    assert!(!packed(&many, &Options { fragments: false, ..with }));
    let old = Options::for_target(Target::new(5, 15));
    assert!(!old.compress_directories && Options::for_target(Target::new(6, 1)).compress_directories);
    assert!(!packed(&many, &old));
}
