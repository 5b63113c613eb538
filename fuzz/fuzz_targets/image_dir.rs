//! Invariant: any bytes parse as a directory's blocks, or are errors. If a whole directory is readable and sorted,
//! binary and linear search find the same; otherwise, a name that is found exists.
//!
//! The first byte chooses the block size; the rest are the contents.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pagefold_fuzz::image::PLAIN;
use pagefold_image::read::FileKind;
use pagefold_image::read::dir::{DirBlock, Directory};
use pagefold_image::{Address, ImageError};

fuzz_target!(|input: &[u8]| {
    let Some((choice, contents)) = input.split_first() else { return };
    let (mut sb, mut inode) = PLAIN.clone();
    sb.block_bits = 9 + (choice & 3);
    inode.size = contents.len() as u64;
    inode.dot_omitted = choice & 4 != 0;
    assert_eq!(inode.kind, FileKind::Directory);
    let directory = Directory::of(&sb, &inode).expect("a directory");
    let block_bytes = 1 << sb.block_bits;
    let (mut names, mut whole) = (Vec::new(), true);
    for bytes in contents.chunks(block_bytes) {
        let Ok(block) = DirBlock::parse(bytes, Address::image(0)) else {
            whole = false;
            continue;
        };
        assert!(block.count() > 0 && block.count() * 12 < bytes.len());
        assert!(block.entry(block.count()).is_err() && block.entry(usize::MAX).is_err());
        for entry in block.entries() {
            let Ok(entry) = entry else {
                whole = false;
                continue;
            };
            assert!(
                (1..=255).contains(&entry.name.len())
                    && !entry.name.contains(&0)
                    && !entry.name.contains(&b'/')
            );
            names.push(entry.name.to_vec());
        }
    }
    let in_order = whole && names.is_sorted_by(|a, b| a < b);
    let mut buf = Vec::new();
    let mut read = |number: u64, block: &mut [u8]| -> Result<(), ImageError> {
        let start = number as usize * block_bytes;
        block.copy_from_slice(&contents[start..start + block.len()]);
        Ok(())
    };
    let wanted: [&[u8]; 4] = [b"none", b".", b"\xff", b"\x01"];
    for name in names.iter().take(16).map(Vec::as_slice).chain(wanted) {
        let found = directory.lookup(name, &mut buf, &mut read);
        if in_order {
            let slow = directory.lookup_linear(name, &mut buf, &mut read).expect("the directory is readable");
            // If `.` is omitted, it is the directory itself, even if there is an entry with this name.
            assert!(found.expect("the directory is readable") == slow || name == b".");
        } else if let Ok(Some(_)) = found {
            assert!(names.iter().any(|known| known == name) || name == b".");
        }
    }
});
