//! Mounts of faulty images.

use crate::support::handmade::{
    DIRECTORY, File, REGULAR, block_of_names, image, put_chunks, put_file, repeated_block,
};
use pagefold_backing::{Backing, MemoryBacking};
use pagefold_image::mount::{Mount, MountError, MountOptions};
use pagefold_image::{Image, Options};
use pagefold_testkit::skipped;
use rustix::fs::{SeekFrom, seek};
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// Whether this machine lets the test mount.
fn can_mount(test: &str) -> bool {
    if pagefold_sys::rundir::effective_uid() == 0 && pagefold_sys::fusedev::open().is_ok() {
        return true;
    }
    skipped!("{test}: needs root and /dev/fuse");
    false
}

fn mounted(bytes: &[u8], at: &Path) -> Result<Mount, MountError> {
    let medium = MemoryBacking::new(bytes.len());
    medium.write_at(0, bytes).unwrap();
    let image =
        Image::open(Arc::new(medium), Options { cache_full_reads: false, ..Options::default() }).unwrap();
    Mount::new(image, at, &MountOptions::default())
}

#[test]
fn a_bad_name_does_not_hide_others() {
    if !can_mount("a_bad_name_does_not_hide_others") {
        return;
    }
    let bytes = image(&[
        File::directory(
            2,
            &[
                (".", 0, DIRECTORY),
                ("..", 0, DIRECTORY),
                ("a", 1, REGULAR),
                ("b/b", 1, REGULAR),
                ("c", 1, REGULAR),
                ("d", 1, REGULAR),
            ],
        ),
        File { nlink: 3, ..File::regular(b"contents") },
    ]);
    let at = tempfile::tempdir().unwrap();
    let mut mount = mounted(&bytes, at.path()).unwrap();
    let mut names: Vec<_> =
        fs::read_dir(at.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["a", "c", "d"]);
    for name in names {
        assert_eq!(fs::read(at.path().join(name)).unwrap(), b"contents");
    }
    mount.stop().unwrap();
}

/// As the kernel's EROFS lists it: the names before the fault, and then EUCLEAN.
#[test]
fn a_listing_ends_at_the_first_bogus_entry() {
    if !can_mount("a_listing_ends_at_the_first_bogus_entry") {
        return;
    }
    let mut root = File::directory(2, &[(".", 0, DIRECTORY), ("..", 0, DIRECTORY), ("a", 1, REGULAR)]);
    // Endless blocks without an entry follow, which the bytes of the other file and the end of the image are.
    root.size = 1 << 40;
    let at = tempfile::tempdir().unwrap();
    let mut mount = mounted(&image(&[root, File::regular(&[0; 4096])]), at.path()).unwrap();
    let mut listed = fs::read_dir(at.path()).unwrap();
    assert_eq!(listed.next().unwrap().unwrap().file_name(), "a");
    let failed = listed.next().unwrap().unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(libc::EUCLEAN), "{failed}");
    assert_eq!(fs::read(at.path().join("a")).unwrap(), [0; 4096]);
    mount.stop().unwrap();
}

/// Names that no path can have are skipped, but not for ever.
#[test]
fn a_listing_of_names_without_a_use_ends_at_the_limit_of_work() {
    if !can_mount("a_listing_of_names_without_a_use_ends_at_the_limit_of_work") {
        return;
    }
    let at = tempfile::tempdir().unwrap();
    let mut mount = mounted(&repeated_block(&block_of_names(b"/")), at.path()).unwrap();
    let failed = fs::read_dir(at.path()).unwrap().next().unwrap().unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(libc::EIO), "{failed}");
    mount.stop().unwrap();
}

#[test]
fn an_image_whose_root_is_not_a_directory_is_not_mounted() {
    if !can_mount("an_image_whose_root_is_not_a_directory_is_not_mounted") {
        return;
    }
    let at = tempfile::tempdir().unwrap();
    let refused = mounted(&image(&[File::regular(b"contents")]), at.path());
    assert!(matches!(refused, Err(MountError::Image(_))), "{refused:?}");
    assert_eq!(fs::read_dir(at.path()).unwrap().count(), 0);
}

/// A program that copies a file asks for its data and its holes in turn, until there are no more.
#[test]
fn a_hole_before_a_missing_index_ends_where_the_data_begin() {
    if !can_mount("a_hole_before_a_missing_index_ends_where_the_data_begin") {
        return;
    }
    const HOLE: u64 = 64 * 4096;
    const LEN: u64 = HOLE + 2 * 4096;
    // The inode and its 64 indexes, 320 bytes, end with the third block, and with it the image.
    const NUMBER: usize = (3 * 4096 - 320) / 64;
    let names = [(".", 0, DIRECTORY), ("..", 0, DIRECTORY), ("f", NUMBER, REGULAR)];
    let mut bytes = image(&[File::directory(2, &names)]);
    bytes.resize(4 * 4096, 0);
    put_file(&mut bytes, NUMBER, &File::hole(0o100_644, LEN));
    put_chunks(&mut bytes, NUMBER, &[0xff; 256]);
    let at = tempfile::tempdir().unwrap();
    let mut mount = mounted(&bytes, at.path()).unwrap();
    let file = fs::File::open(at.path().join("f")).unwrap();
    assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(0));
    assert_eq!(seek(&file, SeekFrom::Data(0)), Ok(HOLE));
    assert_eq!(seek(&file, SeekFrom::Hole(HOLE)), Ok(LEN));
    assert_eq!(seek(&file, SeekFrom::Data(HOLE + 5)), Ok(HOLE + 5));
    drop(file);
    mount.stop().unwrap();
}
