//! Malicious images: nothing is created outside the target, every tool ends, and faults are reported.

use crate::support::handmade::{
    CHAR_DEVICE, DIRECTORY, FIFO, File, REGULAR, SYMLINK, image, put_xattrs, unused, unused_after, xattr,
    xattr_area,
};
use pagefold_backing::{Backing, MemoryBacking};
use pagefold_image::extract::{ExtractOptions, ExtractReport, extract};
use pagefold_image::read::{FileKind, Mapping};
use pagefold_image::tree_stats::TreeStats;
use pagefold_image::walk::Limits;
use pagefold_image::{Findings, Image, Options, ReadAhead, tar};
use pagefold_image_check::{CheckOptions, Report, check};
use pagefold_sys::beneath::Folder;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn open(bytes: &[u8]) -> Image {
    let medium = MemoryBacking::new(bytes.len());
    medium.write_at(0, bytes).unwrap();
    let options = Options { read_ahead: ReadAhead::Off, cache_full_reads: false, ..Options::default() };
    Image::open(Arc::new(medium), options).unwrap()
}

fn checked(image: &Image) -> Report {
    check(image, &CheckOptions::default(), &|_| ()).unwrap()
}

fn extracted(image: &Image, target: &Path, overwrite: bool) -> ExtractReport {
    extracted_with(image, target, ExtractOptions { privileged: true, overwrite, ..ExtractOptions::default() })
}

fn extracted_with(image: &Image, target: &Path, options: ExtractOptions) -> ExtractReport {
    let folder = Folder::open(target).unwrap();
    extract(image, &folder, &[], &options, &AtomicBool::new(false), &|_| ()).unwrap()
}

/// Whether one of the findings has this path, and contains this text.
fn has_finding(findings: &Findings, path: &str, what: &str) -> bool {
    findings.recorded().iter().any(|f| f.path == path.as_bytes() && f.what.contains(what))
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_valid_tree_has_no_findings() {
    let bytes = image(&[
        File::directory(
            3,
            &[(".", 0, DIRECTORY), ("..", 0, DIRECTORY), ("d", 1, DIRECTORY), ("f", 2, REGULAR)],
        ),
        File::directory(2, &[(".", 1, DIRECTORY), ("..", 0, DIRECTORY)]),
        File::regular(b"contents"),
    ]);
    let report = checked(&open(&bytes));
    assert_eq!(report.findings.errors(), 0, "{:?}", report.findings.recorded());
    let target = tempfile::tempdir().unwrap();
    assert_eq!(extracted(&open(&bytes), target.path(), false).findings.recorded(), []);
    assert_eq!(names(target.path()), ["d", "f"]);
}

#[test]
fn no_name_leads_outside_the_target() {
    let outside = tempfile::tempdir().unwrap();
    let outside_path = outside.path().to_str().unwrap();
    for order in [["a", "x", "x", "y"], ["x", "y", "x", "z"]] {
        let file = |at: usize| match (order[at], order[..at].contains(&"x")) {
            ("x", false) => ("x", 1, SYMLINK),
            ("x", true) => ("x", 2, DIRECTORY),
            (name, _) => (name, 3, REGULAR),
        };
        let bytes = image(&[
            File::directory(
                3,
                &[
                    (".", 0, DIRECTORY),
                    ("..", 0, DIRECTORY),
                    ("..", 2, DIRECTORY),
                    ("../evil", 3, REGULAR),
                    ("/etc/evil", 3, REGULAR),
                    file(0),
                    file(1),
                    file(2),
                    file(3),
                ],
            ),
            File::symlink(outside_path),
            File::directory(2, &[(".", 2, DIRECTORY), ("..", 0, DIRECTORY), ("pwned", 3, REGULAR)]),
            File::regular(b"evil"),
        ]);
        let image = open(&bytes);
        let report = checked(&image);
        assert!(has_finding(&report.findings, "/", "slash"), "{:?}", report.findings.recorded());
        assert!(has_finding(&report.findings, "/", "'x' occurs twice"), "{:?}", report.findings.recorded());
        assert!(has_finding(&report.findings, "/", "'..' occurs twice"), "{:?}", report.findings.recorded());
        let top = tempfile::tempdir().unwrap();
        let target = top.path().join("target");
        std::fs::create_dir(&target).unwrap();
        for overwrite in [false, true] {
            let report = extracted(&image, &target, overwrite);
            assert!(report.findings.errors() >= 4, "{:?}", report.findings.recorded());
            assert!(target.join("x").symlink_metadata().unwrap().is_symlink());
            assert_eq!((names(top.path()), names(outside.path())), (vec!["target".into()], vec![]));
        }
        let mut archive = Vec::new();
        tar::write(&image, &[], &tar::TarOptions::default(), &mut archive).unwrap();
        assert!(!archive.windows(5).any(|w| w == b"pwned"));
    }
}

#[test]
fn symbolic_links_in_the_target_are_not_followed() {
    let bytes = image(&[
        File::directory(
            3,
            &[(".", 0, DIRECTORY), ("..", 0, DIRECTORY), ("d", 1, DIRECTORY), ("f", 2, REGULAR)],
        ),
        File::directory(2, &[(".", 1, DIRECTORY), ("..", 0, DIRECTORY), ("f", 2, REGULAR)]),
        File { nlink: 2, ..File::regular(b"contents") },
    ]);
    let (outside, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(outside.path().join("f"), "mine").unwrap();
    std::os::unix::fs::symlink(outside.path(), target.path().join("d")).unwrap();
    std::os::unix::fs::symlink(outside.path().join("f"), target.path().join("f")).unwrap();
    let report = extracted(&open(&bytes), target.path(), true);
    assert!(report.findings.recorded().is_empty(), "{:?}", report.findings.recorded());
    assert_eq!(std::fs::read(outside.path().join("f")).unwrap(), b"mine");
    for name in ["f", "d/f"] {
        assert_eq!(std::fs::read(target.path().join(name)).unwrap(), b"contents");
    }
    assert!(target.path().join("d").symlink_metadata().unwrap().is_dir());
    assert_eq!(names(outside.path()), ["f"]);
}

/// Another user who may write to the target replaces named pipes with links to a file, as soon as the pipes are
/// created.
#[test]
fn metadata_is_not_applied_through_a_link_that_replaces_a_new_file() {
    let names: Vec<String> = (0..200).map(|n| format!("p{n:03}")).collect();
    // Setting the attributes takes time between creating a pipe and setting its mode.
    let area = xattr_area(&[], &vec![xattr(4, b"a", b"1"); 24]);
    let stride = 1 + unused_after(area.len());
    let mut entries = vec![(".", 0, DIRECTORY), ("..", 0, DIRECTORY)];
    entries.extend(names.iter().enumerate().map(|(n, name)| (name.as_str(), 1 + n * stride, FIFO)));
    let mut files = vec![File::directory(2, &entries)];
    for _ in &names {
        files.push(File::fifo());
        files.extend((1..stride).map(|_| unused()));
    }
    let mut bytes = image(&files);
    for n in 0..names.len() {
        put_xattrs(&mut bytes, 1 + n * stride, &area);
    }
    for round in 0..10 {
        let top = tempfile::tempdir().unwrap();
        let (victim, target) = (top.path().join("victim"), top.path().join("target"));
        std::fs::write(&victim, "secret").unwrap();
        std::fs::set_permissions(&victim, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::create_dir(&target).unwrap();
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for name in &names {
                    let (link, pipe) = (top.path().join(name), target.join(name));
                    std::os::unix::fs::symlink(&victim, &link).unwrap();
                    while pipe.symlink_metadata().is_err() && !ended.load(Ordering::Relaxed) {}
                    std::fs::rename(&link, &pipe).unwrap();
                }
            });
            extracted(&open(&bytes), &target, false);
            ended.store(true, Ordering::Relaxed);
        });
        let mode = victim.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "round {round}");
    }
}

#[test]
fn directories_that_contain_themselves_are_entered_once() {
    let bytes = image(&[
        File::directory(
            3,
            &[(".", 0, DIRECTORY), ("..", 1, DIRECTORY), ("a", 1, DIRECTORY), ("b", 1, DIRECTORY)],
        ),
        File::directory(
            3,
            &[(".", 0, DIRECTORY), ("..", 0, DIRECTORY), ("loop", 0, DIRECTORY), ("self", 1, REGULAR)],
        ),
    ]);
    let report = checked(&open(&bytes));
    for (path, what) in [
        ("/", "'..' is inode 2, and should be 0"),
        ("/a", "'.' is inode 0, and should be 2"),
        ("/a/loop", "another one"),
        ("/a/self", "another one"),
        ("/a/self", "its entry says that it is a regular file"),
        ("/b", "another one"),
    ] {
        assert!(has_finding(&report.findings, path, what), "{path} {what}: {:?}", report.findings.recorded());
    }
    let target = tempfile::tempdir().unwrap();
    extracted(&open(&bytes), target.path(), false);
    assert_eq!((names(target.path()), names(&target.path().join("a"))), (vec!["a".into()], vec![]));
}

#[test]
fn the_depth_of_a_walk_is_limited() {
    let count = 1500;
    let level = |n: usize| {
        let above = n.saturating_sub(1);
        match n + 1 < count {
            true => {
                File::directory(3, &[(".", n, DIRECTORY), ("..", above, DIRECTORY), ("d", n + 1, DIRECTORY)])
            }
            false => File::directory(2, &[(".", n, DIRECTORY), ("..", above, DIRECTORY)]),
        }
    };
    let bytes = image(&(0..count).map(level).collect::<Vec<_>>());
    let report = checked(&open(&bytes));
    assert!(report.findings.recorded().iter().any(|f| f.what.contains("levels")), "{report:?}");
    assert!(report.inodes < 1100);
}

#[test]
fn impossible_sizes_do_not_take_long() {
    let bytes = image(&[
        File::directory(
            3,
            &[
                (".", 0, DIRECTORY),
                ("..", 0, DIRECTORY),
                ("beyond", 3, REGULAR),
                ("dir", 1, DIRECTORY),
                ("hole", 2, REGULAR),
            ],
        ),
        File::hole(0o040_755, 1 << 60),
        File::hole(0o100_644, 1 << 62),
        File { size: 1 << 50, ..File::regular(b"short") },
    ]);
    let report = checked(&open(&bytes));
    assert!(has_finding(&report.findings, "/beyond", "are there"), "{:?}", report.findings.recorded());
    assert!(has_finding(&report.findings, "/dir", "too many faults"), "{:?}", report.findings.recorded());
    assert!(report.findings.errors() < 100 && report.bytes == 0);
    let target = tempfile::tempdir().unwrap();
    let report = extracted(&open(&bytes), target.path(), false);
    assert!(has_finding(&report.findings, "/beyond", ""), "{:?}", report.findings.recorded());
    assert!(!target.path().join("beyond").exists());
}

#[test]
fn wrong_link_counts_are_reported() {
    let bytes = image(&[
        File::directory(
            5,
            &[
                (".", 0, DIRECTORY),
                ("..", 0, DIRECTORY),
                ("a", 1, REGULAR),
                ("b", 1, REGULAR),
                ("c", 2, REGULAR),
                ("l", 3, SYMLINK),
                ("n", 900, REGULAR),
            ],
        ),
        File::regular(b"link count 1"),
        File { nlink: 3, ..File::regular(b"link count 3") },
        File::symlink(""),
    ]);
    let report = checked(&open(&bytes));
    for (path, what) in [
        ("/", "it contains 0 directories, and its link count is 5"),
        ("", "inode 2 says that it has 1 names, and has 2"),
        ("/c", "inode 4 says that it has 3 names, and has 1"),
        ("/l", "to nothing"),
        ("/n", ""),
    ] {
        assert!(has_finding(&report.findings, path, what), "{path} {what}: {:?}", report.findings.recorded());
    }
}

/// Corrects the super block's checksum: CRC-32C of its block without the final inversion.
fn reseal(bytes: &mut [u8]) {
    bytes[1028..1032].fill(0);
    let sum = !crc32c::crc32c(&bytes[1024..4096]);
    bytes[1028..1032].copy_from_slice(&sum.to_le_bytes());
}

fn reference() -> Vec<u8> {
    std::fs::read(crate::support::reference_image("lz4hc64")).unwrap()
}

#[test]
fn a_bad_cluster_is_one_finding_and_loses_one_file() {
    let mut bytes = reference();
    let node = open(&bytes).find(b"/text1m.txt").unwrap();
    assert_eq!(node.kind(), FileKind::Regular);
    let extent = node.extent_at(300_000).unwrap().unwrap();
    let Mapping::Compressed(cluster) = extent.mapping else { panic!("{extent:?}") };
    let start = cluster.at.offset as usize;
    bytes[start..start + cluster.len_bytes as usize].fill(0xff);
    let report = checked(&open(&bytes));
    let [finding] = report.findings.recorded() else { panic!("{:?}", report.findings.recorded()) };
    assert_eq!(finding.path, b"/text1m.txt");
    assert_eq!(finding.at, Some(cluster.at));
    let range = format!("bytes {} to {}", extent.start, extent.end());
    assert!(finding.what.starts_with(&range), "{finding}");
    let target = tempfile::tempdir().unwrap();
    // The image has devices, which only root can create.
    let privileged = rustix::process::geteuid().is_root();
    let options = ExtractOptions { privileged, ..ExtractOptions::default() };
    let report = extracted_with(&open(&bytes), target.path(), options);
    assert!(has_finding(&report.findings, "/text1m.txt", "") && report.findings.errors() == 1);
    assert!(!target.path().join("text1m.txt").exists() && target.path().join("zeros.bin").exists());
    let report = tar::write(&open(&bytes), &[], &tar::TarOptions::default(), std::io::sink()).unwrap();
    assert_eq!((report.findings.errors(), report.members), (1, 1023));
}

#[test]
fn no_name_of_an_unreadable_file_remains() {
    // It claims more bytes than the image has. The walk meets its second name while its contents wait in the queue.
    let file = File { nlink: 2, size: 1 << 20, ..File::regular(b"short") };
    let entries = [(".", 0, DIRECTORY), ("..", 0, DIRECTORY), ("a", 1, REGULAR), ("b", 1, REGULAR)];
    let image = open(&image(&[File::directory(2, &entries), file]));
    for threads in [1, 2, 8] {
        let target = tempfile::tempdir().unwrap();
        let report =
            extracted_with(&image, target.path(), ExtractOptions { threads, ..ExtractOptions::default() });
        assert_eq!(names(target.path()), [""; 0], "{threads} threads");
        assert!(has_finding(&report.findings, "/a", ""), "{:?}", report.findings.recorded());
        assert!(
            has_finding(&report.findings, "/b", "another name of '/a'"),
            "{:?}",
            report.findings.recorded()
        );
        assert_eq!(report.counts.links, 0);
    }
}

#[test]
fn a_truncated_image_is_reported() {
    let bytes = reference();
    let report = checked(&open(&bytes[..bytes.len() / 2]));
    assert!(has_finding(&report.findings, "", "cut off"), "{:?}", report.findings.recorded());
    assert!(report.findings.errors() > 1);
}

/// Every tool ends without a panic, whatever the value of a single byte.
#[test]
fn flipped_bytes_do_not_make_a_tool_panic() {
    let bytes = reference();
    let image = open(&bytes);
    let mut offsets: Vec<u64> = Vec::new();
    for name in ["/", "/bigdir", "/text1m.txt", "/lnk", "/sparse", "/bigdir/file_0000_.txt"] {
        let inode = image.find(name.as_bytes()).unwrap().inode().clone();
        offsets.extend((0..96).step_by(7).map(|n| inode.address.offset + n));
    }
    for (n, offset) in offsets.into_iter().enumerate() {
        let mut bytes = bytes.clone();
        bytes[offset as usize] ^= 1 << (n % 8) | 0x10;
        reseal(&mut bytes);
        let image = open(&bytes);
        let Ok(root) = image.root() else { continue };
        if root.kind() != FileKind::Directory {
            continue;
        }
        let _ = check(&image, &CheckOptions::default(), &|_| ());
        let _ = TreeStats::of_image(&image, &Limits::default());
        if n % 8 == 0 {
            let target = tempfile::tempdir().unwrap();
            let options = ExtractOptions { max_bytes: Some(1 << 28), ..ExtractOptions::default() };
            let folder = Folder::open(target.path()).unwrap();
            let _ = extract(&image, &folder, &[], &options, &AtomicBool::new(false), &|_| ());
        }
    }
}

/// A file in the target whose name the image has must not get the further names of a file that was not extracted.
#[test]
fn no_older_file_gets_names_of_one_that_is_left_out_or_cannot_be_made() {
    let names_of = |kind| [(".", 0, DIRECTORY), ("..", 0, DIRECTORY), ("a", 1, kind), ("b", 1, kind)];
    let device = File { mode: 0o020_600, nlink: 2, size: 0, contents: Some(Vec::new()) };
    let target = tempfile::tempdir().unwrap();
    std::fs::write(target.path().join("a"), "mine").unwrap();
    let options = ExtractOptions { overwrite: true, ..ExtractOptions::default() };
    let bytes = image(&[File::directory(2, &names_of(CHAR_DEVICE)), device]);
    let report = extracted_with(&open(&bytes), target.path(), options.clone());
    assert_eq!((report.counts.skipped_devices, report.counts.links), (2, 0), "{report:?}");
    assert_eq!(report.findings.recorded(), []);
    assert_eq!(names(target.path()), ["a"]);
    // The directory has its metadata nevertheless.
    assert_eq!(target.path().metadata().unwrap().modified().unwrap(), std::time::UNIX_EPOCH);

    // A directory that is too deep to be removed.
    std::fs::remove_file(target.path().join("a")).unwrap();
    std::fs::create_dir_all(target.path().join(["a"; 140].join("/"))).unwrap();
    let file = File { nlink: 2, ..File::regular(b"contents") };
    let bytes = image(&[File::directory(2, &names_of(REGULAR)), file]);
    let report = extracted_with(&open(&bytes), target.path(), options);
    assert!(has_finding(&report.findings, "/a", "removing the existing directory"), "{report:?}");
    assert!(
        has_finding(&report.findings, "/b", "another name of '/a', which could not be made"),
        "{report:?}"
    );
    assert_eq!(names(target.path()), ["a"]);
}

#[test]
fn a_file_stays_if_the_link_for_its_name_cannot_be_read() {
    let names_of = [(".", 0, DIRECTORY), ("..", 0, DIRECTORY), ("link", 1, SYMLINK)];
    let bytes = image(&[File::directory(2, &names_of), File::hole(0o120_777, 1 << 40)]);
    let target = tempfile::tempdir().unwrap();
    std::fs::write(target.path().join("link"), "mine").unwrap();
    let report = extracted(&open(&bytes), target.path(), true);
    assert_eq!(report.findings.errors(), 1, "{report:?}");
    assert_eq!(std::fs::read(target.path().join("link")).unwrap(), b"mine");
}
