//! The reference images and the manifest of their tree, for the crate's tests.
//!
//! The images are stored as one compressed stream (`tests/fixtures/README.md`). The first test that needs one unpacks
//! the stream into the build's directory of temporary files, where the images stay for later runs.

#![allow(dead_code, reason = "every test file compiles this, and none uses all of it")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

pub mod features;
pub mod handmade;
pub mod tree;
pub mod walk;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The names and lengths of the reference images, in the order of the fixture.
const IMAGES: [(&str, usize); 8] = [
    ("lz4hc64", 6_168_576),
    ("legacy", 6_905_856),
    ("xflt", 7_589_888),
    ("fragzt", 3_719_168),
    ("dedfrag", 4_587_520),
    ("zstd", 5_308_416),
    ("deflate", 5_541_888),
    ("lzma", 5_255_168),
];

/// The names of all reference images.
pub fn reference_names() -> impl Iterator<Item = &'static str> {
    IMAGES.iter().map(|(name, _)| *name)
}

/// The manifest of all reference images, one JSON object in each line.
pub fn manifest_text() -> String {
    fs::read_to_string(fixtures().join("manifest.jsonl")).unwrap()
}

/// The path of a reference image, by its name without an extension. Tests must not write to it.
pub fn reference_image(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    assert!(reference_names().any(|known| known == name), "no reference image {name}");
    FOLDER.get_or_init(unpack).join(format!("{name}.erofs"))
}

/// Unpacks the fixture, unless an earlier run has.
fn unpack() -> PathBuf {
    let packed = fs::read(fixtures().join("reference.zst")).unwrap();
    let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = parent.join(format!("reference-{:08x}", crc32c::crc32c(&packed)));
    if folder.exists() {
        return folder;
    }
    let total = IMAGES.iter().map(|(_, len)| len).sum();
    let mut images = vec![0; total];
    let len = zstd_safe::decompress(images.as_mut_slice(), &packed);
    assert_eq!(len.map_err(zstd_safe::get_error_name), Ok(total));
    let ours = tempfile::tempdir_in(parent).unwrap();
    let mut rest = images.as_slice();
    for (name, len) in IMAGES {
        let (image, remaining) = rest.split_at(len);
        fs::write(ours.path().join(format!("{name}.erofs")), image).unwrap();
        rest = remaining;
    }
    // The rename publishes the folder atomically. A process that comes second finds the folder and drops its copy.
    match fs::rename(ours.path(), &folder) {
        Ok(()) => _ = ours.keep(),
        Err(error) => assert!(folder.exists(), "{error}"),
    }
    folder
}

/// The folder of the fixtures, for all crates whose tests use this file.
fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/image/tests/fixtures")
}

/// An entry of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The path from the root, `/` first.
    pub path: String,
    /// `st_mode`.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Link count.
    pub nlink: u32,
    /// The length of a regular file, bytes.
    pub size: Option<u64>,
    /// The SHA-256 of a regular file's contents, in hexadecimal.
    pub sha256: Option<String>,
    /// The target of a symbolic link.
    pub target: Option<String>,
    /// The major and minor number of a device.
    pub rdev: Option<(u32, u32)>,
    /// The extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A line of a manifest, before conversion.
#[derive(serde::Deserialize)]
struct ManifestLine {
    path: String,
    mode: String,
    uid: u32,
    gid: u32,
    nlink: u32,
    size: Option<u64>,
    sha256: Option<String>,
    target: Option<String>,
    rdev: Option<(u32, u32)>,
    #[serde(default)]
    xattrs: BTreeMap<String, String>,
}

/// The tree that all reference images hold.
pub fn manifest() -> Vec<Entry> {
    list("manifest.jsonl")
}

/// The entries of a manifest among the fixtures.
fn list(name: &str) -> Vec<Entry> {
    let text = fs::read_to_string(fixtures().join(name)).unwrap();
    let latin1 = |text: String| text.chars().map(|c| u8::try_from(u32::from(c)).unwrap()).collect();
    text.lines()
        .map(|line| serde_json::from_str::<ManifestLine>(line).unwrap())
        .map(|line| Entry {
            path: line.path,
            mode: u16::from_str_radix(line.mode.trim_start_matches("0o"), 8).unwrap(),
            uid: line.uid,
            gid: line.gid,
            nlink: line.nlink,
            size: line.size,
            sha256: line.sha256,
            target: line.target,
            rdev: line.rdev,
            xattrs: line.xattrs.into_iter().map(|(name, value)| (name.into_bytes(), latin1(value))).collect(),
        })
        .collect()
}
