//! Equal parts of files, which an image has once.

use super::{Files, build_at, build_checked, options, tree_of};
use pagefold_image::read::Mapping;
use pagefold_image::{Image, Options as ReadOptions};
use pagefold_image_build::source::image::scan;
use pagefold_image_build::{Dedupe, Options, Phase, Progress, Summary, Target, build};
use pagefold_testkit::noise;
use proptest::prelude::*;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

/// Words in an order without a pattern, which compress as text does; another seed has others.
fn text(len: usize, seed: u64) -> Vec<u8> {
    let words = noise(seed, len)
        .into_iter()
        .map(|byte| format!("word{} ", u16::from(byte) * (seed as u16 + 7) % 500));
    let mut text = words.take(len / 6 + 1).collect::<String>().into_bytes();
    text.resize(len, b'.');
    text
}

/// Files with these contents.
fn files(contents: &[Vec<u8>]) -> Files {
    contents.iter().enumerate().map(|(i, contents)| (format!("f{i}"), contents.clone())).collect()
}

/// A copy in which bytes are replaced, inserted and removed in a few places.
fn edited(contents: &[u8]) -> Vec<u8> {
    let mut copy = contents.to_vec();
    let at = |part: usize| contents.len() / 8 * part;
    copy[at(6)..at(6) + 3].copy_from_slice(b"new");
    copy.drain(at(4)..at(4) + 1000);
    copy.splice(at(2)..at(2), *b"inserted");
    copy
}

/// Builds with equal parts shared, and without, and checks both images.
fn both(path: &Path, files: &Files, options: &Options) -> (Summary, Summary) {
    let shared = build_checked(path, files, &Options { dedupe: Dedupe::Chunks, ..options.clone() });
    let whole = build_checked(path, files, &Options { dedupe: Dedupe::Files, ..options.clone() });
    assert_eq!(whole.shared_parts.files, 0);
    (shared, whole)
}

#[test]
fn near_copies_share_most_of_their_contents() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("image");
    let contents = text(700_000, 1);
    let front = [b"front".as_slice(), &contents].concat();
    let files = files(&[contents.clone(), edited(&contents), front, text(100_000, 2)]);
    for (compression, cluster, tail_packing, fragments) in [
        ("lz4", 4096, false, false),
        ("lz4hc:3", 16384, true, false),
        ("lz4hc:3", 16384, false, true),
        ("zstd:3", 65536, true, true),
        ("deflate:3", 65536, true, true),
        ("lzma:1", 65536, false, true),
    ] {
        let options = Options { fragments, ..options(compression, cluster, tail_packing) };
        let (shared, whole) = both(&path, &files, &options);
        let what = format!("{compression}, {cluster}, {tail_packing}, {fragments}");
        assert_eq!(shared.shared_parts.files, 2, "{what}");
        // Large clusters leave a longer end, which is compressed with others.
        let least = if fragments { 2 * (700_000 - u64::from(cluster)) } else { 1_400_000 };
        assert!(
            shared.shared_parts.content_bytes > least.saturating_sub(150_000),
            "{what}: {:?}",
            shared.shared_parts
        );
        let (image, all) = (shared.image_bytes, whole.image_bytes);
        assert!(image < all * 6 / 10, "{what}: {image} of {all}");
    }
}

#[test]
fn contents_that_do_not_compress_are_shared_at_the_same_offset_in_blocks() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("image");
    let contents = noise(1, 600_000);
    let mut replaced = contents.clone();
    replaced[300_000..300_010].fill(0);
    let blocks = [noise(3, 8192), contents.clone()].concat();
    // An extent cannot end anywhere in such contents: this one is stored again.
    let shifted = [noise(4, 5), contents.clone()].concat();
    let files = files(&[contents, replaced, blocks, shifted]);
    for (compression, cluster) in [("lz4", 4096), ("zstd:1", 65536)] {
        let (shared, _) = both(&path, &files, &options(compression, cluster, true));
        let parts = shared.shared_parts;
        assert!(parts.files >= 2 && parts.content_bytes > 1_100_000, "{compression}: {parts:?}");
    }
}

#[test]
fn beginnings_of_a_file_and_its_repetitions_are_shared() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("image");
    let contents = text(400_000, 3);
    for (name, contents) in [
        ("shorter first", vec![contents[..150_000].to_vec(), contents[..300_001].to_vec(), contents.clone()]),
        ("longer first", vec![contents.clone(), contents[..300_001].to_vec(), contents[..150_000].to_vec()]),
        ("repeated", vec![contents.repeat(3)]),
        ("repeated and moved", vec![[contents.as_slice(), b"+", &contents, b"-", &contents].concat()]),
    ] {
        for fragments in [false, true] {
            let options = Options { fragments, ..options("zstd:1", 16384, true) };
            let (shared, whole) = both(&path, &files(&contents), &options);
            let (image, all) = (shared.image_bytes, whole.image_bytes);
            assert!(shared.shared_parts.content_bytes > 300_000, "{name}: {:?}", shared.shared_parts);
            assert!(image < all * 7 / 10, "{name}, {fragments}: {image} of {all}");
        }
    }
}

#[test]
fn contents_that_are_hard_to_cut_come_back() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("image");
    let zeroes = vec![0; 300_000];
    let period = |len: usize| noise(9, len).into_iter().cycle().take(300_000).collect::<Vec<u8>>();
    let islands: Vec<u8> =
        (0..40).flat_map(|i| [vec![0; 20_000 + i * 7], text(9000, i as u64 % 5)].concat()).collect();
    let mut contents = vec![zeroes.clone(), [b"x".as_slice(), &zeroes].concat(), islands.clone()];
    contents.extend([1, 2, 63, 64, 65, 1000, 4096, 5000].map(period));
    contents.extend([islands[3..].to_vec(), [period(64), islands, period(65)].concat()]);
    for (compression, cluster) in [("lz4", 4096), ("zstd:1", 65536)] {
        for (tail_packing, fragments) in [(false, false), (true, false), (true, true)] {
            let options = Options { fragments, ..options(compression, cluster, tail_packing) };
            let (shared, whole) = both(&path, &files(&contents), &options);
            let (image, all) = (shared.image_bytes, whole.image_bytes);
            assert!(image <= all + all / 8, "{compression}, {cluster}: {image} of {all}");
        }
    }
}

/// Linux 7.2 refuses extents that are shorter than their clusters, unless they are marked as prefixes; the strict check does too.
#[test]
fn an_extent_that_is_shorter_than_its_cluster_is_marked() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("image");
    let first = noise(5, 300_000);
    let moved = [&first[..70_003], &first, &first[8192..]].concat();
    let files = files(&[first, moved]);
    let mut found = 0;
    for (compression, cluster_bytes) in [("lz4", 65536), ("zstd:3", 131_072), ("lzma:1", 1 << 20)] {
        let options = options(compression, cluster_bytes, true);
        build_checked(&path, &files, &Options { dedupe: Dedupe::Chunks, ..options });
        let image = Image::open_file(&path, ReadOptions::default()).unwrap();
        for (name, _) in &files {
            let node = image.find(name.as_bytes()).unwrap();
            for extent in node.extents().map(Result::unwrap).filter(|extent| extent.end() < node.len_bytes())
            {
                if let Mapping::Compressed(cluster) = extent.mapping
                    && extent.len_bytes < cluster.len_bytes.into()
                {
                    assert!(cluster.prefix_only, "{name}, {compression}: {extent:?}");
                    found += 1;
                }
            }
        }
    }
    assert!(found > 0, "no extent is shorter than its cluster");
}

#[test]
fn long_files_are_shared_across_segments() {
    let work = tempfile::tempdir().unwrap();
    let contents = text(20 << 20, 5);
    let files = files(&[contents.clone(), edited(&contents)]);
    let path = work.path().join("image");
    let (shared, whole) = both(&path, &files, &options("lz4", 65536, true));
    assert!(shared.image_bytes < whole.image_bytes * 52 / 100, "{shared:?}");
}

#[test]
fn old_kernels_and_other_compressions_share_no_parts() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("image");
    let contents = text(200_000, 6);
    let files: Files = vec![("a".into(), contents.clone()), ("b.so".into(), edited(&contents))];
    let old = Options { dedupe: Dedupe::Chunks, ..Options::for_target(Target::new(5, 15)) };
    assert_eq!(build_checked(&path, &files, &old).shared_parts.files, 0);
    let mut mixed = options("zstd:1", 65536, true);
    assert_eq!(build_checked(&path, &files, &mixed).shared_parts.files, 1);
    mixed.rules.push("*.so=lz4").unwrap();
    assert_eq!(build_checked(&path, &files, &mixed).shared_parts.files, 0);
}

#[test]
fn the_bytes_do_not_depend_on_threads_or_the_kind_of_source() {
    let work = tempfile::tempdir().unwrap();
    let (one, other) = (text(3 << 20, 7), noise(8, 500_000));
    let mixed = [&one[..200_000], &other, &one[100_000..400_000]].concat();
    let files = files(&[one.clone(), edited(&one), other.clone(), edited(&other), mixed, one[5..].to_vec()]);
    for fragments in [false, true] {
        let options = Options { fragments, ..options("zstd:1", 16384, true) };
        let image = |threads| {
            let path = work.path().join(format!("{threads}"));
            let summary = build_at(&path, &tree_of(&files), &Options { threads, ..options.clone() });
            assert!(summary.shared_parts.files >= 4);
            fs::read(path).unwrap()
        };
        let first = image(1);
        assert!([2, 4, 7].into_iter().all(|threads| image(threads) == first));
        let (source, again) = (work.path().join("1"), work.path().join("again"));
        for _ in 0..2 {
            let image = Image::open_file(&source, ReadOptions::default()).unwrap();
            build_at(&again, &scan(&image, &[]).unwrap().tree, &options);
            assert!(fs::read(&again).unwrap() == first);
            fs::copy(&again, &source).unwrap();
        }
    }
}

/// A change of a file: a part of it is replaced by a part of all contents so far.
type Edit = (f64, usize, f64, usize);

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
    #[test]
    fn edited_copies_come_back(
        kinds in proptest::collection::vec((any::<bool>(), 1usize..200_000), 1..4),
        edits in proptest::collection::vec((0.0..1.0, 0usize..40_000, 0.0..1.0, 0usize..90_000), 1..12),
        cluster in prop_oneof![Just(4096u32), Just(16384), Just(65536)],
        compression in prop_oneof![Just("lz4"), Just("lz4hc:4"), Just("zstd:1")],
        (tail_packing, fragments) in any::<(bool, bool)>(),
    ) {
        let make = |(i, (compresses, len)): (usize, &(bool, usize))| match compresses {
            true => text(*len, i as u64),
            false => noise(i as u64, *len),
        };
        let mut contents: Vec<Vec<u8>> = kinds.iter().enumerate().map(make).collect();
        for (at, removed, from, inserted) in &edits as &[Edit] {
            let all = contents.concat();
            let mut copy = contents[all.len() % contents.len()].clone();
            let at = (*at * copy.len() as f64) as usize;
            let from = (*from * all.len() as f64) as usize;
            let new = all[from..(from + inserted).min(all.len())].to_vec();
            copy.splice(at..(at + removed).min(copy.len()), new);
            contents.push(copy);
        }
        let work = tempfile::tempdir().unwrap();
        let options = Options { fragments, ..options(compression, cluster, tail_packing) };
        build_checked(&work.path().join("image"), &files(&contents), &options);
    }
}

#[test]
fn the_search_for_equal_parts_reports_its_progress() {
    let work = tempfile::tempdir().unwrap();
    // The first is too short to be looked at, and the second has several segments.
    let files = files(&[text(4000, 1), text(40 << 20, 2), text(300_000, 3)]);
    let total_bytes: u64 = files.iter().map(|(_, contents)| contents.len() as u64).sum();
    let options = options("lz4", 65536, true);
    for (dedupe, phases) in
        [(Dedupe::Chunks, &[Phase::Scanning, Phase::Writing][..]), (Dedupe::Files, &[Phase::Writing][..])]
    {
        let mut seen: Vec<Progress> = Vec::new();
        let file = fs::File::create(work.path().join("image")).unwrap();
        build(&tree_of(&files), &Options { dedupe, ..options.clone() }, &file, &mut |progress| {
            seen.push(progress);
            ControlFlow::Continue(())
        })
        .unwrap();
        let mut in_order: Vec<_> = seen.iter().map(|progress| progress.phase).collect();
        in_order.dedup();
        assert_eq!(in_order, phases);
        for phase in phases {
            let of: Vec<_> = seen.iter().filter(|progress| progress.phase == *phase).collect();
            assert!(of.iter().all(|progress| progress.total_bytes == total_bytes), "{phase:?}");
            assert!(of.is_sorted_by_key(|progress| progress.done_bytes), "{phase:?}");
            assert!(of.len() >= 4 && of[0].done_bytes < total_bytes, "{phase:?}");
            assert_eq!(of.last().map(|progress| progress.done_bytes), Some(total_bytes), "{phase:?}");
        }
    }
    let file = fs::File::create(work.path().join("image")).unwrap();
    let interrupted = build(&tree_of(&files), &options, &file, &mut |_| ControlFlow::Break(()));
    assert!(matches!(interrupted, Err(pagefold_image_build::BuildError::Interrupted)));
}
