//! Heap of building an image from an archive whose members have much metadata, or of one long file: with a spill it does not
//! grow with them.
//!
//! A counting global allocator measures the heap; the mapped file of a spill is not on it.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "../../image/tests/support/counting.rs"]
mod counting;
#[path = "support/tarball.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod tarball;

use counting::{measure, run_alone};
use pagefold_image_build::source::directory::{self, DirectoryOptions};
use pagefold_image_build::source::tar::{self, TarOptions};
use pagefold_image_build::source::{Layers, Whiteouts};
use pagefold_image_build::{
    Compression, Dedupe, LIST_BYTES_MAX, LIST_PATHS_MAX, Metadata, Options, Sort, SortList, Spill, Target,
    Tree, XattrFilter, build,
};
use std::fs::{self, File};
use std::io::Write;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tarball::Tarball;

const MIB: usize = 1 << 20;
/// Members of each kind.
const MEMBERS: u32 = 12_000;
/// Sparse members, and the runs of each.
const SPARSE_MEMBERS: u32 = 60;
const RUNS: u32 = 4000;

/// Files with an attribute each, names of them, whiteouts of one directory, and sparse files.
fn archive(at: &Path) {
    let mut tarball = Tarball::default();
    for number in 0..MEMBERS {
        let value = [&number.to_le_bytes()[..], &[7; 2000]].concat();
        tarball = tarball.pax(b'x', &[("SCHILY.xattr.user.checksum", &value)]);
        tarball = tarball.file(&format!("d/file-{number}"), b"");
        tarball = tarball.member(&format!("d/name-{number}"), b'1', &format!("d/file-{number}"));
        tarball = tarball.file(&format!("d/.wh.removed-{number}"), b"");
    }
    for number in 0..SPARSE_MEMBERS {
        let map: Vec<String> = (0..RUNS).map(|run| format!("{},1", run * 2)).collect();
        let map = map.join(",");
        let records: [(&str, &[u8]); 3] = [
            ("GNU.sparse.major", b"0"),
            ("GNU.sparse.realsize", b"8000"),
            ("GNU.sparse.map", map.as_bytes()),
        ];
        tarball = tarball.pax(b'x', &records).file(&format!("sparse-{number}"), &[9; RUNS as usize]);
    }
    fs::write(at, tarball.end()).unwrap();
}

/// Scans the archive and builds an image of it. Returns the image, and the peak of heap bytes.
fn image_of(path: &Path, out: &Path, spill: &Spill) -> (Vec<u8>, usize) {
    let compression = Compression::parse("lz4").unwrap();
    let options = Options {
        threads: 1,
        compression,
        cluster_bytes: 4096,
        dedupe: Dedupe::Files,
        memory_bytes: Some(64 << 20),
        ..Options::for_target(Target::new(6, 12))
    };
    let ((), peak, _) = measure(|| {
        let tar_options =
            TarOptions { whiteouts: Whiteouts::Overlay, spill: spill.clone(), ..TarOptions::default() };
        let scanned = tar::scan(File::open(path).unwrap(), path, &tar_options).unwrap();
        let out = File::create(out).unwrap();
        build(&scanned.tree, &options, &out, &mut |_| ControlFlow::Continue(())).unwrap();
    });
    (fs::read(out).unwrap(), peak)
}

#[test]
fn attributes_links_whiteouts_and_maps_spill() {
    let _alone = run_alone();
    let work = tempfile::tempdir().unwrap();
    let (path, out) = (work.path().join("a.tar"), work.path().join("image"));
    archive(&path);
    let (wanted, plain) = image_of(&path, &out, &Spill::none());
    let spill = Spill::in_directory(work.path(), 0).unwrap();
    let (found, spilled) = image_of(&path, &out, &spill);
    assert!(found == wanted, "the spill changes the image");
    println!("heap with a spill {} KiB, without {} KiB", spilled >> 10, plain >> 10);
    // The attributes alone are 24 MB, and the maps 6 MB.
    assert!(plain > 40 * MIB, "{plain}");
    assert!(spilled < 24 * MIB, "{spilled}");
}

/// Merges layers that replace each other's files, and returns the number of names and the peak of heap bytes.
fn merge(path: &Path, layers: usize, spill: &Spill) -> (usize, usize) {
    let (names, peak, _) = measure(|| {
        let mut merged = Layers::new(None, spill).unwrap();
        for _ in 0..layers {
            let scanned = tar::scan(File::open(path).unwrap(), path, merged.tar_options()).unwrap();
            merged.push(scanned, path, &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
        }
        let tree = merged.finish(&[], &XattrFilter::default()).unwrap().tree;
        tree.entries(tree.find(b"d").unwrap()).count()
    });
    (names, peak)
}

#[test]
fn layers_spill_while_they_are_merged() {
    let _alone = run_alone();
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("a.tar");
    archive(&path);
    let (wanted, plain) = merge(&path, 3, &Spill::none());
    let spill = Spill::in_directory(work.path(), 0).unwrap();
    let (found, spilled) = merge(&path, 3, &spill);
    assert!(found == wanted && found == 2 * MEMBERS as usize, "{found} {wanted}");
    println!("heap with a spill {} KiB, without {} KiB", spilled >> 10, plain >> 10);
    assert!(plain > 60 * MIB, "{plain}");
    assert!(spilled < 24 * MIB, "{spilled}");
}

/// Writes a file of which nothing but the beginning compresses: each block is an extent.
fn write_blocks(at: &Path, len_mib: u64) {
    let mut file = File::create(at).unwrap();
    let mut state = 1u64;
    for n in 0..len_mib * 16 {
        let mut piece = vec![0; 64 << 10];
        for word in piece.chunks_exact_mut(8).filter(|_| n > 0) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            word.copy_from_slice(&(state ^ state >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
        }
        file.write_all(&piece).unwrap();
    }
}

/// The bytes of the largest unnamed file in a directory that this process has open.
fn unnamed_bytes(directory: &Path) -> u64 {
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten().map(|entry| entry.path());
    let unnamed = open.filter(|fd| {
        fs::read_link(fd).is_ok_and(|at| {
            at.starts_with(directory) && at.as_os_str().to_string_lossy().ends_with("(deleted)")
        })
    });
    unnamed.filter_map(|fd| fs::metadata(fd).ok()).map(|stat| stat.blocks() * 512).max().unwrap_or(0)
}

/// The extents of a long file, and its index, are in the spill, and take no more heap than those of a shorter one.
#[test]
fn extents_and_index_of_a_file_spill() {
    let _alone = run_alone();
    let work = tempfile::tempdir().unwrap();
    let (root, out) = (work.path().join("root"), work.path().join("image"));
    fs::create_dir(&root).unwrap();
    let built = |len_mib: u64| {
        write_blocks(&root.join("file"), len_mib);
        let options = Options {
            threads: 1,
            compression: Compression::parse("lz4").unwrap(),
            cluster_bytes: 4096,
            dedupe: Dedupe::Nothing,
            fragments: false,
            // Little more than the least: one long segment is under way at once.
            memory_bytes: Some(48 << 20),
            ..Options::for_target(Target::new(6, 12))
        };
        let mut spilled = 0;
        let (summary, peak, _) = measure(|| {
            let spill = Spill::in_directory(work.path(), 0).unwrap();
            let scan_options = DirectoryOptions { spill, ..DirectoryOptions::default() };
            let scanned = directory::scan(&root, &scan_options).unwrap();
            let out = File::create(&out).unwrap();
            build(&scanned.tree, &options, &out, &mut |_| {
                spilled = unnamed_bytes(work.path()).max(spilled);
                ControlFlow::Continue(())
            })
            .unwrap()
        });
        assert_eq!(summary.inodes, 2);
        (peak, spilled)
    };
    // How many of the short segments at the end are under way at once differs from one build to the next, by some MiB. So the
    // least of several builds counts: extents on the heap would be in each.
    let mut peaks = [usize::MAX; 2];
    for _ in 0..40 {
        let [short, long] = [192, 640].map(built);
        peaks = [peaks[0].min(short.0), peaks[1].min(long.0)];
        // There are 114688 further extents of 24 bytes.
        assert!(long.1 > short.1 + (2 << 20), "{short:?} and {long:?} bytes of heap and spill");
        if peaks[1] < peaks[0] + MIB {
            return;
        }
    }
    panic!("{peaks:?} bytes of heap");
}

/// The longest list there is takes its bytes, a table of their ends, and while it is parsed a table of hashes.
#[test]
fn a_long_list_takes_little_more_than_its_bytes() {
    let _alone = run_alone();
    let text: String = (0..LIST_PATHS_MAX).map(|n| format!("d/{n:013}\n")).collect();
    assert_eq!(text.len(), LIST_BYTES_MAX);
    let (list, parsing, _) = measure(|| SortList::parse(text.as_bytes()).unwrap());
    assert_eq!(list.paths().count(), LIST_PATHS_MAX);
    let work = tempfile::tempdir().unwrap();
    let spill = Spill::in_directory(work.path(), 0).unwrap();
    let mut tree = Tree::with_spill(Metadata::default(), &spill).unwrap();
    for n in 0..100_000 {
        tree.add_bytes(format!("d/{:013}", n * 10).as_bytes(), *b"x").unwrap();
    }
    let file = File::create(work.path().join("image")).unwrap();
    let peak_with = |sort: Sort| {
        let compression = Compression::parse("lz4").unwrap();
        let newest = Options::for_target(Target::new(6, 12));
        let options = Options { threads: 1, compression, cluster_bytes: 4096, sort, ..newest };
        let (summary, peak, _) =
            measure(|| build(&tree, &options, &file, &mut |_| ControlFlow::Continue(())).unwrap());
        (summary.listed.found, peak)
    };
    let ((_, without), (found, with)) = (peak_with(Sort::Similarity), peak_with(Sort::List(list)));
    println!(
        "parsing {} KiB; building {} KiB, without a list {} KiB",
        parsing >> 10,
        with >> 10,
        without >> 10
    );
    assert_eq!(found, 100_000);
    assert!(parsing < 44 * MIB, "{parsing}");
    assert!(with < without + MIB, "{with}, {without}");
}
