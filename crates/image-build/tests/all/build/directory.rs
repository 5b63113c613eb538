//! Images of a directory with a file of every kind.

use super::{build_at, open_checked, options};
use crate::source::{list, make_tree, xattrs};
use crate::support::walk::contents;
use pagefold_image::Image;
use pagefold_image::format::features;
use pagefold_image::read::FileKind;
use pagefold_image_build::source::directory::{DirectoryOptions, Unreadables, scan};
use pagefold_image_build::{
    BuildError, Compression, Dedupe, Digests, Metadata, Options, Pattern, Target, Tree, VerifyError, verify,
};
use pagefold_testkit::{seccomp, skipped};
use rustix::fs::makedev;
use std::fs;
use std::io::Write;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

/// Compares all files of an image with those of a directory.
pub fn compare(image: &Image, root: &Path, what: &str) {
    for (path, file) in list(root) {
        let place = format!("{what}: {}", String::from_utf8_lossy(&path));
        let node = image.find(&path).unwrap_or_else(|e| panic!("{place}: {e}"));
        let (inode, wanted) = (node.inode(), file.symlink_metadata().unwrap());
        assert_eq!(u32::from(inode.mode), wanted.mode(), "{place}");
        assert_eq!((inode.uid, inode.gid), (wanted.uid(), wanted.gid()), "{place}");
        assert_eq!(
            u64::from(inode.nlink),
            if wanted.is_dir() { directory_links(&file) } else { wanted.nlink() }
        );
        let mtime = (inode.mtime.seconds, i64::from(inode.mtime.nanoseconds));
        assert_eq!(mtime, (wanted.mtime(), wanted.mtime_nsec()), "{place}");
        let found: Vec<_> = node.xattrs().unwrap().into_iter().map(|x| (x.name, x.value)).collect();
        assert_eq!(found.into_iter().collect::<std::collections::BTreeMap<_, _>>(), xattrs(&file), "{place}");
        let device = inode.device.map(|device| makedev(device.major, device.minor));
        assert_eq!(device.unwrap_or(0), wanted.rdev(), "{place}");
        match inode.kind {
            FileKind::Regular => {
                assert_eq!(node.len_bytes(), wanted.len(), "{place}");
                assert!(contents(&node, 100_000).unwrap() == fs::read(&file).unwrap(), "{place}");
            }
            FileKind::Symlink => {
                let target = fs::read_link(&file).unwrap();
                assert_eq!(node.read_link().unwrap(), target.as_os_str().as_bytes(), "{place}");
            }
            FileKind::Directory => {
                let names = node.entries().unwrap().filter(|e| {
                    let name = &e.as_ref().unwrap().name;
                    name.as_slice() != b"." && name.as_slice() != b".."
                });
                assert_eq!(names.count(), fs::read_dir(&file).unwrap().count(), "{place}");
            }
            _ => {}
        }
    }
}

/// Some file systems do not count directories; an image does.
fn directory_links(path: &Path) -> u64 {
    let is_directory = |e: &fs::DirEntry| e.file_type().unwrap().is_dir();
    2 + fs::read_dir(path).unwrap().filter(|e| is_directory(e.as_ref().unwrap())).count() as u64
}

/// A tree with files of some MiB, so that there are several clusters of every size, and one with several segments.
pub fn make_source(root: &Path) {
    fs::create_dir(root).unwrap();
    make_tree(root);
    let program = fs::read(std::env::current_exe().unwrap()).unwrap();
    fs::write(root.join("program"), &program[..program.len().min(5 << 20)]).unwrap();
    let mut mixed = program[..200_000].to_vec();
    mixed.extend((0..100_000u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8));
    mixed.extend(&program[..77_777]);
    mixed.extend(std::iter::repeat_n(0, 17 << 20));
    fs::write(root.join("mixed"), mixed).unwrap();
    fs::write(root.join("text"), (0..20_000).map(|i| format!("line {i}\n")).collect::<String>()).unwrap();
    let mostly_hole = fs::File::create(root.join("mostly-hole")).unwrap();
    mostly_hole.set_len((40 << 20) + 5).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&mostly_hole, &program[..10_000], 20 << 20).unwrap();
}

/// A compression, the largest cluster, and whether ends of files are packed.
const WAYS: [(&str, u32, bool); 10] = [
    ("none", 4096, false),
    ("lz4", 4096, false),
    ("lz4", 65536, true),
    ("lz4hc:4", 4096, true),
    ("lz4hc:9", 16384, false),
    ("zstd:3", 65536, true),
    ("zstd:3", 4096, false),
    ("deflate:6", 65536, true),
    ("lzma:1", 65536, true),
    ("lz4hc:3", 1 << 20, true),
];

#[test]
fn images_of_a_directory_equal_it() {
    let work = tempfile::tempdir().unwrap();
    let [root, file, again] = ["tree", "image", "again"].map(|name| work.path().join(name));
    make_source(&root);
    let scanned = scan(&root, &DirectoryOptions::default()).unwrap();
    assert_eq!(scanned.unreadable.count(), 0);
    for (compression, cluster_bytes, tail_packing) in WAYS {
        let what = format!("{compression}, clusters of {cluster_bytes}, tail packing {tail_packing}");
        let mut options = Options { digests: true, ..options(compression, cluster_bytes, tail_packing) };
        // Version 1.5 of fsck.erofs decodes no other algorithm, and knows neither long prefixes of attribute names nor
        // shared parts of files.
        let is_old = compression.starts_with("lz4") || compression == "none";
        if is_old {
            options.target = Target::new(6, 1);
            options.dedupe = Dedupe::Files;
        }
        let summary = build_at(&file, &scanned.tree, &options);
        assert_eq!(summary.image_bytes, fs::metadata(&file).unwrap().len(), "{what}");
        let image = open_checked(&file, &what);
        compare(&image, &root, &what);
        verify(&image, &scanned.tree, &summary.digests, &mut |_| ControlFlow::Continue(())).unwrap();
        // Without digests, the threads that compress read long files themselves.
        build_at(&again, &scanned.tree, &Options { digests: false, ..options.clone() });
        assert!(fs::read(&file).unwrap() == fs::read(&again).unwrap(), "{what}");
        if is_old {
            check_by_fsck(&file, &what);
        }
    }
}

#[test]
fn verifying_finds_an_image_of_another_tree() {
    let work = tempfile::tempdir().unwrap();
    let file = work.path().join("image");
    let tree = |contents: &str, permissions| {
        let mut tree = Tree::new(Metadata::default());
        tree.add_bytes(b"d/x", *b"same").unwrap();
        let id = tree.add_bytes(b"d/file", contents.as_bytes().to_vec()).unwrap();
        tree.change(id, |own| own.permissions = permissions).unwrap();
        tree
    };
    let (first, other) = (tree("one", 0o644), tree("two", 0o644));
    let mut longer = tree("one", 0o644);
    longer.add_bytes(b"d/y", *b"").unwrap();
    let options = Options { digests: true, ..options("lz4", 4096, true) };
    let digests = build_at(&file, &first, &options).digests;
    let image = open_checked(&file, "first");
    let differs = |tree: &Tree, digests: &Digests| match verify(&image, tree, digests, &mut |_| {
        ControlFlow::Continue(())
    }) {
        Ok(()) => "nothing",
        Err(VerifyError::Differs { what, .. }) => what,
        Err(VerifyError::Image(_)) => "a file",
        Err(e) => panic!("{e}"),
    };
    assert_eq!(differs(&first, &digests), "nothing");
    assert_eq!(differs(&other, &build_at(&work.path().join("other"), &other, &options).digests), "contents");
    assert_eq!(differs(&tree("one", 0o600), &digests), "mode");
    assert_eq!(differs(&tree("longer", 0o644), &digests), "length");
    assert_eq!(differs(&longer, &digests), "a file");
    longer.remove(longer.find(b"d").unwrap(), b"y");
    longer.remove(longer.find(b"d").unwrap(), b"x");
    assert_eq!(differs(&longer, &digests), "list of names");
}

fn check_by_fsck(image: &Path, what: &str) {
    let Ok(run) = Command::new("fsck.erofs").arg("--extract").arg(image).output() else {
        skipped!("fsck.erofs on images of the builder: it is not installed");
        return;
    };
    let text = String::from_utf8_lossy(&run.stderr) + String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{what}: {text}");
}

#[test]
fn images_for_old_kernels_use_nothing_newer() {
    let work = tempfile::tempdir().unwrap();
    let (root, file) = (work.path().join("tree"), work.path().join("image"));
    make_source(&root);
    let scanned = scan(&root, &DirectoryOptions::default()).unwrap();
    for target in pagefold_image_build::TARGETS {
        // The features depend on the target, and not on the level.
        let fast = Options::for_target(target).compression.map(|c| Compression { level: 1, ..c });
        let options = Options { compression: fast, ..Options::for_target(target) };
        build_at(&file, &scanned.tree, &options);
        let image = open_checked(&file, &target.to_string());
        compare(&image, &root, &target.to_string());
        let (needed, unknown) = features::split(image.superblock().incompat, &features::incompat::ALL);
        assert_eq!(unknown, 0);
        let newer: Vec<_> = needed.iter().filter(|feature| feature.kernel > target.0).collect();
        assert!(newer.is_empty(), "{target}: {newer:?}");
    }
    assert!(Target::new(5, 4) < Target::new(5, 10));
}

#[test]
fn what_is_excluded_or_unreadable_is_left_out() {
    let work = tempfile::tempdir().unwrap();
    let root = work.path();
    fs::create_dir_all(root.join("keep/cache")).unwrap();
    for name in ["keep/a.o", "keep/a.c", "keep/cache/x", "b.o"] {
        fs::write(root.join(name), name).unwrap();
    }
    let exclude = ["*.o", "keep/cache"].map(|text| Pattern::parse(text).unwrap()).to_vec();
    let options = DirectoryOptions { exclude, ..DirectoryOptions::default() };
    let tree = scan(root, &options).unwrap().tree;
    assert!(tree.find(b"keep/a.c").is_some());
    assert!([b"b.o".as_slice(), b"keep/a.o", b"keep/cache"].iter().all(|path| tree.find(path).is_none()));
    if rustix::process::geteuid().is_root() {
        skipped!("what_is_excluded_or_unreadable_is_left_out: root reads everything");
        return;
    }
    // The attribute of one directory cannot be read; the other one stays, empty.
    for name in ["marked", "closed"] {
        fs::create_dir(root.join(name)).unwrap();
    }
    let flags = rustix::fs::XattrFlags::empty();
    let is_marked = rustix::fs::setxattr(root.join("marked"), "user.x", b"1", flags).is_ok();
    for name in ["b.o", "marked", "closed"] {
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o000)).unwrap();
    }
    let options = DirectoryOptions { unreadables: Unreadables::LeaveOut, ..DirectoryOptions::default() };
    let scanned = scan(root, &options).unwrap();
    for name in ["marked", "closed"] {
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    assert_eq!((scanned.unreadable.count(), scanned.tree.find(b"b.o")), (3, None));
    let reason = |name: &str| scanned.unreadable.iter().find(|file| file.path.ends_with(name)).unwrap();
    for name in ["closed", "marked"] {
        assert!(reason(name).reason.contains("stays empty") && scanned.tree.find(name.as_bytes()).is_some());
    }
    let xattrs: Vec<_> = scanned.unreadable_xattrs.iter().collect();
    assert_eq!(xattrs.len(), usize::from(is_marked));
    assert!(xattrs.iter().all(|xattr| xattr.path.ends_with("marked") && xattr.name == b"user.x"));
    let tree = scan(root, &DirectoryOptions::default()).unwrap().tree;
    let file = tempfile::tempfile().unwrap();
    let built = pagefold_image_build::build(&tree, &super::options("lz4", 4096, false), &file, &mut |_| {
        std::ops::ControlFlow::Continue(())
    });
    assert!(matches!(built, Err(BuildError::Source { path, .. }) if path.ends_with("b.o")));
}

#[test]
fn a_file_that_changed_after_the_scan_is_an_error() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("file");
    fs::write(&path, "one").unwrap();
    let tree = scan(work.path(), &DirectoryOptions::default()).unwrap().tree;
    let run = || {
        let file = tempfile::tempfile().unwrap();
        let options = options("lz4", 4096, false);
        pagefold_image_build::build(&tree, &options, &file, &mut |_| std::ops::ControlFlow::Continue(()))
    };
    assert!(run().is_ok());
    fs::File::options().append(true).open(&path).unwrap().write_all(b" more").unwrap();
    assert!(matches!(run(), Err(BuildError::Changed { path }) if path.ends_with("file")));
    fs::remove_file(&path).unwrap();
    let is_changed = || matches!(run(), Err(BuildError::Changed { path }) if path.ends_with("file"));
    assert!(is_changed(), "it was removed");
    std::os::unix::fs::symlink("elsewhere", &path).unwrap();
    assert!(is_changed(), "it is a link");
    fs::remove_file(&path).unwrap();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    assert!(is_changed(), "it is a pipe");
}

#[test]
fn faults_of_the_machine_leave_nothing_out() {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("target", folder.path().join("link")).unwrap();
    for (errno, is_of_machine) in
        [(libc::EIO, false), (libc::EMFILE, true), (libc::ENFILE, true), (libc::ENOMEM, true)]
    {
        let scanned = std::thread::scope(|scope| {
            let scanning = scope.spawn(|| {
                seccomp::fail(libc::SYS_readlinkat, errno);
                let unreadables = Unreadables::LeaveOut;
                scan(folder.path(), &DirectoryOptions { unreadables, ..DirectoryOptions::default() })
            });
            scanning.join().unwrap()
        });
        match scanned {
            Ok(scanned) => assert!(!is_of_machine && scanned.unreadable.count() == 1, "{errno}"),
            Err(error) => assert!(is_of_machine, "{errno}: {error}"),
        }
    }
}
