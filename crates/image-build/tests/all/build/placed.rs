//! Images whose contents are written while the archive comes, compared with those that are built from the archive as a file.

use super::{build_at, open_checked, options};
use crate::support::walk::{assert_same, walk};
use crate::tarball::Tarball;
use pagefold_image_build::source::tar::{self, Placing, TarOptions};
use pagefold_image_build::{BuildError, Options, Spill, Summary, build_placed, verify};
use pagefold_testkit::Random;
use std::fs::{self, File, OpenOptions};
use std::ops::ControlFlow;
use std::path::Path;

/// Builds an image at `at` from an archive that comes in pieces of up to `step` bytes.
fn placed(archive: &[u8], at: &Path, options: &Options, step: usize) -> Result<Summary, BuildError> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(at).unwrap();
    let (image, rest) = (file.try_clone().unwrap(), tempfile::tempfile().unwrap());
    let mut placing = Placing::new(options, &file, image, rest, &Spill::none())?;
    for piece in archive.chunks(step) {
        placing.write(piece)?;
    }
    let (parts, begun) = placing.finish()?;
    assert_eq!(parts.len_bytes, archive.len() as u64);
    let mut read = vec![0; archive.len()];
    parts.read_exact_at(&mut read, 0).unwrap();
    assert!(read == archive, "the parts are the archive");
    let go_on = &mut |_| ControlFlow::Continue(());
    let scanned = tar::scan_parts(parts, Path::new("a.tar"), &TarOptions::default(), go_on)?;
    let summary = build_placed(&scanned.tree, options, begun, &mut |_| ControlFlow::Continue(()))?;
    let image = open_checked(at, "a placed image");
    verify(&image, &scanned.tree, &summary.digests, &mut |_| ControlFlow::Continue(())).unwrap();
    Ok(summary)
}

/// Builds an image of the same archive as a file, and compares the trees. Returns the lengths of both images.
fn check(archive: &[u8], step: usize) -> (u64, u64) {
    let work = tempfile::tempdir().unwrap();
    let [at, other, file] = ["placed", "other", "a.tar"].map(|name| work.path().join(name));
    let options = Options { digests: true, ..options("none", 4096, false) };
    placed(archive, &at, &options, step).unwrap();
    fs::write(&file, archive).unwrap();
    let scanned = tar::scan(File::open(&file).unwrap(), &file, &TarOptions::default()).unwrap();
    build_at(&other, &scanned.tree, &options);
    let [found, wanted] = [&at, &other].map(|path| walk(&open_checked(path, "an image"), 100_000).unwrap());
    assert_same("a placed image", &found, &wanted);
    let len = |path: &Path| path.metadata().unwrap().len();
    (len(&at), len(&other))
}

fn bytes(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.next() as u8).collect()
}

#[test]
fn an_image_has_the_same_tree_whether_its_contents_are_placed_or_not() {
    let mut random = Random(7);
    let long = bytes(&mut random, (1 << 20) + 4097);
    let archive = Tarball::default()
        .member("d/", b'5', "")
        .file("d/short", b"short")
        .file("d/block", &bytes(&mut random, 4096))
        .file("long", &long)
        .file("long-again", &long)
        .file("twin", b"short")
        .file("empty", b"")
        .member("d/link", b'1', "long")
        .pax(b'x', &[("path", b"by-record"), ("size", b"600")])
        .raw(Tarball::header(b"short", b'0', 0), |_| {})
        .data(&bytes(&mut random, 600))
        .pax(b'x', &[("GNU.sparse.realsize", b"9000"), ("GNU.sparse.map", b"4096,3")])
        .raw(Tarball::header(b"sparse", b'0', 3), |_| {})
        .data(b"abc")
        .file("replaced", &bytes(&mut random, 5000))
        .file("replaced", b"new")
        .end();
    for step in [1 << 20, 4096, 700] {
        let (found, wanted) = check(&archive, step);
        assert!(found <= wanted + (2 << 20), "of files up to 1 MiB, equal ones are stored once");
    }
}

/// The splitter knows less than the reader of archives: all contents are right all the same.
#[test]
fn contents_that_are_not_recognized_are_copied() {
    let archive = Tarball::default()
        .file("before", b"1")
        .raw(Tarball::header(b"linked", b'1', 4), |block| block[157..163].copy_from_slice(b"before"))
        .data(b"skip")
        .file("after", &[2; 9000])
        .file("more", &[3; 3 << 20])
        .end();
    for step in [archive.len(), 511] {
        check(&archive, step);
    }
    // A hard link without contents that states a length.
    let archive = Tarball::default()
        .file("before", b"1")
        .raw(Tarball::header(b"linked", b'1', 512), |block| block[157..163].copy_from_slice(b"before"))
        .file("after", &[2; 9000])
        .end();
    check(&archive, 1000);
}

#[test]
fn random_archives_have_the_same_tree() {
    for seed in 0..20 {
        let mut random = Random(seed);
        let mut archive = Tarball::default();
        let mut seen: Vec<Vec<u8>> = vec![Vec::new()];
        for number in 0..random.next() % 40 {
            let name = format!("d{}/f{}", number % 3, random.next() % 30);
            let data = match random.next() % 4 {
                0 => seen[random.next() as usize % seen.len()].clone(),
                1 => vec![0; random.next() as usize % 20_000],
                2 => bytes(&mut random, 4096),
                _ => {
                    let len = random.next() as usize % 70_000;
                    bytes(&mut random, len)
                }
            };
            seen.push(data.clone());
            archive = archive.file(&name, &data);
        }
        let archive = archive.file("last", b"x").end();
        let step = 1 + random.next() as usize % 10_000;
        println!("seed {seed}");
        check(&archive, step);
    }
}

/// Archives with wrong bytes in headers are refused, or have the same tree, in both ways.
#[test]
fn damaged_archives_are_read_alike() {
    let work = tempfile::tempdir().unwrap();
    let [at, other] = ["placed", "other"].map(|name| work.path().join(name));
    let options = options("none", 4096, false);
    let whole = Tarball::default()
        .file("a", &[1; 700])
        .pax(b'x', &[("size", b"600")])
        .raw(Tarball::header(b"b", b'0', 0), |_| {})
        .data(&[2; 600])
        .member("c", b'1', "a")
        .long(b'L', b"a-longer-name")
        .file("d", &[3; 5000])
        .end();
    let mut accepted = 0;
    for seed in 0..300 {
        let mut random = Random(seed);
        let mut archive = whole.clone();
        for _ in 0..=random.next() % 2 {
            let at = random.index(archive.len());
            archive[at] = random.next() as u8;
            // With the right checksum again, if it is one of the first header.
            if (156..512).contains(&at) {
                let block: &mut [u8; 512] = archive.first_chunk_mut().unwrap();
                let fixed = Tarball::default().raw(*block, |_| {}).0;
                block.copy_from_slice(&fixed);
            }
        }
        let file = work.path().join("a.tar");
        fs::write(&file, &archive).unwrap();
        let scanned = tar::scan(File::open(&file).unwrap(), &file, &TarOptions::default());
        let found = placed(&archive, &at, &options, 1 + random.index(3000));
        assert_eq!(scanned.is_ok(), found.is_ok(), "seed {seed}: {:?} {:?}", scanned.err(), found.err());
        if let Ok(scanned) = scanned {
            accepted += 1;
            build_at(&other, &scanned.tree, &options);
            let [found, wanted] =
                [&at, &other].map(|path| walk(&open_checked(path, "an image"), 100_000).unwrap());
            assert_same("a placed image", &found, &wanted);
        }
    }
    assert!((50..300).contains(&accepted), "{accepted}");
}

#[test]
fn an_archive_that_is_cut_off_is_refused() {
    let archive = Tarball::default().file("a", &[1; 5000]).file("b", &[2; 5000]).0;
    let work = tempfile::tempdir().unwrap();
    let options = options("none", 4096, false);
    for len in [300, 512, 3000, 512 + 5000, archive.len() - 1] {
        let result = placed(&archive[..len], &work.path().join("image"), &options, 1000);
        assert!(matches!(result, Err(BuildError::Archive { .. })), "{len}: {result:?}");
    }
    let compressed = super::options("lz4", 4096, false);
    assert!(matches!(
        placed(&archive, &work.path().join("image"), &compressed, 1000),
        Err(BuildError::Options { .. })
    ));
}
