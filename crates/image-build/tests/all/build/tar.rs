//! Images of tar archives that programs have made, compared with those of the directory.

use super::{build_at, directory, options};
use pagefold_image::tar::TarOptions as WriteOptions;
use pagefold_image::{Image, Options as ReadOptions};
use pagefold_image_build::source::directory::DirectoryOptions;
use pagefold_image_build::source::{directory as from_directory, tar};
use pagefold_image_build::{Options, Tree};
use pagefold_testkit::skipped;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

/// Builds an image of a tree, and returns its bytes.
fn image_of(tree: &Tree, at: &Path, options: &Options) -> Vec<u8> {
    build_at(at, tree, options);
    fs::read(at).unwrap()
}

fn tree_of(archive: &Path) -> Tree {
    let scanned = tar::scan(File::open(archive).unwrap(), archive, &tar::TarOptions::default()).unwrap();
    assert_eq!(scanned.dropped_xattrs, 0);
    scanned.tree
}

/// A directory with a file of every kind that an archive can have.
fn make_source(root: &Path) {
    directory::make_source(root);
    fs::remove_file(root.join("socket")).unwrap();
}

/// Runs a program in `work`; false if it is not installed.
fn ran(work: &Path, program: &str, arguments: &[&str]) -> bool {
    let Ok(run) = Command::new(program).args(arguments).current_dir(work).output() else {
        skipped!("archives of {program}: it is not installed");
        return false;
    };
    assert!(run.status.success(), "{program}: {}", String::from_utf8_lossy(&run.stderr));
    true
}

#[test]
fn archives_of_other_programs_give_the_image_of_the_directory() {
    let work = tempfile::tempdir().unwrap();
    let (root, archive) = (work.path().join("tree"), work.path().join("a.tar"));
    make_source(&root);
    let options = options("lz4", 65536, true);
    let at = work.path().join("image");
    let of_directory =
        || image_of(&from_directory::scan(&root, &DirectoryOptions::default()).unwrap().tree, &at, &options);
    let wanted = of_directory();
    let pax = ["--format=pax", "--xattrs", "--xattrs-include=*", "--acls", "--numeric-owner", "-cf", "a.tar"];
    let ways: [&[&str]; 3] = [
        &["--sparse"],
        &["--sparse", "--sparse-version=0.1"],
        &["--sparse", "--sparse-version=0.0", "--sort=name"],
    ];
    for further in ways {
        if ran(work.path(), "tar", &[&pax, further, &["-C", "tree", "."]].concat()) {
            assert!(image_of(&tree_of(&archive), &at, &options) == wanted, "tar {further:?}");
        }
    }
    // bsdtar 3.6 writes a time before 1970 that has a fraction as another one.
    let old = File::options().write(true).open(root.join("old")).unwrap();
    old.set_modified(UNIX_EPOCH - Duration::from_secs(1000)).unwrap();
    let wanted = of_directory();
    let bsdtar = ["--format=pax", "--xattrs", "--acls", "--read-sparse", "-cf", "a.tar", "-C", "tree", "."];
    if ran(work.path(), "bsdtar", &bsdtar) {
        assert!(image_of(&tree_of(&archive), &at, &options) == wanted, "bsdtar");
    }
}

#[test]
fn an_archive_of_an_image_gives_the_same_image() {
    let work = tempfile::tempdir().unwrap();
    let (root, archive) = (work.path().join("tree"), work.path().join("a.tar"));
    make_source(&root);
    for (compression, cluster) in [("zstd:3", 65536), ("none", 4096)] {
        let options = options(compression, cluster, true);
        let at = work.path().join("image");
        let scanned = from_directory::scan(&root, &DirectoryOptions::default()).unwrap();
        let wanted = image_of(&scanned.tree, &at, &options);
        let image = Image::open_file(&at, ReadOptions::default()).unwrap();
        let out = File::create(&archive).unwrap();
        pagefold_image::tar::write(&image, &[], &WriteOptions::default(), out).unwrap();
        assert!(
            image_of(&tree_of(&archive), &work.path().join("again"), &options) == wanted,
            "{compression}"
        );
    }
}

/// These forms have neither nanoseconds nor attributes, so the tree has none.
#[test]
fn older_forms_give_the_image_of_the_directory() {
    let work = tempfile::tempdir().unwrap();
    let root = work.path().join("tree");
    fs::create_dir_all(root.join("d/e")).unwrap();
    fs::write(root.join("d/e/file"), "contents").unwrap();
    fs::hard_link(root.join("d/e/file"), root.join("d/link")).unwrap();
    std::os::unix::fs::symlink("e/file", root.join("d/symlink")).unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.set_len(20 << 20).unwrap();
    for i in 0..60 {
        std::os::unix::fs::FileExt::write_all_at(&sparse, &[i; 4096], (u64::from(i) * 256) << 10).unwrap();
    }
    let deep = "n".repeat(98);
    fs::create_dir(root.join(&deep)).unwrap();
    fs::write(root.join(&deep).join("m".repeat(99)), "with a prefix").unwrap();
    assert!(ran(work.path(), "sh", &["-c", "find tree -exec touch -h -d @1700000000 {} +"]));
    let (options, at) = (options("lz4", 4096, true), work.path().join("image"));
    let wanted =
        image_of(&from_directory::scan(&root, &DirectoryOptions::default()).unwrap().tree, &at, &options);
    let python = "import tarfile\nfor name, form in ('u', tarfile.USTAR_FORMAT), ('g', tarfile.GNU_FORMAT), \
                  ('p', tarfile.PAX_FORMAT):\n with tarfile.open('python-' + name, 'w', format=form) as t: \
                  t.add('tree', arcname='.')";
    if ran(work.path(), "python3", &["-c", python]) {
        for name in ["python-u", "python-g", "python-p"] {
            // Python has no holes, and times in other digits.
            let tree = tree_of(&work.path().join(name));
            assert_eq!(tree.len(), 8, "{name}");
        }
    }
    for (program, arguments) in [
        ("tar", &["--format=gnu", "--sparse"][..]),
        ("tar", &["--format=oldgnu", "--sparse", "--sort=name"]),
        ("tar", &["--format=ustar"]),
        ("busybox", &["tar"]),
    ] {
        let further = ["-cf", "a.tar", "-C", "tree", "."];
        if ran(work.path(), program, &[arguments, &further].concat()) {
            let found = image_of(&tree_of(&work.path().join("a.tar")), &at, &options);
            // Without holes the sparse file is stored in another way.
            let is_sparse = arguments.contains(&"--sparse");
            assert!((found == wanted) == is_sparse, "{program} {arguments:?}");
            directory::compare(&super::open_checked(&at, program), &root, program);
        }
    }
}
