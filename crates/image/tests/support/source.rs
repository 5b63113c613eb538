//! A directory with a file of every kind, to build images from.

use pagefold_testkit::skipped;
use rustix::fs::{CWD, FileType, Mode, XattrFlags, makedev, mknodat};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
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
        skipped!("attribute {name} of source trees: {error}");
    }
}

fn set_owner(path: &Path, uid: u32, gid: u32) {
    if let Err(error) = lchown(path, Some(uid), Some(gid)) {
        skipped!("owners in source trees: {error}");
    }
}

fn make_node(path: &Path, kind: FileType, device: (u32, u32)) {
    let device = makedev(device.0, device.1);
    if let Err(error) = mknodat(CWD, path, kind, Mode::from_raw_mode(0o640), device) {
        skipped!("{kind:?} in source trees: {error}");
    }
}

/// Creates a tree with a file of every kind.
pub fn make_tree(root: &Path) {
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

pub fn make_directories(root: &Path) {
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
pub fn list(root: &Path) -> BTreeMap<Vec<u8>, PathBuf> {
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

pub fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
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
