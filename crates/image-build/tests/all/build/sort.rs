//! The order of contents: by similarity, by path, or as a list says.

use super::{Files, build_at, build_checked, directory, options, text, tree_of};
use pagefold_image::read::Mapping;
use pagefold_image::tar::TarOptions;
use pagefold_image::{Image, Options as ReadOptions};
use pagefold_image_build::source::directory::{DirectoryOptions, scan as scan_directory};
use pagefold_image_build::source::image::scan as scan_image;
use pagefold_image_build::source::tar;
use pagefold_image_build::{InodeId, Listed, Options, Sort, SortList};
use std::fs::{self, File};
use std::path::Path;

fn list(text: &str) -> Sort {
    Sort::List(SortList::parse(text.as_bytes()).unwrap())
}

/// The names of files in the order of their first bytes: positions in the packed file if `small`, else in the image.
fn stored_order<'n>(path: &Path, names: &[&'n str], small: bool) -> Vec<&'n str> {
    let image = Image::open_file(path, ReadOptions::default()).unwrap();
    let place = |name: &str| match image.find(name.as_bytes()).unwrap().extent_at(0).unwrap().unwrap().mapping
    {
        Mapping::Fragment { offset } if small => offset,
        Mapping::Compressed(cluster) if !small => cluster.at.offset,
        Mapping::Plain(at) if !small => at.offset,
        other => panic!("{name}: {other:?}"),
    };
    let mut names = names.to_vec();
    names.sort_by_key(|name| place(name));
    names
}

const NAMES: [&str; 6] = ["a/1.c", "a/2.h", "a/3", "b/4.c", "b/5.h", "6.c"];

fn files(len: usize) -> Files {
    NAMES.iter().zip(1..).map(|(name, seed)| (name.to_string(), text(len, seed))).collect()
}

/// The stored order with each compression of large files, and that of small files.
fn orders(sort: &Sort) -> [Vec<&'static str>; 3] {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("image");
    let order = |compression, len, small| {
        let options = Options { fragments: small, sort: sort.clone(), ..options(compression, 65536, false) };
        build_checked(&path, &files(len), &options);
        stored_order(&path, &NAMES, small)
    };
    [order("none", 100_000, false), order("zstd:1", 100_000, false), order("zstd:1", 5000, true)]
}

#[test]
fn contents_are_stored_in_the_order_that_is_chosen() {
    let by_path = ["6.c", "a/1.c", "a/2.h", "a/3", "b/4.c", "b/5.h"];
    let by_kind = ["a/3", "6.c", "a/1.c", "b/4.c", "a/2.h", "b/5.h"];
    assert_eq!(orders(&Sort::Similarity), [by_path, by_path, by_kind]);
    assert_eq!(orders(&Sort::Path), [by_path; 3]);
    let sort = list("# read first\n/b/5.h\nnone\na/3\n");
    let of_others = ["b/5.h", "a/3", "6.c", "a/1.c", "a/2.h", "b/4.c"];
    assert_eq!(orders(&sort), [of_others, of_others, ["b/5.h", "a/3", "6.c", "a/1.c", "b/4.c", "a/2.h"]]);
}

#[test]
fn every_name_of_a_file_is_a_name_for_the_list_and_the_summary_counts_paths() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("image");
    let mut tree = tree_of(&files(100_000));
    let last = tree.find(b"b/5.h").unwrap();
    tree.link(InodeId::ROOT, b"z", last).unwrap();
    let sort = list("z\nb/5.h\na/2.h\nnone\n../a/3\n");
    let options = Options { sort, fragments: false, ..options("zstd:1", 65536, true) };
    let summary = build_at(&path, &tree, &options);
    assert_eq!(summary.listed, Listed { found: 3, missing: 2 });
    assert_eq!(stored_order(&path, &NAMES, false)[..2], ["b/5.h", "a/2.h"]);
    let summary = build_at(&path, &tree, &Options { sort: Sort::Path, ..options });
    assert_eq!(summary.listed, Listed::default());
}

/// A file that is listed before an equal one has the blocks, and the other shares them.
#[test]
fn a_listed_file_shares_its_contents_with_the_files_behind_it() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("image");
    for len in [100_000, 3 << 20] {
        let mut files = files(len);
        let copy = files[4].1.clone();
        files[0].1 = copy;
        let options = Options { sort: list("b/5.h\n"), ..options("zstd:1", 65536, true) };
        let summary = build_checked(&path, &files, &options);
        assert_eq!(summary.duplicates.files, 1);
        assert_eq!(stored_order(&path, &["6.c", "b/5.h"], false), ["b/5.h", "6.c"]);
        let unsorted = build_checked(&path, &files, &Options { sort: Sort::Similarity, ..options });
        assert_eq!(unsorted.duplicates, summary.duplicates);
    }
}

/// One list gives one image, whatever the source of the files and the number of threads.
#[test]
fn directory_archive_and_image_give_the_same_image_with_one_list() {
    let work = tempfile::tempdir().unwrap();
    let at = |name: &str| work.path().join(name);
    let (root, first, again) = (at("tree"), at("first"), at("again"));
    directory::make_source(&root);
    fs::remove_file(root.join("socket")).unwrap();
    for (name, line) in [("1.h", "a header\n"), ("2.c", "a source\n"), ("3.h", "another header\n")] {
        fs::write(root.join(name), line.repeat(500)).unwrap();
    }
    let tree = scan_directory(&root, &DirectoryOptions::default()).unwrap().tree;
    for sort in [list("text\n2.c\nprogram\ndeep/er\nlen-4097\nnone\nlink-a\n"), Sort::Path] {
        let options = Options { sort, fragments: true, threads: 1, ..options("zstd:1", 65536, true) };
        build_at(&first, &tree, &options);
        let wanted = fs::read(&first).unwrap();
        let options = Options { threads: 3, ..options };
        let image = Image::open_file(&first, ReadOptions::default()).unwrap();
        build_at(&again, &scan_image(&image, &[]).unwrap().tree, &options);
        assert!(fs::read(&again).unwrap() == wanted, "from the image: {:?}", options.sort);
        let archive = at("a.tar");
        pagefold_image::tar::write(&image, &[], &TarOptions::default(), File::create(&archive).unwrap())
            .unwrap();
        let from_tar =
            tar::scan(File::open(&archive).unwrap(), &archive, &tar::TarOptions::default()).unwrap();
        build_at(&again, &from_tar.tree, &options);
        assert!(fs::read(&again).unwrap() == wanted, "from the archive: {:?}", options.sort);
        // An image with another order gives this one too.
        build_at(&again, &tree, &Options { sort: Sort::Similarity, ..options.clone() });
        assert!(fs::read(&again).unwrap() != wanted, "{:?}", options.sort);
        let image = Image::open_file(&again, ReadOptions::default()).unwrap();
        let tree = scan_image(&image, &[]).unwrap().tree;
        build_at(&first, &tree, &options);
        assert!(fs::read(&first).unwrap() == wanted, "from the other image: {:?}", options.sort);
    }
}
