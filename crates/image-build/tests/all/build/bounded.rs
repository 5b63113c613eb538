//! Builds in bounded memory: the image is the same, and what does not fit lies in a file.

use super::{build_at, open_checked, options};
use pagefold_image_build::source::directory::{self, DirectoryOptions};
use pagefold_image_build::source::{image, tar};
use pagefold_image_build::{BuildError, Dedupe, Metadata, Options, Spill, Target, Tree, verify};
use pagefold_testkit::skipped;
use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

/// Small and long files, equal ones, links and attributes: enough names for several chunks of each table.
fn fill(tree: &mut Tree) {
    let word = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17).to_le_bytes();
    for n in 0..30_000u64 {
        let path = format!("d{:03}/a name that is not short {n:06}.{}", n * 7 % 211, n % 5);
        let contents: Vec<u8> = (0..n % 9).flat_map(|i| word(n / 3 + i)).collect();
        let id = tree.add_bytes(path.as_bytes(), contents).unwrap();
        let changed = tree.change(id, |metadata| {
            metadata.mtime.seconds = 1_700_000_000 + (n % 4000) as i64;
            if n.is_multiple_of(100) {
                let value = (n % 300).to_string().into_bytes();
                metadata.xattrs = vec![(b"user.n".as_slice().into(), value.into())];
            }
        });
        changed.unwrap();
    }
    let long: Vec<u8> = (0..200_000u64).flat_map(|n| word(n / 5)).collect();
    for n in 0..3 {
        tree.add_bytes(format!("long-{n}").as_bytes(), long.as_slice()).unwrap();
        let shifted = [&long[n * 1000..1_000_000], b"the end"].concat();
        tree.add_bytes(format!("shifted-{n}").as_bytes(), shifted).unwrap();
    }
}

fn spilled() -> (Tree, Spill) {
    let spill = Spill::in_directory(&std::env::temp_dir(), 0).unwrap();
    let mut tree = Tree::with_spill(Metadata::default(), &spill).unwrap();
    fill(&mut tree);
    (tree, spill)
}

#[test]
fn the_image_does_not_depend_on_memory_or_threads() {
    let work = tempfile::tempdir().unwrap();
    let mut tree = Tree::new(Metadata::default());
    fill(&mut tree);
    let (spilled, spill) = spilled();
    assert!(spill.mapped_bytes() >= 2 << 20, "{}", spill.mapped_bytes());
    for (compression, cluster_bytes, metabox) in [("lz4", 16384, false), ("zstd:3", 65536, true)] {
        let target = Target::new(6, if metabox { 18 } else { 12 });
        let options = Options {
            target,
            compress_metadata: metabox,
            digests: true,
            ..options(compression, cluster_bytes, true)
        };
        let options = Options { fragments: true, dedupe: Dedupe::Chunks, ..options };
        let wanted = work.path().join("wanted");
        build_at(&wanted, &tree, &options);
        let wanted = fs::read(wanted).unwrap();
        for (threads, memory_mib) in [(1, 64), (4, 256), (7, 1024)] {
            let limited = Options { threads, memory_bytes: Some(memory_mib << 20), ..options.clone() };
            let path = work.path().join("image");
            let summary = build_at(&path, &spilled, &limited);
            let what = format!("{compression}, {threads} threads, {memory_mib} MiB");
            assert!(fs::read(&path).unwrap() == wanted, "{what}");
            assert!((1..=threads).contains(&summary.threads), "{what}");
            if threads == 7 {
                let image = open_checked(&path, &what);
                let continues = &mut |_| ControlFlow::Continue(());
                verify(&image, &spilled, &summary.digests, continues).unwrap();
            }
        }
    }
}

/// Every source gives the same tree with a spill and without.
#[test]
fn sources_spill_too() {
    let work = tempfile::tempdir().unwrap();
    let (root, archive, first) =
        (work.path().join("tree"), work.path().join("a.tar"), work.path().join("first"));
    let folder = |n: u32| root.join(format!("d{}", n % 50));
    let path =
        |n: u32| folder(n).join(format!("a file with a long name, so that names take some room: {n:060}"));
    for n in 0..12_000 {
        if n < 50 {
            fs::create_dir_all(folder(n)).unwrap();
        }
        match n % 10 {
            0 => symlink(format!("to {n}"), path(n)).unwrap(),
            // A further name in another directory.
            1 if n > 10 => fs::hard_link(path(n - 9), path(n)).unwrap(),
            _ => fs::write(path(n), n.to_string()).unwrap(),
        }
    }
    let spill = || Spill::in_directory(&std::env::temp_dir(), 0).unwrap();
    let image_of = |tree: &Tree, path: &Path| {
        build_at(path, tree, &options("lz4", 4096, true));
        fs::read(path).unwrap()
    };
    let wanted = image_of(&directory::scan(&root, &DirectoryOptions::default()).unwrap().tree, &first);
    let at = work.path().join("image");
    let scanned = directory::scan(&root, &DirectoryOptions { spill: spill(), ..DirectoryOptions::default() });
    let tree = scanned.unwrap().tree;
    assert!(tree.spill().mapped_bytes() > 0);
    assert!(image_of(&tree, &at) == wanted, "a directory");
    let opened = open_checked(&first, "first");
    let image_options = image::ImageOptions { spill: spill(), ..image::ImageOptions::default() };
    let scanned = image::scan_watched(&opened, &image_options, &mut |_| ControlFlow::Continue(()));
    let tree = scanned.unwrap().tree;
    assert!(tree.spill().mapped_bytes() > 0 && image_of(&tree, &at) == wanted, "an image");
    let mut run = Command::new("tar");
    run.args(["--numeric-owner", "--format=pax", "-cf"]).arg(&archive).arg("-C").arg(&root).arg(".");
    if !run.status().is_ok_and(|status| status.success()) {
        skipped!("sources_spill_too: tar is not installed");
        return;
    }
    let options = tar::TarOptions { spill: spill(), ..tar::TarOptions::default() };
    let tree = tar::scan(File::open(&archive).unwrap(), &archive, &options).unwrap().tree;
    assert!(tree.spill().mapped_bytes() > 0 && image_of(&tree, &at) == wanted, "an archive");
}

#[test]
fn a_spill_that_cannot_grow_is_an_error() {
    let spill = Spill::in_directory(&std::env::temp_dir(), 0).unwrap();
    spill.limit(3 << 20);
    let mut tree = Tree::with_spill(Metadata::default(), &spill).unwrap();
    let failed = (0..200_000).find_map(|n| tree.add_bytes(format!("name {n}").as_bytes(), *b"x").err());
    assert!(matches!(failed, Some(BuildError::Spool { .. })), "{failed:?}");
    // The names before it are still there.
    assert!(tree.find(b"name 100").is_some());
}

#[test]
fn memory_that_suffices_for_no_thread_is_refused() {
    let options = Options { memory_bytes: Some(16 << 20), ..options("zstd:12", 65536, true) };
    let error = options.spill(Path::new(".")).unwrap_err().to_string();
    assert!(error.contains("16 MiB of memory does not suffice"), "{error}");
}

/// The ends of many files complete segments of the packed file, which are written later than they are compressed.
#[test]
fn a_long_file_behind_many_ends_finds_room() {
    let word = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23).to_le_bytes();
    let mut tree = Tree::new(Metadata::default());
    for n in 0..70u64 {
        let contents: Vec<u8> = (0..14_000).flat_map(|i| word((n * 14_000 + i) / 3)).collect();
        tree.add_bytes(format!("a{n:02}").as_bytes(), contents).unwrap();
    }
    let long: Vec<u8> = (0..15_000_000u64).flat_map(|n| word(n / 1000)).collect();
    tree.add_bytes(b"b", long).unwrap();
    let work = tempfile::tempdir().unwrap();
    let image_of = |memory_bytes, threads, name: &str| {
        let options =
            Options { memory_bytes, threads, dedupe: Dedupe::Nothing, ..options("lz4", 65536, true) };
        let options = Options { target: Target::new(6, 12), fragments: true, ..options };
        let path = work.path().join(name);
        build_at(&path, &tree, &options);
        fs::read(path).unwrap()
    };
    assert!(image_of(None, 4, "wanted") == image_of(Some(64 << 20), 1, "image"));
}

/// A spill that is full at any point fails the build or the scan, and nothing else.
#[test]
fn each_growth_of_a_spill_may_fail() {
    let (tree, spill) = spilled();
    let options = Options { digests: true, ..options("lz4", 16384, true) };
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("image");
    let begun = spill.mapped_bytes();
    build_at(&path, &tree, &options);
    let mut failures = 0;
    for further in 0.. {
        spill.limit(begun + (further << 19));
        let file = File::create(&path).unwrap();
        match pagefold_image_build::build(&tree, &options, &file, &mut |_| ControlFlow::Continue(())) {
            Ok(_) => break,
            Err(BuildError::Spool { .. }) => failures += 1,
            Err(e) => panic!("{e}"),
        }
    }
    assert!(failures > 3, "{failures}");
    assert_eq!(spill.mapped_bytes(), begun);
}
