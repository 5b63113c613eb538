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
