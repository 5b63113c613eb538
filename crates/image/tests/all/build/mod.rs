//! The builder: images of trees, read back by this crate and by others.

mod changes;
mod directory;
mod duplicates;
mod faults;
mod foreign;
mod fragments;
mod generated;
mod large;
mod prefixes;
mod repack;
mod streams;
mod tar;
mod tar_forms;
mod tar_hostile;
mod windows;

use pagefold_image::build::{Compression, Options, Summary, Target, Tree, build};
use pagefold_image::check::{CheckOptions, check};
use pagefold_image::{Image, Options as ReadOptions};
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

/// Options for a compression by name, a cluster, and tail packing, for new kernels, without fragments.
fn options(compression: &str, cluster_bytes: u32, tail_packing: bool) -> Options {
    let compression = Compression::parse(compression).unwrap();
    let fragments = false;
    Options { compression, cluster_bytes, tail_packing, fragments, ..Options::for_target(Target::new(6, 12)) }
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
