//! Archives as layers of images of containers, which umoci unpacks.

use super::files::{self, Files};
use crate::support::walk::sha256;
use pagefold_testkit::skipped;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Most archives that umoci unpacks besides those that are disputed: it takes a tenth of a second for each.
const UNPACKED_MAX: usize = 100;

/// Writes a blob, and returns its descriptor.
fn blob(layout: &Path, kind: &str, bytes: &[u8]) -> String {
    let digest = sha256(bytes);
    let folder = layout.join("blobs/sha256");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(&digest), bytes).unwrap();
    format!(
        r#"{{"mediaType":"application/vnd.oci.image.{kind}","digest":"sha256:{digest}","size":{}}}"#,
        bytes.len()
    )
}

/// Writes an image with one layer, which has the tag `t`.
fn write_layout(layout: &Path, layer: &[u8]) {
    let diff = sha256(layer);
    let layer = blob(layout, "layer.v1.tar", layer);
    let config = format!(
        r#"{{"architecture":"amd64","os":"linux","config":{{}},"rootfs":{{"type":"layers","diff_ids":["sha256:{diff}"]}}}}"#
    );
    let config = blob(layout, "config.v1+json", config.as_bytes());
    let manifest = format!(r#"{{"schemaVersion":2,"config":{config},"layers":[{layer}]}}"#);
    let manifest = blob(layout, "manifest.v1+json", manifest.as_bytes());
    let named = manifest.replacen('{', r#"{"annotations":{"org.opencontainers.image.ref.name":"t"},"#, 1);
    fs::write(layout.join("index.json"), format!(r#"{{"schemaVersion":2,"manifests":[{named}]}}"#)).unwrap();
    fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
}

/// Types, targets and contents alone: umoci gives directories that have no member other permissions.
fn kinds(files: &Files) -> Files {
    let mut files = files.clone();
    files.remove(&b""[..]);
    for file in files.values_mut() {
        (file.access, file.mtime) = ((0, 0, 0), (0, 0));
    }
    files
}

/// A layer to be compared.
pub struct Layer {
    /// The archive.
    pub bytes: Vec<u8>,
    /// The files of its image.
    pub found: Files,
    /// The words that replay it, and its members.
    pub shown: String,
    /// The differences from what another program extracted, which umoci has to decide.
    pub disputed: Option<String>,
}

/// Compares the images of layers with the trees that umoci unpacks. A layer that umoci refuses is no failure: it refuses
/// hard links of files to themselves, for example, which GNU tar passes over. But it has to decide most disputed ones.
pub fn compare(layers: &[Layer]) {
    if Command::new("umoci").arg("--version").output().is_err() {
        return skipped!("archives of umoci: it is not installed");
    }
    let disputed = layers.iter().filter(|layer| layer.disputed.is_some());
    let others = layers.iter().filter(|layer| layer.disputed.is_none()).take(UNPACKED_MAX);
    let (mut unpacked, mut refused) = (0, Vec::new());
    for Layer { bytes, found, shown, disputed } in disputed.clone().chain(others) {
        let work = tempfile::tempdir().unwrap();
        let (layout, bundle) = (work.path().join("layout"), work.path().join("bundle"));
        fs::create_dir(&layout).unwrap();
        write_layout(&layout, bytes);
        let image = format!("{}:t", layout.display());
        let run =
            Command::new("umoci").args(["raw", "unpack", "--image", &image]).arg(&bundle).output().unwrap();
        if !run.status.success() {
            refused.extend(disputed.as_ref().map(|text| {
                format!(
                    "{shown}tar differs: {text}umoci refuses it: {}",
                    String::from_utf8_lossy(&run.stderr)
                )
            }));
            continue;
        }
        unpacked += 1;
        let text = files::differences(&kinds(found), &kinds(&files::of_directory(&bundle, "")));
        let of_tar = disputed.as_deref().unwrap_or("not");
        assert!(text.is_empty(), "{shown}umoci differs: {text}tar differs: {of_tar}");
    }
    let disputed = disputed.count();
    println!(
        "umoci unpacked {unpacked} of {}; of {disputed} disputed ones it refused {}",
        layers.len(),
        refused.len()
    );
    assert!(refused.len() <= 2 + disputed / 4, "{}", refused.concat());
    assert!(layers.len() < 20 || unpacked > 0, "umoci unpacked none of {}", layers.len());
}
