//! Indexes in images that `mkfs.erofs` builds during the test: small clusters, no zero padding, inline tails.

use super::decode::contents;
use super::image::Image;
use super::reference::{Census, compare};
use pagefold_testkit::skipped;
use std::path::Path;
use std::process::{Command, Stdio};

/// Contents that mix parts that compress well, badly, and not at all.
fn file(seed: u64) -> Vec<u8> {
    let mut state = seed * 2 + 1;
    let mut random = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state >> 33
    };
    let len = [random() % 6000, random() % 60_000, random() % 400_000][seed as usize % 3] as usize;
    let mut data = Vec::new();
    while data.len() < len {
        let run = random() as usize % 9000;
        match random() % 4 {
            0 => data.extend((0..run).map(|_| random() as u8)),
            1 => data.resize(data.len() + 8 * run, 0),
            _ => data.extend((0..run / 4).flat_map(|_| (random() % 4096).to_le_bytes())),
        }
    }
    data.truncate(len);
    data
}

fn written(dir: &Path, options: &[&str]) -> Option<Image> {
    let image = dir.join("image");
    let _ = std::fs::remove_file(&image);
    let tree = dir.join("tree");
    let mut mkfs = Command::new("mkfs.erofs");
    mkfs.args(options).args([&image, &tree]).stdout(Stdio::null()).stderr(Stdio::null());
    if !mkfs.status().ok()?.success() {
        return None;
    }
    Some(Image { data: std::fs::read(image).ok()? })
}

#[test]
fn indexes_of_new_images_are_found_and_decode() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("tree")).unwrap();
    for seed in 0..60 {
        std::fs::write(dir.path().join(format!("tree/{seed}")), file(seed)).unwrap();
    }
    let kinds: [&[&str]; 5] = [
        &["-zlz4"],
        &["-zlz4hc", "-C65536", "-Eztailpacking"],
        &["-zlz4hc", "-Eztailpacking"],
        &["-zlz4hc", "-C16384", "-Elegacy-compress"],
        &["-zlz4", "-Elegacy-compress"],
    ];
    for options in kinds {
        let Some(image) = written(dir.path(), options) else {
            skipped!("indexes_of_new_images_are_found_and_decode: no mkfs.erofs that does {options:?}");
            continue;
        };
        let mut census = Census::default();
        for (path, inode) in image.inodes() {
            compare(&image, &inode, &mut census);
            let seed = path.as_ref().and_then(|path| path.strip_prefix('/')?.parse().ok());
            if let Some(seed) = seed.filter(|_| inode.form().is_some()) {
                assert!(contents(&image, &inode, &[]) == file(seed), "{options:?}: {seed}");
            }
        }
        eprintln!("{options:?}: {census:?}");
        assert!(census.inodes > 20 && census.compressed > 50, "{options:?}: {census:?}");
    }
}
