//! Compressed inodes.

use super::{build_at, open_checked, options, text};
use pagefold_image::format::features::incompat;
use pagefold_image::read::inode::Timestamp;
use pagefold_image::{Image, Options as ReadOptions};
use pagefold_image_build::source::image::scan;
use pagefold_image_build::{Digests, Metadata, Options, Target, Tree, verify};
use std::fs;
use std::ops::ControlFlow;

/// A tree of so many files and some directories, with different times, and attributes whose names have long prefixes. The
/// inodes of one directory's files are more than a directory's block describes.
fn tree(files: u64) -> Tree {
    let mut tree = Tree::new(Metadata::default());
    for i in 0..files {
        let folder = if i % 3 == 0 { "large".to_string() } else { format!("d{}", i % 41) };
        let path = format!("{folder}/a-name-that-needs-some-room-{i}");
        let len = if i % 100 == 0 { 100_000 } else { i as usize % 60 };
        let id = tree.add_bytes(path.as_bytes(), text(len, i)).unwrap();
        let changed = tree.change(id, |metadata| {
            metadata.mtime = Timestamp { seconds: 1_700_000_000 + i as i64 * 61, nanoseconds: 5 };
            let name = format!("user.org.example.program.setting-{}", i % 9);
            metadata.xattrs = vec![(name.into_bytes().into(), i.to_string().into_bytes().into())];
        });
        changed.unwrap();
    }
    tree
}

fn with_metabox(compression: &str, cluster_bytes: u32) -> Options {
    let (target, compress_metadata) = (Target::new(6, 17), true);
    Options { target, compress_metadata, ..options(compression, cluster_bytes, true) }
}

#[test]
fn many_inodes_take_less_room_compressed() {
    let (work, tree) = (tempfile::tempdir().unwrap(), tree(2000));
    let (path, again) = (work.path().join("image"), work.path().join("again"));
    for (compression, cluster_bytes) in
        [("lz4", 4096), ("lz4hc:9", 65536), ("zstd:3", 65536), ("deflate:3", 4096), ("lzma:1", 1 << 20)]
    {
        for fragments in [false, true] {
            let with = Options { fragments, digests: true, ..with_metabox(compression, cluster_bytes) };
            let plain = Options { compress_metadata: false, ..with.clone() };
            let plain = build_at(&path, &tree, &plain);
            let with_summary = build_at(&path, &tree, &with);
            let (less, more) = (with_summary.metadata_bytes, plain.metadata_bytes);
            println!("{compression}, {cluster_bytes}, {fragments}: {less} of {more} bytes");
            // Without a packed file, the contents of most files are behind their inodes, and so outside.
            assert!(if fragments { 2 * less < more } else { less < more }, "{less} of {more} bytes");
            assert_eq!(path.metadata().unwrap().len(), with_summary.image_bytes);

            let image = open_checked(&path, compression);
            assert_ne!(image.superblock().incompat & incompat::METABOX, 0);
            assert!(image.superblock().prefixes.count > 0);
            verify(&image, &tree, &with_summary.digests, &mut |_| ControlFlow::Continue(())).unwrap();
            build_at(&again, &scan(&image, &[]).unwrap().tree, &Options { threads: 1, ..with });
            assert!(fs::read(&path).unwrap() == fs::read(&again).unwrap(), "{compression}: built again");
        }
    }
}

#[test]
fn images_of_several_segments_of_inodes_do_not_depend_on_threads() {
    let (work, tree) = (tempfile::tempdir().unwrap(), tree(30_000));
    let image = |threads| {
        let path = work.path().join(format!("{threads}"));
        let options = Options { threads, fragments: true, ..with_metabox("lz4", 65536) };
        let summary = build_at(&path, &tree, &options);
        let image = open_checked(&path, "many");
        verify(&image, &tree, &Digests::default(), &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(summary.inodes, 30_000 + 43);
        fs::read(path).unwrap()
    };
    let first = image(1);
    assert!([2, 4, 7].into_iter().all(|threads| image(threads) == first));
}

#[test]
fn few_inodes_and_inodes_for_older_kernels_stay_plain() {
    let (work, tree) = (tempfile::tempdir().unwrap(), tree(1200));
    let path = work.path().join("image");
    let has_metabox = |tree: &Tree, options: &Options| {
        build_at(&path, tree, options);
        open_checked(&path, "few").superblock().incompat & incompat::METABOX != 0
    };
    let new = with_metabox("zstd:1", 65536);
    assert!(has_metabox(&tree, &new));
    assert!(!has_metabox(&super::metabox::tree(900), &new));
    assert!(!has_metabox(&tree, &Options { compression: None, ..new.clone() }));
    assert!(!has_metabox(&tree, &Options { compress_metadata: false, ..new }));
    assert!(!has_metabox(&tree, &Options::for_target(Target::new(6, 16))));
}

/// Files with contents behind their inodes are outside, and so is the root.
#[test]
fn a_metabox_without_inodes_is_left_out_unless_prefixes_are_in_it() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("image");
    for with_prefixes in [false, true] {
        let mut tree = Tree::new(Metadata::default());
        for i in 0..1100 {
            let id = tree.add_bytes(format!("file-{i}").as_bytes(), text(40, i)).unwrap();
            let name = format!("user.org.example.program.setting-{}", i % 9).into_bytes();
            let changed = tree.change(id, |metadata| {
                if with_prefixes {
                    metadata.xattrs = vec![(name.into(), i.to_string().into_bytes().into())];
                }
            });
            changed.unwrap();
        }
        let summary = build_at(&path, &tree, &with_metabox("zstd:1", 65536));
        // A check counts inodes alone as a use of the feature.
        let image = match with_prefixes {
            true => Image::open_file(&path, ReadOptions::default()).unwrap(),
            false => open_checked(&path, "no inodes"),
        };
        assert_eq!(image.superblock().incompat & incompat::METABOX != 0, with_prefixes);
        assert_eq!(image.superblock().prefixes.count > 0, with_prefixes);
        verify(&image, &tree, &Digests::default(), &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(summary.inodes, 1101);
    }
}
