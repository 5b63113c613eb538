//! Directory blocks built by hand, and searches in sorted and unsorted directories.

use super::*;
use crate::Result;
use crate::format::le::{Le16, Le64};
use crate::read::tests::{TestImage, compact, message};
use proptest::prelude::*;

const AT: Address = Address { space: crate::Space::Device(0), offset: 0 };

/// A block of these names, with numbers from `nid` on, padded to `len`.
fn block_of(names: &[Vec<u8>], nid: u64, len: usize) -> Vec<u8> {
    let mut nameoff = names.len() * RawDirent::LEN;
    let mut block = Vec::new();
    for (name, nid) in names.iter().zip(nid..) {
        let raw =
            RawDirent { nid: Le64::new(nid), nameoff: Le16::new(nameoff as u16), file_type: 1, reserved: 0 };
        block.extend(raw.encode());
        nameoff += name.len();
    }
    block.extend(names.concat());
    block.resize(block.len().max(len), 0);
    block
}

fn names_of(block: &[u8]) -> Result<Vec<Vec<u8>>> {
    DirBlock::parse(block, AT)?.entries().map(|entry| Ok(entry?.name.to_vec())).collect()
}

fn names(list: &[&str]) -> Vec<Vec<u8>> {
    list.iter().map(|name| name.as_bytes().to_vec()).collect()
}

#[test]
fn a_name_ends_at_the_next_one_and_the_last_at_a_nul_or_the_end_of_the_block() {
    let list = names(&[".", "..", "a", "bc"]);
    for padding in [0, 1, 4096] {
        let block = block_of(&list, 7, padding);
        assert_eq!(names_of(&block).unwrap(), list);
        let entry = DirBlock::parse(&block, AT).unwrap().entry(3).unwrap();
        assert_eq!((entry.nid, entry.kind, entry.file_type), (Nid(10), Some(FileKind::Regular), 1));
    }
}

#[test]
fn names_have_1_to_255_bytes() {
    for (len, good) in [(1, true), (255, true), (256, false)] {
        let list = [vec![b'x'; len], b"y".to_vec()];
        assert_eq!(names_of(&block_of(&list, 0, 4096)).is_ok(), good, "{len}");
        let list = [b"a".to_vec(), vec![b'x'; len]];
        assert_eq!(names_of(&block_of(&list, 0, 4096)).is_ok(), good, "{len}, last");
    }
    assert!(names_of(&block_of(&[vec![], b"y".to_vec()], 0, 4096)).is_err());
    assert!(names_of(&block_of(&[b"y".to_vec(), vec![]], 0, 4096)).is_err());
}

#[test]
fn an_invalid_name_is_an_error_for_its_entry_only() {
    let list = names(&["a/b", "good", "n\0l", "last"]);
    let block = block_of(&list, 0, 4096);
    let parsed = DirBlock::parse(&block, AT).unwrap();
    let good: Vec<bool> = parsed.entries().map(|entry| entry.is_ok()).collect();
    assert_eq!(good, [false, true, false, true]);
}

#[test]
fn invalid_name_offsets_are_refused() {
    let good = block_of(&names(&["a", "b", "c"]), 0, 4096);
    for first in [0u16, 1, 11, 13, 35, 4096, 4092 + 12, u16::MAX] {
        let mut block = good.clone();
        block[8..10].copy_from_slice(&first.to_le_bytes());
        assert!(DirBlock::parse(&block, AT).is_err(), "{first}");
    }
    for second in [0u16, 35, 36, 39, 4097, u16::MAX] {
        let mut block = good.clone();
        block[20..22].copy_from_slice(&second.to_le_bytes());
        assert!(names_of(&block).is_err(), "{second}");
    }
    for len in 0..12 {
        assert!(message(DirBlock::parse(&good[..len], AT)).contains("too few"));
    }
}

/// A directory of these blocks, each but the last of 512 bytes.
fn directory(blocks: &[Vec<u8>]) -> (Directory, Vec<u8>) {
    let mut image = TestImage::new(9);
    let mut raw = compact();
    let data = blocks.concat();
    raw.i_mode = Le16::new(0o040_755);
    raw.i_size = crate::format::le::Le32::new(data.len() as u32);
    image.put_compact(0, &raw);
    let found = Directory::of(&image.superblock().unwrap(), &image.inode(0).unwrap()).unwrap();
    assert_eq!(found.blocks(), blocks.len() as u64);
    (found, data)
}

/// Searches by both methods, binary and linear.
fn search(directory: &Directory, data: &[u8], name: &[u8]) -> [Result<Option<Found>>; 2] {
    let mut block = Vec::new();
    let mut read = |number: u64, buf: &mut [u8]| {
        let start = number as usize * 512;
        buf.copy_from_slice(&data[start..start + buf.len()]);
        Ok(())
    };
    [directory.lookup(name, &mut block, &mut read), directory.lookup_linear(name, &mut block, &mut read)]
}

/// Cuts names into blocks of 512 bytes, each as full as possible.
fn pack(list: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut blocks: Vec<Vec<Vec<u8>>> = vec![Vec::new()];
    for name in list {
        let used: usize = blocks.last().unwrap().iter().map(|name| name.len() + 12).sum();
        if used + 12 + name.len() > 512 {
            blocks.push(Vec::new());
        }
        blocks.last_mut().unwrap().push(name.clone());
    }
    let last = blocks.len() - 1;
    let len = |i| if i == last { 0 } else { 512 };
    blocks.iter().enumerate().map(|(i, names)| block_of(names, i as u64 * 100, len(i))).collect()
}

#[test]
fn a_search_in_an_empty_directory_finds_nothing() {
    let (directory, data) = directory(&[]);
    for found in search(&directory, &data, b"a") {
        assert_eq!(found.unwrap(), None);
    }
}

#[test]
fn a_regular_file_is_refused() {
    let mut image = TestImage::new(9);
    image.put_compact(0, &compact());
    let result = Directory::of(&image.superblock().unwrap(), &image.inode(0).unwrap());
    assert!(matches!(result, Err(ImageError::NotADirectory { nid: Nid(0) })));
}

proptest! {
    #[test]
    fn binary_and_linear_search_agree_in_sorted_directories(
        list in prop::collection::btree_set("[a-e]{1,40}", 1..200),
        wanted in prop::collection::vec("[a-e]{1,40}", 20),
    ) {
        let list: Vec<Vec<u8>> = list.into_iter().map(String::into_bytes).collect();
        let (directory, data) = directory(&pack(&list));
        for name in wanted.iter().map(|name| name.as_bytes()).chain(list.iter().map(Vec::as_slice)) {
            let [fast, slow] = search(&directory, &data, name);
            let (fast, slow) = (fast.unwrap(), slow.unwrap());
            prop_assert_eq!(fast, slow);
            prop_assert_eq!(fast.is_some(), list.iter().any(|known| known == name));
        }
    }

    #[test]
    fn corrupt_names_do_not_hide_others(
        list in prop::collection::btree_set("[a-e]{1,120}", 1..60),
        broken in prop::collection::vec(any::<prop::sample::Index>(), 1..30),
    ) {
        let list: Vec<Vec<u8>> = list.into_iter().map(String::into_bytes).collect();
        // The last byte, so that the positions of the names stay the same.
        let mut stored = list.clone();
        for index in broken {
            if let Some(byte) = stored[index.index(list.len())].last_mut() {
                *byte = b'/';
            }
        }
        let (directory, data) = directory(&pack(&stored));
        for (name, stored) in list.iter().zip(&stored) {
            let [found, _] = search(&directory, &data, name);
            prop_assert_eq!(found.unwrap().is_some(), name == stored);
        }
    }

    #[test]
    fn a_search_in_an_unsorted_directory_terminates(
        list in prop::collection::vec("[a-e]{1,40}", 1..200),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        wanted in "[a-e]{1,3}",
    ) {
        let list: Vec<Vec<u8>> = list.into_iter().map(String::into_bytes).collect();
        let (directory, mut data) = directory(&pack(&list));
        for (index, byte) in flips {
            let at = index.index(data.len());
            data[at] = byte;
        }
        let [fast, slow] = search(&directory, &data, wanted.as_bytes());
        if let (Ok(Some(_)), Ok(slow)) = (fast, slow) {
            prop_assert!(slow.is_some());
        }
    }

    #[test]
    fn any_bytes_are_entries_or_errors(block in prop::collection::vec(any::<u8>(), 0..700), count in 1u16..60) {
        let mut block = block;
        if block.len() > 9 {
            block[8..10].copy_from_slice(&(count * 12).to_le_bytes());
        }
        if let Ok(parsed) = DirBlock::parse(&block, AT) {
            prop_assert_eq!(parsed.entries().len(), parsed.count());
            for entry in parsed.entries().flatten() {
                prop_assert!((1..=255).contains(&entry.name.len()));
                prop_assert!(!entry.name.contains(&0) && !entry.name.contains(&b'/'));
            }
            _ = parsed.find(b"name");
        }
    }
}
