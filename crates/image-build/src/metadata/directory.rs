//! Blocks of directory entries.
//!
//! Entries are in the order of their names' bytes, `.` and `..` among them, over the whole directory. An entry begins a
//! new block if it does not fit into the one before.

use pagefold_image::format::dirent::RawDirent;
use pagefold_image::read::FileKind;
use std::iter::Peekable;

/// An entry.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// The name.
    pub name: &'a [u8],
    /// Number of the inode.
    pub nid: u64,
    /// Type of file.
    pub kind: FileKind,
}

/// Adds `.` and `..` to the entries of a directory, which are sorted, at their places.
pub fn with_dots<'a, T: Copy>(
    entries: impl Iterator<Item = (&'a [u8], T)>,
    own: T,
    parent: T,
) -> impl Iterator<Item = (&'a [u8], T)> {
    let (mut entries, mut dots) =
        (entries.peekable(), [(b".".as_slice(), own), (b"..", parent)].into_iter().peekable());
    std::iter::from_fn(move || match (entries.peek(), dots.peek()) {
        (Some((name, _)), Some((dot, _))) if name < dot => entries.next(),
        (_, Some(_)) => dots.next(),
        (_, None) => entries.next(),
    })
}

/// Returns the length of a directory with entries of these names in blocks of `block_bytes`, in bytes. The last block counts as
/// far as it is used.
pub fn len_bytes<'a>(names: impl Iterator<Item = &'a [u8]>, block_bytes: u32) -> u64 {
    let block_bytes = block_bytes as usize;
    let (mut full, mut used) = (0, 0);
    for name in names {
        let len = RawDirent::LEN + name.len();
        if used + len > block_bytes {
            full += block_bytes as u64;
            used = 0;
        }
        used += len;
    }
    full + used as u64
}

/// Encodes a directory block by block: there may be millions of entries.
pub struct Blocks<'a, I: Iterator<Item = Entry<'a>>> {
    entries: Peekable<I>,
    block_bytes: usize,
    /// Those of the block that is being made.
    block: Vec<Entry<'a>>,
}

impl<'a, I: Iterator<Item = Entry<'a>>> Blocks<'a, I> {
    /// Begins with the first entry.
    pub fn new(entries: I, block_bytes: u32) -> Self {
        Blocks { entries: entries.peekable(), block_bytes: block_bytes as usize, block: Vec::new() }
    }

    /// The next block, without padding; `None` at the end.
    pub fn next_block(&mut self) -> Option<Vec<u8>> {
        let (mut used, block_bytes) = (0, self.block_bytes);
        let mut fits = |entry: &Entry<'_>| {
            used += RawDirent::LEN + entry.name.len();
            used <= block_bytes
        };
        self.block.clear();
        while let Some(entry) = self.entries.next_if(&mut fits) {
            self.block.push(entry);
        }
        (!self.block.is_empty()).then(|| encode_block(&self.block))
    }
}

fn encode_block(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut nameoff = entries.len() * RawDirent::LEN;
    for entry in entries {
        let raw = RawDirent {
            nid: entry.nid.into(),
            nameoff: (nameoff as u16).into(),
            file_type: entry.kind.to_dirent(),
            reserved: 0,
        };
        out.extend(raw.encode());
        nameoff += entry.name.len();
    }
    entries.iter().for_each(|entry| out.extend(entry.name));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_dots_stand_where_their_bytes_sort_them() {
        let names = [b"!".as_slice(), b"-", b".a", b"0"];
        let all = with_dots(names.iter().map(|name| (*name, 1)), 2, 3);
        let sorted = [b"!".as_slice(), b"-", b".", b"..", b".a", b"0"];
        assert_eq!(all.map(|(name, _)| name).collect::<Vec<_>>(), sorted);
        let empty = with_dots(std::iter::empty(), 2, 3);
        assert_eq!(empty.collect::<Vec<_>>(), [(b".".as_slice(), 2), (b"..", 3)]);
    }

    proptest! {
        #[test]
        fn the_length_is_that_of_the_encoded_directory(
            names in proptest::collection::btree_set(proptest::collection::vec(1u8.., 1..256), 1..200),
            block_bytes in proptest::sample::select(vec![512, 4096]),
        ) {
            let entries: Vec<_> =
                names.iter().map(|name| Entry { name, nid: 1, kind: FileKind::Regular }).collect();
            let mut blocks = Blocks::new(entries.into_iter(), block_bytes);
            let (mut count, mut last) = (0, 0);
            while let Some(block) = blocks.next_block() {
                (count, last) = (count + 1, block.len());
                prop_assert!(last <= block_bytes as usize);
            }
            let wanted = len_bytes(names.iter().map(Vec::as_slice), block_bytes);
            prop_assert_eq!(((count - 1) * block_bytes as usize + last) as u64, wanted);
        }
    }
}
