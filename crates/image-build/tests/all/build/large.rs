//! Images of 16 TiB and more, whose addresses need 48 bits: the builder leaves a hole before the contents, and the file
//! is sparse.
//!
//! The files are in memory (`memfd_create`): few file systems have files of this length.

use super::{directory, open_checked, options};
use crate::source::{list, make_tree};
use pagefold_image::Image;
use pagefold_image::format::features::incompat;
use pagefold_image::read::Layout;
use pagefold_image_build::source::directory::{DirectoryOptions, scan};
use pagefold_image_build::{BuildError, Metadata, Options, Summary, Target, Tree, build, verify};
use pagefold_testkit::skipped;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The first block number that 32 bits cannot express.
const LIMIT: u64 = u32::MAX as u64;

/// A file in memory, and a path of it for other programs.
fn memory_file() -> (File, PathBuf) {
    let file = File::from(memfd_create("image", MemfdFlags::CLOEXEC).unwrap());
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    (file, path.into())
}

fn build_on(file: &File, tree: &Tree, options: &Options) -> Result<Summary, BuildError> {
    build(tree, options, file, &mut |_| ControlFlow::Continue(()))
}

/// A tree with a file of every kind, one of several clusters, one that is mostly a hole, and small ones.
fn make_source(root: &Path) {
    fs::create_dir(root).unwrap();
    make_tree(root);
    let program = fs::read(std::env::current_exe().unwrap()).unwrap();
    fs::write(root.join("program"), &program[..1_000_003]).unwrap();
    fs::write(root.join("text"), (0..2000).map(|i| format!("line {i}\n")).collect::<String>()).unwrap();
    let mostly_hole = File::create(root.join("mostly-hole")).unwrap();
    mostly_hole.set_len((8 << 20) + 5).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&mostly_hole, &program[..10_000], 5 << 20).unwrap();
}

/// Options for the first kernel with such images.
fn wide(compression: &str, cluster_bytes: u32, tail_packing: bool, first_data_block: u64) -> Options {
    let target = Target::new(6, 15);
    Options { target, first_data_block, digests: true, ..options(compression, cluster_bytes, tail_packing) }
}

#[test]
fn images_with_addresses_of_48_bits_equal_their_source() {
    let work = tempfile::tempdir().unwrap();
    let root = work.path().join("tree");
    make_source(&root);
    let tree = scan(&root, &DirectoryOptions::default()).unwrap().tree;
    for (compression, cluster, tail_packing, first) in [
        // Contents that begin below the limit, and end above.
        ("none", 4096, false, LIMIT - 40),
        ("zstd:3", 65536, true, LIMIT - 40),
        // The first block above it, and the last one that an image may use.
        ("lz4hc:3", 65536, true, LIMIT),
        ("deflate:3", 4096, false, LIMIT + 1),
        ("lzma:1", 65536, true, (1 << 48) - 5000),
        ("none", 4096, true, 1 << 40),
    ] {
        let what = format!("{compression}, contents from block {first} on");
        let (file, path) = memory_file();
        let options = wide(compression, cluster, tail_packing, first);
        let summary = build_on(&file, &tree, &options).unwrap();
        assert_eq!(summary.image_bytes, file.metadata().unwrap().len(), "{what}");
        let image = open_checked(&path, &what);
        assert!(image.superblock().incompat & incompat::WIDE_ADDRESSES != 0, "{what}");
        assert_eq!(image.superblock().blocks * 4096, summary.image_bytes, "{what}");
        directory::compare(&image, &root, &what);
        verify(&image, &tree, &summary.digests, &mut |_| ControlFlow::Continue(())).unwrap();
        assert_forms(&image, compression, &what);
    }
}

/// The layouts that the files must have, or the test would not test them.
fn assert_forms(image: &Image, compression: &str, what: &str) {
    let layout = |path: &[u8]| image.find(path).unwrap().inode().layout;
    assert!(matches!(layout(b"/mostly-hole"), Layout::Chunks { .. }), "{what}");
    match compression {
        "none" => assert!(matches!(layout(b"/program"), Layout::Inline { start: Some(_), .. }), "{what}"),
        _ => assert_eq!(layout(b"/program"), Layout::CompressedFull, "{what}"),
    }
}

#[test]
fn an_image_below_the_limit_has_short_addresses() {
    let mut tree = Tree::new(Metadata::default());
    tree.add_bytes(b"file", vec![7; 40_960]).unwrap();
    let (file, path) = memory_file();
    // Superblock, ten blocks, and one of metadata: the last address is the greatest that 32 bits express.
    let below = Options { target: Target::new(6, 12), ..wide("none", 4096, false, LIMIT - 11) };
    build_on(&file, &tree, &below).unwrap();
    let image = open_checked(&path, "below");
    assert_eq!(image.superblock().incompat & incompat::WIDE_ADDRESSES, 0);
    assert_eq!(image.superblock().blocks, LIMIT);
    let above = Options { first_data_block: LIMIT - 10, ..below };
    let error = build_on(&file, &tree, &above).unwrap_err().to_string();
    let wanted = "the image is too large: Linux 6.12 mounts images of up to 16 TiB, \
                  and Linux 6.15 and later mount larger ones";
    assert_eq!(error, wanted);
    build_on(&file, &tree, &Options { target: Target::new(6, 15), ..above }).unwrap();
    assert_eq!(open_checked(&path, "above").superblock().blocks, LIMIT + 1);
    let beyond = wide("none", 4096, false, (1 << 48) - 10);
    let error = build_on(&file, &tree, &beyond).unwrap_err().to_string();
    assert_eq!(error, "the image is too large: an image has up to 1 EiB");
}

/// Unmounts when dropped.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        assert!(Command::new("umount").arg(self.0).status().unwrap().success());
    }
}

#[test]
fn the_kernel_reads_images_with_addresses_of_48_bits() {
    let work = tempfile::tempdir().unwrap();
    let (root, mnt) = (work.path().join("tree"), work.path().join("mnt"));
    make_source(&root);
    fs::create_dir(&mnt).unwrap();
    let tree = scan(&root, &DirectoryOptions::default()).unwrap().tree;
    for (compression, cluster, tail_packing, first) in [
        ("none", 4096, true, LIMIT + 1),
        ("zstd:3", 65536, true, LIMIT - 40),
        ("lz4hc:3", 65536, true, LIMIT),
        ("deflate:3", 4096, false, 1 << 40),
    ] {
        let (file, path) = memory_file();
        build_on(&file, &tree, &wide(compression, cluster, tail_packing, first)).unwrap();
        let run = Command::new("mount").args(["-t", "erofs", "-o", "ro,loop"]).args([&path, &mnt]).output();
        if !run.is_ok_and(|run| run.status.success()) {
            skipped!(
                "the_kernel_reads_images_with_addresses_of_48_bits: {compression} cannot be mounted here"
            );
            continue;
        }
        let mounted = Mounted(&mnt);
        for (inner, wanted) in list(&root) {
            let found = mnt.join(String::from_utf8_lossy(&inner[1..]).as_ref());
            let what = format!("{compression}, contents from block {first} on: {}", found.display());
            let kind = wanted.symlink_metadata().unwrap().file_type();
            assert_eq!(found.symlink_metadata().unwrap().file_type(), kind, "{what}");
            match () {
                () if kind.is_file() => {
                    assert!(fs::read(&found).unwrap() == fs::read(&wanted).unwrap(), "{what}")
                }
                () if kind.is_symlink() => {
                    assert_eq!(fs::read_link(&found).unwrap(), fs::read_link(&wanted).unwrap(), "{what}");
                }
                () if kind.is_dir() => {
                    let count = |path: &Path| fs::read_dir(path).unwrap().count();
                    assert_eq!(count(&found), count(&wanted), "{what}");
                }
                () => {}
            }
        }
        drop(mounted);
    }
}
