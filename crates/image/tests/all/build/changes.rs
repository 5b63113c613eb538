//! Files that change while an image of their directory is built: the image has what was there when the build began, or
//! there is an error with the name of the file.

use super::{build_at, open_checked, options};
use pagefold_image::build::source::directory::{DirectoryOptions, scan};
use pagefold_image::build::{BuildError, Options, build};
use std::fs::{self, File};
use std::io::Write;
use std::ops::ControlFlow;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// Two segments, and two files of one.
const FILES: [(&str, usize); 3] = [("a", (16 << 20) + 100), ("b", 5000), ("c", 100)];

/// Fills a directory with files that are old, so that a change gives them another time.
fn fill(root: &Path) {
    let _ = fs::remove_dir_all(root);
    fs::create_dir(root).unwrap();
    for (name, len) in FILES {
        fs::write(root.join(name), vec![b'x'; len]).unwrap();
        let file = File::options().append(true).open(root.join(name)).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(1_000_000)).unwrap();
    }
    File::open(root).unwrap().set_modified(UNIX_EPOCH + Duration::from_secs(1_000_000)).unwrap();
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
            for (name, _) in FILES {
                let mut errors = 0;
                // Before the build, and after each of the four segments.
                for step in 0..=4 {
                    fill(&root);
                    let tree = scan(&root, &DirectoryOptions::default()).unwrap().tree;
                    let file = File::create(&path).unwrap();
                    let mut steps = 0;
                    let mut at_step = || {
                        if steps == step {
                            apply(&root.join(name));
                        }
                        steps += 1;
                    };
                    at_step();
                    let built = build(&tree, &options, &file, &mut |_| {
                        at_step();
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
                }
                // The first file is complete at the end; the last one is looked at once more then.
                let is_right = errors > 0 && (errors <= 4 || name != "a");
                assert!(is_right, "{compression}: {name} is {change}: {errors} errors");
            }
        }
    }
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
