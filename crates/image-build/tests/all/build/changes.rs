//! Files that change while an image of their directory is built: the image has what was there when the build began, or
//! there is an error with the name of the file.

use super::{build_at, contents, open_checked, options, text};
use pagefold_image_build::content::{Bytes, Content, Reader};
use pagefold_image_build::source::directory::{DirectoryOptions, scan};
use pagefold_image_build::tree::Body;
use pagefold_image_build::{BuildError, Dedupe, InodeId, Metadata, Options, Tree, build};
use std::fs::{self, File};
use std::io::Write;
use std::ops::ControlFlow;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, UNIX_EPOCH};

/// A change of a file, by its name.
type Change = (&'static str, fn(&Path));

const CHANGES: [Change; 8] = [
    ("truncated", |path| File::options().write(true).open(path).unwrap().set_len(1).unwrap()),
    ("appended to", |path| File::options().append(true).open(path).unwrap().write_all(b"more").unwrap()),
    ("overwritten", |path| File::options().write(true).open(path).unwrap().write_all(b"X").unwrap()),
    ("removed", |path| fs::remove_file(path).unwrap()),
    ("replaced", |path| {
        let other = path.with_extension("other");
        fs::write(&other, fs::read(path).unwrap()).unwrap();
        fs::rename(other, path).unwrap();
    }),
    ("replaced by a directory", |path| {
        fs::remove_file(path).unwrap();
        fs::create_dir(path).unwrap();
    }),
    ("replaced by a link", |path| {
        fs::remove_file(path).unwrap();
        symlink("/etc/hostname", path).unwrap();
    }),
    ("replaced by a pipe", |path| {
        fs::remove_file(path).unwrap();
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    }),
];

/// Reports of further bytes after which a file is changed.
const LAST_STEP: usize = 6;

/// A file of three segments, and two files of one.
const FILES: [(&str, usize); 3] = [("a", (8 << 20) + 100), ("b", 5000), ("c", 100)];

/// Fills a directory with files that are old, so that a change gives them another time.
fn fill(root: &Path) {
    let _ = fs::remove_dir_all(root);
    fs::create_dir(root).unwrap();
    for (name, len) in FILES {
        write_old(root, name, len);
    }
}

/// Writes a file that is old into a directory that is old then, in place of what a change has left there.
fn write_old(root: &Path, name: &str, len: usize) {
    let (path, time) = (root.join(name), UNIX_EPOCH + Duration::from_secs(1_000_000));
    let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir(&path));
    fs::write(&path, vec![b'x'; len]).unwrap();
    File::options().append(true).open(&path).unwrap().set_modified(time).unwrap();
    File::open(root).unwrap().set_modified(time).unwrap();
}

#[test]
fn a_file_that_changes_at_any_step_is_complete_or_an_error() {
    let work = tempfile::tempdir().unwrap();
    let (root, wanted, path) =
        (work.path().join("tree"), work.path().join("wanted"), work.path().join("image"));
    for compression in ["none", "lz4"] {
        fill(&root);
        let options = Options { threads: 1, ..options(compression, 65536, false) };
        build_at(&wanted, &scan(&root, &DirectoryOptions::default()).unwrap().tree, &options);
        let wanted = fs::read(&wanted).unwrap();
        for (change, apply) in CHANGES {
            for (name, len) in FILES {
                let mut errors = 0;
                // Before the build, and after each report of further bytes: if parts are searched, the last of up to four
                // such reports says that all was searched, and three segments are written.
                for step in 0..=LAST_STEP {
                    let tree = scan(&root, &DirectoryOptions::default()).unwrap().tree;
                    let file = File::create(&path).unwrap();
                    let (mut steps, mut done_bytes) = (0, 0);
                    let mut at_step = || {
                        if steps == step {
                            apply(&root.join(name));
                        }
                        steps += 1;
                    };
                    at_step();
                    let built = build(&tree, &options, &file, &mut |progress| {
                        // It is also called while the builder waits.
                        if progress.done_bytes > std::mem::replace(&mut done_bytes, progress.done_bytes) {
                            at_step();
                        }
                        ControlFlow::Continue(())
                    });
                    let what = format!("{compression}: {name} is {change} at step {step}");
                    match built {
                        Ok(_) => assert!(fs::read(&path).unwrap() == wanted, "{what}"),
                        Err(BuildError::Changed { path } | BuildError::Source { path, .. }) => {
                            assert_eq!(path, root.join(name), "{what}");
                            errors += 1;
                        }
                        Err(other) => panic!("{what}: {other}"),
                    }
                    if steps > step {
                        write_old(&root, name, len);
                    }
                }
                // The first file is complete at the end; the last one is looked at once more then.
                let is_right = errors > 0 && (errors <= LAST_STEP || name != "a");
                assert!(is_right, "{compression}: {name} is {change}: {errors} errors");
            }
        }
    }
}

/// Contents that are others each time they are opened.
#[derive(Debug)]
struct Changing {
    versions: Vec<Bytes>,
    opened: AtomicUsize,
}

impl Content for Changing {
    fn len_bytes(&self) -> u64 {
        self.versions[0].len_bytes()
    }

    fn open(&self) -> Result<Box<dyn Reader + '_>, BuildError> {
        let opened = self.opened.fetch_add(1, Ordering::Relaxed);
        self.versions[opened.min(self.versions.len() - 1)].open()
    }
}

/// Another file has contents of the one that changes, because of what was read first. It must not get the new ones.
#[test]
fn contents_that_others_share_are_those_of_the_first_reading() {
    let (whole, long) = (text(1_500_000, 1), text(20 << 20, 2));
    let part = [&text(200_000, 3)[..], &whole[..1_000_000]].concat();
    let cases = [
        ("equal files", "lz4", Dedupe::Chunks, &whole, &whole),
        ("a common part", "lz4", Dedupe::Chunks, &whole, &part),
        ("equal files of two segments", "lz4", Dedupe::Files, &long, &long),
        ("equal files that are not compressed", "none", Dedupe::Files, &long, &long),
    ];
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("image");
    for (what, compression, dedupe, first, other) in cases {
        for is_changed in [false, true] {
            let mut second = first.clone();
            if is_changed {
                second[first.len() * 2 / 5..][..1000].fill(b'!');
            }
            let versions = [first.clone(), second].map(|bytes| Bytes(bytes.into())).into();
            let changing = Arc::new(Changing { versions, opened: AtomicUsize::new(0) });
            let mut tree = Tree::new(Metadata::default());
            tree.add(InodeId::ROOT, b"a", Metadata::default(), Body::Regular(changing.clone())).unwrap();
            tree.add_bytes(b"b", other.clone()).unwrap();
            let options = Options { threads: 2, dedupe, ..options(compression, 65536, false) };
            let file = File::create(&path).unwrap();
            match build(&tree, &options, &file, &mut |_| ControlFlow::Continue(())) {
                Err(BuildError::Changed { path }) if is_changed => assert_eq!(path, Path::new("a"), "{what}"),
                Ok(_) if !is_changed => {
                    let image = open_checked(&path, what);
                    let found = contents(&image.find(b"b").unwrap(), 1 << 20).unwrap();
                    assert!(found == *other && changing.opened.load(Ordering::Relaxed) == 2, "{what}");
                }
                built => panic!("{what}, changed: {is_changed}: {built:?}"),
            }
        }
    }
}

/// A file that is changed, and gets its old time back.
#[test]
fn a_file_with_its_old_time_is_changed_nevertheless() {
    let work = tempfile::tempdir().unwrap();
    let root = work.path().join("tree");
    fill(&root);
    let tree = scan(&root, &DirectoryOptions::default()).unwrap().tree;
    let changed = File::options().write(true).open(root.join("b")).unwrap();
    changed.set_len(0).and_then(|()| (&changed).write_all(&[b'y'; 5000])).unwrap();
    changed.set_modified(UNIX_EPOCH + Duration::from_secs(1_000_000)).unwrap();
    let file = File::create(work.path().join("image")).unwrap();
    let built = build(&tree, &options("lz4", 65536, false), &file, &mut |_| ControlFlow::Continue(()));
    assert!(matches!(&built, Err(BuildError::Changed { path }) if *path == root.join("b")), "{built:?}");
}

/// Ends the thread that changes files, when a test fails too.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Names vanish between the listing of their directory and the look at them, too.
#[test]
fn a_directory_that_others_change_is_scanned_or_an_error() {
    let work = tempfile::tempdir().unwrap();
    let (root, path) = (work.path().join("tree"), work.path().join("image"));
    fs::create_dir(&root).unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in (0..40).cycle() {
                if is_done.load(Ordering::Relaxed) {
                    return;
                }
                let (file, directory) = (root.join(format!("f{i}")), root.join(format!("d{i}")));
                if fs::remove_file(&file).is_err() {
                    fs::write(&file, vec![1; 100 * i]).unwrap();
                }
                let _ = fs::create_dir(&directory);
                let _ = fs::rename(&file, directory.join("f"));
                if i % 3 == 0 {
                    let _ = fs::remove_dir_all(root.join(format!("d{}", (i + 20) % 40)));
                }
            }
        });
        let _done = Done(&is_done);
        let (mut images, mut errors) = (0, 0);
        for _ in 0..100 {
            let built = scan(&root, &DirectoryOptions::default()).and_then(|scanned| {
                let file = File::create(&path).unwrap();
                let options = Options { threads: 1, ..options("lz4", 4096, false) };
                build(&scanned.tree, &options, &file, &mut |_| ControlFlow::Continue(()))
            });
            match built {
                Ok(_) => {
                    open_checked(&path, "a directory in motion");
                    images += 1;
                }
                Err(BuildError::Changed { path } | BuildError::Source { path, .. }) => {
                    assert!(path.starts_with(&root), "{path:?}");
                    errors += 1;
                }
                Err(other) => panic!("{other}"),
            }
        }
        assert_eq!(images + errors, 100);
    });
}
