use super::*;
use crate::rules::Pattern;

#[test]
fn entries_are_sorted_and_the_last_of_a_name_stays() {
    let mut tree = Tree::new(Metadata::default());
    tree.add_bytes(b"/b/two", *b"2").unwrap();
    let first = tree.add_bytes(b"a", *b"1").unwrap();
    let second = tree.add_bytes(b"a", *b"again").unwrap();
    assert_ne!(first, second);
    assert_eq!(tree.entries(InodeId::ROOT).map(|(name, _)| name.to_vec()).collect::<Vec<_>>(), [b"a", b"b"]);
    assert_eq!(tree.find(b"a"), Some(second));
    assert_eq!(tree.find(b"./b//two/"), tree.find(b"b/two"));
}

#[test]
fn what_matches_a_pattern_is_removed_with_all_below_it() {
    let mut tree = Tree::new(Metadata::default());
    for path in ["a/b.o", "a/b.c", "sub/a/x", "sub/x.o/deep", "keep"] {
        tree.add_bytes(path.as_bytes(), *b"").unwrap();
    }
    tree.exclude(&[]).unwrap();
    assert!(tree.find(b"a/b.o").is_some());
    tree.exclude(&["*.o", "sub/a"].map(|text| Pattern::parse(text).unwrap())).unwrap();
    let is_there = |path: &str| tree.find(path.as_bytes()).is_some();
    assert!(is_there("a/b.c") && is_there("sub") && is_there("keep"));
    assert!(!is_there("a/b.o") && !is_there("sub/a") && !is_there("sub/x.o"));
}

#[test]
fn names_that_no_directory_can_have_are_refused() {
    let mut tree = Tree::new(Metadata::default());
    for name in [b"".as_slice(), b".", b"..", b"a/b", b"a\0", &[b'x'; 256]] {
        assert!(tree.add(InodeId::ROOT, name, Metadata::default(), Body::Fifo).is_err(), "{name:?}");
    }
    assert!(tree.add(InodeId::ROOT, &[b'x'; 255], Metadata::default(), Body::Fifo).is_ok());
    assert!(tree.make_directories(b"a/../b", &Metadata::default()).is_err());
    let file = tree.add_bytes(b"file", *b"").unwrap();
    assert!(tree.make_directories(b"file/x", &Metadata::default()).is_err());
    assert!(tree.link(file, b"x", file).is_err() && tree.link(InodeId::ROOT, b"x", InodeId::ROOT).is_err());
}

#[test]
fn names_of_one_inode_become_inodes_with_equal_properties() {
    let mut tree = Tree::new(Metadata::default());
    let file = tree.add_bytes(b"b/one", *b"contents").unwrap();
    let xattrs = vec![(Box::from(*b"user.a"), Box::from(*b"1"))];
    tree.change(file, |metadata| metadata.xattrs = xattrs.clone()).unwrap();
    tree.link(InodeId::ROOT, b"two", file).unwrap();
    tree.link(InodeId::ROOT, b"a", file).unwrap();
    tree.separate_links().unwrap();
    let ids = ["b/one", "two", "a"].map(|path| tree.find(path.as_bytes()).unwrap());
    assert!(ids[0] != ids[1] && ids[0] != ids[2] && ids[1] != ids[2]);
    for id in ids {
        assert_eq!((tree.content_bytes(id), tree.metadata(id)), (8, tree.metadata(file)));
    }
    let before = tree.len();
    tree.separate_links().unwrap();
    assert_eq!(tree.len(), before);
}

#[test]
fn names_of_a_long_file_do_not_become_contents_without_end() {
    let mut tree = Tree::new(Metadata::default());
    let long = Body::Stored(Stored { len_bytes: 1 << 44, words: [0; 5] });
    let file = tree.add(InodeId::ROOT, b"long", Metadata::default(), long).unwrap();
    for n in 0..9 {
        assert!(tree.separate_links().is_ok(), "{n}");
        tree.link(InodeId::ROOT, format!("{n}").as_bytes(), file).unwrap();
    }
    assert!(tree.separate_links().unwrap_err().to_string().contains("2^47 bytes"));
}

#[test]
fn files_without_a_name_are_not_changed() {
    let mut tree = Tree::new(Metadata::default());
    let replaced = tree.add_bytes(b"a", *b"1").unwrap();
    let linked = tree.add_bytes(b"a", *b"2").unwrap();
    tree.link(InodeId::ROOT, b"b", linked).unwrap();
    tree.change_metadata(|metadata| metadata.uid += 1).unwrap();
    let uid = |id| tree.metadata(id).uid;
    assert_eq!([InodeId::ROOT, linked, replaced].map(uid), [1, 1, 0]);
}
