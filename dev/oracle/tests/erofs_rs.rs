//! Compares pagefold with `erofs-rs`, which reads the same images and shares no code with it.
//!
//! A separate workspace, because `erofs-rs` and its dependencies take longer to build than most crates of pagefold.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "../../../crates/image-build/tests/support/built.rs"]
mod built;
#[path = "../../../crates/image/tests/support/mod.rs"]
mod support;

use built::{build_at, tree, ways};
use erofs_rs::EroFS;
use erofs_rs::backend::SliceImage;
use pagefold_image::{Image, Options};
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use support::features::features;
use support::walk::{assert_same, sha256, walk};
use support::{Entry, reference_image, reference_names};

type Other<'a> = EroFS<SliceImage<'a>>;

/// Reads an inode with `erofs-rs`. `sha256` is `None` for files longer than `longest`, because `erofs-rs` is slow.
fn other_entry(other: &Other<'_>, path: &str, nid: u64, longest: u64) -> Entry {
    let inode = other.get_inode(nid).unwrap_or_else(|e| panic!("{path}: {e}"));
    let kind = if inode.is_dir() {
        0o040_000
    } else if inode.is_file() {
        0o100_000
    } else if inode.is_symlink() {
        0o120_000
    } else {
        0
    };
    let mut data = Vec::new();
    if inode.is_file() && inode.data_size() <= longest {
        let read = other.open_inode_file(inode).map(|mut file| file.read_to_end(&mut data));
        assert!(matches!(read, Ok(Ok(_))), "{path}: {read:?}");
    }
    let target = inode.is_symlink().then(|| other.read_link_inode(inode).unwrap());
    let (mode, uid, gid, nlink) =
        (inode.permissions().mode() as u16 | kind, inode.uid(), inode.gid(), inode.nlink());
    let (size, sha256) = match inode.is_file() {
        true => (Some(inode.data_size()), (inode.data_size() <= longest).then(|| sha256(&data))),
        false => (None, None),
    };
    let target = target.map(|target| String::from_utf8_lossy(target.as_bytes()).into_owned());
    let rdev = inode.device().filter(|_| kind == 0);
    let xattrs = other.xattrs_inode(inode).unwrap_or_else(|e| panic!("{path}: {e}"));
    Entry { path: path.to_owned(), mode, uid, gid, nlink, size, sha256, target, rdev, xattrs }
}

fn other_walk(other: &Other<'_>, longest: u64) -> Vec<Entry> {
    let root = other.super_block().root_inode_id();
    let mut found = vec![other_entry(other, "/", root, longest)];
    for entry in other.walk_dir("/").unwrap() {
        let entry = entry.unwrap();
        let path = entry.dir_entry.path();
        if [&b"."[..], b".."].contains(&entry.dir_entry.file_name()) {
            continue;
        }
        let path = String::from_utf8_lossy(path.as_bytes()).into_owned();
        found.push(other_entry(other, &path, entry.inode.id(), longest));
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// Reduces our list to the fields that `erofs-rs` reports.
fn reduced(mut ours: Vec<Entry>, longest: u64) -> Vec<Entry> {
    for entry in &mut ours {
        // `erofs-rs` does not report the file types of pipes, sockets and devices.
        if entry.size.is_none() && entry.target.is_none() && entry.mode & 0o170_000 != 0o040_000 {
            entry.mode &= 0o7777;
        }
        entry.sha256.take_if(|_| entry.size.is_some_and(|size| size > longest));
    }
    ours
}

#[test]
fn feature_images_equal_those_read_by_erofs_rs() {
    for feature in features() {
        let devices = feature.devices.iter().map(|bytes| SliceImage::new(bytes)).collect();
        let other = match EroFS::new_with_devices(SliceImage::new(&feature.bytes), devices) {
            Ok(other) => other,
            Err(error) => panic!("{}: {error}", feature.name),
        };
        let image = Image::open(feature.medium(), feature.options(Options::default())).unwrap();
        let ours = reduced(walk(&image, 1 << 20).unwrap(), u64::MAX);
        assert_same(&feature.name, &other_walk(&other, u64::MAX), &without_digest(ours));
    }
}

fn without_digest(mut entries: Vec<Entry>) -> Vec<Entry> {
    entries.iter_mut().for_each(|entry| _ = entry.xattrs.remove(&b"user.digest"[..]));
    entries
}

#[test]
fn reference_images_equal_those_read_by_erofs_rs() {
    const LONGEST: u64 = 200 << 10;
    for name in reference_names() {
        let bytes = fs::read(reference_image(name)).unwrap();
        let other = EroFS::new(SliceImage::new(&bytes)).unwrap();
        let image = Image::open_file(&reference_image(name), Options::default()).unwrap();
        let ours = reduced(walk(&image, 1 << 20).unwrap(), LONGEST);
        assert_same(name, &other_walk(&other, LONGEST), &ours);
    }
}

/// The builder's images, in each algorithm, size of clusters and layout.
#[test]
fn built_images_equal_those_read_by_erofs_rs() {
    let (work, tree) = (tempfile::tempdir().unwrap(), tree());
    let path = work.path().join("image");
    for way in ways() {
        build_at(&path, &tree, &way.options);
        let bytes = fs::read(&path).unwrap();
        let other =
            EroFS::new(SliceImage::new(&bytes)).unwrap_or_else(|error| panic!("{}: {error}", way.name));
        let image = Image::open_file(&path, Options::default()).unwrap();
        let ours = reduced(walk(&image, 1 << 20).unwrap(), u64::MAX);
        assert_same(&way.name, &other_walk(&other, u64::MAX), &ours);
    }
}
