//! The builder: images of trees, read back by this crate and by others.

mod auto;
mod bounded;
mod changes;
mod chunks;
mod compressed_directories;
mod directory;
mod duplicates;
mod faults;
mod foreign;
mod fragments;
mod generated;
mod large;
mod layers;
mod metabox;
mod nested;
mod placed;
mod prefixes;
mod repack;
mod sort;
mod streams;
mod tar;
mod tar_forms;
mod tar_hostile;
mod tar_links;
mod windows;

use crate::support::walk::contents;
use pagefold_image::{Image, Options as ReadOptions};
use pagefold_image_build::{Compression, Metadata, Options, Summary, Target, Tree, build, verify};
use pagefold_image_check::{CheckOptions, check};
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

/// Options for a compression by name, a cluster, and tail packing, for new kernels, without fragments.
fn options(compression: &str, cluster_bytes: u32, tail_packing: bool) -> Options {
    let compression = Compression::parse(compression).unwrap();
    let fragments = false;
    Options { compression, cluster_bytes, tail_packing, fragments, ..Options::for_target(Target::new(6, 12)) }
}

/// Words in an order without a pattern; another seed has others.
fn text(len: usize, seed: u64) -> Vec<u8> {
    let word = |i: u64| format!("{} ", (i ^ seed << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40);
    let mut text: Vec<u8> = (0..len as u64 / 6 + 1).flat_map(|i| word(i).into_bytes()).collect();
    text.truncate(len);
    text
}

/// Paths and contents of files.
type Files = Vec<(String, Vec<u8>)>;

fn tree_of(files: &Files) -> Tree {
    let mut tree = Tree::new(Metadata::default());
    for (path, contents) in files {
        tree.add_bytes(path.as_bytes(), contents.clone()).unwrap();
    }
    tree
}

/// Builds an image of files, and checks that it has their contents.
fn build_checked(path: &Path, files: &Files, options: &Options) -> Summary {
    let tree = tree_of(files);
    let summary = build_at(path, &tree, &Options { digests: true, ..options.clone() });
    let image = open_checked(path, "files");
    for (name, wanted) in files {
        assert!(contents(&image.find(name.as_bytes()).unwrap(), 100_000).unwrap() == *wanted, "{name}");
    }
    verify(&image, &tree, &summary.digests, &mut |_| ControlFlow::Continue(())).unwrap();
    summary
}

/// Builds an image at `path`.
fn build_at(path: &Path, tree: &Tree, options: &Options) -> Summary {
    let file = fs::File::create(path).unwrap();
    build(tree, options, &file, &mut |_| ControlFlow::Continue(())).unwrap()
}

/// Opens an image, after a check that finds nothing.
fn open_checked(path: &Path, what: &str) -> Image {
    let image = Image::open_file(path, ReadOptions::default()).unwrap();
    let report = check(&image, &CheckOptions { strict: true, ..CheckOptions::default() }, &|_| {}).unwrap();
    assert_eq!(report.findings.errors() + report.findings.warnings(), 0, "{what}: {:?}", report.findings);
    image
}
