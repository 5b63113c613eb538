//! What the tools take for images that are made to make them grow: memory, and work.
//!
//! The allocator counts. Media are allocated before, and buffers of the budget are no part of the heap.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use crate::support::handmade::{DIRECTORY, File, REGULAR, image};
use pagefold_backing::{Backing, MemoryBacking};
use pagefold_image::check::{CheckOptions, check};
use pagefold_image::extract::{ExtractOptions, extract};
use pagefold_image::survey::Survey;
use pagefold_image::walk::Limits;
use pagefold_image::{Findings, Image, Options, ReadAhead};
use pagefold_sys::beneath::Folder;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

struct Counting;

static USED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static CALLS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator as it is; counting touches atomics only.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Relaxed);
        let used = USED.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(used, Relaxed);
        // SAFETY: the caller's promise is the one that this call needs.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise is the one that this call needs.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One test at a time: there is one counter.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The most heap that `f` took at a time, bytes, and its allocations.
fn counted<T>(f: impl FnOnce() -> T) -> (T, usize, usize) {
    let (before, calls) = (USED.load(Relaxed), CALLS.load(Relaxed));
    PEAK.store(before, Relaxed);
    let result = f();
    (result, PEAK.load(Relaxed) - before, CALLS.load(Relaxed) - calls)
}

const MIB: usize = 1 << 20;

fn open(bytes: &[u8], memory_bytes: u64) -> Image {
    let medium = MemoryBacking::new(bytes.len());
    medium.write_at(0, bytes).unwrap();
    let options =
        Options { memory_bytes, read_ahead: ReadAhead::Off, keep_asked: false, ..Options::default() };
    Image::open(Arc::new(medium), options).unwrap()
}

/// Findings of a check by one thread, which has a buffer of 1 MiB.
fn checked(image: &Image) -> Findings {
    let options = CheckOptions { jobs: 1, ..CheckOptions::default() };
    check(image, &options, &|_| ()).unwrap().findings
}

fn says(findings: &Findings, what: &str) -> bool {
    findings.kept().iter().any(|finding| finding.what.contains(what))
}

/// A directory of these entries in this order, in as many blocks as they take.
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
fn findings_with_long_paths_do_not_add_up() {
    let _alone = alone();
    let (levels, count) = (200, 3000);
    let mut files = Vec::new();
    for level in 0..levels {
        let name = std::iter::once(("d".repeat(255), level + 1, DIRECTORY));
        files.push(directory(3, dots(level, level.saturating_sub(1)).chain(name)));
    }
    // Every file is said to be a directory.
    let wrong = (0..count).map(|n| (format!("{n:08}"), levels + 1 + n, DIRECTORY));
    files.push(directory(2, dots(levels, levels - 1).chain(wrong)));
    files.extend((0..count).map(|_| File::hole(0o100_644, 0)));
    let image = open(&image(&files), 64 << 20);
    let (findings, peak, _) = counted(|| checked(&image));
    assert!(findings.errors() >= count as u64 && !findings.kept().is_empty());
    assert!(peak < 12 * MIB, "check: {peak}");
    let (survey, peak, _) = counted(|| Survey::of_image(&image, &Limits::default()).unwrap());
    assert!(survey.findings.errors() >= count as u64 && peak < 12 * MIB, "survey: {peak}");
}

#[test]
fn a_directory_in_disorder_is_looked_at_as_far_as_the_budget_goes() {
    let _alone = alone();
    let count = 300_000;
    let names = (0..count).rev().map(|n| (format!("{n:06}"), 1, REGULAR));
    let root = directory(2, dots(0, 0).chain(names));
    let bytes = image(&[root, File { nlink: count, ..File::regular(b"x") }]);
    let small = open(&bytes, 2 << 20);
    let (findings, peak, _) = counted(|| checked(&small));
    assert!(says(&findings, "not in order") && says(&findings, "too little memory"), "{findings:?}");
    assert!(peak < 5 * MIB, "{peak}");
    let large = open(&bytes, 64 << 20);
    let (findings, peak, _) = counted(|| checked(&large));
    assert!(says(&findings, "not in order") && !says(&findings, "too little memory"), "{findings:?}");
    assert_eq!(findings.errors(), 1, "{findings:?}");
    assert!(peak < 16 * MIB, "{peak}");
    assert_eq!(large.stats().budget.in_use_bytes, large.stats().cached_bytes);
}

#[test]
fn files_with_several_names_are_counted_as_far_as_the_budget_goes() {
    let _alone = alone();
    let count = 100_000;
    let names = |word: &'static str| (0..count).map(move |n| (format!("{word}{n:06}"), 1 + n, REGULAR));
    let root = |again: bool| {
        let second = names("b").take(if again { count } else { 0 });
        directory(2, dots(0, 0).chain(names("a")).chain(second))
    };
    let files = || (0..count).map(|_| File { nlink: 2, ..File::hole(0o100_644, 0) });
    let once = image(&std::iter::once(root(false)).chain(files()).collect::<Vec<_>>());
    let small = open(&once, 2 << 20);
    let (findings, peak, _) = counted(|| checked(&small));
    assert!(says(&findings, "too little memory to count the names"), "{findings:?}");
    assert!(peak < 7 * MIB, "{peak}");
    let (findings, _, _) = counted(|| checked(&open(&once, 64 << 20)));
    assert_eq!(findings.errors(), count as u64);
    let twice = image(&std::iter::once(root(true)).chain(files()).collect::<Vec<_>>());
    let (findings, _, _) = counted(|| checked(&open(&twice, 64 << 20)));
    assert_eq!((findings.errors(), findings.warnings()), (0, 1), "{findings:?}");
}

#[test]
fn paths_of_files_that_wait_to_be_decoded_are_counted() {
    let _alone = alone();
    let (levels, count) = (200, 2000);
    let mut files = Vec::new();
    for level in 0..levels {
        let name = std::iter::once(("d".repeat(255), level + 1, DIRECTORY));
        files.push(directory(3, dots(level, level.saturating_sub(1)).chain(name)));
    }
    let inside = (0..count).map(|n| (format!("{n:08}"), levels + 1, REGULAR));
    files.push(directory(2, dots(levels, levels - 1).chain(inside.take(1))));
    files.push(File::regular(&vec![7; 40 << 20]));
    let image = open(&image(&files), 4 << 20);
    // A queue of 64 tasks for each of 64 workers, which are not started: the path is shared by the ranges of the file.
    let options = CheckOptions { jobs: 1, ..CheckOptions::default() };
    let (report, peak, _) = counted(|| check(&image, &options, &|_| ()).unwrap());
    assert_eq!(report.findings.errors(), 0);
    assert!(peak < 5 * MIB, "{peak}");
}

/// How many files this process may have open.
fn set_open_files(count: u64) -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(count), maximum: now.maximum }).unwrap();
    now.current.unwrap_or(1024)
}

#[test]
fn deep_directories_take_neither_a_descriptor_nor_a_path_each() {
    let _alone = alone();
    let levels = 400;
    let mut files = Vec::new();
    for level in 0..levels {
        // Something is made before and behind the directory, in each.
        let names = [("a".to_string(), levels + 1, REGULAR), ("d".repeat(255), level + 1, DIRECTORY)];
        let last = std::iter::once(("z".to_string(), levels + 2, REGULAR));
        files.push(directory(3, dots(level, level.saturating_sub(1)).chain(names).chain(last)));
    }
    files.push(directory(2, dots(levels, levels - 1)));
    files.extend([File::regular(b"before"), File::regular(b"behind")]);
    let image = open(&image(&files), 64 << 20);
    let target = tempfile::tempdir().unwrap();
    let folder = Folder::open(target.path()).unwrap();
    let options = ExtractOptions { jobs: 1, ..ExtractOptions::default() };
    let before = set_open_files(128);
    let (report, peak, _) =
        counted(|| extract(&image, &folder, &[], &options, &AtomicBool::new(false), &|_| ()).unwrap());
    set_open_files(before.max(1024));
    // The two files say that they have one name, and have many.
    assert!(report.findings.kept().iter().all(|f| f.what.contains("names")), "{:?}", report.findings.kept());
    assert_eq!(report.files, (levels + 2 * levels) as u64);
    assert!(peak < 8 * MIB, "{peak}");
    // As deep as a path can say it; all of them have what their inode says.
    let mut path = target.path().to_path_buf();
    for _ in 0..12 {
        assert_eq!(std::fs::read(path.join("a")).unwrap(), b"before");
        assert_eq!(std::fs::read(path.join("z")).unwrap(), b"behind");
        path.push("d".repeat(255));
        let mode = std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions());
        assert_eq!(mode & 0o7777, 0o755);
    }
}

/// An inode of 64 bytes with `count` attributes `user.000000` and so on, without values, as the only file of a root.
fn with_attributes(count: usize) -> Vec<u8> {
    let mut bytes = image(&[
        directory(2, dots(0, 0).chain(std::iter::once(("f".to_string(), 64, REGULAR)))),
        File::hole(0o100_644, 0),
    ]);
    // Behind everything: the inode's number is its place in slots of 32 bytes from block 1 on.
    let place = bytes.len().next_multiple_of(4096);
    bytes.resize(place, 0);
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
    let nid = ((place - 4096) / 32) as u64;
    // The entry of `f` says 2 * 64.
    let entry = bytes.windows(8).rposition(|w| w == 128u64.to_le_bytes()).unwrap();
    bytes[entry..entry + 8].copy_from_slice(&nid.to_le_bytes());
    let blocks = (bytes.len() / 4096) as u32;
    bytes[1024 + 0x24..][..4].copy_from_slice(&blocks.to_le_bytes());
    bytes
}

#[test]
fn the_work_for_attributes_grows_with_their_number_and_not_its_square() {
    let _alone = alone();
    let count = 20_000;
    let image = open(&with_attributes(count), 64 << 20);
    assert_eq!(image.find(b"/f").unwrap().xattrs().unwrap().len(), count);
    let (findings, _, calls) = counted(|| checked(&image));
    assert_eq!(findings.errors(), 0, "{findings:?}");
    assert!(calls < 20 * count, "{calls} allocations");
}
