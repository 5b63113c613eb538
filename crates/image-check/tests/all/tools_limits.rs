//! Images with sizes, holes, attributes and paths beyond the usual or the possible.

use crate::support::handmade::*;
use pagefold_backing::{Backing, MemoryBacking};
use pagefold_image::extract::{ExtractOptions, ExtractReport, extract};
use pagefold_image::{Findings, Image, ImageError, Options, ReadAhead, tar};
use pagefold_image_check::{CheckOptions, Report, check};
use pagefold_sys::beneath::Folder;
use pagefold_testkit::skipped;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn medium(bytes: &[u8]) -> Arc<MemoryBacking> {
    let medium = MemoryBacking::new(bytes.len());
    medium.write_at(0, bytes).unwrap();
    Arc::new(medium)
}

fn options() -> Options {
    Options { read_ahead: ReadAhead::Off, cache_full_reads: false, ..Options::default() }
}

fn open(bytes: &[u8]) -> Image {
    Image::open(medium(bytes), options()).unwrap()
}

fn checked(image: &Image) -> Report {
    check(image, &CheckOptions::default(), &|_| ()).unwrap()
}

/// The findings that concern a path. These images have no checksum, which is a finding without a path.
fn file_findings(report: &Report) -> Vec<String> {
    report.findings.recorded().iter().filter(|f| !f.path.is_empty()).map(|f| f.to_string()).collect()
}

/// Extracts the whole image; fails if that takes more than a minute.
fn extracted(image: &Image, target: &Path) -> ExtractReport {
    let (began, cancelled) = (Instant::now(), AtomicBool::new(false));
    let folder = Folder::open(target).unwrap();
    let options = ExtractOptions { privileged: true, ..ExtractOptions::default() };
    let report = extract(image, &folder, &[], &options, &cancelled, &|_| {
        cancelled.store(began.elapsed() > Duration::from_secs(60), Ordering::Relaxed);
    });
    let report = report.unwrap();
    assert!(!report.interrupted, "it took too long: {report:?}");
    report
}

fn has_finding(findings: &Findings, path: &str, what: &str) -> bool {
    findings.recorded().iter().any(|f| f.path == path.as_bytes() && f.what.contains(what))
}

/// A directory on a file system that allows a sparse file of `len` bytes.
fn folder_for_sparse_files(len: u64, test: &str) -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir_in("/dev/shm").ok()?;
    let probe = std::fs::File::create(folder.path().join("probe")).unwrap();
    match probe.set_len(len) {
        Ok(()) => {
            std::fs::remove_file(folder.path().join("probe")).unwrap();
            Some(folder)
        }
        Err(e) => {
            skipped!("{test}: /dev/shm does not allow files of {len} bytes: {e}");
            None
        }
    }
}

#[test]
fn a_hole_at_the_end_of_a_file_is_not_written() {
    let test = "a_hole_at_the_end_of_a_file_is_not_written";
    let Some(target) = folder_for_sparse_files(HUGE, test) else { return };
    let bytes = image(&[
        File::directory(
            2,
            &[
                (".", 0, DIRECTORY),
                ("..", 0, DIRECTORY),
                ("a", 1, REGULAR),
                ("b", 2, REGULAR),
                ("c", 2, REGULAR),
            ],
        ),
        File::hole(0o100_644, HUGE),
        File { nlink: 2, ..File::hole(0o100_644, 5000) },
    ]);
    assert_eq!(file_findings(&checked(&open(&bytes))), [""; 0]);
    let report = extracted(&open(&bytes), target.path());
    assert_eq!((report.findings.recorded(), report.counts.bytes, report.counts.links), (&[][..], 0, 1));
    let len = |name: &str| target.path().join(name).metadata().unwrap().len();
    assert_eq!([len("a"), len("b"), len("c")], [HUGE, 5000, 5000]);
}

#[test]
fn a_file_that_was_removed_because_it_could_not_be_written_does_not_count() {
    let names = [(".", 0, DIRECTORY), ("..", 0, DIRECTORY), ("cut", 2, REGULAR), ("whole", 1, REGULAR)];
    let cut = File { nlink: 2, ..File::regular(&[1; 8192]) };
    let mut bytes = image(&[File::directory(2, &names), File { nlink: 2, ..File::regular(b"whole") }, cut]);
    bytes.truncate(bytes.len() - 4096);
    let target = tempfile::tempdir().unwrap();
    let report = extracted(&open(&bytes), target.path());
    assert!(!target.path().join("cut").exists() && target.path().join("whole").exists());
    assert!(has_finding(&report.findings, "/cut", "cut off"), "{report:?}");
    assert_eq!(report.counts.files, 1);
}

#[test]
fn a_hole_in_the_packed_file_is_a_hole() {
    let test = "a_hole_in_the_packed_file_is_a_hole";
    let Some(target) = folder_for_sparse_files(HUGE, test) else { return };
    let mut bytes =
        image_of(&[("f", REGULAR)], vec![File::hole(0o100_644, HUGE - 4096), File::hole(0o100_644, HUGE)]);
    set_packed(&mut bytes, 3);
    make_fragment(&mut bytes, 1, 4096);
    let report = checked(&open(&bytes));
    assert_eq!((file_findings(&report).join("\n"), report.bytes), (String::new(), 0));
    let report = extracted(&open(&bytes), target.path());
    assert_eq!((report.findings.recorded(), report.counts.bytes), (&[][..], 0));
    assert_eq!(target.path().join("f").metadata().unwrap().len(), HUGE - 4096);
    let mut archive = Vec::new();
    tar::write(&open(&bytes), &[], &tar::TarOptions::default(), &mut archive).unwrap();
    assert!(archive.len() < 16 << 10, "{} bytes", archive.len());
}

#[test]
fn a_fragment_beyond_the_image_is_reported_in_few_findings() {
    let mut packed = File::regular(b"short");
    packed.size = HUGE;
    let mut bytes = image_of(&[("f", REGULAR)], vec![File::hole(0o100_644, HUGE - 4096), packed]);
    set_packed(&mut bytes, 3);
    make_fragment(&mut bytes, 1, 4096);
    let report = checked(&open(&bytes));
    assert!(has_finding(&report.findings, "/f", "are there"), "{:?}", report.findings.recorded());
    assert!(report.findings.errors() < 10 && report.bytes < 8192, "{report:?}");
    let mut archive = Vec::new();
    let report = tar::write(&open(&bytes), &[], &tar::TarOptions::default(), &mut archive).unwrap();
    assert!(has_finding(&report.findings, "/f", "are there"), "{:?}", report.findings.recorded());
    assert!(archive.len() < 16 << 10, "{} bytes", archive.len());
}

#[test]
fn a_root_that_is_not_a_directory_is_refused() {
    for root in [File::regular(b"contents"), File::symlink("x"), File::fifo()] {
        let bytes = image(&[root]);
        let error = check(&open(&bytes), &CheckOptions::default(), &|_| ()).unwrap_err();
        assert!(error.to_string().contains("root"), "{error}");
        assert!(tar::write(&open(&bytes), &[], &tar::TarOptions::default(), std::io::sink()).is_err());
        let target = tempfile::tempdir().unwrap();
        std::fs::set_permissions(target.path(), std::fs::Permissions::from_mode(0o750)).unwrap();
        let folder = Folder::open(target.path()).unwrap();
        let extracted = extract(
            &open(&bytes),
            &folder,
            &[],
            &ExtractOptions::default(),
            &AtomicBool::new(false),
            &|_| (),
        );
        assert!(extracted.is_err(), "{extracted:?}");
        assert_eq!(target.path().metadata().unwrap().mode() & 0o7777, 0o750);
    }
}

#[test]
fn a_hard_link_to_a_path_longer_than_path_max_is_created() {
    let name = "d".repeat(250);
    let levels = 20;
    let mut files: Vec<File> = (0..levels)
        .map(|n: usize| {
            let above = n.saturating_sub(1);
            let (dot, last) = ((".", n, DIRECTORY), n + 1 == levels);
            match (n, last) {
                (_, true) => File::directory(2, &[dot, ("..", above, DIRECTORY), ("f", levels, REGULAR)]),
                (0, _) => File::directory(
                    3,
                    &[dot, ("..", above, DIRECTORY), (&name, n + 1, DIRECTORY), ("z", levels, REGULAR)],
                ),
                _ => File::directory(3, &[dot, ("..", above, DIRECTORY), (&name, n + 1, DIRECTORY)]),
            }
        })
        .collect();
    files.push(File { nlink: 2, ..File::regular(b"contents") });
    let target = tempfile::tempdir().unwrap();
    let report = extracted(&open(&image(&files)), target.path());
    assert_eq!((report.findings.recorded(), report.counts.links), (&[][..], 1));
    assert_eq!(target.path().join("z").metadata().unwrap().nlink(), 2);
}

fn access_list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, may, id) in entries {
        value.extend([tag.to_le_bytes(), may.to_le_bytes()].concat());
        value.extend(id.to_le_bytes());
    }
    value
}

/// The findings of a check for a file with this attribute, in one text.
fn check_with_attribute(file: File, kind: u8, entry: Vec<u8>) -> String {
    let area = xattr_area(&[], &[entry]);
    let mut files = vec![
        File::directory(
            2 + u32::from(kind == DIRECTORY),
            &[(".", 0, DIRECTORY), ("..", 0, DIRECTORY), ("f", 1, kind)],
        ),
        file,
    ];
    files.extend((0..unused_after(area.len())).map(|_| unused()));
    let mut bytes = image(&files);
    put_xattrs(&mut bytes, 1, &area);
    let report = checked(&open(&bytes));
    file_findings(&report).join("\n")
}

#[test]
fn check_reports_attributes_that_cannot_be_set() {
    const NONE: u32 = u32::MAX;
    const ACCESS: u8 = 2;
    const DEFAULT: u8 = 3;
    let file = || File::regular(b"x");
    let dir = || File::directory(2, &[(".", 1, DIRECTORY), ("..", 0, DIRECTORY)]);
    let least = [(1, 6, NONE), (4, 4, NONE), (0x20, 4, NONE)];
    let full =
        [(1, 7, NONE), (2, 5, 1000), (2, 5, 1001), (4, 5, NONE), (8, 1, 7), (0x10, 7, NONE), (0x20, 0, NONE)];
    for good in [&least[..], &full, &[]] {
        let found = check_with_attribute(file(), REGULAR, xattr(ACCESS, b"", &access_list(good)));
        assert_eq!(found, "", "{good:?}");
        let found = check_with_attribute(dir(), DIRECTORY, xattr(DEFAULT, b"", &access_list(good)));
        assert_eq!(found, "", "{good:?}");
    }
    let wrong =
        |found: String, what: &str| assert!(found.contains("error") && found.contains(what), "{found:?}");
    let cut = access_list(&least)[..19].to_vec();
    let old = [&1u32.to_le_bytes()[..], &access_list(&least)[4..]].concat();
    for (bad, what) in [
        (cut, "bytes"),
        (vec![2, 0], "bytes"),
        (old, "version 1"),
        (access_list(&[(1, 6, NONE), (4, 4, NONE)]), "others"),
        (access_list(&[(4, 4, NONE), (1, 6, NONE), (0x20, 4, NONE)]), "order"),
        (access_list(&[(1, 6, NONE), (2, 6, 5), (4, 4, NONE), (0x20, 4, NONE)]), "mask"),
        (access_list(&[(1, 9, NONE), (4, 4, NONE), (0x20, 4, NONE)]), "permissions"),
        (access_list(&[(1, 6, NONE), (3, 4, NONE), (0x20, 4, NONE)]), "kind"),
        (
            access_list(&[(1, 6, NONE), (2, 6, NONE), (4, 4, NONE), (0x10, 7, NONE), (0x20, 4, NONE)]),
            "nobody",
        ),
    ] {
        wrong(check_with_attribute(file(), REGULAR, xattr(ACCESS, b"", &bad)), what);
    }
    wrong(check_with_attribute(file(), REGULAR, xattr(DEFAULT, b"", &access_list(&least))), "director");
    wrong(
        check_with_attribute(File::symlink("t"), SYMLINK, xattr(ACCESS, b"", &access_list(&least))),
        "symbolic link",
    );
    wrong(check_with_attribute(file(), REGULAR, xattr(ACCESS, b"more", b"1")), "system.posix_acl_accessmore");
    wrong(check_with_attribute(file(), REGULAR, xattr(1, b"", b"1")), "'user.'");
    wrong(check_with_attribute(file(), REGULAR, xattr(1, &[b'n'; 251], b"1")), "256 bytes");
    assert_eq!(check_with_attribute(file(), REGULAR, xattr(1, &[b'n'; 250], b"1")), "");
    let found = check_with_attribute(File::fifo(), FIFO, xattr(1, b"a", b"1"));
    assert!(found.contains("warning") && found.contains("'user.a'"), "{found:?}");
}

/// A root directory with an invalid name between valid ones.
fn with_a_bad_name(bad: &str) -> Vec<u8> {
    image(&[
        File::directory(
            2,
            &[
                (".", 0, DIRECTORY),
                ("..", 0, DIRECTORY),
                ("a", 1, REGULAR),
                ("b", 1, REGULAR),
                (bad, 1, REGULAR),
                ("d", 1, REGULAR),
                ("e", 1, REGULAR),
            ],
        ),
        File { nlink: 4, ..File::regular(b"contents") },
    ])
}

#[test]
fn a_bad_name_does_not_hide_others() {
    for bad in ["c/c", "c\0c", ""] {
        let image = open(&with_a_bad_name(bad));
        let root = image.root().unwrap();
        let (mut names, mut errors) = (Vec::new(), 0);
        for entry in root.entries().unwrap() {
            match entry {
                Ok(entry) => names.push(String::from_utf8(entry.name).unwrap()),
                Err(error) => errors += usize::from(error.is_damage()),
            }
        }
        assert_eq!((names.join(" "), errors), ("a b d e".to_string(), 1), "{bad:?}");
        for name in ["a", "b", "d", "e"] {
            assert_eq!(root.lookup(name.as_bytes()).unwrap().len_bytes(), 8, "{bad:?} {name}");
        }
        assert!(matches!(root.lookup(b"c"), Err(ImageError::NotFound { .. })), "{bad:?}");
    }
}

#[test]
fn a_device_that_the_image_does_not_list_is_refused() {
    let bytes = image(&[File::directory(2, &[(".", 0, DIRECTORY), ("..", 0, DIRECTORY)])]);
    let options = Options { devices: vec![medium(&[0; 4096])], ..options() };
    let error = Image::open(medium(&bytes), options).unwrap_err();
    assert!(error.to_string().contains("--device"), "{error}");
}

#[test]
fn long_runs_of_zeroes_become_holes() {
    let mut contents = vec![0; 12 << 20];
    for at in [1 << 20, (5 << 20) + 77, (9 << 20) - 1] {
        contents[at] = 1;
    }
    let ends_with_zeroes = [b"x".repeat(5000), vec![0; 300_000]].concat();
    let only_zeroes = vec![0; 1 << 20];
    let all = [("a", contents), ("b", ends_with_zeroes), ("c", only_zeroes), ("d", vec![0; 100])];
    let files = all.iter().map(|(_, contents)| File::regular(contents)).collect();
    let names: Vec<_> = all.iter().map(|(name, _)| (*name, REGULAR)).collect();
    let target = tempfile::tempdir().unwrap();
    let report = extracted(&open(&image_of(&names, files)), target.path());
    assert_eq!(report.findings.recorded(), []);
    assert!(report.counts.bytes < 1 << 20, "{} bytes were written", report.counts.bytes);
    for (name, contents) in &all {
        assert!(std::fs::read(target.path().join(name)).unwrap() == *contents, "{name}");
    }
    let blocks: u64 = all.iter().map(|(name, _)| target.path().join(name).metadata().unwrap().blocks()).sum();
    assert!(blocks * 512 < 1 << 20, "{blocks} blocks");
}

#[test]
fn attributes_of_more_than_a_mebibyte_are_read() {
    let all: Vec<_> = (0..40u8).map(|n| (format!("large{n:02}"), vec![n; 60_000])).collect();
    let entries: Vec<_> = all.iter().map(|(name, value)| xattr(1, name.as_bytes(), value)).collect();
    let area_len = xattr_area(&[0; 40], &[]).len();
    let mut files = vec![
        File::directory(2, &[(".", 0, DIRECTORY), ("..", 0, DIRECTORY), ("f", 1, REGULAR)]),
        File::regular(b"contents"),
    ];
    files.extend((0..unused_after(area_len)).map(|_| unused()));
    let mut bytes = image(&files);
    let ids = put_shared(&mut bytes, &entries);
    put_xattrs(&mut bytes, 1, &xattr_area(&ids, &[]));
    let image = open(&bytes);
    assert_eq!(file_findings(&checked(&image)), [""; 0]);
    let found = image.find(b"/f").unwrap().xattrs().unwrap();
    let wanted = all.iter().map(|(name, value)| (format!("user.{name}").into_bytes(), value.clone()));
    assert!(found.into_iter().map(|x| (x.name, x.value)).eq(wanted));
    let mut archive = Vec::new();
    let report = tar::write(&image, &[], &tar::TarOptions::default(), &mut archive).unwrap();
    assert_eq!(report.findings.recorded(), []);
    assert!(archive.len() > 40 * 60_000);
    // The target may refuse attributes, but not the file.
    let target = tempfile::tempdir().unwrap();
    let report = extracted(&image, target.path());
    assert!(!has_finding(&report.findings, "/f", "corrupt"), "{:?}", report.findings.recorded());
    assert_eq!(std::fs::read(target.path().join("f")).unwrap(), b"contents");
}
