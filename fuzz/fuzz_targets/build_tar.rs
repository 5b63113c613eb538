//! Archives as sources of images: arbitrary bytes are scanned, and an image is built of small results.
//!
//! The checksum of each block that could be a header is made right first, because no chance finds a right one. The image
//! has to be readable, with as many inodes as its summary says.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pagefold_fuzz::media;
use pagefold_image::{Image, Options as ReadOptions};
use pagefold_image_build::source::{NestedOverlay, Whiteouts};
use pagefold_image_build::source::tar::{TarOptions, scan};
use pagefold_image_build::{Compression, InodeId, Options, Target, Tree, build};
use pagefold_image_check::{CheckOptions, check};
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Larger results are not built.
const CONTENT_BYTES_MAX: u64 = 4 << 20;

fuzz_target!(|data: &[u8]| {
    let Some((&flags, archive)) = data.split_first() else { return };
    let mut archive = archive.to_vec();
    if flags & 1 != 0 {
        correct_checksums(&mut archive);
    }
    let whiteouts = match flags >> 1 & 3 {
        0 => Whiteouts::Files,
        1 => Whiteouts::Overlay,
        _ => Whiteouts::OverlayUser,
    };
    let nested = match flags >> 3 & 3 {
        0 => NestedOverlay::Keep,
        1 => NestedOverlay::Escape,
        _ => NestedOverlay::Strip,
    };
    let options = TarOptions { whiteouts, nested, ignore_zeros: flags & 32 != 0, metadata_bytes_max: 16 << 20, ..TarOptions::default() };
    let Ok(scanned) = scan(media::file(&archive), Path::new("archive"), &options) else { return };
    build_small(&scanned.tree);
});

/// Replaces the checksums of all blocks that name a form of headers.
fn correct_checksums(archive: &mut [u8]) {
    for block in archive.chunks_exact_mut(512).filter(|block| &block[257..262] == b"ustar") {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
}

/// Length of all files; a file counts once for each name.
fn content_bytes(tree: &Tree) -> u64 {
    let mut sum = 0u64;
    let mut stack = vec![InodeId::ROOT];
    while let Some(id) = stack.pop() {
        stack.extend(tree.entries(id).map(|(_, id)| id));
        sum = sum.saturating_add(tree.content_bytes(id));
    }
    sum
}

fn build_small(tree: &Tree) {
    if content_bytes(tree) > CONTENT_BYTES_MAX {
        return;
    }
    let options = Options {
        compression: Compression::parse("lz4").unwrap(),
        threads: 1,
        ..Options::for_target(Target::new(6, 12))
    };
    let file = media::file(b"");
    let Ok(summary) = build(tree, &options, &file, &mut |_| ControlFlow::Continue(())) else { return };
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let image = Image::open_file(Path::new(&path), ReadOptions::default()).unwrap();
    let strict = CheckOptions { strict: true, ..CheckOptions::default() };
    let report = check(&image, &strict, &|_| {}).unwrap();
    assert_eq!(report.findings.errors(), 0, "{:?}", report.findings);
    assert!(summary.inodes > 0);
}
