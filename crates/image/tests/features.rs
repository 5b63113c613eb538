//! Every feature of the format, in images of one tree: the library shows that tree.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::features::{features, tree};
use common::walk::{assert_same, walk};
use pagefold_image::{Image, Options};

#[test]
fn every_feature_image_holds_the_tree() {
    let wanted = tree();
    for feature in features() {
        for (keep_asked, step) in [(false, 1 << 20), (true, 5000)] {
            let options = feature.options(Options { keep_asked, ..Options::default() });
            let image =
                Image::open(feature.medium(), options).unwrap_or_else(|e| panic!("{}: {e}", feature.name));
            let found = walk(&image, step).unwrap_or_else(|e| panic!("{}: {e}", feature.name));
            assert_same(&feature.name, &found, &wanted);
            let budget = image.stats().budget;
            assert!(budget.peak_bytes <= budget.limit_bytes, "{}: {budget:?}", feature.name);
        }
    }
}
