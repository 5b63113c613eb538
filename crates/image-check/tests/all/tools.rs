//! Check, extract and tar over all reference images, compared with the manifest of their tree.

use crate::support::{manifest_text, reference_image, reference_names};
use pagefold_image::extract::{ExtractError, ExtractOptions, extract};
use pagefold_image::{Image, Options, ReadAhead, tar};
use pagefold_image_check::{CheckOptions, check};
use pagefold_sys::beneath::Folder;
use pagefold_sys::privileges::{self, CapabilitySet};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;

fn open(path: &Path) -> Image {
    let options = Options { read_ahead: ReadAhead::Off, cache_full_reads: false, ..Options::default() };
    Image::open_file(path, options).unwrap()
}

fn manifest() -> BTreeMap<String, Value> {
    let text = manifest_text();
    let all = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.map(|v| (v["path"].as_str().unwrap().to_string(), v)).collect()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Compares a tree of files with the manifest, entry by entry, and their numbers of entries.
fn compare(tree: &Path, manifest: &BTreeMap<String, Value>, what: &str) {
    let mut seen = 0;
    let mut todo = vec![tree.to_path_buf()];
    while let Some(path) = todo.pop() {
        let relative = path.strip_prefix(tree).unwrap().to_str().unwrap();
        let name = format!("/{relative}");
        let wanted = manifest.get(&name).unwrap_or_else(|| panic!("{what}: {name} is not in the manifest"));
        compare_one(&path, wanted, &format!("{what} {name}"));
        seen += 1;
        if path.symlink_metadata().unwrap().is_dir() {
            todo.extend(std::fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
        }
    }
    assert_eq!(seen, manifest.len(), "{what}");
}

fn compare_one(path: &Path, wanted: &Value, what: &str) {
    let meta = path.symlink_metadata().unwrap();
    let mode = u32::from_str_radix(wanted["mode"].as_str().unwrap().trim_start_matches("0o"), 8).unwrap();
    assert_eq!(meta.mode(), mode, "{what}");
    assert_eq!(
        (u64::from(meta.uid()), u64::from(meta.gid())),
        (wanted["uid"].as_u64().unwrap(), wanted["gid"].as_u64().unwrap()),
        "{what}"
    );
    if !meta.is_dir() {
        assert_eq!(meta.nlink(), wanted["nlink"].as_u64().unwrap(), "{what}");
    }
    assert_eq!((meta.mtime(), meta.mtime_nsec()), (1_700_000_000, 0), "{what}");
    if let Some(digest) = wanted["sha256"].as_str() {
        let found = Sha256::digest(std::fs::read(path).unwrap());
        assert_eq!(format!("{found:x}"), digest, "{what}");
    }
    if let Some(target) = wanted["target"].as_str() {
        assert_eq!(std::fs::read_link(path).unwrap().as_os_str().as_bytes(), target.as_bytes(), "{what}");
    }
    if let Some(numbers) = wanted["rdev"].as_array() {
        assert!(meta.file_type().is_char_device() || meta.file_type().is_block_device(), "{what}");
        let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
        assert_eq!(
            [major, minor].map(u64::from).to_vec(),
            numbers.iter().map(|n| n.as_u64().unwrap()).collect::<Vec<_>>()
        );
    }
    for (name, value) in wanted["xattrs"].as_object().into_iter().flatten() {
        let mut buffer = vec![0; 65536];
        let n = rustix::fs::lgetxattr(path, name.as_str(), &mut buffer)
            .unwrap_or_else(|e| panic!("{what}: {name}: {e}"));
        // The manifest stores bytes as Latin-1 characters.
        let value: Vec<u8> = value.as_str().unwrap().chars().map(|c| c as u8).collect();
        assert_eq!(&buffer[..n], value, "{what}: {name}");
    }
}

#[test]
fn reference_images_have_no_findings() {
    for path in reference_names().map(reference_image) {
        for threads in [1, 2, 5] {
            let report =
                check(&open(&path), &CheckOptions { threads, ..CheckOptions::default() }, &|_| ()).unwrap();
            assert!(
                report.findings.recorded().is_empty(),
                "{}: {:?}",
                path.display(),
                report.findings.recorded()
            );
            assert!(report.complete && report.bytes >= 11_000_000, "{report:?}");
            // The names do not include the root; the hard link is an additional one.
            assert_eq!((report.inodes, report.names), (1022, 1022));
        }
    }
}

#[test]
fn the_extracted_tree_equals_the_manifest() {
    let test = "the_extracted_tree_equals_the_manifest";
    if !is_root() {
        return pagefold_testkit::skipped!("{test}: making devices needs root");
    }
    let manifest = manifest();
    for (path, threads) in reference_names().map(reference_image).zip([1, 2, 3].into_iter().cycle()) {
        let target = tempfile::tempdir().unwrap();
        let folder = Folder::open(target.path()).unwrap();
        let options = ExtractOptions { privileged: true, threads, ..ExtractOptions::default() };
        let run = |options: &ExtractOptions| {
            extract(&open(&path), &folder, &[], options, &AtomicBool::new(false), &|_| ())
        };
        let report = run(&options).unwrap();
        assert!(report.findings.recorded().is_empty(), "{:?}", report.findings.recorded());
        assert_eq!((report.counts.files, report.counts.links), (1021, 1));
        compare(target.path(), &manifest, &path.display().to_string());
        assert!(matches!(run(&options), Err(ExtractError::NotEmpty)));
        // Extracting over the tree yields the same tree.
        let report = run(&ExtractOptions { overwrite: true, ..options }).unwrap();
        assert!(report.findings.recorded().is_empty(), "{:?}", report.findings.recorded());
        compare(target.path(), &manifest, &path.display().to_string());
    }
}

#[test]
fn paths_are_extracted_with_their_parents_and_without_privileged_files() {
    let image = open(&reference_image("lz4hc64"));
    let target = tempfile::tempdir().unwrap();
    let folder = Folder::open(target.path()).unwrap();
    let run = |paths: &[&[u8]], options: &ExtractOptions| {
        let paths: Vec<Vec<u8>> = paths.iter().map(|p| p.to_vec()).collect();
        extract(&image, &folder, &paths, options, &AtomicBool::new(false), &|_| ())
    };
    let report = run(&[b"/bigdir/file_0000_.txt", b"/null"], &ExtractOptions::default()).unwrap();
    assert_eq!((report.counts.files, report.counts.skipped_devices), (2, 1), "{report:?}");
    assert!(report.counts.skipped_xattrs >= 1 && report.findings.recorded().is_empty(), "{report:?}");
    assert_eq!(std::fs::read(target.path().join("bigdir/file_0000_.txt")).unwrap().len(), 3476);
    assert!(!target.path().join("null").exists() && !target.path().join("fifo").exists());
    let options = ExtractOptions { overwrite: true, ..ExtractOptions::default() };
    assert!(matches!(run(&[b"/nosuch"], &options), Err(ExtractError::Image(_))));
    // Limits, and a cancellation before the first file.
    let few = ExtractOptions { max_bytes: Some(100_000), overwrite: true, ..ExtractOptions::default() };
    assert!(matches!(run(&[], &few), Err(ExtractError::Limit { what }) if what.contains("--max-bytes")));
    let few = ExtractOptions { max_inodes: 20, overwrite: true, ..ExtractOptions::default() };
    assert!(matches!(run(&[], &few), Err(ExtractError::Limit { what }) if what.contains("--max-inodes")));
    let stopped = extract(&image, &folder, &[], &options, &AtomicBool::new(true), &|_| ()).unwrap();
    assert!(stopped.interrupted && stopped.counts.files == 0, "{stopped:?}");
}

#[test]
fn the_tree_that_gnu_tar_extracts_equals_the_manifest() {
    let test = "the_tree_that_gnu_tar_extracts_equals_the_manifest";
    if !is_root() {
        return pagefold_testkit::skipped!("{test}: making devices needs root");
    }
    let manifest = manifest();
    for path in reference_names().map(reference_image) {
        let target = tempfile::tempdir().unwrap();
        let mut child = Command::new("tar")
            .args(["--xattrs", "--xattrs-include=*", "-xpf", "-", "-C"])
            .arg(target.path())
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let report =
            tar::write(&open(&path), &[], &tar::TarOptions::default(), child.stdin.take().unwrap()).unwrap();
        assert!(child.wait().unwrap().success());
        assert!(report.findings.recorded().is_empty() && report.members == 1023, "{report:?}");
        compare(target.path(), &manifest, &path.display().to_string());
    }
}

#[test]
fn metadata_is_applied_although_an_attribute_cannot_be_set() {
    let test = "metadata_is_applied_although_an_attribute_cannot_be_set";
    if !is_root() {
        return pagefold_testkit::skipped!("{test}: only root has capabilities to drop");
    }
    let target = tempfile::tempdir().unwrap();
    let folder = Folder::open(target.path()).unwrap();
    let options = ExtractOptions { privileged: true, ..ExtractOptions::default() };
    let image = open(&reference_image("lz4hc64"));
    // In a separate thread without the capability for trusted attributes; the workers that it starts inherit that.
    let report = std::thread::scope(|scope| {
        let run = || {
            let keep = CapabilitySet::all() - CapabilitySet::SYS_ADMIN;
            privileges::drop_capabilities_except(keep).unwrap();
            extract(&image, &folder, &[], &options, &AtomicBool::new(false), &|_| ())
        };
        scope.spawn(run).join().unwrap().unwrap()
    });
    // One finding for each file, although one of them has two names.
    let paths: Vec<&[u8]> = report.findings.recorded().iter().map(|f| f.path.as_slice()).collect();
    assert_eq!(paths, [&b"/bigdir/file_0000_.txt"[..], b"/exact4k", b"/hard", b"/text1m.txt"]);
    assert!(
        report.findings.recorded().iter().all(|f| f.what.contains("'trusted.overlay.opaque'")),
        "{report:?}"
    );
    let mut manifest = manifest();
    for wanted in manifest.values_mut() {
        wanted["xattrs"].as_object_mut().map(|all| all.remove("trusted.overlay.opaque"));
    }
    compare(target.path(), &manifest, test);
}

#[test]
fn a_target_without_attributes_is_one_warning() {
    let test = "a_target_without_attributes_is_one_warning";
    let target = tempfile::tempdir().unwrap();
    let (none, empty) = (rustix::mount::MountFlags::empty(), c"");
    if let Err(e) = rustix::mount::mount("ramfs", target.path(), "ramfs", none, empty) {
        return pagefold_testkit::skipped!("{test}: mounting ramfs: {e}");
    }
    let folder = Folder::open(target.path()).unwrap();
    let image = open(&reference_image("lz4hc64"));
    // ramfs does not report its free space.
    let options = ExtractOptions { max_bytes: Some(64 << 20), privileged: true, ..ExtractOptions::default() };
    let extracted = extract(&image, &folder, &[], &options, &AtomicBool::new(false), &|_| ());
    let mut manifest = manifest();
    for wanted in manifest.values_mut() {
        wanted["xattrs"] = Value::Null;
    }
    let compared = std::panic::catch_unwind(|| compare(target.path(), &manifest, test));
    drop(folder);
    rustix::mount::unmount(target.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
    let report = extracted.unwrap();
    compared.unwrap();
    assert!(report.counts.unsupported_xattrs > 20, "{report:?}");
    let [warning] = report.findings.recorded() else { panic!("{report:?}") };
    assert_eq!((warning.severity, report.findings.errors()), (pagefold_image::Severity::Warning, 0));
    assert!(
        warning.what.starts_with(&format!("{} attributes were", report.counts.unsupported_xattrs)),
        "{report:?}"
    );
}

#[test]
fn gnu_tar_restores_access_control_lists() {
    let test = "gnu_tar_restores_access_control_lists";
    let work = tempfile::tempdir().unwrap();
    let (tree, out, file) = (work.path().join("tree"), work.path().join("out"), work.path().join("image"));
    std::fs::create_dir_all(tree.join("folder")).unwrap();
    std::fs::write(tree.join("file"), "contents").unwrap();
    std::fs::create_dir(&out).unwrap();
    let run = |words: &str| {
        let mut words = words.split(' ');
        let output = Command::new(words.next().unwrap()).args(words).current_dir(&tree).output();
        output.ok().filter(|o| o.status.success()).map(|o| String::from_utf8(o.stdout).unwrap())
    };
    let set = run("setfacl -m u:1234:rw,g:55:r,m::rwx file").is_some()
        && run("setfacl -m u:1234:x,d:u:7:rwx,d:g:8:-w- folder").is_some();
    if !is_root() || !set || run(&format!("mkfs.erofs --quiet {} .", file.display())).is_none() {
        return pagefold_testkit::skipped!("{test}: needs root, setfacl and mkfs.erofs");
    }
    let mut child = Command::new("tar")
        .args(["--acls", "-xpf", "-", "-C"])
        .arg(&out)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    tar::write(&open(&file), &[], &tar::TarOptions::default(), child.stdin.take().unwrap()).unwrap();
    assert!(child.wait().unwrap().success());
    for name in ["file", "folder"] {
        let of = |tree: &Path| run(&format!("getfacl -nc -- {}", tree.join(name).display())).unwrap();
        let wanted = of(&tree);
        assert!(wanted.contains("user:1234:") && wanted.contains("default:user:7:rwx") == (name == "folder"));
        assert_eq!(of(&out), wanted, "{name}");
    }
}
