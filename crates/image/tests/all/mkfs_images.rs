//! Images that mkfs.erofs builds during the test, compared with the source tree.

use crate::source::{list, make_directories, make_tree, xattrs};
use crate::support::tree::{Image, block_of};
use pagefold_image::read::{FileKind, Layout};
use pagefold_testkit::skipped;
use rustix::fs::makedev;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

/// Metadata that an option of mkfs.erofs changes, and that is not compared with the tree.
#[derive(Default, Clone, Copy)]
struct Changed {
    owner: bool,
    mtime: bool,
    xattrs: bool,
}

fn compare(image: &Image, root: &Path, changed: Changed, options: &[String]) {
    let nodes = image.walk();
    let files = list(root);
    assert!(nodes.keys().eq(files.keys()), "{options:?}");
    for (path, node) in &nodes {
        let wanted = files[path].symlink_metadata().unwrap();
        let place = format!("{options:?}: {}", String::from_utf8_lossy(path));
        let inode = &node.inode;
        assert_eq!(u32::from(inode.mode), wanted.mode(), "{place}");
        assert_eq!(u64::from(inode.nlink), wanted.nlink(), "{place}");
        let owner = if changed.owner { (0, 0) } else { (wanted.uid(), wanted.gid()) };
        assert_eq!((inode.uid, inode.gid), owner, "{place}");
        if !changed.mtime {
            let found = (inode.mtime.seconds, i64::from(inode.mtime.nanoseconds));
            assert_eq!(found, (wanted.mtime(), wanted.mtime_nsec()), "{place}");
        }
        let xattrs = if changed.xattrs { BTreeMap::new() } else { xattrs(&files[path]) };
        assert_eq!(node.xattrs, xattrs, "{place}");
        let device = inode.device.map(|device| makedev(device.major, device.minor));
        assert_eq!(device.unwrap_or(0), wanted.rdev(), "{place}");
        match inode.kind {
            FileKind::Regular => assert!(node.data == Some(fs::read(&files[path]).unwrap()), "{place}"),
            FileKind::Symlink => {
                let target = fs::read_link(&files[path]).unwrap();
                assert_eq!(node.data.as_deref(), Some(target.as_os_str().as_bytes()), "{place}");
            }
            _ => {}
        }
    }
}

/// Builds an image of `root` and compares it; returns the layouts of its regular files.
fn make_and_compare(work: &Path, root: &Path, options: &[&str], changed: Changed) -> Vec<Layout> {
    let file = work.join("image.erofs");
    let blob = work.join("blob");
    let with_blob = options.iter().any(|option| option.contains("blobdev"));
    let options: Vec<String> =
        options.iter().map(|option| option.replace("BLOB", blob.to_str().unwrap())).collect();
    for path in [&file, &blob] {
        _ = fs::remove_file(path);
    }
    let run = Command::new("mkfs.erofs").args(&options).arg("--quiet").arg(&file).arg(root).output().unwrap();
    assert!(run.status.success(), "{options:?}: {}", String::from_utf8_lossy(&run.stderr));
    let further: &[&Path] = if with_blob { &[&blob] } else { &[] };
    let image = Image::open(&file, further);
    assert_eq!(image.sb.devices.len(), further.len());
    compare(&image, root, changed, &options);
    image.walk().values().filter(|n| n.inode.kind == FileKind::Regular).map(|n| n.inode.layout).collect()
}

fn have_mkfs(test: &str) -> bool {
    let have = Command::new("mkfs.erofs").arg("--help").output().is_ok();
    if !have {
        skipped!("{test}: mkfs.erofs is not installed");
    }
    have
}

#[test]
fn images_of_mkfs_equal_the_source_tree() {
    if !have_mkfs("images_of_mkfs_equal_the_source_tree") {
        return;
    }
    let work = tempfile::tempdir().unwrap();
    let root = work.path().join("tree");
    fs::create_dir(&root).unwrap();
    make_tree(&root);
    let same = Changed::default();
    let run = |options: &[&str], changed| make_and_compare(work.path(), &root, options, changed);
    let layouts = run(&[], same);
    assert!(layouts.iter().any(|layout| matches!(layout, Layout::Plain { .. })));
    assert!(layouts.iter().any(|layout| matches!(layout, Layout::Inline { .. })));
    run(&["-x1"], same);
    run(&["-x100"], same);
    run(&["-x-1"], Changed { xattrs: true, ..same });
    run(&["--all-root"], Changed { owner: true, ..same });
    run(&["-T1234567890"], Changed { mtime: true, ..same });
    run(&["--ignore-mtime"], Changed { mtime: true, ..same });
    run(&["-Eforce-inode-extended,noinline_data"], same);
    for options in [
        &["--chunksize=4096"][..],
        &["--chunksize=65536"],
        &["--chunksize=4096", "-Eforce-chunk-indexes"],
        &["--chunksize=8192", "--blobdev=BLOB"],
    ] {
        let layouts = run(options, same);
        assert!(layouts.iter().any(|layout| matches!(layout, Layout::Chunks { .. })), "{options:?}");
    }
}

#[test]
fn ten_thousand_names_are_found_by_binary_search() {
    if !have_mkfs("ten_thousand_names_are_found_by_binary_search") {
        return;
    }
    let work = tempfile::tempdir().unwrap();
    let root = work.path().join("tree");
    fs::create_dir(&root).unwrap();
    make_directories(&root);
    let file = work.path().join("image.erofs");
    assert!(Command::new("mkfs.erofs").arg("--quiet").arg(&file).arg(&root).status().unwrap().success());
    let image = Image::open(&file, &[]);
    let mut block = Vec::new();
    let (directory, data) = image.directory(image.sb.root_nid);
    let mut read = block_of(&data, image.sb.block_bits);
    let many = directory.lookup(b"many", &mut block, &mut read).unwrap().unwrap();
    let (directory, data) = image.directory(many.nid);
    assert!(directory.blocks() > 50);
    let mut blocks_read = 0;
    let mut searches = 0;
    for entry in fs::read_dir(root.join("many")).unwrap() {
        let name = entry.unwrap().file_name().as_bytes().to_vec();
        for (name, there) in [(name.clone(), true), ([&name[..], b"x"].concat(), false)] {
            let mut read = |number, buf: &mut [u8]| {
                blocks_read += 1;
                block_of(&data, image.sb.block_bits)(number, buf)
            };
            let found = directory.lookup(&name, &mut block, &mut read).unwrap();
            assert_eq!(found.is_some(), there);
            searches += 1;
        }
    }
    assert_eq!(searches, 20_000);
    // A binary search in fewer than 2^8 blocks takes at most 8 steps, and reads one block more that has the name.
    assert!(directory.blocks() < 256 && blocks_read <= searches * 9, "{blocks_read} blocks read");
}
