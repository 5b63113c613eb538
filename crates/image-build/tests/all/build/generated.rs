//! Images of generated trees, and what the bytes of an image depend on.

use super::foreign::assert_others_agree;
use super::{build_at, open_checked, options};
use crate::support::walk::contents;
use pagefold_image::read::inode::Timestamp;
use pagefold_image_build::content::{Content, Reader};
use pagefold_image_build::tree::{Body, split};
use pagefold_image_build::{
    BuildError, Dedupe, InodeId, Metadata, Options, Spill, Target, Tree, build, verify,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

/// Contents of some kind and length, made from a seed.
fn data(kind: u8, len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut noise = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    match kind % 4 {
        0 => vec![seed as u8; len],
        1 => (0..len).map(|_| noise() as u8).collect(),
        2 => (0..len).map(|_| b"abcdefgh"[(noise() % 8) as usize]).collect(),
        _ => {
            let words: Vec<_> = (0..50).map(|_| noise().to_string()).collect();
            let text: String = (0..len / 5 + 1).map(|_| words[(noise() % 50) as usize].as_str()).collect();
            text.into_bytes()[..len].to_vec()
        }
    }
}

/// A path; kind, length and seed of contents; metadata.
type Drawn = (String, (u8, usize, u64), Metadata);

/// A path of one to three short names, and a file.
fn file() -> impl Strategy<Value = Drawn> {
    let lengths = prop_oneof![0usize..10, 4000usize..4200, 0usize..50_000, 60_000usize..300_000];
    let times = prop_oneof![Just(0i64), Just(1_700_000_000), any::<i32>().prop_map(i64::from)];
    let nanoseconds = prop_oneof![Just(0u32), 0u32..1_000_000_000];
    let ids = prop_oneof![Just(0u32), Just(1000), any::<u32>()];
    let xattrs = proptest::collection::btree_map("user\\.[a-c]{1,3}", "[x-z]{0,40}", 0..4);
    let metadata = (0u16..0o10000, ids.clone(), ids, times, nanoseconds, xattrs).prop_map(
        |(permissions, uid, gid, seconds, nanoseconds, xattrs)| Metadata {
            permissions,
            uid,
            gid,
            mtime: Timestamp { seconds, nanoseconds },
            xattrs: xattrs.into_iter().map(|(n, v)| (n.into_bytes().into(), v.into_bytes().into())).collect(),
        },
    );
    ("[a-d]{1,2}(/[a-d.-]{3,30}){0,2}", (any::<u8>(), lengths, any::<u64>()), metadata)
}

/// A tree of the files whose paths do not contradict those before, and these files.
type Files = BTreeMap<String, (Vec<u8>, Metadata)>;

fn tree_of(drawn: Vec<Drawn>) -> (Tree, Files) {
    let mut tree = Tree::new(Metadata::default());
    let mut files = BTreeMap::new();
    for (path, (kind, len, seed), metadata) in drawn {
        let (parent, name) = split(path.as_bytes()).unwrap();
        let Ok(parent) = tree.make_directories(parent, &Metadata::default()) else { continue };
        if tree.child(parent, name).is_some() {
            continue;
        }
        let contents = data(kind, len, seed);
        let id = tree.add_bytes(path.as_bytes(), contents.clone()).unwrap();
        tree.change(id, |own| *own = metadata.clone()).unwrap();
        files.insert(path, (contents, metadata));
    }
    (tree, files)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn generated_trees_come_back(
        drawn in proptest::collection::vec(file(), 0..30),
        compression in prop_oneof![
            Just("none"), Just("lz4"), Just("lz4hc:3"), Just("zstd:1"), Just("deflate:3"), Just("lzma:0")
        ],
        blocks in prop_oneof![Just(1u32), 2u32..20, Just(256)],
        tail_packing: bool,
        fragments: bool,
        compress_metadata: bool,
        compress_directories: bool,
        lz4_window_bytes in prop_oneof![Just(65535u32), Just(16383), 4095u32..65535],
    ) {
        let (tree, files) = tree_of(drawn);
        let work = tempfile::tempdir().unwrap();
        let path = work.path().join("image");
        let target = Target::new(6, if compress_metadata { 17 } else { 12 });
        let options = Options {
            target,
            lz4_window_bytes,
            fragments,
            compress_metadata,
            compress_directories,
            metadata_inodes_min: 0,
            ..options(compression, blocks * 4096, tail_packing)
        };
        build_at(&path, &tree, &options);
        let image = open_checked(&path, compression);
        assert_others_agree(compression, &path, &image, fragments);
        for (path, (wanted, metadata)) in &files {
            let node = image.find(path.as_bytes()).unwrap();
            prop_assert!(contents(&node, 70_000).unwrap() == *wanted, "{}", path);
            let inode = node.inode();
            prop_assert_eq!((inode.mode & 0o7777, inode.uid, inode.gid), (metadata.permissions, metadata.uid, metadata.gid));
            prop_assert_eq!(inode.mtime, metadata.mtime);
            let xattrs: Vec<_> = node.xattrs().unwrap().into_iter().collect();
            prop_assert_eq!(xattrs.len(), metadata.xattrs.len());
            for ((name, value), found) in metadata.xattrs.iter().zip(&xattrs) {
                prop_assert_eq!((name.as_ref(), value.as_ref()), (found.name.as_slice(), found.value.as_slice()));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]
    /// Sources deliver names in the order of their directories, and inodes in that of their names.
    #[test]
    fn generated_trees_have_the_same_bytes_in_any_order(
        drawn in proptest::collection::vec(file(), 0..30),
        links in proptest::collection::vec((any::<prop::sample::Index>(), "l[a-z]{1,3}"), 0..5),
        compression in prop_oneof![Just("none"), Just("lz4"), Just("zstd:1"), Just("lzma:0")],
        dedupe in prop_oneof![Just(Dedupe::Nothing), Just(Dedupe::Files), Just(Dedupe::Chunks)],
        fragments: bool,
    ) {
        let (_, files) = tree_of(drawn);
        let work = tempfile::tempdir().unwrap();
        let image = |reversed: bool, threads, memory_bytes: Option<u64>| {
            let spill = match memory_bytes {
                Some(_) => Spill::in_directory(work.path(), 0).unwrap(),
                None => Spill::none(),
            };
            let mut tree = Tree::with_spill(Metadata::default(), &spill).unwrap();
            let mut order: Vec<_> = files.iter().collect();
            if reversed {
                order.reverse();
            }
            for (path, (contents, metadata)) in order {
                let id = tree.add_bytes(path.as_bytes(), contents.clone()).unwrap();
                tree.change(id, |own| *own = metadata.clone()).unwrap();
            }
            for (of, name) in links.iter().filter(|_| !files.is_empty()) {
                let (path, _) = files.iter().nth(of.index(files.len())).unwrap();
                let id = tree.find(path.as_bytes()).unwrap();
                tree.link(InodeId::ROOT, name.as_bytes(), id).unwrap();
            }
            let path = work.path().join("image");
            let options = Options { threads, memory_bytes, dedupe, fragments, ..options(compression, 65536, true) };
            build_at(&path, &tree, &options);
            fs::read(path).unwrap()
        };
        let wanted = image(false, 1, None);
        prop_assert!(image(true, 1, None) == wanted, "another order");
        prop_assert!(image(true, 3, None) == wanted, "more threads");
        prop_assert!(image(true, 2, Some(256 << 20)) == wanted, "little memory");
    }
}

#[test]
fn the_bytes_do_not_depend_on_threads_or_order() {
    let work = tempfile::tempdir().unwrap();
    let names = ["a/1", "b", "a/2", "c/d/e", "z"];
    let contents: Vec<_> = (0..5u8).map(|i| data(i, 200_000 * usize::from(i) + 9_000_000 / 5, 7)).collect();
    let image = |threads, reversed: bool| {
        let mut order: Vec<_> = names.iter().zip(&contents).collect();
        if reversed {
            order.reverse();
        }
        let mut tree = Tree::new(Metadata::default());
        for (name, contents) in order {
            tree.add_bytes(name.as_bytes(), contents.clone()).unwrap();
        }
        let path = work.path().join(format!("{threads}"));
        build_at(&path, &tree, &Options { threads, ..options("zstd:3", 65536, true) });
        fs::read(path).unwrap()
    };
    let first = image(1, false);
    assert!(first == image(4, true) && first == image(2, false));
}

#[test]
fn an_interrupted_build_ends() {
    let mut tree = Tree::new(Metadata::default());
    for i in 0..20 {
        tree.add_bytes(format!("{i}").as_bytes(), data(2, 100_000, i)).unwrap();
    }
    let file = tempfile::tempfile().unwrap();
    let mut calls = 0;
    let built = build(&tree, &options("lz4", 4096, false), &file, &mut |_| {
        calls += 1;
        if calls == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(built, Err(BuildError::Interrupted)));
    assert_eq!(calls, 3);
}

#[test]
fn attributes_that_the_format_does_not_have_are_refused() {
    let mut tree = Tree::new(Metadata::default());
    let xattrs = vec![(b"system.nfs4_acl".as_slice().into(), b"x".as_slice().into())];
    tree.add(InodeId::ROOT, b"pipe", Metadata { xattrs, ..Metadata::default() }, Body::Fifo).unwrap();
    let file = tempfile::tempfile().unwrap();
    let built = build(&tree, &options("none", 4096, false), &file, &mut |_| ControlFlow::Continue(()));
    assert!(matches!(built, Err(BuildError::Refused { path, .. }) if path.ends_with("pipe")));
}

/// Contents that are mostly zeroes, with the ranges that a file system reports as data.
#[derive(Debug)]
struct WithHoles(Vec<u8>, Vec<Range<u64>>);

impl Content for WithHoles {
    fn len_bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn open(&self) -> Result<Box<dyn Reader + '_>, BuildError> {
        Ok(Box::new(self))
    }
}

impl Reader for &WithHoles {
    fn data_ranges(&self) -> Result<Option<Vec<Range<u64>>>, BuildError> {
        Ok(Some(self.1.clone()))
    }

    fn read_exact_at(&self, buf: &mut [u8], at: u64) -> Result<(), BuildError> {
        buf.copy_from_slice(&self.0[at as usize..][..buf.len()]);
        Ok(())
    }
}

#[test]
fn the_bytes_do_not_depend_on_the_shortest_hole_of_a_file_system() {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("image");
    let len = 4_000_001;
    let mut bytes = vec![0; len];
    for at in [0, 5000, 70_000, len - 1] {
        bytes[at] = 1;
    }
    let image = |granularity: usize| {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (number, piece) in bytes.chunks(granularity).enumerate().filter(|(_, piece)| piece.contains(&1)) {
            let start = (number * granularity) as u64;
            let end = start + piece.len() as u64;
            match ranges.last_mut().filter(|last| last.end == start) {
                Some(last) => last.end = end,
                None => ranges.push(start..end),
            }
        }
        let mut tree = Tree::new(Metadata::default());
        let body = Body::Regular(Arc::new(WithHoles(bytes.clone(), ranges)));
        tree.add(InodeId::ROOT, b"holes", Metadata::default(), body).unwrap();
        let options = Options { digests: true, ..options("lz4", 65536, true) };
        let summary = build_at(&path, &tree, &options);
        let image = open_checked(&path, "holes");
        assert!(contents(&image.find(b"holes").unwrap(), 70_000).unwrap() == bytes);
        verify(&image, &tree, &summary.digests, &mut |_| ControlFlow::Continue(())).unwrap();
        fs::read(&path).unwrap()
    };
    let wanted = image(4096);
    assert!(image(16_384) == wanted && image(65_536) == wanted && image(262_144) == wanted);
}
