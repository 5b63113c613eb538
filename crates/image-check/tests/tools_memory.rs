//! Memory and work of the tools for images that try to make them grow without bound.
//!
//! A counting global allocator measures the heap. Media are allocated before a measurement, and buffers of the budget
//! are not on the heap.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "../../image/tests/support/counting.rs"]
mod counting;
#[path = "../../image/tests/support/mod.rs"]
mod support;

use crate::counting::{measure, run_alone};
use crate::support::handmade::{
    DIRECTORY, File, REGULAR, image, index_len, lz4, put_clusters, unused, unused_after,
};
use pagefold_backing::layer::{DelayLayer, DelayOptions, SystemClock};
use pagefold_backing::{Backing, MemoryBacking};
use pagefold_image::extract::{ExtractOptions, extract};
use pagefold_image::tree_stats::TreeStats;
use pagefold_image::walk::Limits;
use pagefold_image::{Findings, Image, Options, ReadAhead};
use pagefold_image_check::{CheckOptions, check};
use pagefold_sys::beneath::Folder;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const MIB: usize = 1 << 20;

fn open(bytes: &[u8], memory_bytes: u64) -> Image {
    let medium = MemoryBacking::new(bytes.len());
    medium.write_at(0, bytes).unwrap();
    Image::open(Arc::new(medium), options(memory_bytes)).unwrap()
}

fn options(memory_bytes: u64) -> Options {
    Options { memory_bytes, read_ahead: ReadAhead::Off, cache_full_reads: false, ..Options::default() }
}

/// The findings of a check with one thread, which has a buffer of 1 MiB.
fn checked(image: &Image) -> Findings {
    let options = CheckOptions { threads: 1, ..CheckOptions::default() };
    check(image, &options, &|_| ()).unwrap().findings
}

fn has_finding(findings: &Findings, what: &str) -> bool {
    findings.recorded().iter().any(|finding| finding.what.contains(what))
}

/// A directory with these entries in this order, in as many blocks as they need.
fn directory(nlink: u32, entries: impl Iterator<Item = (String, usize, u8)>) -> File {
    const BLOCK: usize = 4096;
    let (mut contents, mut block, mut bytes) = (Vec::new(), Vec::new(), 0);
    let end_block = |contents: &mut Vec<u8>, block: &mut Vec<(String, usize, u8)>| {
        let mut names: Vec<u8> = Vec::new();
        contents.resize(contents.len().next_multiple_of(BLOCK), 0);
        for (name, file, kind) in block.iter() {
            contents.extend((2 * *file as u64).to_le_bytes());
            contents.extend(((block.len() * 12 + names.len()) as u16).to_le_bytes());
            contents.extend([*kind, 0]);
            names.extend(name.as_bytes());
        }
        contents.extend(names);
        block.clear();
    };
    for entry in entries {
        if bytes + 12 + entry.0.len() > BLOCK {
            end_block(&mut contents, &mut block);
            bytes = 0;
        }
        bytes += 12 + entry.0.len();
        block.push(entry);
    }
    end_block(&mut contents, &mut block);
    File { mode: 0o040_755, nlink, size: contents.len() as u64, contents: Some(contents) }
}

fn dots(own: usize, above: usize) -> impl Iterator<Item = (String, usize, u8)> {
    [(".".to_string(), own, DIRECTORY), ("..".to_string(), above, DIRECTORY)].into_iter()
}

#[test]
fn findings_with_long_paths_take_bounded_memory() {
    let _alone = run_alone();
    let (levels, count) = (200, 3000);
    let mut files = Vec::new();
    for level in 0..levels {
        let name = std::iter::once(("d".repeat(255), level + 1, DIRECTORY));
        files.push(directory(3, dots(level, level.saturating_sub(1)).chain(name)));
    }
    // Every entry of a file claims to be a directory.
    let wrong = (0..count).map(|n| (format!("{n:08}"), levels + 1 + n, DIRECTORY));
    files.push(directory(2, dots(levels, levels - 1).chain(wrong)));
    files.extend((0..count).map(|_| File::hole(0o100_644, 0)));
    let image = open(&image(&files), 64 << 20);
    let (findings, peak, _) = measure(|| checked(&image));
    assert!(findings.errors() >= count as u64 && !findings.recorded().is_empty());
    assert!(peak < 12 * MIB, "check: {peak}");
    let (stats, peak, _) = measure(|| TreeStats::of_image(&image, &Limits::default()).unwrap());
    assert!(stats.findings.errors() >= count as u64 && peak < 12 * MIB, "stats: {peak}");
}

#[test]
fn an_unsorted_directory_is_checked_as_far_as_the_budget_allows() {
    let _alone = run_alone();
    let count = 300_000;
    let names = (0..count).rev().map(|n| (format!("{n:06}"), 1, REGULAR));
    let root = directory(2, dots(0, 0).chain(names));
    let bytes = image(&[root, File { nlink: count, ..File::regular(b"x") }]);
    let small = open(&bytes, 2 << 20);
    let (findings, peak, _) = measure(|| checked(&small));
    assert!(
        has_finding(&findings, "not in order") && has_finding(&findings, "too little memory"),
        "{findings:?}"
    );
    assert_eq!(findings.errors() - findings.damage(), 1, "too little memory is no fault of the image");
    assert!(peak < 5 * MIB, "{peak}");
    let large = open(&bytes, 64 << 20);
    let (findings, peak, _) = measure(|| checked(&large));
    assert!(
        has_finding(&findings, "not in order") && !has_finding(&findings, "too little memory"),
        "{findings:?}"
    );
    assert_eq!(findings.errors(), 1, "{findings:?}");
    assert!(peak < 16 * MIB, "{peak}");
    assert_eq!(large.stats().budget.in_use_bytes, large.stats().cached_bytes);
}

/// Long names, in descending order, which LZ4 compresses to a sixteenth: in memory the names would take far more than
/// the image.
#[test]
fn an_unsorted_compressed_directory_takes_little_memory_and_is_decoded_once() {
    const NAMES: usize = 60_000;
    const CLUSTER_BLOCKS: usize = 16;
    let _alone = run_alone();
    let names = (0..NAMES).rev().map(|n| (format!("{}{n:06}", "x".repeat(244)), 2, REGULAR));
    let mut contents = directory(2, dots(1, 0).chain(names)).contents.unwrap();
    contents.resize(contents.len().next_multiple_of(4096), 0);
    let compress = |raw: &[u8]| (lz4(raw, &[1, 12, 250, 4096]), raw.len() / 4096);
    let clusters: Vec<_> = contents.chunks(CLUSTER_BLOCKS * 4096).map(compress).collect();
    let root = directory(3, dots(0, 0).chain(std::iter::once(("d".to_string(), 1, DIRECTORY))));
    let mut files = vec![root, directory(2, std::iter::empty())];
    files.extend((0..unused_after(index_len(contents.len()))).map(|_| unused()));
    let mut bytes = image(&files);
    put_clusters(&mut bytes, 1, &clusters);
    assert!(bytes.len() < contents.len() / 12, "{} of {}", bytes.len(), contents.len());
    for memory_bytes in [2 << 20, 64 << 20] {
        let image = open(&bytes, memory_bytes);
        let (findings, peak, _) = measure(|| checked(&image));
        assert!(has_finding(&findings, "not in order"), "{findings:?}");
        assert!(peak < 8 * MIB, "{memory_bytes}: {peak}");
        let decoded = image.stats().reads.clusters as usize;
        assert!(
            decoded <= clusters.len() + clusters.len() / 10,
            "{memory_bytes}: {decoded} of {}",
            clusters.len()
        );
    }
}

#[test]
fn names_of_files_are_counted_as_far_as_the_budget_allows() {
    let _alone = run_alone();
    let count = 100_000;
    let names = |word: &'static str| (0..count).map(move |n| (format!("{word}{n:06}"), 1 + n, REGULAR));
    let root = |twice: bool| {
        let second = names("b").take(if twice { count } else { 0 });
        directory(2, dots(0, 0).chain(names("a")).chain(second))
    };
    let files = || (0..count).map(|_| File { nlink: 2, ..File::hole(0o100_644, 0) });
    let once = image(&std::iter::once(root(false)).chain(files()).collect::<Vec<_>>());
    let small = open(&once, 2 << 20);
    let (findings, peak, _) = measure(|| checked(&small));
    assert!(has_finding(&findings, "too little memory to count the names"), "{findings:?}");
    assert!(peak < 7 * MIB, "{peak}");
    let (findings, _, _) = measure(|| checked(&open(&once, 64 << 20)));
    assert_eq!(findings.errors(), count as u64);
    let doubled = image(&std::iter::once(root(true)).chain(files()).collect::<Vec<_>>());
    let (findings, _, _) = measure(|| checked(&open(&doubled, 64 << 20)));
    assert_eq!((findings.errors(), findings.warnings()), (0, 1), "{findings:?}");
}

/// The medium is slow with contents, so that the queue of a worker fills: 64 files, whose paths take three times the
/// budget.
#[test]
fn paths_of_files_in_the_queue_are_charged_to_the_budget() {
    let _alone = run_alone();
    let (levels, count) = (900, 80);
    let mut files = Vec::new();
    for level in 0..levels {
        let name = std::iter::once(("d".repeat(255), level + 1, DIRECTORY));
        files.push(directory(3, dots(level, level.saturating_sub(1)).chain(name)));
    }
    let inside = (0..count).map(|n| (format!("{n:08}"), levels + 1 + n, REGULAR));
    files.push(directory(2, dots(levels, levels - 1).chain(inside)));
    files.extend((0..count).map(|_| File::regular(&vec![7; 256 << 10])));
    let bytes = image(&files);
    let medium = MemoryBacking::new(bytes.len());
    medium.write_at(0, &bytes).unwrap();
    let slow = DelayOptions { delay: Duration::ZERO, bytes_per_s: Some(64 << 20), ..DelayOptions::default() };
    let medium = DelayLayer::new(medium, slow, Arc::new(SystemClock::default()));
    let image = Image::open(Arc::new(medium), options(4 << 20)).unwrap();
    let (findings, peak, _) = measure(|| checked(&image));
    assert_eq!(findings.errors(), 0, "{findings:?}");
    assert!(peak < 8 * MIB, "{peak}");
}

/// Each directory of the path fills a block.
#[test]
fn deep_directories_do_not_keep_a_block_each() {
    let _alone = run_alone();
    let levels = 1000;
    let mut files = Vec::new();
    for level in 0..levels {
        let below = std::iter::once(("a".to_string(), level + 1, DIRECTORY));
        let names = (0..14).map(|n| (format!("b{n:02}{}", "b".repeat(250)), levels + 1, REGULAR));
        files.push(directory(3, dots(level, level.saturating_sub(1)).chain(below).chain(names)));
    }
    files.push(directory(2, dots(levels, levels - 1)));
    files.push(File { nlink: 14 * levels as u32, ..File::regular(b"x") });
    let image = open(&image(&files), 64 << 20);
    let (findings, peak, _) = measure(|| checked(&image));
    assert_eq!(findings.errors(), 0, "{findings:?}");
    assert!(peak < 4 * MIB, "{peak}");
}

/// Sets the limit of open files of this process, and returns the old one.
fn set_open_files(count: u64) -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(count), maximum: now.maximum }).unwrap();
    now.current.unwrap_or(1024)
}

#[test]
fn deep_directories_do_not_take_a_descriptor_or_a_path_each() {
    let _alone = run_alone();
    let levels = 400;
    let mut files = Vec::new();
    for level in 0..levels {
        // Each directory has a file before and a file after its subdirectory.
        let names = [("a".to_string(), levels + 1, REGULAR), ("d".repeat(255), level + 1, DIRECTORY)];
        let last = std::iter::once(("z".to_string(), levels + 2, REGULAR));
        files.push(directory(3, dots(level, level.saturating_sub(1)).chain(names).chain(last)));
    }
    files.push(directory(2, dots(levels, levels - 1)));
    files.extend([File::regular(b"before"), File::regular(b"behind")]);
    let image = open(&image(&files), 64 << 20);
    let target = tempfile::tempdir().unwrap();
    let folder = Folder::open(target.path()).unwrap();
    let options = ExtractOptions { threads: 1, ..ExtractOptions::default() };
    let before = set_open_files(128);
    let (report, peak, _) =
        measure(|| extract(&image, &folder, &[], &options, &AtomicBool::new(false), &|_| ()).unwrap());
    set_open_files(before.max(1024));
    // The two files have a link count of 1, and many names.
    assert!(
        report.findings.recorded().iter().all(|f| f.what.contains("names")),
        "{:?}",
        report.findings.recorded()
    );
    assert_eq!(report.counts.files, (levels + 2 * levels) as u64);
    assert!(peak < 8 * MIB, "{peak}");
    // Compare as deep as a path can be long: every directory has its mode and its files.
    let mut path = target.path().to_path_buf();
    for _ in 0..12 {
        assert_eq!(std::fs::read(path.join("a")).unwrap(), b"before");
        assert_eq!(std::fs::read(path.join("z")).unwrap(), b"behind");
        path.push("d".repeat(255));
        let mode = std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions());
        assert_eq!(mode & 0o7777, 0o755);
    }
}

/// An image whose root has one file `f`, with `count` attributes `user.000000` and so on, without values.
fn with_attributes(count: usize) -> Vec<u8> {
    let mut bytes = image(&[
        directory(2, dots(0, 0).chain(std::iter::once(("f".to_string(), 64, REGULAR)))),
        File::hole(0o100_644, 0),
    ]);
    // The inode goes after everything else; its number counts slots of 32 bytes from block 1 on.
    let start = bytes.len().next_multiple_of(4096);
    bytes.resize(start, 0);
    let mut inode = bytes[4096 + 64..][..64].to_vec();
    let mut area = vec![0; 12];
    for n in 0..count {
        // Name length, prefix 1 (`user.`), value length.
        area.extend([6, 1, 0, 0]);
        area.extend(format!("{n:06}").bytes());
        area.resize(area.len().next_multiple_of(4), 0);
    }
    let slots = (area.len() - 12) / 4 + 1;
    inode[2..4].copy_from_slice(&(u16::try_from(slots).unwrap()).to_le_bytes());
    bytes.extend(inode);
    bytes.extend(area);
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    let nid = ((start - 4096) / 32) as u64;
    // The entry of `f` names inode 2 * 64.
    let entry = bytes.windows(8).rposition(|w| w == 128u64.to_le_bytes()).unwrap();
    bytes[entry..entry + 8].copy_from_slice(&nid.to_le_bytes());
    let blocks = (bytes.len() / 4096) as u32;
    bytes[1024 + 0x24..][..4].copy_from_slice(&blocks.to_le_bytes());
    bytes
}

#[test]
fn work_for_attributes_grows_linearly_with_their_number() {
    let _alone = run_alone();
    let count = 4_000;
    let image = open(&with_attributes(count), 64 << 20);
    assert_eq!(image.find(b"/f").unwrap().xattrs().unwrap().len(), count);
    let (findings, _, calls) = measure(|| checked(&image));
    assert_eq!(findings.errors(), 0, "{findings:?}");
    assert!(calls < 20 * count, "{calls} allocations");
}
