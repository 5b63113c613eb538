//! Set-id bits of extracted files, by the owner that they get.

use pagefold_image::extract::{ExtractOptions, extract};
use pagefold_image::{Image, Options as ReadOptions};
use pagefold_image_build::{Metadata, Options, Target, Tree, build};
use pagefold_sys::beneath::Folder;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::AtomicBool;

/// Files of another user and of root, with set-id bits, extracted by root: what gets the image's owner keeps them.
#[test]
fn set_id_bits_are_given_only_with_the_owner_of_the_image() {
    let test = "set_id_bits_are_given_only_with_the_owner_of_the_image";
    if !rustix::process::geteuid().is_root() {
        return pagefold_testkit::skipped!("{test}: only root gives files away");
    }
    let mut tree = Tree::new(Metadata::default());
    let owners = [("root", 0, 0), ("user", 1000, 1000), ("group", 0, 1000)];
    for (name, uid, gid) in owners {
        let id = tree.add_bytes(name.as_bytes(), b"x".to_vec()).unwrap();
        let change = |metadata: &mut Metadata| {
            metadata.permissions = 0o6755;
            (metadata.uid, metadata.gid) = (uid, gid);
        };
        tree.change(id, change).unwrap();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let options = Options { compression: None, ..Options::for_target(Target::new(6, 12)) };
    build(&tree, &options, file.as_file(), &mut |_| ControlFlow::Continue(())).unwrap();
    let image = Image::open_file(file.path(), ReadOptions::default()).unwrap();
    for (owners, privileged, bits, skipped) in [
        (true, true, [0o6000, 0o6000, 0o6000], 0),
        (false, true, [0o6000, 0, 0o4000], 2),
        (true, false, [0, 0, 0], 3),
        (false, false, [0, 0, 0], 3),
    ] {
        let target = tempfile::tempdir().unwrap();
        let options = ExtractOptions { owners, privileged, ..ExtractOptions::default() };
        let folder = Folder::open(target.path()).unwrap();
        let report = extract(&image, &folder, &[], &options, &AtomicBool::new(false), &|_| ()).unwrap();
        let found = ["root", "user", "group"].map(|name| {
            let metadata = target.path().join(name).metadata().unwrap();
            assert!(owners || (metadata.uid(), metadata.gid()) == (0, 0));
            metadata.mode() & 0o6000
        });
        assert_eq!((found, report.counts.skipped_set_id), (bits, skipped), "{owners}, {privileged}");
    }
}
