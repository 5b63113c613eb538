//! Long prefixes of attribute names.

use super::{build_at, open_checked, options};
use crate::source::xattrs;
use pagefold_image::format::features::incompat;
use pagefold_image_build::{Digests, Metadata, Options, Target, Tree, verify};
use pagefold_testkit::skipped;
use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::process::Command;

/// Files with attributes as an overlay mount and programs make them: names and some values repeat, most values do not.
fn tree(files: impl Iterator<Item = u32>) -> Tree {
    let mut tree = Tree::new(Metadata::default());
    for i in files {
        let id = tree.add_bytes(format!("d{}/{i}", i % 7).as_bytes(), *b"x").unwrap();
        let mut all = BTreeMap::from([
            ("security.selinux".to_string(), format!("system_u:object_r:type{i}_t:s0\0").into_bytes()),
            ("trusted.overlay.origin".into(), (u64::from(i) * 0x9e37_79b9).to_le_bytes().to_vec()),
            ("trusted.overlay.opaque".into(), b"y".to_vec()),
            (format!("user.org.example.program.setting-{i}"), vec![7; i as usize % 5]),
        ]);
        if i % 3 == 0 {
            all.insert("user.x".into(), vec![i as u8; 9]);
        }
        let boxed = |(name, value): (String, Vec<u8>)| (name.into_bytes().into(), value.into());
        tree.change(id, |own| own.xattrs = all.into_iter().map(boxed).collect()).unwrap();
    }
    tree
}

/// Options for a kernel.
fn for_kernel(major: u8, minor: u8) -> Options {
    Options { target: Target::new(major, minor), ..options("none", 4096, false) }
}

#[test]
fn names_with_much_in_common_are_stored_once() {
    let work = tempfile::tempdir().unwrap();
    let path = |name: &str| work.path().join(name);
    let some = tree(0..400);
    let old = build_at(&path("old"), &some, &for_kernel(6, 1)).image_bytes;
    let new = build_at(&path("new"), &some, &for_kernel(6, 4)).image_bytes;
    println!("{old} bytes without long prefixes, {new} with them");
    assert!(new < old - old / 5, "{new} bytes, and {old} without");
    let count = |name: &str| {
        let image = open_checked(&path(name), name);
        verify(&image, &some, &Digests::default(), &mut |_| ControlFlow::Continue(())).unwrap();
        let has_bit = image.superblock().incompat & incompat::XATTR_PREFIXES != 0;
        assert_eq!(has_bit, image.superblock().prefixes.count > 0);
        image.superblock().prefixes.count
    };
    assert_eq!((count("old"), count("new")), (0, 3));
    build_at(&path("again"), &tree((0..400).rev()), &for_kernel(6, 4));
    assert!(fs::read(path("new")).unwrap() == fs::read(path("again")).unwrap());
    // Too few to pay.
    build_at(&path("few"), &tree(0..5), &for_kernel(6, 4));
    assert_eq!(open_checked(&path("few"), "few").superblock().prefixes.count, 0);
}

#[test]
fn the_kernel_shows_names_with_long_prefixes() {
    let work = tempfile::tempdir().unwrap();
    let (path, mnt) = (work.path().join("image"), work.path().join("mnt"));
    fs::create_dir(&mnt).unwrap();
    let tree = tree(0..100);
    build_at(&path, &tree, &for_kernel(6, 4));
    assert!(open_checked(&path, "prefixes").superblock().prefixes.count > 0);
    let run = Command::new("mount").args(["-t", "erofs", "-o", "ro,loop"]).args([&path, &mnt]).output();
    if !run.is_ok_and(|run| run.status.success()) {
        skipped!("the_kernel_shows_names_with_long_prefixes: the image cannot be mounted here");
        return;
    }
    let found: Vec<_> = (0..100).map(|i| xattrs(&mnt.join(format!("d{}/{i}", i % 7)))).collect();
    assert!(Command::new("umount").arg(&mnt).status().unwrap().success());
    for (i, found) in found.into_iter().enumerate() {
        let id = tree.find(format!("d{}/{i}", i % 7).as_bytes()).unwrap();
        let wanted = tree.xattrs(id);
        assert!(
            found.len() == wanted.len()
                && wanted.iter().all(|(n, v)| found.get(&n[..]).is_some_and(|f| f[..] == v[..])),
            "{i}: {found:?}"
        );
    }
}
