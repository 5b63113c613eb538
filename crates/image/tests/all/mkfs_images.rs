//! Images that mkfs.erofs builds during the test, compared with the source tree.

use crate::support::tree::{Image, block_of};
use pagefold_image::read::{FileKind, Layout};
use pagefold_testkit::skipped;
use rustix::fs::{CWD, FileType, Mode, XattrFlags, makedev, mknodat};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

/// An access list: owner rwx, user 1000 r-x, group r-x, mask rwx, others none.
fn access_list() -> Vec<u8> {
    let rows = [(0x01, 7, u32::MAX), (0x02, 5, 1000), (0x04, 5, u32::MAX), (0x10, 7, u32::MAX)];
    let rows = rows.into_iter().chain([(0x20, 0, u32::MAX)]);
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, rights, id) in rows {
        bytes.extend(u16::to_le_bytes(tag));
        bytes.extend(u16::to_le_bytes(rights));
        bytes.extend(u32::to_le_bytes(id));
    }
    bytes
}

/// Sets an attribute, or prints that this machine does not allow it.
fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    if let Err(error) = rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()) {
        skipped!("attribute {name} of trees for mkfs.erofs: {error}");
    }
}

fn set_owner(path: &Path, uid: u32, gid: u32) {
    if let Err(error) = lchown(path, Some(uid), Some(gid)) {
        skipped!("owners in trees for mkfs.erofs: {error}");
    }
}

fn make_node(path: &Path, kind: FileType, device: (u32, u32)) {
    let device = makedev(device.0, device.1);
    if let Err(error) = mknodat(CWD, path, kind, Mode::from_raw_mode(0o640), device) {
        skipped!("{kind:?} in trees for mkfs.erofs: {error}");
    }
}

/// Creates a tree with a file of every kind.
fn make_tree(root: &Path) {
    let file = |name: &str, data: &[u8]| {
        fs::write(root.join(name), data).unwrap();
        root.join(name)
    };
    let noise = |len: usize| -> Vec<u8> {
        (0..len as u64).map(|i| (i * i * 31 + i) as u8 ^ (i >> 9) as u8).collect()
    };
    for len in [0, 1, 4000, 4095, 4096, 4097, 8192, 12_345, 300_000] {
        file(&format!("len-{len}"), &noise(len));
    }
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.set_len(1 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, &noise(5000), 400_000).unwrap();
    // mkfs.erofs 1.5 fails on 255.
    file(&"n".repeat(254), b"long name");
    file("\u{fc}ml\u{e4}ut \n tab\t", b"odd name");
    fs::hard_link(root.join("len-4097"), root.join("link-a")).unwrap();
    fs::hard_link(root.join("len-4097"), root.join("link-b")).unwrap();
    symlink("len-1", root.join("symlink")).unwrap();
    symlink("t/".repeat(2000), root.join("symlink-long")).unwrap();
    make_node(&root.join("null"), FileType::CharacterDevice, (1, 3));
    make_node(&root.join("disk"), FileType::BlockDevice, (259, 70_000));
    make_node(&root.join("pipe"), FileType::Fifo, (0, 0));
    UnixListener::bind(root.join("socket")).unwrap();
    let modes = file("modes", b"modes");
    set_owner(&modes, 70_000, 80_000);
    fs::set_permissions(&modes, fs::Permissions::from_mode(0o6751)).unwrap();
    for (name, at) in [
        ("old", UNIX_EPOCH - Duration::new(1000, 250)),
        ("new", UNIX_EPOCH + Duration::new(5_000_000_000, 999_999_999)),
    ] {
        let path = file(name, name.as_bytes());
        File::options().append(true).open(path).unwrap().set_modified(at).unwrap();
    }
    make_directories(root);
    make_attributes(root);
}

fn make_directories(root: &Path) {
    fs::create_dir(root.join("empty")).unwrap();
    fs::create_dir_all(root.join("deep/er/and/deeper")).unwrap();
    fs::write(root.join("deep/er/and/deeper/file"), b"deep").unwrap();
    fs::create_dir(root.join("many")).unwrap();
    for i in 0..10_000 {
        File::create(root.join(format!("many/{i:x}-{}", "m".repeat(i % 40)))).unwrap();
    }
}

fn make_attributes(root: &Path) {
    let file = |name: &str| {
        fs::write(root.join(name), name).unwrap();
        root.join(name)
    };
    for i in 0..8 {
        let path = file(&format!("shared-{i}"));
        set_xattr(&path, "user.shared", b"the same everywhere");
        set_xattr(&path, "security.also", &[0, 255, i & 1]);
        set_xattr(&path, "trusted.own", &[i]);
    }
    let path = file("attributes");
    for i in 0..24 {
        set_xattr(&path, &format!("user.{}", "a".repeat(i * 5 + 1)), &vec![i as u8; i * 3]);
    }
    set_xattr(&path, "system.posix_acl_access", &access_list());
    let directory = root.join("deep");
    set_xattr(&directory, "system.posix_acl_default", &access_list());
    set_xattr(&root.join("symlink"), "trusted.link", b"of a link");
}

/// All files of a tree, by their paths from the root.
fn list(root: &Path) -> BTreeMap<Vec<u8>, PathBuf> {
    let mut found = BTreeMap::new();
    let mut stack = vec![root.to_owned()];
    while let Some(path) = stack.pop() {
        if path.symlink_metadata().unwrap().is_dir() {
            stack.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let inner = path.strip_prefix(root).unwrap().as_os_str().as_bytes();
        found.insert([b"/", inner].concat(), path);
    }
    found
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 65_536];
    let len = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let names = names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let mut value = vec![0; 65_536];
        let len = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
        value[..len].to_vec()
    };
    names.map(|name| (name.to_vec(), value(name))).collect()
}

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
