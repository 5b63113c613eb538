//! The strict check: each rule finds an image that breaks it, and images of mkfs.erofs break none but those listed.

mod bytes;
mod hostile;
mod indexes;
mod metadata;
mod patch;

use crate::support::features::{Feature, features};
use crate::support::{reference_image, reference_names};
use pagefold_image::{Image, Options, ReadAhead, Severity, rules};
use pagefold_image_check::{CheckOptions, check};
use patch::Patch;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A fault: the rule that it breaks, the feature image to damage, and the damage.
type Case = (&'static str, &'static str, fn(&mut Patch));

/// The rules that builders' images break: image, rule, reason.
const KNOWN: [(&str, &str, &str); 11] = [
    ("plain48", "feature-unused", "-E48bit sets the bit"),
    ("chunks48", "feature-unused", "-E48bit sets the bit"),
    ("blob48", "feature-unused", "-E48bit sets the bit"),
    ("mixed", "algorithm-unused", "-zlz4:zstd uses the second algorithm for files with a hint only"),
    ("tar", "feature-unset", "--tar=i writes chunks without chunked_file"),
    ("records512", "index-header", "the gap before records of 16 bytes is not initialized"),
    ("metabox", "index-header", "the gap before records of 16 bytes is not initialized"),
    ("metaboxall", "index-header", "the gap before records of 16 bytes is not initialized"),
    ("metabox512", "index-header", "the gap before records of 16 bytes is not initialized"),
    ("metaprefix", "index-header", "the gap before records of 16 bytes is not initialized"),
    ("metabox512", "algorithm-unused", "all files fit into the metabox, whose algorithm is another"),
];

fn options() -> Options {
    Options { read_ahead: ReadAhead::Off, cache_full_reads: false, ..Options::default() }
}

/// The names of the rules that an image breaks, with the first finding of each.
fn broken(image: &Image) -> Vec<(String, String)> {
    let options = CheckOptions { threads: 1, strict: true, ..CheckOptions::default() };
    let report = check(image, &options, &|_| ()).unwrap();
    let mut broken: Vec<(String, String)> = Vec::new();
    for finding in report.findings.recorded() {
        if let Some(rule) = finding.rule.filter(|rule| broken.iter().all(|(name, _)| name != rule)) {
            broken.push((rule.to_string(), finding.to_string()));
        }
    }
    broken
}

fn known(image: &str) -> BTreeSet<&'static str> {
    KNOWN.iter().filter(|(name, _, _)| *name == image).map(|(_, rule, _)| *rule).collect()
}

#[test]
fn each_rule_finds_its_fault_and_no_other_rule_does() {
    let cases: Vec<Case> = [metadata::CASES, indexes::CASES, bytes::CASES].concat();
    let mut wrong = Vec::new();
    for (rule, name, damage) in &cases {
        let mut patch = Patch::new(name);
        if catch_unwind(AssertUnwindSafe(|| damage(&mut patch))).is_err() {
            wrong.push(format!("{rule} in {name}: the damage was not done"));
            continue;
        }
        let image = Image::open(patch.medium(), patch.options(options())).unwrap();
        let found = broken(&image);
        let mut names: BTreeSet<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        let allowed = known(name);
        names.retain(|name| name == rule || !allowed.contains(name));
        if names != BTreeSet::from([*rule]) {
            wrong.push(format!("{rule} in {name}: {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    let missing: Vec<_> =
        rules::ALL.iter().filter(|rule| cases.iter().all(|(name, _, _)| *name != rule.name)).collect();
    assert!(missing.is_empty(), "rules without a case: {missing:?}");
}

#[test]
fn images_of_mkfs_break_only_the_listed_rules() {
    let open = |feature: &Feature| Image::open(feature.medium(), feature.options(options())).unwrap();
    let mut images: Vec<(String, Image)> = features().iter().map(|f| (f.name.clone(), open(f))).collect();
    for name in reference_names() {
        images.push((name.to_string(), Image::open_file(&reference_image(name), options()).unwrap()));
    }
    for (name, image) in images {
        let found = broken(&image);
        let names: BTreeSet<&str> = found.iter().map(|(rule, _)| rule.as_str()).collect();
        // A feature image and a reference image may have the same name.
        let is_feature = features().iter().any(|feature| feature.name == name);
        let wanted = if is_feature { known(&name) } else { BTreeSet::new() };
        assert_eq!(names, wanted, "{name}: {found:?}");
    }
}

#[test]
fn the_strict_check_works_in_the_least_memory_and_says_what_it_left_out() {
    let least = Options { memory_bytes: 1, ..options() };
    let image = reference_image("legacy");
    let Err(pagefold_image::ImageError::TooLittleMemory { needed_bytes, .. }) =
        Image::open_file(&image, least)
    else {
        panic!("an image was opened in one byte");
    };
    let tight = Options { memory_bytes: needed_bytes, ..options() };
    let image = Image::open_file(&image, tight).unwrap();
    let checked = CheckOptions { threads: 1, strict: true, ..CheckOptions::default() };
    let report = check(&image, &checked, &|_| ()).unwrap();
    assert!(image.stats().budget.peak_bytes <= needed_bytes);
    assert!(report.findings.recorded().iter().all(|finding| !finding.is_damage));
}

#[test]
fn without_strict_the_same_image_has_no_finding() {
    let mut patch = Patch::new("lz4hc64");
    indexes::break_distance_forward(&mut patch);
    let image = Image::open(patch.medium(), patch.options(options())).unwrap();
    let report = check(&image, &CheckOptions::default(), &|_| ()).unwrap();
    assert!(report.findings.recorded().is_empty(), "{:?}", report.findings.recorded());
    assert_eq!(broken(&image).len(), 1);
    assert!(rules::ALL.iter().any(|rule| rule.severity == Severity::Warning));
}
